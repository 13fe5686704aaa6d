"""Evidence in a tool's result alone: a failed call, failed or passed tests. Precise before complete.

The table `tool_results.toml` lists programs' output; this module applies it. No part of a result ever becomes a hint.
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

_MOST = 200_000  # characters of a result that are read: its head and its tail
_LINE = 400  # characters of a line, enough for any tool's error
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER_WORD = re.compile(r"(?<!\d)(\d++) (\w++)")
_WORD_NUMBER = re.compile(r"(?<!\w)(\w++): (\d++)")
_PARTS = re.compile(r"&&|\|\||[;\n]")
_REDIRECTED = re.compile(r"(?<![2&0-9>])>{1,2}(?![&>])")
_ASSIGNED = re.compile(r"(?<!\w)\w++=\S*+")

Place = Literal["first", "last", "ends", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureShape:
    """A line that reports a failure. ``shown``: it counts even if the call only shows content."""

    why: str
    at: Place
    line: re.Pattern[str]
    needs: re.Pattern[str] | None
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportShape:
    """A test runner's report form: a line of counts, or lines with the result."""

    line: re.Pattern[str] | None
    failed: frozenset[str]
    passed: frozenset[str]
    needs: re.Pattern[str] | None
    failed_if: re.Pattern[str] | None
    passed_if: re.Pattern[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowingCalls:
    """Calls that only show content: by program, or by the tool's own name."""

    programs: frozenset[str]
    neutral: frozenset[str]
    before: frozenset[str]
    tools: frozenset[str]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """Patterns for tool results."""

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
    """Return why a tool result is an error; None unless it is plainly one. ``call`` is the call that it answers."""
    lines = _lines(text)
    if not lines:
        return None
    if (result := _json_failure("\n".join(lines))) is not None:
        return result or None
    shows = call is not None and is_showing(call)
    if (code := _exit_code(lines)) is not None:
        searched = shows and code.strip("-0") == "1"  # grep without a match, diff with a difference
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
    """Return the exit code in a result; None without one."""
    for line in (lines[0], lines[-1]):
        for shape in TABLE.exits:
            if match := shape.match(line):
                return match[1]
    return None


def ended(code: str) -> str | None:
    """Describe an exit code in digits; None for zero. It stays text, since it may have too many digits for a number."""
    shown = code if len(code) <= 12 else f"{code[:12]}…"
    return f"the command ended with exit code {shown}" if _some(code) else None


def _some(digits: str) -> bool:
    """Check if a number is not zero, regardless of its length."""
    return any(sign.isdecimal() and int(sign) for sign in digits)


def _lines(text: str) -> list[str]:
    """Return the non-empty lines without colours; of a very long text, those at its ends."""
    ends = text if len(text) <= _MOST else f"{text[: _MOST // 2]}\n{text[-_MOST // 2 :]}"
    plain = _COLOUR.sub("", ends) if "\x1b" in ends else ends
    return [line[:_LINE].rstrip() for line in plain.strip("\n").splitlines() if line.strip()]


def _json_failure(text: str) -> str | None:
    """Return a reason, "" for an object without an error, None if the text is no JSON object."""
    if not text.startswith("{"):
        return None
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or nested too deep
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
    """Return +1 if a test report shows only passed tests, -1 if it names a failure, None without a report."""
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
    counts = [count for line in lines if (match := shape.line.match(line)) for count in _counts(match[0])]
    if any(word in shape.failed and _some(number) for word, number in counts):
        return -1
    return 1 if any(word in shape.passed and _some(number) for word, number in counts) else None


def _counts(text: str) -> Iterator[tuple[str, str]]:
    """Yield each word in a line of counts with its number."""
    for number, word in _NUMBER_WORD.findall(text):
        yield word, number
    yield from _WORD_NUMBER.findall(text)


def is_showing(call: ToolCall) -> bool:
    """Check if a call only shows files, logs or pages, so that its result may be about anything."""
    shows = TABLE.shows
    if call.name.lower() in shows.tools:
        return True
    command = _command(call)
    programs = [_program(part) for part in _PARTS.split(command) if not _REDIRECTED.search(part)]
    effective = [name for name in programs if name and name not in shows.neutral]
    return bool(effective) and all(name in shows.programs for name in effective)


def _command(call: ToolCall) -> str:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(arguments, dict):
        return ""
    command = next((arguments[name] for name in TABLE.shows.commands if name in arguments), "")
    words = command if isinstance(command, list) else [command]
    text = " ".join(word for word in words if isinstance(word, str))
    shell = re.match(r"(?:/\S{1,40}/)?(?:ba|z|da)?sh -l?c (.*)", text[:_MOST], re.DOTALL)
    return shell[1].strip("'\"") if shell else text[:_MOST]


def _program(part: str) -> str:
    """Return the program in a part of a command line, with its second word if the table lists both."""
    words = part.split("|", 1)[0].split()[:8]
    while words and (words[0] in TABLE.shows.before or _ASSIGNED.fullmatch(words[0])):
        words.pop(0)
    if not words:
        return ""
    name = words[0].rsplit("/", 1)[-1]
    subcommand = " ".join((name, *words[1:2]))
    return subcommand if subcommand in TABLE.shows.programs else name


def call_of(message: Message, calls: Sequence[ToolCall]) -> ToolCall | None:
    """Return the call that a result answers, by the id's parts that clients preserve; None if it is not sure."""
    if len(calls) == 1:
        return calls[0]
    identity = _bare(message.tool_call_id or "")
    return next((call for call in calls if identity and _bare(call.id) == identity), None)


def _bare(identity: str) -> str:
    return "".join(sign for sign in identity if sign.isalnum())[:40]
