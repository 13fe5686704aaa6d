"""The `auto` judge, the default: rules where they are sure, a model for the rest if there is one."""

from __future__ import annotations

from openclaw_rl.judge.explain import Explains, Explanation
from openclaw_rl.judge.parts import at_work
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict


class AutoJudge:
    """Asks ``llm`` only where ``rules`` abstain; without an ``llm`` the rules' abstention stands."""

    name = "auto"

    def __init__(self, *, rules: RulesJudge, llm: Judge | None = None) -> None:
        self._rules = rules
        self.llm = llm

    @property
    def parts(self) -> tuple[Judge, ...]:
        """The rules, and the model if there is one."""
        return (self._rules, self.llm) if self.llm is not None else (self._rules,)

    @property
    def at_work(self) -> str:
        """Who judges."""
        return "rules" if self.llm is None else f"rules where they are sure, else {at_work(self.llm)}"

    async def judge(self, case: Case) -> Verdict:
        """The rules' verdict if it has a score, the model's otherwise."""
        sure = await self._rules.judge(case)
        if sure.score is not None or self.llm is None or not case.outcome.next_state:
            return sure
        return await self.llm.judge(case)

    async def explain(self, case: Case) -> Explanation:
        """The story of the one that spoke."""
        sure = await self._rules.explain(case)
        silent = sure.verdict is not None and sure.verdict.score is None
        if silent and isinstance(self.llm, Explains):
            return await self.llm.explain(case)
        return sure
