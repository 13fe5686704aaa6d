"""Which turn of a batch makes the trainer fail: the batch is tried again, then halved until one turn is left.

Kept in memory only: after a restart the same batch is tried from the beginning.
"""

from __future__ import annotations

from openclaw_rl.train.samples import TrainingBatch
from openclaw_rl.types import Drop, DropReason

TRIES = 2
"""how often a batch, and at last a single turn, may fail: a trainer that was killed gets another chance"""
UNTRAINABLE: DropReason = "cannot be trained"
"""the reason of the drop"""


class BatchBisection:
    """How large the next batch may be, by how the last ones ended."""

    def __init__(self) -> None:
        self._failures = 0
        self._limit: int | None = None

    def size(self, waiting: int) -> int:
        """How many of ``waiting`` samples are tried now: all of them, unless a batch has failed."""
        if self._limit is not None and self._limit >= waiting:
            self._limit = None if self._limit > 1 else self._limit
        return waiting if self._limit is None else min(waiting, self._limit)

    def passed(self) -> None:
        """A batch was trained: the next may be twice as large."""
        self._failures = 0
        if self._limit is not None:
            self._limit *= 2

    def failed(self, batch: TrainingBatch, error: Exception) -> Drop | None:
        """A batch failed: the next is the same, then half of it; a single turn that fails too often gives its drop."""
        self._failures += 1
        alone = len(batch.samples) == 1
        if self._failures < TRIES and (alone or self._limit is None):
            return None
        self._failures = 0
        self._limit = max(1, len(batch.samples) // 2)
        if not alone:
            return None
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        detail = " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:500]
        return Drop(turn=batch.samples[0].turn, stage="train", reason=UNTRAINABLE, detail=detail)
