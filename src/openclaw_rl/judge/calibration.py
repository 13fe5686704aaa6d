"""How well a judge hears complaints and praise, measured on labelled lines, and which of two judges hears better.

The lines are a small balanced sample of many voices; half of them are no feedback. A wrong verdict trains and silence
costs nothing, so precision counts most, and a score that is wrong too often is not heard at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Final, Protocol, runtime_checkable

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.evaluation import Reading, ask_judge
from openclaw_rl.judge.labelled import LabelledRow, read_lines
from openclaw_rl.ports import Judge

FLOOR: Final = 0.8
"""precision below which a score of the served model is not heard; half of the lines are neutral, as in life or fewer"""
TASTE: Final = 24
"""lines after which a judge that got none right is asked no further"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Of ``there`` messages of a kind a judge found ``right``, and said so ``given`` times in all."""

    right: int
    given: int
    there: int

    @property
    def precision(self) -> float:
        """The share of what it said that is so; 0 where it said nothing."""
        return self.right / self.given if self.given else 0.0

    @property
    def recall(self) -> float:
        """The share of what is so that it said."""
        return self.right / self.there if self.there else 0.0

    @property
    def heard(self) -> bool:
        """Whether it is right often enough to be heard."""
        return self.precision >= FLOOR

    @property
    def strength(self) -> float:
        """F0.5, which weighs precision above recall; 0 below the floor."""
        if not self.heard:
            return 0.0
        return 1.25 * self.precision * self.recall / (0.25 * self.precision + self.recall)

    def __str__(self) -> str:
        return f"{self.precision:.2f} / {self.recall:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What a judge heard of ``rows`` labelled lines."""

    rows: int
    complaints: Hits
    praise: Hits

    @property
    def strength(self) -> float:
        """The mean of both, by which judges are compared."""
        return (self.complaints.strength + self.praise.strength) / 2

    def heard(self, score: float | None) -> bool:
        """Whether a score of this judge is right often enough; no score and 0 say nothing, and may be said."""
        return not score or (self.praise if score > 0 else self.complaints).heard

    def __str__(self) -> str:
        return f"complaints {self.complaints}, praise {self.praise} (precision / recall)"

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Agreement:
        """From JSON, as `plain` wrote it."""
        return cls(rows=value["rows"], complaints=Hits(**value["complaints"]), praise=Hits(**value["praise"]))

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@runtime_checkable
class StatesAgreement(Protocol):
    """A judge that was fitted to such lines, and so cannot be measured on them: what it reached on unseen voices."""

    @property
    def agreement(self) -> Agreement: ...


def shipped_rows() -> tuple[LabelledRow, ...]:
    """The lines that come with the package (`scripts/calibration_lines.py` writes them)."""
    text = resources.files("openclaw_rl.judge").joinpath("calibration.jsonl").read_text(encoding="utf-8")
    rows = read_lines(text.splitlines(), name="calibration.jsonl", voice="")
    return tuple(row for row in rows if isinstance(row, LabelledRow))


def digest(rows: Sequence[LabelledRow], *parts: str) -> str:
    """A short name for a measurement: of what, on which lines."""
    text = json.dumps([*parts, *([row.request, row.reply, row.next, row.label] for row in rows)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


async def measure(
    judge: Judge, rows: Sequence[LabelledRow], *, workers: int, progress: Callable[[int], None]
) -> Agreement:
    """Ask a judge about every row, or only about the first few where it gets none of them right.

    Raises JudgeUnavailable where it could not be asked about a tenth of them or more. A judge that states its agreement
    is not asked.
    """
    if isinstance(judge, StatesAgreement):
        return judge.agreement
    readings = await ask_judge(judge, rows[:TASTE], workers=workers, progress=progress)
    if agreement(readings).strength or any(_is_right(reading) for reading in readings):
        readings += await ask_judge(
            judge, rows[TASTE:], workers=workers, progress=lambda done: progress(done + len(rows[:TASTE]))
        )
    failed = [reading.failed for reading in readings if reading.failed is not None]
    if 10 * len(failed) >= len(readings):
        raise JudgeUnavailable(f"{len(failed)} of {len(readings)} lines could not be judged: {failed[0]}")
    return agreement(readings)


def agreement(readings: Sequence[Reading]) -> Agreement:
    """The count of what was said and what is so."""
    heard = [reading for reading in readings if reading.failed is None]
    return Agreement(rows=len(heard), complaints=_hits(heard, -1), praise=_hits(heard, 1))


def _hits(readings: Sequence[Reading], sign: int) -> Hits:
    given = [one for one in readings if one.score is not None and one.score * sign > 0]
    right = [one for one in given if one.row.score == sign]
    return Hits(right=len(right), given=len(given), there=sum(one.row.score == sign for one in readings))


def _is_right(reading: Reading) -> bool:
    return bool(reading.score) and reading.row.score is not None and (reading.score or 0) * reading.row.score > 0
