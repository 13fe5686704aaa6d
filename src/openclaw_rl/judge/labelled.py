"""Labelled exchanges: a request, a reply, the next message and its label. Pure except for `read_files`.

One JSON object per line. The first line may describe the annotator persona instead (``voice``, ``language``,
``channel``); it then applies to the lines after it. `docs/judging.md` lists the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.channel import CHANNELS, Channel
from openclaw_rl.ports import Case
from openclaw_rl.types import Completion, Message, Outcome, Prompt, Role, Sampling, Turn

Label = Literal["complaint", "rule", "fact", "neutral", "praise", "praise_rule"]
LABELS: tuple[Label, ...] = get_args(Label)
WANT_RULE: frozenset[Label] = frozenset(("rule", "praise_rule"))
_TEXTS = ("request", "reply", "next")
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRow:
    """One labelled exchange. ``hint`` is the part of ``next`` to learn from, None without one.

    ``channel`` is "chat" or "coding", None if the row does not name it.
    """

    where: str
    request: str
    reply: str
    next: str
    label: Label
    hint: str | None
    language: str
    voice: str
    tags: tuple[str, ...]
    role: Role
    channel: Channel | None = None

    @property
    def score(self) -> int | None:
        """Return the expected score; None if the judge should be silent."""
        return {"praise": 1, "praise_rule": 1, "neutral": None}.get(self.label, -1)

    def case(self) -> Case:
        """Return the row as a case."""
        completion = Completion(
            reply=Message(role="assistant", content=self.reply),
            prompt_tokens=(0,),
            reply_tokens=(0,),
            logprobs=(0.0,),
            sampling=Sampling(),
            finish="stop",
            version=0,
        )
        request = Prompt(messages=(Message(role="user", content=self.request),))
        client = "coding agent" if self.channel == "coding" else ""
        turn = Turn(prompt=request, completion=completion, user="labelled", client=client, at=0.0)
        messages = (Message(role=self.role, content=self.next),)
        outcome = Outcome(
            turn=turn.id, session=self.voice, kind="main", kind_reason="labelled", index=0, next_state=messages, at=0.0
        )
        return Case(turn=turn, outcome=outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """An unusable line and the reason."""

    where: str
    why: str


def read_files(path: Path) -> Iterator[LabelledRow | BadRow]:
    """Yield the rows in a file, or in each .jsonl file in a folder, with a `BadRow` for each unusable line."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} holds no .jsonl file", remedy="name a labelled file, or a folder of such files")
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}", remedy="name a labelled file in UTF-8") from error
        yield from read_lines(lines, name=file.name, voice=file.stem)


def read_lines(lines: Iterable[str], *, name: str, voice: str) -> Iterator[LabelledRow | BadRow]:
    """Yield the rows in one file's lines."""
    about: Mapping[str, Any] = {"voice": voice}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is no JSON object")
            if number == 1 and "voice" in row and "next" not in row:
                about = row
                continue
            yield _row(row, about, where)
        except (ValueError, RecursionError) as error:
            yield BadRow(where=where, why=str(error))


def _row(given: Mapping[str, Any], about: Mapping[str, Any], where: str) -> LabelledRow:
    for field in _TEXTS:
        if not isinstance(given.get(field), str):
            raise ValueError(f"{field}: must be text")
    if (channel := given.get("channel", about.get("channel"))) not in (None, *CHANNELS):
        raise ValueError(f"channel: {channel!r} is none of {', '.join(CHANNELS)}")
    hint, tags, role = given.get("hint"), given.get("tags") or (), given.get("role", "user")
    if hint is not None and not isinstance(hint, str):
        raise ValueError("hint: must be text or null")
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags: must be a list of texts")
    if role not in ("user", "tool"):
        raise ValueError(f"role: {role!r} is neither user nor tool")
    label = _label(given)
    if label in WANT_RULE and not hint:
        raise ValueError(f"hint: is missing, and the kind is {label}")
    return LabelledRow(
        where=where,
        request=given["request"],
        reply=given["reply"],
        next=given["next"],
        label=label,
        hint=hint,
        language=str(given.get("language") or about.get("language") or _UNKNOWN),
        voice=str(given.get("voice") or about.get("voice") or _UNKNOWN),
        tags=tuple(tags),
        role=cast(Role, role),
        channel=channel,
    )


def _label(given: Mapping[str, Any]) -> Label:
    """Return the kind, or derive it from the score and the hint's kind."""
    if "kind" in given:
        if given["kind"] not in LABELS:
            raise ValueError(f"kind: {given['kind']!r} is none of {', '.join(LABELS)}")
        return cast(Label, given["kind"])
    if "score" not in given or given["score"] not in (1, -1, 0, None):
        raise ValueError("kind: is missing, and there is no score of 1, -1, 0 or null in its place")
    if given["score"] == -1:
        kind = given.get("hint_kind")
        return cast(Label, kind) if given.get("hint") and kind in ("rule", "fact") else "complaint"
    return "praise" if given["score"] == 1 else "neutral"
