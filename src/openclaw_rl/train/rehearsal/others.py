"""Whether practising a note in the prompt is at the cost of what others ask for in theirs."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.train.rehearsal.lesson import Lesson
from openclaw_rl.train.rehearsal.measure import Distance, DistanceMeter, lost
from openclaw_rl.train.rehearsal.replies import ReplySampler
from openclaw_rl.types import Sampling


class OthersMeter:
    """Asks held-back prompts with each of the other notes in them, before and after; ``lost`` says what is worse."""

    def __init__(self, sampler: ReplySampler, lessons: Sequence[Lesson], *, sampling: Sampling) -> None:
        self._sampler, self._sampling = sampler, sampling
        self._lessons = [one for one in lessons if one.in_prompt and one.checker is not None]
        self._at_first: list[Distance] = []
        self.lost: str | None = None

    async def before(self, number: int) -> None:
        """Of the weights that are served now."""
        self._at_first = [await self._kept(one, number) for one in self._lessons]

    async def after(self, number: int) -> None:
        """Of those that were trained."""
        for one, first in zip(self._lessons, self._at_first, strict=True):
            why = lost(first, await self._kept(one, number))
            if why is not None:
                self.lost = f"other notes would be lost for it: of {one.rule!r} {why}"
                return

    async def _kept(self, lesson: Lesson, number: int) -> Distance:
        meter = DistanceMeter(self._sampler, lesson, teacher=number, sampling=self._sampling)
        return await meter.on_more(lesson.prompts.held_back, number)
