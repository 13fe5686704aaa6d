"""What came of a demo: figures for a script, and the curve as SVG. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.experiments import charts
from openclaw_rl.experiments.demo_server import Progress
from openclaw_rl.experiments.metrics import HeldOutRates, relevance_kept
from openclaw_rl.experiments.sessions import SimulatedTurn
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import Preference

FORMER = {
    "preference": "wish",
    "relevance_before": "sense_before",
    "relevance_after": "sense_after",
    "relevance_kept": "sense_kept",
}
"""renamed fields of `demo --json`, with their former names"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """Who talks and how much: at most ``sessions``, with ``rounds`` complaints each. ``probes`` held-out prompts."""

    preference: Preference
    seed: int
    probes: int
    sessions: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """What the user asked next, and its replies without the note and with it in the prompt."""

    prompt: str
    without: str
    within: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What came of it: held-out rates before, with the note (``noted``), and after, when no note is in the prompt.

    ``note`` is what the correction became and ``end`` where that stands, both None where no correction was heard as
    one; ``trouble`` says why training was paused or fails, if so.
    """

    plan: DemoPlan
    before: HeldOutRates
    noted: HeldOutRates
    after: HeldOutRates
    turns: tuple[SimulatedTurn, ...]
    note: str | None
    obeyed: Obeyed | None
    end: Progress | None
    rehearsals: tuple[dict[str, Any], ...]
    refused: int
    answers: tuple[tuple[Task, str, str, str], ...]
    trouble: str | None
    seconds: dict[str, float]
    run_dir: Path

    @property
    def learned(self) -> bool:
        """Whether the note has left the prompt."""
        return self.end is not None and self.end.state == "learned"

    def plain(self) -> dict[str, Any]:
        """The report for a script."""
        kept = relevance_kept(self.after, self.before)
        measured = (("before", self.before), ("noted", self.noted), ("after", self.after))
        return {
            "user": self.plan.preference.name,
            "preference": self.plan.preference.description,
            "seed": self.plan.seed,
            "note": self.note,
            "state": self.end.state if self.end is not None else None,
            "reason": self.end.reason if self.end is not None else None,
            "obeyed": asdict(self.obeyed) if self.obeyed is not None else None,
            "turns": [{"message": one.message, "reply": one.reply, "response": one.response} for one in self.turns],
            **{f"rate_{when}": one.rate for when, one in measured},
            **{f"relevance_{when}": one.relevance for when, one in measured},
            "relevance_kept": None if kept is None else round(kept, 4),
            **{f"words_{when}": round(one.words, 1) for when, one in measured},
            **{f"degenerate_{when}": one.degenerate for when, one in measured},
            "held_out": self.before.count,
            "rehearsals": list(self.rehearsals),
            "refused": self.refused,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "trouble": self.trouble,
            "answers": [
                {"prompt": task.prompt, "before": old, "noted": noted, "after": new}
                for task, old, noted, new in self.answers
            ],
            "run_dir": str(self.run_dir),
        }

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """By rehearsal steps, the share of replies without the note that do what it asks, on prompts held back from
        them and of those that were sampled to be rehearsed; where no program knows, the share of the first KL left."""
        held, sampled, apart, before = *(list[tuple[int, float]]() for _ in range(3)), 0
        first = max((row["kl"][0] for row in self.rehearsals[:1]), default=0.0) or 1.0
        for row in self.rehearsals:
            at = [before + step for step in row["measured_after"]]
            held += [
                (step, met / row["held_back"]) for step, met in zip(at, row["met"], strict=True) if met is not None
            ]
            sampled += [(before + step, met / count) for step, met, count in row["sampled"]]
            apart += [(step, min(1.0, kl / first)) for step, kl in zip(at, row["kl"], strict=True)]
            before += row["steps"]
        return {"held-back prompts": held, "rehearsed prompts": sampled} if held else {"distance left": apart}

    def chart(self) -> str:
        """The curve as SVG, with the held-out rates."""
        preference = self.plan.preference
        levels = (("before", self.before), ("with the note", self.noted), ("after", self.after))
        return charts.lines(
            f"{preference.name}: {preference.description}",
            self.curves(),
            x="rehearsal steps",
            y="share",
            levels={f"held-out {when}: {one.rate:.0%}": one.rate for when, one in levels},
        )
