"""What a tool's result alone shows: did the call fail, did the tests pass. Precise before complete.

What programs print is a table, `tool_results.toml`; here is how it is read. Nothing of a result ever becomes a hint.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from openclaw_rl.types import Message, ToolCall

_MOST = 200_000  # characters of a result that are looked at: its head and its tail
_LINE = 400  # characters of a line; no tool says in more what went wrong
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER_WORD = re.compile(r"(?<!\d)(\d++) (\w++)")
_WORD_NUMBER = re.compile(r"(?<!\w)(\w++): (\d++)")
_PARTS = re.compile(r"&&|\|\||[;\n]")
_REDIRECTED = re.compile(r"(?<![2&0-9>])>{1,2}(?![&>])")
_ASSIGNED = re.compile(r"(?<!\w)\w++=\S*+")

Place = Literal["first", "last", "ends", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureShape:
    """A line that says that something failed. ``shown``: also where the call only shows matter."""

    why: str
    at: Place
    line: re.Pattern[str]
    needs: re.Pattern[str] | None
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportShape:
    """How a test runner reports: a line of counts, or lines that say it."""

    line: re.Pattern[str] | None
    failed: frozenset[str]
    passed: frozenset[str]
    needs: re.Pattern[str] | None
    failed_if: re.Pattern[str] | None
    passed_if: re.Pattern[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowingCalls:
    """Calls whose result is matter that they show: by program, or by the tool's own name."""

    programs: frozenset[str]
    neutral: frozenset[str]
    before: frozenset[str]
    tools: frozenset[str]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """What the results of tools look like."""

    failures: tuple[FailureShape, ...]
    exits: tuple[re.Pattern[str], ...]
    reports: tuple[ReportShape, ...]
    shows: ShowingCalls


def _pattern(row: Mapping[str, Any], name: str) -> re.Pattern[str] | None:
    return re.compile(row[name]) if name in row else None


def _load() -> ResultTable:
    table = tomllib.loads(resources.files("openclaw_rl.judge").joinpath("tool_results.toml").read_text("utf-8"))
    shows = table["shows"]
    sets = {name: frozenset(shows[name]) for name in ("programs", "neutral", "before", "tools")}
    return ResultTable(
        failures=tuple(
            FailureShape(
                why=row["why"],
                at=row["at"],
                line=re.compile(row["line"]),
                needs=_pattern(row, "needs"),
                shown=row.get("shown", False),
            )
            for row in table["failure"]
        ),
        exits=tuple(re.compile(row["line"]) for row in table["exit"]),
        reports=tuple(
            ReportShape(
                line=_pattern(row, "line"),
                failed=frozenset(row.get("failed", ())),
                passed=frozenset(row.get("passed", ())),
                needs=_pattern(row, "needs"),
                failed_if=_pattern(row, "failed_if"),
                passed_if=_pattern(row, "passed_if"),
            )
            for row in table["report"]
        ),
        shows=ShowingCalls(**sets, commands=tuple(shows["commands"])),
    )


TABLE = _load()


def failure(text: str, call: ToolCall | None = None) -> str | None:
    """Why this tool result is an error, or None when it does not say so plainly. ``call`` is what it answers."""
    lines = _lines(text)
    if not lines:
        return None
    if (result := _json_failure("\n".join(lines))) is not None:
        return result or None
    shows = call is not None and is_showing(call)
    if (code := _exit_code(lines)) is not None:
        searched = shows and code.strip("-0") == "1"  # grep found nothing, diff found something
        return None if searched else ended(code)
    for shape in TABLE.failures:
        if (shape.shown or not shows) and _found(shape, lines):
            return shape.why
    return None


def _found(shape: FailureShape, lines: Sequence[str]) -> bool:
    places = {"first": lines[:1], "last": lines[-1:], "ends": (lines[0], lines[-1]), "any": lines}
    if not any(map(shape.line.match, places[shape.at])):
        return False
    return shape.needs is None or any(map(shape.needs.match, lines))


def _exit_code(lines: Sequence[str]) -> str | None:
    """The exit code that a result names, None where it names none."""
    for line in (lines[0], lines[-1]):
        for shape in TABLE.exits:
            if found := shape.match(line):
                return found[1]
    return None


def ended(code: str) -> str | None:
    """What an exit code in digits says: None for zero. It may have more digits than a number can be made of."""
    shown = code if len(code) <= 12 else f"{code[:12]}…"
    return f"the command ended with exit code {shown}" if _some(code) else None


