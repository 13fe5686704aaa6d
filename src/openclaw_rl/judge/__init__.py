"""Loop 3: outcomes become verdicts, based on the strongest available evidence."""

from openclaw_rl.judge.custom import CustomJudge, RulesJudge, as_judge
from openclaw_rl.judge.explain import Explanation, explain
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.loop import JudgeLoop
from openclaw_rl.judge.parts import AutoJudge

__all__ = ["AutoJudge", "CustomJudge", "Explanation", "JudgeLoop", "LlmJudge", "RulesJudge", "as_judge", "explain"]
