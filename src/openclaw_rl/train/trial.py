"""Which of its turns a trainer dies of: a batch that fails is tried again, then cut in halves until one turn is left.

Kept in memory only: after a restart the same batch is tried from the beginning.
"""

from __future__ import annotations

from openclaw_rl.train.samples import Batch
from openclaw_rl.types import Drop

TRIES = 2
"""how often a batch, and at last a single turn, may fail: a trainer that somebody killed gets another chance"""
UNFIT = "cannot be trained"
"""the reason of the drop"""


class Trial:
    """How large the next batch may be, by how the last ones went."""

    def __init__(self) -> None:
        self._failures = 0
        self._most: int | None = None

    def size(self, waiting: int) -> int:
        """How many of ``waiting`` samples are tried now: all of them, unless a batch has failed."""
        if self._most is not None and self._most >= waiting:
            self._most = None if self._most > 1 else self._most
        return waiting if self._most is None else min(waiting, self._most)

    def passed(self) -> None:
        """A batch was trained: the next may be twice as large."""
        self._failures = 0
        if self._most is not None:
            self._most *= 2

    def failed(self, batch: Batch, error: Exception) -> Drop | None:
        """A batch failed: the next is the same, then half of it; a single turn that fails too often gives its drop."""
        self._failures += 1
        alone = len(batch.samples) == 1
        if self._failures < TRIES and (alone or self._most is None):
            return None
        self._failures = 0
        self._most = max(1, len(batch.samples) // 2)
        if not alone:
            return None
        told = f"{type(error).__name__}: {error}".strip().splitlines()
        detail = " ... ".join(dict.fromkeys((told[0], told[-1])))[:500]
        return Drop(turn=batch.samples[0].turn, stage="train", reason=UNFIT, detail=detail)