def _some(digits: str) -> bool:
    """Whether a number is not zero, however many digits it has."""
    return any(sign.isdecimal() and int(sign) for sign in digits)


def _lines(text: str) -> list[str]:
    """The lines that are not empty, without colours; of a monstrous text those at its ends."""
    ends = text if len(text) <= _MOST else f"{text[: _MOST // 2]}\n{text[-_MOST // 2 :]}"
    plain = _COLOUR.sub("", ends) if "\x1b" in ends else ends
    return [line[:_LINE].rstrip() for line in plain.strip("\n").splitlines() if line.strip()]


def _json_failure(text: str) -> str | None:
    """A reason, "" for an object that reports no error, None when the text is no JSON object."""
    if not text.startswith("{"):
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or more of it than anybody means
        return None
    if not isinstance(value, dict):
        return None
    if value.get("error") or value.get("isError") is True or value.get("is_error") is True:
        return "the tool answered with an error"
    if value.get("success") is False or value.get("ok") is False or value.get("status") in ("error", "failed"):
        return "the tool answered that it failed"
    for key in ("exit_code", "exitCode", "returncode"):
        code = value.get(key)
        if isinstance(code, int) and not isinstance(code, bool) and code != 0:
            return ended(str(code))
    return ""


def reported(text: str, call: ToolCall | None = None) -> int | None:
    """+1 when a test report says that all passed, -1 when it names a failure, None when there is no report."""
    if call is not None and is_showing(call):
        return None
    lines = _lines(text)
    for shape in TABLE.reports:
        result = _read_report(shape, lines)
        if result is not None:
            return result
    return None


def _read_report(shape: ReportShape, lines: Sequence[str]) -> int | None:
    if shape.needs is not None and not any(map(shape.needs.match, lines)):
        return None
    if shape.failed_if is not None and any(map(shape.failed_if.match, lines)):
        return -1
    if shape.passed_if is not None and any(map(shape.passed_if.match, lines)):
        return 1
    if shape.line is None:
        return None
    counts = [count for line in lines if (found := shape.line.match(line)) for count in _counts(found[0])]
    if any(word in shape.failed and _some(number) for word, number in counts):
        return -1
    return 1 if any(word in shape.passed and _some(number) for word, number in counts) else None


def _counts(text: str) -> Iterator[tuple[str, str]]:
    """Each word of a line of counts with its number."""
    for number, word in _NUMBER_WORD.findall(text):
        yield word, number
    yield from _WORD_NUMBER.findall(text)


def is_showing(call: ToolCall) -> bool:
    """Whether a call only shows what is in files, logs or pages, so that its result speaks of anything."""
    shows = TABLE.shows
    if call.name.lower() in shows.tools:
        return True
    command = _command(call)
    programs = [_program(part) for part in _PARTS.split(command) if not _REDIRECTED.search(part)]
    speaking = [name for name in programs if name and name not in shows.neutral]
    return bool(speaking) and all(name in shows.programs for name in speaking)


def _command(call: ToolCall) -> str:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(arguments, dict):
        return ""
    found = next((arguments[name] for name in TABLE.shows.commands if name in arguments), "")
    words = found if isinstance(found, list) else [found]
    text = " ".join(word for word in words if isinstance(word, str))
    shell = re.match(r"(?:/\S{1,40}/)?(?:ba|z|da)?sh -l?c (.*)", text[:_MOST], re.DOTALL)
    return shell[1].strip("'\"") if shell else text[:_MOST]


def _program(part: str) -> str:
    """The program that a part of a command line runs, with its second word where only both say what it does."""
    words = part.split("|", 1)[0].split()[:8]
    while words and (words[0] in TABLE.shows.before or _ASSIGNED.fullmatch(words[0])):
        words.pop(0)
    if not words:
        return ""
    name = words[0].rsplit("/", 1)[-1]
    both = " ".join((name, *words[1:2]))
    return both if both in TABLE.shows.programs else name


def call_of(message: Message, calls: Sequence[ToolCall]) -> ToolCall | None:
    """The call that a result answers, by its id as far as clients leave it whole; None where that is not sure."""
    if len(calls) == 1:
        return calls[0]
    wanted = _bare(message.tool_call_id or "")
    return next((call for call in calls if wanted and _bare(call.id) == wanted), None)


def _bare(identity: str) -> str:
    return "".join(sign for sign in identity if sign.isalnum())[:40]
