"""What a candidate is examined on. Probes are fixed before the step that made it.

Held-out everyday prompts are the same for every version, so the live version's replies are those of its own
examination; replays and pinned turns are read from the ledger as it stood when the step was taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.preferences.comparison import opposes
from openclaw_rl.preferences.wording import put
from openclaw_rl.tasks.everyday import Task, held_out
from openclaw_rl.tasks.preferences import About
from openclaw_rl.types import Message, Note, Prompt, Turn, Verdict, texts

_WITHDRAWN = ("proposed", "declined", "replaced", "off", "removed")
LONGEST = 2048
"""prompt tokens beyond which a turn is too costly to replay"""


class ProbeSource(Protocol):
    """What probes are chosen from: the ledger."""

    def turn(self, turn: str) -> Turn: ...
    def verdict(self, turn: str) -> Verdict | None: ...
    def pinned_turns(self) -> list[str]: ...
    def corrections(self, limit: int, *, before: float) -> list[str]: ...
    def notes(self, user: str | None = None) -> list[Note]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A prompt that versions answer. ``task`` knows what a relevant reply names, ``turn`` is the one it replays.

    ``tokens`` is the room for the reply; None: as much as the examiner gives.
    """

    key: str
    prompt: Prompt
    task: Task | None = None
    turn: str | None = None
    tokens: int | None = None

    @property
    def question(self) -> str:
        """The user's last message."""
        return (texts(self.prompt.messages, "user") or ("",))[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """``held_out`` and ``replayed`` are answered; ``corrections`` and ``pinned`` are turns that are read again."""

    held_out: tuple[Probe, ...]
    replayed: tuple[Probe, ...]
    corrections: tuple[tuple[Turn, str], ...]
    pinned: tuple[Turn, ...]


def choose(source: ProbeSource, *, before: float, count: int, replays: int) -> Probes:
    """The probes of an examination, ``count`` of them held out: of turns, only those judged ``before`` the step."""
    names, notes = _steady(source.corrections(replays * 4, before=before)), source.notes()
    learned = {note.turn: put(note) for note in notes if note.state == "learned" and note.turn is not None}
    asked = [*learned, *(name for name in names if name not in learned)]  # what left the prompt must stay learned
    corrected = [(source.turn(name), learned.get(name) or _rule(source, name)) for name in asked]
    fit = [(turn, rule) for turn, rule in corrected if rule and _readable(turn) and not withdrawn(turn, rule, notes)][
        :replays
    ]
    pinned = [turn for turn in map(source.turn, source.pinned_turns()) if _readable(turn)]
    tooled = [turn for turn in pinned if turn.prompt.tools]
    replayed = [*tooled[:2], *(turn for turn, _ in fit[:1])]
    return Probes(
        held_out=everyday_probes(count),
        replayed=tuple(Probe(key=turn.id, prompt=turn.prompt, turn=turn.id) for turn in replayed),
        corrections=tuple(fit),
        pinned=tuple(pinned[:replays]),
    )


def withdrawn(turn: Turn, rule: str, notes: Sequence[Note]) -> bool:
    """Whether its user no longer wants what a correction asked for: a version need not lean that way any more."""
    made = [note.state for note in notes if note.turn == turn.id]
    if made and all(state in _WITHDRAWN for state in made):
        return True
    return any(
        note.user == turn.user and note.kind == "rule" and note.state not in _WITHDRAWN and opposes(rule, put(note))
        for note in notes
    )


def _steady(names: Sequence[str]) -> list[str]:
    """One in four first, the same in every examination, so that most of what was read of them before still holds."""
    return sorted(names, key=lambda name: ord(name[-1]) % 4 != 0)


def everyday_probes(
    count: int, *, besides: Sequence[Probe] = (), about: About = "facts", tokens: int | None = None
) -> tuple[Probe, ...]:
    """So many held-out prompts, always the same, none of them among ``besides``; all there are where these are few."""
    known = {probe.key for probe in besides}
    left = [task for task in held_out(about) if task.prompt not in known]
    chosen = random.Random(0).sample(left, min(count, len(left)))
    return tuple(Probe(key=task.prompt, prompt=plain(task.prompt), task=task, tokens=tokens) for task in chosen)


def plain(text: str) -> Prompt:
    """A conversation that begins with this message."""
    return Prompt(messages=(Message(role="user", content=text),))


def _rule(source: ProbeSource, turn: str) -> str | None:
    verdict = source.verdict(turn)
    return next(iter(verdict.rules), None) if verdict else None


def _readable(turn: Turn) -> bool:
    return len(turn.completion.prompt_tokens) <= LONGEST and len(turn.completion.reply_tokens) > 0
