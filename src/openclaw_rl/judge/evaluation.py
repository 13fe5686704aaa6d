"""Accuracy of a judge on labelled exchanges: precision, recall and hints, with intervals. Pure except for the judge."""

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
"""share of the labelled hint's letter pairs that a hint must contain to match its key"""
_HOPELESS = 5
"""consecutive rows with an unavailable judge after which the judge is no longer asked"""

Said: TypeAlias = Literal["bad", "good"]
_SCORES: Mapping[Said, int] = {"bad": -1, "good": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A judge's answer to a row; ``failed`` is the reason for a missing answer."""

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
        """Check if a rule, or a fact for a fact label, matches the labelled hint."""
        return self._says(self.hints)

    @property
    def stands_falsely(self) -> bool:
        """Check if a hint would be standing although the label contains nothing to keep."""
        return bool(self._standing) and self.row.label not in ("fact", *WANT_RULE)

    @property
    def stands_rightly(self) -> bool:
        """Check if a standing hint matches the labelled hint."""
        return self._says(self._standing)

    @property
    def _standing(self) -> tuple[Hint, ...]:
        """Return the hints that later prompts would include at once."""
        return tuple(hint for hint in self.hints if hint.kind != "complaint" and hint.reach == "standing")

    def _says(self, hints: Sequence[Hint]) -> bool:
        kind = "rule" if self.row.label in WANT_RULE else "fact"
        key = self.row.hint
        return key is not None and any(hint.kind == kind and holds(hint.text, key) for hint in hints)


def holds(text: str, key: str, *, share: float = HAS_KEY) -> bool:
    """Check if ``text`` contains ``key``, by letter pairs: independent of script and word order."""
    key_pairs, text_pairs = _pairs(key), _pairs(text)
    return bool(key_pairs) and len(key_pairs & text_pairs) >= share * len(key_pairs)


def _pairs(text: str) -> frozenset[str]:
    letters = "".join(sign for sign in text.casefold() if sign.isalnum())
    return frozenset(letters[at : at + 2] for at in range(max(1, len(letters) - 1)) if letters)


async def ask_judge(
    judge: Judge, rows: Sequence[LabelledRow], *, workers: int, progress: Callable[[int], None] = lambda _: None
) -> list[Reading]:
    """Ask the judge about every row, ``workers`` at a time; stop asking after a few rows if it is unavailable."""
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
    """Return a judge's figures: over all rows, and by kind, channel, language, tag and annotator persona."""
    begun = time.perf_counter()
    readings = await ask_judge(judge, rows, workers=workers, progress=progress)
    seconds = time.perf_counter() - begun
    answered = [reading for reading in readings if reading.failed is None]
    failed = Counter(reading.failed for reading in readings if reading.failed is not None)
    return {
        "judge": judge.name,
        "rows": len(rows),
        "failed": sum(failed.values()),
        "failures": dict(failed.most_common(5)),
        "seconds_per_row": seconds / len(rows) if rows else 0.0,
        "all": figures(answered),
        "base_rate": base_rates(answered),
        "kind": {label: _kinds([reading for reading in answered if reading.row.label == label]) for label in LABELS},
        "channel": _by(answered, lambda row: (_channel(row),)),
        "language": _by(answered, lambda row: (row.language,)),
        "tag": _by(answered, lambda row: row.tags),
        "voice": _by(answered, lambda row: (row.voice,)),
    }


def figures(readings: Sequence[Reading]) -> dict[str, Json]:
    """Return precision and recall for each score and for rules.

    A rule for a label without one counts as unwanted; a standing hint for such a label counts as a false standing note.
    """
    with_rule = [reading for reading in readings if reading.row.label in WANT_RULE]
    without_rule = [reading for reading in readings if reading.row.label not in WANT_RULE]
    facts = [reading for reading in readings if reading.row.label == "fact"]
    return {
        "rows": len(readings),
        **{verdict: _of_score(readings, verdict) for verdict in _SCORES},
        "rules": rate(sum(reading.has_key for reading in with_rule), len(with_rule)),
        "facts": rate(sum(reading.has_key for reading in facts), len(facts)),
        "unwanted": rate(sum(reading.gives_rule for reading in without_rule), len(without_rule)),
        "standing": rate(sum(reading.stands_rightly for reading in with_rule), len(with_rule)),
        "false_standing": rate(sum(reading.stands_falsely for reading in readings), len(readings)),
    }


def base_rates(readings: Sequence[Reading]) -> dict[str, Json]:
    """Return precision with its interval at the base rate of real conversations, by channel."""
    rates: dict[str, Json] = {}
    for channel in CHANNELS:
        pairs = [(reading.row.score or 0, reading.score) for reading in readings if _channel(reading.row) == channel]
        if pairs:
            alarms = {name: at_base_rate(pairs, channel=channel, sign=sign).plain() for sign, name in SIGNS.items()}
            rates[channel] = {"rows": len(pairs), **alarms}
    return rates


def _channel(row: LabelledRow) -> Channel:
    return row.channel or channel_of(row.case())


def _of_score(readings: Sequence[Reading], said: Said) -> dict[str, Json]:
    scored = [reading for reading in readings if reading.said == said]
    there = [reading for reading in readings if reading.row.score == _SCORES[said]]
    right = sum(reading.row.score == _SCORES[said] for reading in scored)
    return {"precision": rate(right, len(scored)), "recall": rate(right, len(there))}


def rate(right: int, of: int) -> dict[str, Json]:
    """Return a share with its Wilson interval; ``rate`` is None if the total is zero."""
    low, high = wilson(right, of)
    return {"right": right, "of": of, "rate": right / of if of else None, "low": low, "high": high}


def _kinds(readings: Sequence[Reading]) -> dict[str, Json]:
    verdicts = Counter(reading.said for reading in readings)
    return {
        "rows": len(readings),
        "bad": verdicts["bad"],
        "good": verdicts["good"],
        "silent": verdicts[None],
        "rules": sum(reading.gives_rule for reading in readings),
        "with_key": sum(reading.has_key for reading in readings),
    }


def _by(readings: Sequence[Reading], names: Callable[[LabelledRow], Iterable[str]]) -> dict[str, Json]:
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        for name in names(reading.row):
            groups.setdefault(name, []).append(reading)
    return {name: figures(groups[name]) for name in sorted(groups, key=lambda name: (-len(groups[name]), name))}
