"""The demo: a correction applies at once, is learned while its user is away, and its note leaves the prompt.

    report = await run(config, DemoPlan(preference=PREFERENCES["short"], seed=0, probes=60, ...), view)

It runs the real server and a simulated user over HTTP. Held-out prompts, never trained on, are asked before the
correction, with its note in the prompt, and after the note has left it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from openclaw_rl.config import Config
from openclaw_rl.experiments import charts
from openclaw_rl.experiments.demo_server import POLL, DemoServer, Progress, demo_settings, serving
from openclaw_rl.experiments.results import HeldOutRates, measure, note_curves, relevance_kept
from openclaw_rl.experiments.sessions import (
    SimulatedTurn,
    SimulatedUser,
    accept_proposed,
    run_session,
    sample_replies,
    user_tasks,
)
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import Preference

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiReply
    from openclaw_rl.types import Note


# Results of a demo: figures for a script, and the curve as SVG. Pure.

FORMER = {
    "preference": "wish",
    "relevance_before": "sense_before",
    "relevance_after": "sense_after",
    "relevance_kept": "sense_kept",
}
"""former names of renamed fields in `demo --json`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """Size of a demo: at most ``sessions`` with ``rounds`` complaints each, and ``probes`` held-out prompts."""

    preference: Preference
    seed: int
    probes: int
    sessions: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """The user's next prompt, with its replies without the note and with it in the prompt."""

    prompt: str
    without: str
    within: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Results of a demo: held-out rates before, with the note (``noted``), and after, without any note in the prompt.

    ``note`` is the note made from the correction and ``end`` its final state, both None if no correction was
    recognized; ``trouble`` is the reason why training was paused or fails, if so.
    """

    plan: DemoPlan
    before: HeldOutRates
    noted: HeldOutRates
    after: HeldOutRates
    turns: tuple[SimulatedTurn, ...]
    note: str | None
    obeyed: Obeyed | None
    end: Progress | None
    distillations: tuple[dict[str, Any], ...]
    refused: int
    answers: tuple[tuple[Task, str, str, str], ...]
    trouble: str | None
    seconds: dict[str, float]
    run_dir: Path

    @property
    def learned(self) -> bool:
        """Return True if the note has left the prompt."""
        return self.end is not None and self.end.state == "learned"

    def plain(self) -> dict[str, Any]:
        """Return the report for a script."""
        relevance = relevance_kept(self.after, self.before)
        measured = (("before", self.before), ("noted", self.noted), ("after", self.after))
        return {
            "user": self.plan.preference.name,
            "preference": self.plan.preference.description,
            "seed": self.plan.seed,
            "note": self.note,
            "state": self.end.state if self.end is not None else None,
            "reason": self.end.reason if self.end is not None else None,
            "obeyed": asdict(self.obeyed) if self.obeyed is not None else None,
            "turns": [{"message": row.message, "reply": row.reply, "response": row.response} for row in self.turns],
            **{f"rate_{when}": row.rate for when, row in measured},
            **{f"relevance_{when}": row.relevance for when, row in measured},
            "relevance_kept": None if relevance is None else round(relevance, 4),
            **{f"words_{when}": round(row.words, 1) for when, row in measured},
            **{f"degenerate_{when}": row.degenerate for when, row in measured},
            "held_out": self.before.count,
            "distillations": list(self.distillations),
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
        """Return the note's learning curve by distillation step."""
        return note_curves(self.distillations)

    def chart(self) -> str:
        """Return the curve as SVG, with the held-out rates."""
        preference = self.plan.preference
        levels = (("before", self.before), ("with the note", self.noted), ("after", self.after))
        return charts.lines(
            f"{preference.name}: {preference.description}",
            self.curves(),
            x="distillation steps",
            y="share",
            levels={f"held-out {when}: {rates.rate:.0%}": rates.rate for when, rates in levels},
        )


HEARD = 30.0
"""longest wait, in seconds, for a correction to become a note"""
PATIENCE = 1800.0
"""longest wait, in seconds, until a note is learned or its training ends"""


class DemoView(Protocol):
    """Display of the demo's progress."""

    def phase(self, what: str) -> None:
        """A new phase begins."""
        ...

    def answered(self, done: int, total: int) -> None:
        """``done`` held-out prompts of this phase are answered."""
        ...

    def turn(self, turn: SimulatedTurn) -> None:
        """The user has read a reply and responded to it."""
        ...

    def noted(self, note: str) -> None:
        """A correction has become a standing note."""
        ...

    def obeyed(self, obeyed: Obeyed) -> None:
        """The next reply, with the note and without."""
        ...

    def progress(self, progress: Progress) -> None:
        """The note's progress, several times a second."""
        ...


