"""The demo: the real server, a simulated user who talks to it over HTTP, and what came of it.

    report = await run(config, Plan(wish=WISHES["short"], turns=44), view)

Held-out prompts are asked before and after, none of them ever trained on. Between, the user talks and the four loops
run as in any other run. The user slows down while more turns wait than the trainer can take, as a person would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from openclaw_rl.app.application import App, ledger_path, patient
from openclaw_rl.config import Config, api_keys
from openclaw_rl.errors import BackendError
from openclaw_rl.experiments import charts as pictures
from openclaw_rl.experiments.personal import Measured, curve, kept, measure
from openclaw_rl.experiments.users import Exchange, Reply, User, ask, talk, tasks
from openclaw_rl.ports import Policy
from openclaw_rl.store import Ledger
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import Wish

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

PATIENCE = 120.0
"""most seconds that a session, or the end, waits for the trainer"""
LOOK = 0.25
"""seconds between two looks at how far the loops are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who talks and how much. ``probes`` held-out prompts are asked before and after."""

    wish: Wish
    turns: int
    seed: int = 0
    probes: int = 20
    together: int = 8
    rounds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the loops are: the version that answers, versions promoted and refused, turns that wait."""

    live: int
    promoted: int
    refused: int
    waiting: int


class View(Protocol):
    """Who watches."""

    def phase(self, what: str) -> None:
        """Something new begins."""
        ...

    def probed(self, done: int, total: int) -> None:
        """So many held-out prompts of this phase are answered."""
        ...

    def heard(self, exchange: Exchange) -> None:
        """The user has read a reply and answered it."""
        ...

    def stands(self, standing: Standing) -> None:
        """How far the loops are, several times a second."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of it. ``hinted`` is the base model when it is told the wish in every prompt.

    ``promotions`` are (turns heard, version); ``paused`` says why training stopped by itself or fails, if so.
    """

    plan: Plan
    before: Measured
    hinted: Measured
    after: Measured
    told: tuple[Exchange, ...]
    answers: tuple[tuple[Task, str, str], ...]
    standing: Standing
    promotions: tuple[tuple[int, int], ...]
    paused: str | None
    seconds: dict[str, float]
    run_dir: Path

    def plain(self) -> dict[str, Any]:
        """The report for a script."""
        share = kept(self.after, self.hinted)
        return {
            "user": self.plan.wish.name,
            "wish": self.plan.wish.description,
            "seed": self.plan.seed,
            "turns": len(self.told),
            "rate_before": self.before.rate,
            "rate_after": self.after.rate,
            "rate_hinted": self.hinted.rate,
            "sense_before": self.before.sense,
            "sense_after": self.after.sense,
            "sense_hinted": self.hinted.sense,
            "sense_kept": None if share is None else round(share, 4),
            "words_before": round(self.before.words, 1),
            "words_after": round(self.after.words, 1),
            "words_hinted": round(self.hinted.words, 1),
            "degenerate_before": self.before.degenerate,
            "degenerate_after": self.after.degenerate,
            "degenerate_hinted": self.hinted.degenerate,
            "held_out": self.before.count,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "versions": {"promoted": self.standing.promoted, "refused": self.standing.refused},
            "paused": self.paused,
            "curve": [[at, round(value, 4)] for at, value in curve(self.told)],
            "promotions": [list(one) for one in self.promotions],
            "answers": [{"prompt": task.prompt, "before": old, "after": new} for task, old, new in self.answers],
            "run_dir": str(self.run_dir),
        }

    def picture(self) -> str:
        """The curve as SVG: first replies as wished, the held-out rate before and after, versions as they came."""
        wish = self.plan.wish
        return pictures.lines(
            f"{wish.name}: {wish.description}",
            {"first replies as wished, last 8": curve(self.told)},
            x="turns",
            y="share as wished",
            marks=[(at, f"v{number}") for at, number in self.promotions],
            levels={
                f"held-out before: {self.before.rate:.0%}": self.before.rate,
                f"held-out after: {self.after.rate:.0%}": self.after.rate,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A running server: its settings, the policy that answers, a client, and the ledger to look into."""

    config: Config
    policy: Policy
    client: httpx2.AsyncClient
    reader: Ledger

    def standing(self, heard: int) -> Standing:
        """How far the loops are with the ``heard`` turns. A version waits until it is decided on and taken up.

        Read in the order in which things move on, so that what moves meanwhile is seen twice rather than not at all.
        """
        used = self._used()
        versions, live = self.reader.versions(), self.reader.live_version()
        refused = len(self.reader.ever("refused"))
        undecided = sum(version.state == "candidate" for version in versions)
        untaken = live is not None and live.number != self.policy.live
        return Standing(
            live=self.policy.live,
            promoted=max(0, len(versions) - 1) - refused - undecided,
            refused=refused,
            waiting=heard - used + (undecided + untaken) * self.config.train.batch_size,
        )

    def _used(self) -> int:
        """Heard turns that were trained or dropped; the replies that nobody reads are not among them."""
        drops = self.reader.drop_counts()
        return self.reader.counts()["trained"] + sum(drops.values()) - drops.get("opted out", 0)

    def trouble(self) -> str | None:
        """Why nobody trains, so that there is nothing to wait for; None while somebody does."""
        rows = self.reader.health()
        failing = next((row for row in rows if row["loop"] == "train" and row["state"] == "failing"), None)
        return self.reader.paused() or (f"the trainer fails: {failing['error']}" if failing else None)


@asynccontextmanager
async def hosting(config: Config) -> AsyncIterator[Host]:
    """The whole app on its port, as `up` runs it but for a step that waits for a full batch; ended properly."""
    import httpx2

    shared = config.train.model_copy(update={"share": "all"})  # those who talk here are simulated, and of one mind
    app, stop = App(patient(config.model_copy(update={"train": shared}))), asyncio.Event()
    assert app.policy is not None, "an app with all loops answers"
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(app.run(stop, listening=address.set_result))
    try:
        url = await _unless_ended(running, address)
        await _unless_ended(running, asyncio.ensure_future(app.ready.wait()))
        key = next(iter(api_keys(config)), None)
        headers = {"user-agent": "simulated-user"} | ({"authorization": f"Bearer {key}"} if key else {})
        async with httpx2.AsyncClient(base_url=url.removesuffix("/v1"), headers=headers, timeout=None) as client:
            with Ledger(ledger_path(config)) as reader:
                yield Host(config=config, policy=app.policy, client=client, reader=reader)
    finally:
        stop.set()
        await running


async def _unless_ended(running: asyncio.Task[None], awaited: asyncio.Future[T]) -> T:
    """What is waited for; raises what ended the app where that comes first."""
    both: set[asyncio.Future[Any]] = {running, awaited}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not awaited.done():
        awaited.cancel()
        await running
        raise BackendError("the server ended before it was ready", remedy="its log says why")
    return awaited.result()


async def run(config: Config, plan: Plan, view: View) -> Report:
    """Measure, talk, measure again. Raises what the app raises when it cannot start."""
    began, seconds = time.monotonic(), dict[str, float]()
    probes = tasks(plan.wish, seed=plan.seed, held=True)[: plan.probes]
    view.phase("the model is loaded")
    async with hosting(config) as host:
        view.phase(f"{len(probes)} held-out prompts, before any learning, plain and with the wish said in the prompt")
        plain = [task.prompt for task in probes]
        told = [plan.wish.say(prompt) for prompt in plain]
        first = await _probe(host, plan, [*plain, *told], view)
        seconds["before"] = time.monotonic() - began
        view.phase(f"u1 talks, and would like {plan.wish.description}")
        exchanges, promotions = await _converse(host, plan, view)
        seconds["talk"] = time.monotonic() - began - seconds["before"]
        view.phase("the same held-out prompts again")
        second = await _probe(host, plan, plain, view)
        standing, paused = host.standing(len(exchanges)), host.trouble()
    seconds["after"] = time.monotonic() - began - seconds["before"] - seconds["talk"]
    seconds["total"] = time.monotonic() - began
    old, hinted = first[: len(plain)], first[len(plain) :]
    return Report(
        plan=plan,
        before=measure(plan.wish, probes, old),
        hinted=measure(plan.wish, probes, hinted),
        after=measure(plan.wish, probes, second),
        told=tuple(exchanges),
        answers=tuple(zip(probes, old, second, strict=True)),
        standing=standing,
        promotions=tuple(promotions),
        paused=paused,
        seconds=seconds,
        run_dir=Path(config.run.dir),
    )


async def _probe(host: Host, plan: Plan, prompts: Sequence[str], view: View) -> list[str]:
    done = 0

    def heard(_number: int, _reply: Reply) -> None:
        nonlocal done
        done += 1
        view.probed(done, len(prompts))

    most = host.config.policy.max_batch
    replies = await ask(
        host.client,
        prompts,
        max_tokens=plan.wish.room,
        asks=plan.wish.asks,
        together=most,
        seed=plan.seed,
        heard=heard,
    )
    return [reply.text for reply in replies]


async def _converse(host: Host, plan: Plan, view: View) -> tuple[list[Exchange], list[tuple[int, int]]]:
    """The talk, paced by the trainer; and after how many turns each version came."""
    talked = _Talk(host, plan, view)
    watching = asyncio.create_task(talked.watch())
    try:
        user = User(plan.wish, seed=plan.seed, rounds=plan.rounds)
        await talk(
            host.client,
            user,
            range(plan.turns),
            together=plan.together,
            heard=talked.heard,
            ready=talked.ready,
        )
        view.phase("the trainer finishes its last batch")
        await talked.settled()
    finally:
        watching.cancel()
    return talked.told, talked.promotions


class _Talk:
    """What has been said so far, and how far the loops are with it."""

    def __init__(self, host: Host, plan: Plan, view: View) -> None:
        self._host, self._plan, self._view = host, plan, view
        self._batch = host.config.train.batch_size
        self._unheard = 0
        self.told: list[Exchange] = []
        self.promotions: list[tuple[int, int]] = []

    def heard(self, exchange: Exchange) -> None:
        self._unheard -= exchange.round == 0
        self.told.append(exchange)
        self._view.heard(exchange)

    async def ready(self) -> bool:
        """Wait, though not for ever, while a batch is on its way; False once all turns are had."""
        until = time.monotonic() + PATIENCE
        while len(self.told) < self._plan.turns:
            free = self._look().waiting + self._unheard < self._batch
            if free or self._host.trouble() or time.monotonic() > until:
                self._unheard += 1
                return True
            await asyncio.sleep(LOOK)
        return False

    async def settled(self) -> None:
        """Wait until less than a batch is left, or nobody trains, or patience ends."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self._look().waiting < self._batch or self._host.trouble():
                return
            await asyncio.sleep(LOOK)

    async def watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK)

    def _look(self) -> Standing:
        standing = self._host.standing(len(self.told))
        if standing.live > (self.promotions[-1][1] if self.promotions else 0):
            self.promotions.append((len(self.told), standing.live))
        self._view.stands(standing)
        return standing
