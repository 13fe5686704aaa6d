"""What came of a demo: figures for a script, and the curve as SVG. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.experiments import charts
from openclaw_rl.experiments.demo_server import Progress
from openclaw_rl.experiments.metrics import HeldOutRates, curve, relevance_kept
from openclaw_rl.experiments.sessions import SimulatedTurn
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import Preference

FORMER = {
    "preference": "wish",
    "rate_prompted": "rate_hinted",
    "relevance_before": "sense_before",
    "relevance_after": "sense_after",
    "relevance_prompted": "sense_hinted",
    "relevance_kept": "sense_kept",
    "words_prompted": "words_hinted",
    "degenerate_prompted": "degenerate_hinted",
}
"""renamed fields of `demo --json`, with their former names"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """Who talks and how much. ``probes`` held-out prompts are asked before and after."""

    preference: Preference
    turns: int
    seed: int
    probes: int
    concurrency: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What came of it. ``prompted`` is the prompted baseline: the base model with the preference in every prompt.

    ``promotions`` are (turns read, version); ``paused`` says why training was paused or fails, if so.
    """

    plan: DemoPlan
    before: HeldOutRates
    prompted: HeldOutRates
    after: HeldOutRates
    turns: tuple[SimulatedTurn, ...]
    answers: tuple[tuple[Task, str, str], ...]
    progress: Progress
    promotions: tuple[tuple[int, int], ...]
    paused: str | None
    seconds: dict[str, float]
    run_dir: Path

    def plain(self) -> dict[str, Any]:
        """The report for a script."""
        kept = relevance_kept(self.after, self.prompted)
        measured = (("before", self.before), ("after", self.after), ("prompted", self.prompted))
        return {
            "user": self.plan.preference.name,
            "preference": self.plan.preference.description,
            "seed": self.plan.seed,
            "turns": len(self.turns),
            **{f"rate_{when}": one.rate for when, one in measured},
            **{f"relevance_{when}": one.relevance for when, one in measured},
            "relevance_kept": None if kept is None else round(kept, 4),
            **{f"words_{when}": round(one.words, 1) for when, one in measured},
            **{f"degenerate_{when}": one.degenerate for when, one in measured},
            "held_out": self.before.count,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "versions": {"promoted": self.progress.promoted, "refused": self.progress.refused},
            "paused": self.paused,
            "curve": [[at, round(value, 4)] for at, value in curve(self.turns)],
            "promotions": [list(one) for one in self.promotions],
            "answers": [{"prompt": task.prompt, "before": old, "after": new} for task, old, new in self.answers],
            "run_dir": str(self.run_dir),
        }

    def chart(self) -> str:
        """The curve as SVG: first replies that met the preference, held-out rates, versions as they came."""
        preference = self.plan.preference
        return charts.lines(
            f"{preference.name}: {preference.description}",
            {"first replies that meet the preference, last 8": curve(self.turns)},
            x="turns",
            y="preference rate",
            marks=[(at, f"v{number}") for at, number in self.promotions],
            levels={
                f"held-out before: {self.before.rate:.0%}": self.before.rate,
                f"held-out after: {self.after.rate:.0%}": self.after.rate,
            },
        )
