"""What a judge model answers, read strictly: an answer that is not exactly what was asked for is no answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.types import Hint, HintKind

KINDS: tuple[HintKind, ...] = ("rule", "fact", "complaint")
_FENCE = re.compile(r"\A```(?:json)?+[ \t]*+\n")
_BEGIN, _END = "[HINT_START]", "[HINT_END]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedVote:
    """One vote: its value, its hint, the reason given. ``value`` None is no answer; ``note`` says why."""

    value: int | None
    hint: Hint | None = None
    note: str = ""


def schema(*, hints: bool) -> dict[str, Any]:
    """The JSON schema of an answer, with or without the question for a hint."""
    parts: dict[str, Any] = {"reason": {"type": "string"}, "score": {"type": "integer", "enum": [1, 0, -1]}}
    if hints:
        parts["hint"] = {"type": ["string", "null"]}
        parts["kind"] = {"type": ["string", "null"], "enum": [*KINDS, None]}
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def parse(text: str, *, hints: bool) -> ParsedVote:
    """Read one answer. Thoughts before it and one code fence around it are taken off; nothing else is forgiven."""
    body = text.strip()
    if body.startswith("<think>") and "</think>" in body:
        body = body.partition("</think>")[2].strip()
    marked: list[str] = []
    while (begin := body.find(_BEGIN)) >= 0 and (end := body.find(_END, begin)) >= 0:
        marked.append(body[begin + len(_BEGIN) : end])
        body = f"{body[:begin]}{body[end + len(_END) :]}".strip()
        if len(marked) > 1:
            return ParsedVote(value=None, note="more than one marked hint")
    try:
        value = json.loads(_unfenced(body), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return ParsedVote(value=None, note="the answer is not one JSON object")
    if not isinstance(value, dict):
        return ParsedVote(value=None, note="the answer is not one JSON object")
    return _vote(value, marked[0].strip() if marked else None, hints=hints)


def _unfenced(body: str) -> str:
    opening = _FENCE.match(body)
    return body[opening.end() : -3] if opening and body.endswith("```") else body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _vote(value: Mapping[str, Any], marked: str | None, *, hints: bool) -> ParsedVote:
    unknown = set(value) - {"reason", "score", "hint", "kind"}
    if unknown:
        return ParsedVote(value=None, note=f"unknown keys in the answer: {', '.join(sorted(unknown))[:80]}")
    score = value.get("score")
    if type(score) is not int or score not in (-1, 0, 1):
        return ParsedVote(value=None, note="the score is none of 1, 0, -1")
    hint_text, kind, reason = value.get("hint"), value.get("kind"), value.get("reason", "")
    if not (hint_text is None or isinstance(hint_text, str)) or not (kind is None or kind in KINDS):
        return ParsedVote(value=None, note="the hint or its kind is of the wrong form")
    text = marked or (hint_text or "").strip()
    hint = Hint(text=text, kind=kind or "rule") if hints and text else None
    return ParsedVote(value=score, hint=hint, note=reason[:200] if isinstance(reason, str) else "")
