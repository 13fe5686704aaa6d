"""What a tool's result alone shows: did the call fail, did the tests pass. Precise before complete."""

from __future__ import annotations

import json
import re
from typing import Any

_MOST = 200_000  # characters of a result that are looked at: its head and its tail
_LINE = 400  # characters of a line; no tool says in more what went wrong
_FIRST_LINE = re.compile(
    r"(?:error|fatal|exception|(?:\w+\.)*\w*(?:Error|Exception))\b\s*[:(]"
    r"|error executing\b|unknown (?:tool|function)\b|invalid (?:arguments?|parameters?|tool call)\b"
    r"|tool (?:execution|call) failed\b|tool not found\b|<tool_use_error>",
    re.IGNORECASE,
)
_SHELL = re.compile(
    r"(?:\S+: ){0,3}(?:line \d+: )?\S+: (?:command not found|no such file or directory|permission denied)"
    r"|(?:ba|z|da)?sh: (?:command not found|no such file or directory|permission denied): \S+",
    re.IGNORECASE,
)
_EXIT = re.compile(
    r"\W*(?:process |command |shell )?(?:finished |failed )?(?:exit(?:ed)?|return(?:ed)?)"
    r"(?: with)?(?:[ _](?:code|status))?\W{0,3}(\d+)\W*",
    re.IGNORECASE,
)
_EXIT_MARK = re.compile(r"\[exit(?: code| status)?:? (\d+)\]", re.IGNORECASE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Iteration)\b")

_PYTEST = re.compile(r"^=* ?((?:\d+ \w+,? )+)in [\d.]+s\b", re.MULTILINE)
_COUNT = re.compile(r"(?<!\d)(\d++) (\w++)")
_UNITTEST = re.compile(r"^Ran (\d+) tests? in [\d.]+s\s+^(OK|FAILED)\b", re.MULTILINE)
_CARGO = re.compile(r"^test result: (ok|FAILED)\. (\d+) passed; (\d+) failed", re.MULTILINE)
_JEST = re.compile(r"^Tests:\s+(?:(\d+) failed, )?(?:\d+ skipped, )?(?:(\d+) passed, )?\d+ total", re.MULTILINE)


def failure(text: str) -> str | None:
    """Why this tool result is an error, or None when it does not say so plainly."""
    stripped = _ends(text).strip()
    if not stripped:
        return None
    if (result := _json_failure(stripped)) is not None:
        return result or None
    if _FIRST_LINE.match(stripped[:_LINE]):
        return "the tool answered with an error"
    lines = stripped.splitlines()
    first, last = lines[0][:_LINE], lines[-1][:_LINE]
    if _TRACEBACK.search(stripped) and _RAISED.match(last):
        return "the tool answered with a traceback"
    for line in (first, last):
        found = _EXIT.fullmatch(line) or _EXIT_MARK.match(line)
        if found and (result := ended(found.group(1))) is not None:
            return result
    if any(_SHELL.fullmatch(line.strip()) for line in (first, last)):
        return "the shell refused the command"
    return None


def ended(code: str) -> str | None:
    """What an exit code in digits says: None for zero. It may have more digits than a number can be made of."""
    shown = code if len(code) <= 12 else f"{code[:12]}…"
    return f"the command ended with exit code {shown}" if _some(code) else None


def _some(digits: str) -> bool:
    """Whether a number is not zero, however many digits it has."""
    return any(sign.isdecimal() and int(sign) for sign in digits)


def _ends(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]}\n{text[-_MOST // 2 :]}"


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


def reported(text: str) -> int | None:
    """+1 when a test report says that all passed, -1 when it names a failure, None when there is no report."""
    text = _ends(text)
    for read in (_read_pytest, _read_unittest, _read_cargo, _read_jest):
        result = read(text)
        if result is not None:
            return result
    return None


def _read_pytest(text: str) -> int | None:
    found = _PYTEST.search(text)
    if not found:
        return None
    counts = {word: _some(number) for number, word in _COUNT.findall(found.group(1))}
    if any(counts.get(word) for word in ("failed", "error", "errors")):
        return -1
    return 1 if counts.get("passed") else None


def _read_unittest(text: str) -> int | None:
    found = _UNITTEST.search(text)
    if not found:
        return None
    if found.group(2) == "FAILED":
        return -1
    return 1 if _some(found.group(1)) else None


def _read_cargo(text: str) -> int | None:
    reports = _CARGO.findall(text)
    if not reports:
        return None
    if any(state == "FAILED" or _some(failed) for state, _, failed in reports):
        return -1
    return 1 if any(_some(passed) for _, passed, _ in reports) else None


def _read_jest(text: str) -> int | None:
    found = _JEST.search(text)
    if not found:
        return None
    if _some(found.group(1) or ""):
        return -1
    return 1 if _some(found.group(2) or "") else None
