"""What a tool's result says by itself: did the call fail, did the tests pass. Precise before complete."""

from __future__ import annotations

import json
import re
from typing import Any

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
_UNITTEST = re.compile(r"^Ran (\d+) tests? in [\d.]+s\s+^(OK|FAILED)\b", re.MULTILINE)
_CARGO = re.compile(r"^test result: (ok|FAILED)\. (\d+) passed; (\d+) failed", re.MULTILINE)
_JEST = re.compile(r"^Tests:\s+(?:(\d+) failed, )?(?:\d+ skipped, )?(?:(\d+) passed, )?\d+ total", re.MULTILINE)


def failure(text: str) -> str | None:
    """Why this tool result is an error, or None when it does not say so plainly."""
    stripped = text.strip()
    if not stripped:
        return None
    lines = stripped.splitlines()
    if (said := _json_failure(stripped)) is not None:
        return said or None
    if _FIRST_LINE.match(stripped):
        return "the tool answered with an error"
    if _TRACEBACK.search(stripped) and _RAISED.match(lines[-1]):
        return "the tool answered with a traceback"
    for line in {lines[0], lines[-1]}:
        found = _EXIT.fullmatch(line) or _EXIT_MARK.match(line)
        if found and int(found.group(1)) != 0:
            return f"the command ended with exit code {found.group(1)}"
    if any(_SHELL.fullmatch(line.strip()) for line in {lines[0], lines[-1]}):
        return "the shell refused the command"
    return None


def _json_failure(text: str) -> str | None:
    """A reason, "" for an object that reports no error, None when the text is no JSON object."""
    if not text.startswith("{"):
        return None
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    if value.get("error") or value.get("isError") is True or value.get("is_error") is True:
        return "the tool answered with an error"
    if value.get("success") is False or value.get("ok") is False or value.get("status") in ("error", "failed"):
        return "the tool answered that it failed"
    for key in ("exit_code", "exitCode", "returncode"):
        if isinstance(value.get(key), int) and value[key] != 0:
            return f"the command ended with exit code {value[key]}"
    return ""


def reported(text: str) -> int | None:
    """+1 when a test report says that all passed, -1 when it names a failure, None when there is no report."""
    for read in (_read_pytest, _read_unittest, _read_cargo, _read_jest):
        said = read(text)
        if said is not None:
            return said
    return None


def _read_pytest(text: str) -> int | None:
    found = _PYTEST.search(text)
    if not found:
        return None
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", found.group(1))}
    if any(counts.get(word) for word in ("failed", "error", "errors")):
        return -1
    return 1 if counts.get("passed") else None


def _read_unittest(text: str) -> int | None:
    found = _UNITTEST.search(text)
    if not found:
        return None
    if found.group(2) == "FAILED":
        return -1
    return 1 if int(found.group(1)) else None


def _read_cargo(text: str) -> int | None:
    reports = _CARGO.findall(text)
    if not reports:
        return None
    if any(state == "FAILED" or int(failed) for state, _, failed in reports):
        return -1
    return 1 if any(int(passed) for _, passed, _ in reports) else None


def _read_jest(text: str) -> int | None:
    found = _JEST.search(text)
    if not found:
        return None
    if int(found.group(1) or 0):
        return -1
    return 1 if int(found.group(2) or 0) else None
