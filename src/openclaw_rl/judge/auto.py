"""The `auto` judge, the default: the reader where it is sure, a model for the rest if there is one."""

from __future__ import annotations

from openclaw_rl.judge.explain import Explains, Explanation
from openclaw_rl.judge.parts import at_work
from openclaw_rl.judge.reader.judge import ReaderJudge
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict


class AutoJudge:
    """Asks ``llm`` only where ``reader`` abstains; without an ``llm`` its abstention stands."""

    name = "auto"

    def __init__(self, *, reader: ReaderJudge, llm: Judge | None = None) -> None:
        self._reader = reader
        self.llm = llm

    @property
    def parts(self) -> tuple[Judge, ...]:
        """The reader, and the model if there is one."""
        return (self._reader, self.llm) if self.llm is not None else (self._reader,)

    @property
    def at_work(self) -> str:
        """Who judges."""
        mine = at_work(self._reader)
        return mine if self.llm is None else f"{mine} where sure, else {at_work(self.llm)}"

    async def judge(self, case: Case) -> Verdict:
        """The reader's verdict if it has a score, the model's otherwise."""
        sure = await self._reader.judge(case)
        if sure.score is not None or self.llm is None or not case.outcome.next_state:
            return sure
        return await self.llm.judge(case)

    async def explain(self, case: Case) -> Explanation:
        """The story of the one that spoke."""
        sure = await self._reader.explain(case)
        silent = sure.verdict is not None and sure.verdict.score is None
        if silent and isinstance(self.llm, Explains):
            return await self.llm.explain(case)
        return sure