async def run(config: Config, plan: DemoPlan, view: DemoView) -> DemoReport:
    """Measure, run sessions, let the app learn, measure again. Raises the app's errors if it cannot start."""
    clock, preference = _Clock(), plan.preference
    probes = user_tasks(preference, seed=plan.seed, held=True)[: plan.probes]
    view.phase("the model is loaded")
    async with serving(demo_settings(config, tokens=preference.max_tokens)) as server:
        asking = _HeldOut(server, plan, probes, view)
        clock.lap("start")
        view.phase(f"{len(probes)} held-out prompts before the first session")
        old = await asking.replies(notes=False)
        clock.lap("before")
        view.phase(f"u1 chats and prefers {preference.description}")
        turns, note = await _talk(server, plan, view)
        obeyed = await _obeyed(server, plan, len(turns), view) if note is not None else None
        clock.lap("talk")
        view.phase("the held-out prompts with the note in force")
        noted = await asking.replies(notes=True) if note is not None else old
        clock.lap("noted")
        end = await _learn(server, note, view) if note is not None else None
        clock.lap("learning")
        view.phase("the held-out prompts again, without any note")
        new = await asking.replies(notes=False)
        clock.lap("after")
        distillations = server.evidence(note.number) if note is not None else []
        refused, trouble = server.refused(), server.trouble()
    return DemoReport(
        plan=plan,
        before=asking.rates(old),
        noted=asking.rates(noted),
        after=asking.rates(new),
        turns=tuple(turns),
        note=note.text if note is not None else None,
        obeyed=obeyed,
        end=end,
        distillations=tuple(distillations),
        refused=refused,
        answers=tuple(zip(probes, old, noted, new, strict=True)),
        trouble=trouble,
        seconds=clock.laps(),
        run_dir=Path(config.run.dir),
    )


class _Clock:
    """Wall time of each part."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, what: str) -> None:
        now = time.monotonic()
        self._laps[what], self._last = now - self._last, now

    def laps(self) -> dict[str, float]:
        return {**self._laps, "total": time.monotonic() - self._began}


class _HeldOut:
    """Held-out prompts, each sampled with the same seed every time."""

    def __init__(self, server: DemoServer, plan: DemoPlan, probes: Sequence[Task], view: DemoView) -> None:
        self._server, self._plan, self._probes, self._view = server, plan, probes, view

    async def replies(self, *, notes: bool) -> list[str]:
        answered = 0

        def count(_number: int, _reply: ApiReply) -> None:
            nonlocal answered
            answered += 1
            self._view.answered(answered, len(self._probes))

        answers = await sample_replies(
            self._server.client,
            [task.prompt for task in self._probes],
            max_tokens=self._plan.preference.max_tokens,
            sampling=self._plan.preference.sampling,
            concurrency=self._server.config.policy.max_batch,
            seed=self._plan.seed,
            notes=notes,
            on_reply=count,
        )
        return [reply.text for reply in answers]

    def rates(self, replies: Sequence[str]) -> HeldOutRates:
        return measure(self._plan.preference, self._probes, replies)


async def _talk(server: DemoServer, plan: DemoPlan, view: DemoView) -> tuple[list[SimulatedTurn], Note | None]:
    """Run sessions until a correction has become a note; this user states the preference at once and precisely."""
    user = SimulatedUser(replace(plan.preference, vague=()), seed=plan.seed, rounds=plan.rounds)
    turns = list[SimulatedTurn]()
    for number in range(plan.sessions):
        read = await run_session(server.client, user, number, on_turn=view.turn)
        turns += read
        note = await server.noted(0.0 if all(turn.met for turn in read) else HEARD)
        if note is not None:
            if note.state == "proposed":
                await accept_proposed(server.client)
            view.noted(note.text)
            return turns, note
    return turns, None


async def _obeyed(server: DemoServer, plan: DemoPlan, turns: int, view: DemoView) -> Obeyed:
    """Return the user's next prompt, answered with the note in the prompt and without it."""
    preference = plan.preference
    task = user_tasks(preference, seed=plan.seed)[turns]
    without, within = [
        await sample_replies(
            server.client,
            [task.prompt],
            max_tokens=preference.max_tokens,
            sampling=preference.sampling,
            seed=plan.seed,
            notes=notes,
        )
        for notes in (False, True)
    ]
    obeyed = Obeyed(prompt=task.prompt, without=without[0].text, within=within[0].text)
    view.obeyed(obeyed)
    return obeyed


async def _learn(server: DemoServer, note: Note, view: DemoView) -> Progress:
    """Wait until the note is learned and its version answers, or its training ends; return the final progress."""
    view.phase("u1 is away: the note is distilled, then the gate examines the result")
    until, began, change = time.monotonic() + PATIENCE, False, 0
    while True:
        for now in server.progress(note.number, after=change):
            view.progress(now)
            began = began or now.state not in ("proposed", "in force")
        change = now.change
        if (began and now.state != "learning" and now.served) or server.trouble() or time.monotonic() > until:
            return now
        await asyncio.sleep(POLL)
