"""The labelled lines of `data/voices` and `data/phrases`, and how voices are held out: whole, never by lines."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.channel import Channel
from openclaw_rl.judge.reader.kinds import KINDS, MessageKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One labelled exchange: line ``index`` (from 0) of ``voice``. The files call the kind mixed ``praise_rule``.

    ``channel`` is that of a voice written at the rates of real talk, None of any other.
    """

    voice: str
    index: int
    language: str
    request: str
    reply: str
    next: str
    kind: MessageKind
    hint: str | None
    tags: tuple[str, ...]
    channel: Channel | None = None


def read_voices(folder: Path) -> dict[str, list[Line]]:
    """Every voice's lines, sorted by voice; raises ConfigError naming the file and line that is wrong."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"no voices in {folder}", remedy="give the folder data/voices of the source: a .jsonl each")
    return {file.stem: _voice(file) for file in files}


def _voice(file: Path) -> list[Line]:
    try:
        head, *rest = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines() if text.strip()]
        about = {"file": file, "language": head["language"], "channel": head.get("channel")}
        return [_line(row, index=index, **about) for index, row in enumerate(rest)]
    except (ValueError, KeyError, TypeError) as error:
        remedy = "the first line has voice and language, every other one request, reply, next, kind, hint, tags"
        raise ConfigError(f"{file}: {error}", remedy=remedy) from error


def _line(row: Mapping[str, Any], *, file: Path, index: int, language: str, channel: Channel | None = None) -> Line:
    kind = "mixed" if row["kind"] == "praise_rule" else str(row["kind"])
    hint = None if row["hint"] is None else str(row["hint"])
    text = str(row["next"])
    if kind not in KINDS or (hint is not None and hint not in text):
        raise ConfigError(
            f"{file}: exchange {index}: kind {kind!r}, hint {hint!r}", remedy="a known kind, and a part of the text"
        )
    return Line(
        voice=file.stem,
        index=index,
        language=language,
        request=str(row["request"]),
        reply=str(row["reply"]),
        next=text,
        kind=kind,
        hint=hint,
        tags=tuple(str(tag) for tag in row["tags"]),
        channel=channel,
    )


PHRASEBOOK = "phrases-"
"""how the voice of a phrasebook's lines begins: many speakers, so each line counts as a voice of its own"""


def read_phrases(folder: Path, voices: Mapping[str, Sequence[Line]], *, seed: int = 0) -> list[Line]:
    """The lines of every phrasebook. Of those without a request and a reply of their own every other one is put after
    those of a line of ``voices`` in that language."""
    found = []
    for file in sorted(folder.glob("*.tsv")):
        rng = random.Random(f"{seed} {file.stem}")
        known = [line for lines in voices.values() for line in lines if line.language == file.stem]
        for index, text in enumerate(file.read_text(encoding="utf-8").splitlines()):
            kind, said, hint, *before = text.split("\t")
            if not before:
                line = rng.choice(known) if known and rng.random() < 0.5 else None
                before = [line.request, line.reply] if line else ["", ""]
            row = {"kind": kind, "next": said, "hint": hint or None, "tags": ["phrase"]}
            row |= {"request": before[0], "reply": before[1]}
            spoken = _line(row, file=file, index=index, language=file.stem)
            found.append(replace(spoken, voice=f"{PHRASEBOOK}{file.stem}-{index}"))
    return found


def dealt(voices: Mapping[str, Sequence[Line]], folds: int, *, seed: int) -> dict[str, int]:
    """The fold of each voice: every language, and the voices of real rates, are spread over the folds as evenly as it
    goes."""
    rng = random.Random(seed)
    by_language: dict[tuple[str, str], list[str]] = {}
    for voice, lines in voices.items():
        by_language.setdefault((lines[0].channel or "", lines[0].language), []).append(voice)
    order = [voice for _, names in sorted(by_language.items()) for voice in rng.sample(sorted(names), len(names))]
    return {voice: place % folds for place, voice in enumerate(order)}


def some_voices(voices: Mapping[str, Sequence[Line]], count: int, *, seed: int) -> list[str]:
    """``count`` of the voices, the languages in turn."""
    rank = dealt(voices, len(voices), seed=seed)
    stride = max(1, len(rank) // max(1, count))
    order = sorted(rank, key=lambda voice: (rank[voice] % stride, rank[voice]))
    return order[:count]
