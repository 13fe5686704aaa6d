"""What a judge model answers, read strictly: an answer that is not exactly what was asked for is no answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.types import Hint, HintKind

KINDS: tuple[HintKind, ...] = ("rule", "fact", "complaint")
_THINK = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_FENCE = re.compile(r"\A```(?:json)?\s*\n(.*?)\n?```\Z", re.DOTALL)
_MARKED = re.compile(r"\[HINT_START\](.*?)\[HINT_END\]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One vote: its value, the hint it says yes to, the reason given. ``vote`` None is no answer; ``note`` says why."""

    vote: int | None
    hint: Hint | None = None
    note: str = ""


def schema(*, hints: bool) -> dict[str, Any]:
    """The JSON schema of an answer, with or without the question for a hint."""
    parts: dict[str, Any] = {"reason": {"type": "string"}, "score": {"type": "integer", "enum": [1, 0, -1]}}
    if hints:
        parts["hint"] = {"type": ["string", "null"]}
        parts["kind"] = {"type": ["string", "null"], "enum": [*KINDS, None]}
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def parse(text: str, *, hints: bool) -> Answer:
    """Read one answer. Thoughts before it and one code fence around it are taken off; nothing else is forgiven."""
    body = _THINK.sub("", text).strip()
    marked = _MARKED.findall(body)
    if len(marked) > 1:
        return Answer(vote=None, note="more than one marked hint")
    body = _MARKED.sub("", body).strip()
    fenced = _FENCE.match(body)
    try:
        value = json.loads(fenced.group(1) if fenced else body, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return Answer(vote=None, note="the answer is not one JSON object")
    if not isinstance(value, dict):
        return Answer(vote=None, note="the answer is not one JSON object")
    return _answer(value, marked[0].strip() if marked else None, hints=hints)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _answer(value: Mapping[str, Any], marked: str | None, *, hints: bool) -> Answer:
    unknown = set(value) - {"reason", "score", "hint", "kind"}
    if unknown:
        return Answer(vote=None, note=f"unknown keys in the answer: {', '.join(sorted(unknown))[:80]}")
    score = value.get("score")
    if type(score) is not int or score not in (-1, 0, 1):
        return Answer(vote=None, note="the score is none of 1, 0, -1")
    said, kind, reason = value.get("hint"), value.get("kind"), value.get("reason", "")
    if not (said is None or isinstance(said, str)) or not (kind is None or kind in KINDS):
        return Answer(vote=None, note="the hint or its kind is of the wrong form")
    text = marked or (said or "").strip()
    hint = Hint(text=text, kind=kind or "rule") if hints and text else None
    return Answer(vote=score, hint=hint, note=reason[:200] if isinstance(reason, str) else "")
