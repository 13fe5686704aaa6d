"""How well a judge reads labelled exchanges: precision, recall and hints, with intervals. Pure but for asking it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.base_rate import SIGNS, at_base_rate
from openclaw_rl.judge.channel import CHANNELS, Channel, channel_of
from openclaw_rl.judge.evidence import with_reach
from openclaw_rl.judge.labelled import LABELS, WANT_RULE, LabelledRow
from openclaw_rl.ports import Judge
from openclaw_rl.stats import wilson
from openclaw_rl.types import Hint, Json

HAS_KEY = 0.6
"""share of the labelled hint's letters, two by two, that a hint must hold to have the key in it"""
_HOPELESS = 5
"""rows in a row that find the judge unavailable, after which it is not asked any more"""

Said: TypeAlias = Literal["bad", "good"]
_SCORES: Mapping[Said, int] = {"bad": -1, "good": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a judge said of a row. ``failed``: why it said nothing at all."""

    row: LabelledRow
    score: float | None = None
    hints: tuple[Hint, ...] = ()
    failed: str | None = None

    @property
    def said(self) -> Said | None:
        if self.score is None or self.score == 0:
            return None
        return "bad" if self.score < 0 else "good"

    @property
    def gives_rule(self) -> bool:
        return any(hint.kind == "rule" for hint in self.hints)

    @property
    def has_key(self) -> bool:
        """Whether a rule, or for a fact a fact, was given that says what the label says."""
        return self._says(self.hints)

    @property
    def stands_falsely(self) -> bool:
        """Whether a hint would stand though nothing was said to be kept."""
        return bool(self._standing) and self.row.label not in ("fact", *WANT_RULE)

    @property
    def stands_rightly(self) -> bool:
        """Whether a hint would stand that says what the label says."""
        return self._says(self._standing)

    @property
    def _standing(self) -> tuple[Hint, ...]:
        """What would be put into later prompts at once."""
        return tuple(hint for hint in self.hints if hint.kind != "complaint" and hint.reach == "standing")

    def _says(self, hints: Sequence[Hint]) -> bool:
        kind = "rule" if self.row.label in WANT_RULE else "fact"
        key = self.row.hint
        return key is not None and any(hint.kind == kind and holds(hint.text, key) for hint in hints)


def holds(text: str, key: str, *, share: float = HAS_KEY) -> bool:
    """Whether ``text`` has ``key`` in it, by pairs of letters: the same for every script, whatever the order."""
    wanted, found = _pairs(key), _pairs(text)
    return bool(wanted) and len(wanted & found) >= share * len(wanted)


def _pairs(text: str) -> frozenset[str]:
    letters = "".join(sign for sign in text.casefold() if sign.isalnum())
    return frozenset(letters[at : at + 2] for at in range(max(1, len(letters) - 1)) if letters)


async def ask_judge(
    judge: Judge, rows: Sequence[LabelledRow], *, workers: int, progress: Callable[[int], None] = lambda _: None
) -> list[Reading]:
    """What the judge says of every row, ``workers`` at a time. An unavailable judge is given up after a few rows."""
    readings: dict[int, Reading] = {}
    slots, failures = anyio.Semaphore(workers), 0

    async def ask(at: int, row: LabelledRow) -> None:
        nonlocal failures
        async with slots:
            if failures >= _HOPELESS:
                readings[at] = Reading(row=row, failed="the judge is unavailable")
                return
            try:
                case = row.case()
                verdict = with_reach(case, await judge.judge(case))
            except JudgeUnavailable as error:
                failures += 1
                readings[at] = Reading(row=row, failed=error.what)
            except Exception as error:  # a judge may be anyone's code; one row that trips it costs itself alone
                readings[at] = Reading(row=row, failed=f"{type(error).__name__}: {error}"[:200])
            else:
                failures = 0
                readings[at] = Reading(row=row, score=verdict.score, hints=verdict.hints)
            progress(len(readings))

    async with anyio.create_task_group() as group:
        for at, row in enumerate(rows):
            group.start_soon(ask, at, row)
    return [readings[at] for at in range(len(rows))]


async def evaluate(
    judge: Judge, rows: Sequence[LabelledRow], *, workers: int, progress: Callable[[int], None] = lambda _: None
) -> dict[str, Json]:
    """The figures of a judge: over all rows, by kind, language, tag and voice."""
    begun = time.perf_counter()
    asked = await ask_judge(judge, rows, workers=workers, progress=progress)
    seconds = time.perf_counter() - begun
    heard = [one for one in asked if one.failed is None]
    failed = Counter(one.failed for one in asked if one.failed is not None)
    return {
        "judge": judge.name,
        "rows": len(rows),
        "failed": sum(failed.values()),
        "failures": dict(failed.most_common(5)),
        "seconds_per_row": seconds / len(rows) if rows else 0.0,
        "all": figures(heard),
        "base_rate": base_rates(heard),
        "kind": {label: _kinds([one for one in heard if one.row.label == label]) for label in LABELS},
        "channel": _by(heard, lambda row: (_channel(row),)),
        "language": _by(heard, lambda row: (row.language,)),
        "tag": _by(heard, lambda row: row.tags),
        "voice": _by(heard, lambda row: (row.voice,)),
    }


def figures(readings: Sequence[Reading]) -> dict[str, Json]:
    """Precision and recall of either score and of rules; a rule where none was said is unwanted, and a false
    standing note where it would stand."""
    wanted = [one for one in readings if one.row.label in WANT_RULE]
    others = [one for one in readings if one.row.label not in WANT_RULE]
    facts = [one for one in readings if one.row.label == "fact"]
    return {
        "rows": len(readings),
        **{said: _of_score(readings, said) for said in _SCORES},
        "rules": rate(sum(one.has_key for one in wanted), len(wanted)),
        "facts": rate(sum(one.has_key for one in facts), len(facts)),
        "unwanted": rate(sum(one.gives_rule for one in others), len(others)),
        "standing": rate(sum(one.stands_rightly for one in wanted), len(wanted)),
        "false_standing": rate(sum(one.stands_falsely for one in readings), len(readings)),
    }


def base_rates(readings: Sequence[Reading]) -> dict[str, Json]:
    """Precision at the base rate of real talk, by channel, with its interval: what the rows would be worth in life."""
    found: dict[str, Json] = {}
    for channel in CHANNELS:
        pairs = [(one.row.score or 0, one.score) for one in readings if _channel(one.row) == channel]
        if pairs:
            alarms = {name: at_base_rate(pairs, channel=channel, sign=sign).plain() for sign, name in SIGNS.items()}
            found[channel] = {"rows": len(pairs), **alarms}
    return found


def _channel(row: LabelledRow) -> Channel:
    return row.channel or channel_of(row.case())


def _of_score(readings: Sequence[Reading], said: Said) -> dict[str, Json]:
    given = [one for one in readings if one.said == said]
    there = [one for one in readings if one.row.score == _SCORES[said]]
    right = sum(one.row.score == _SCORES[said] for one in given)
    return {"precision": rate(right, len(given)), "recall": rate(right, len(there))}


def rate(right: int, of: int) -> dict[str, Json]:
    """A share with its Wilson interval; none without anything to share."""
    low, high = wilson(right, of)
    return {"right": right, "of": of, "rate": right / of if of else None, "low": low, "high": high}


def _kinds(readings: Sequence[Reading]) -> dict[str, Json]:
    said = Counter(one.said for one in readings)
    return {
        "rows": len(readings),
        "bad": said["bad"],
        "good": said["good"],
        "silent": said[None],
        "rules": sum(one.gives_rule for one in readings),
        "with_key": sum(one.has_key for one in readings),
    }


def _by(readings: Sequence[Reading], names: Callable[[LabelledRow], Iterable[str]]) -> dict[str, Json]:
    groups: dict[str, list[Reading]] = {}
    for one in readings:
        for name in names(one.row):
            groups.setdefault(name, []).append(one)
    return {name: figures(groups[name]) for name in sorted(groups, key=lambda name: (-len(groups[name]), name))}
