"""The demo: the real server, a simulated user who talks to it over HTTP, and what came of it.

    report = await run(config, DemoPlan(preference=PREFERENCES["short"], turns=44, ...), view)

Held-out prompts are asked before and after, none of them ever trained on. Between, the user talks and the four loops
run as in any other run. The user slows down while more turns wait than the trainer can take, as a person would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from openclaw_rl.config import Config
from openclaw_rl.experiments.demo_report import DemoPlan, DemoReport
from openclaw_rl.experiments.demo_server import DemoServer, Progress, serving
from openclaw_rl.experiments.metrics import measure
from openclaw_rl.experiments.sessions import SimulatedTurn, run_sessions, sample_replies
from openclaw_rl.experiments.users import SimulatedUser, user_tasks

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiReply

PATIENCE = 120.0
"""most seconds that a session, or the end, waits for the trainer"""
POLL = 0.25
"""seconds between two looks at how far the loops are"""


class DemoView(Protocol):
    """Who is shown the demo as it goes."""

    def phase(self, what: str) -> None:
        """Something new begins."""
        ...

    def answered(self, done: int, total: int) -> None:
        """So many held-out prompts of this phase are answered."""
        ...

    def turn(self, turn: SimulatedTurn) -> None:
        """The user has read a reply and responded to it."""
        ...

    def progress(self, progress: Progress) -> None:
        """How far the loops are, several times a second."""
        ...


async def run(config: Config, plan: DemoPlan, view: DemoView) -> DemoReport:
    """Measure, talk, measure again. Raises what the app raises when it cannot start."""
    began, seconds = time.monotonic(), dict[str, float]()
    preference = plan.preference
    probes = user_tasks(preference, seed=plan.seed, held=True)[: plan.probes]
    view.phase("the model is loaded")
    async with serving(config) as server:
        view.phase(f"{len(probes)} held-out prompts before any learning, plain and with the preference in the prompt")
        plain = [task.prompt for task in probes]
        first = await _sample(server, plan, [*plain, *map(preference.prompted, plain)], view)
        seconds["before"] = time.monotonic() - began
        view.phase(f"u1 talks, and would like {preference.description}")
        turns, promotions = await _talk(server, plan, view)
        seconds["talk"] = time.monotonic() - began - seconds["before"]
        view.phase("the same held-out prompts again")
        second = await _sample(server, plan, plain, view)
        progress, paused = server.progress(len(turns)), server.trouble()
    seconds["after"] = time.monotonic() - began - seconds["before"] - seconds["talk"]
    seconds["total"] = time.monotonic() - began
    old, prompted = first[: len(plain)], first[len(plain) :]
    return DemoReport(
        plan=plan,
        before=measure(preference, probes, old),
        prompted=measure(preference, probes, prompted),
        after=measure(preference, probes, second),
        turns=tuple(turns),
        answers=tuple(zip(probes, old, second, strict=True)),
        progress=progress,
        promotions=tuple(promotions),
        paused=paused,
        seconds=seconds,
        run_dir=Path(config.run.dir),
    )


async def _sample(server: DemoServer, plan: DemoPlan, prompts: Sequence[str], view: DemoView) -> list[str]:
    done = 0

    def count(_number: int, _reply: ApiReply) -> None:
        nonlocal done
        done += 1
        view.answered(done, len(prompts))

    replies = await sample_replies(
        server.client,
        prompts,
        max_tokens=plan.preference.max_tokens,
        sampling=plan.preference.sampling,
        concurrency=server.config.policy.max_batch,
        seed=plan.seed,
        on_reply=count,
    )
    return [reply.text for reply in replies]


async def _talk(
    server: DemoServer, plan: DemoPlan, view: DemoView
) -> tuple[list[SimulatedTurn], list[tuple[int, int]]]:
    """The sessions, paced by the trainer; and after how many turns each version came."""
    pace = _Pace(server, plan, view)
    polling = asyncio.create_task(pace.poll())
    try:
        user = SimulatedUser(plan.preference, seed=plan.seed, rounds=plan.rounds)
        await run_sessions(
            server.client,
            user,
            range(plan.turns),
            concurrency=plan.concurrency,
            on_turn=pace.turn,
            ready=pace.ready,
        )
        view.phase("the trainer finishes its last batch")
        await pace.settled()
    finally:
        polling.cancel()
    return pace.turns, pace.promotions


class _Pace:
    """The turns so far, and how far the loops are with them: what slows the user down."""

    def __init__(self, server: DemoServer, plan: DemoPlan, view: DemoView) -> None:
        self._server, self._plan, self._view = server, plan, view
        self._batch = server.config.train.batch_size
        self._unread = 0
        self.turns: list[SimulatedTurn] = []
        self.promotions: list[tuple[int, int]] = []

    def turn(self, turn: SimulatedTurn) -> None:
        self._unread -= turn.round == 0
        self.turns.append(turn)
        self._view.turn(turn)

    async def ready(self) -> bool:
        """Wait, though not for ever, while a batch is on its way; False once all turns are had."""
        until = time.monotonic() + PATIENCE
        while len(self.turns) < self._plan.turns:
            free = self._look().waiting + self._unread < self._batch
            if free or self._server.trouble() or time.monotonic() > until:
                self._unread += 1
                return True
            await asyncio.sleep(POLL)
        return False

    async def settled(self) -> None:
        """Wait until less than a batch is left, or nobody trains, or patience ends."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self._look().waiting < self._batch or self._server.trouble():
                return
            await asyncio.sleep(POLL)

    async def poll(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(POLL)

    def _look(self) -> Progress:
        progress = self._server.progress(len(self.turns))
        if progress.live > (self.promotions[-1][1] if self.promotions else 0):
            self.promotions.append((len(self.turns), progress.live))
        self._view.progress(progress)
        return progress
