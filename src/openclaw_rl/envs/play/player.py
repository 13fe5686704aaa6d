"""Agent programs play tasks: one episode, and all episodes in a plan.

An episode consists of a sandbox with a task's files, the program in it, a connection to the gateway, and the
environment's final score for the files. The score is paid to the session of the program's calls; the gateway recorded
the calls themselves, token by token.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from socket import socket
from typing import Any, Protocol

import httpx2

from openclaw_rl.envs.play.forwarder import GatewayForwarder
from openclaw_rl.envs.play.journal import KeptEpisode, PlayJournal, PlayPlan
from openclaw_rl.envs.play.programs import AgentTask, SupportsAgents
from openclaw_rl.envs.sandbox import CommandResult
from openclaw_rl.errors import BackendDown, OpenClawError, RequestError, TaskRefused
from openclaw_rl.ports import AGENT_HOME, AgentCommand, Env
from openclaw_rl.types import new_id

log = logging.getLogger(__name__)

PORT = 8088
"""the gateway's port in a sandbox"""
INSIDE = f"http://127.0.0.1:{PORT}/v1"
SHOWN = 300
"""characters from a program's final output in a failure's reason"""
FAILED_IN_A_ROW = 4
"""consecutive failed episodes that end a play: the next would fail as well"""
_PAY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""waits between payment attempts while the gateway is unavailable"""


class SessionPayments(Protocol):
    """The part of the API for paying a session."""

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None: ...

    async def end(self, session: str) -> None: ...


Serve = Callable[[Any, socket], AbstractAsyncContextManager[None]]
"""serves an ASGI application on a listening socket for the block's duration"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """Settings for episodes.

    ``root`` is the gateway's address without /v1, ``key`` an environment's key. ``command`` returns the program's
    command for an instruction and a folder. ``search`` is prepended to the sandbox's PATH. ``retries`` applies to
    failures that the policy did not cause.
    """

    root: str
    key: str | None
    command: Callable[[str, str], AgentCommand]
    search: tuple[str, ...]
    parallel: int
    seconds: float
    max_calls: int
    retries: int
    temperature: float | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """An episode's result. ``outcome`` is None if it failed without the policy's fault; ``error`` is the reason.

    ``exit`` is the program's exit code, None if it was stopped, for the reason in ``stopped``. ``output`` is the end of
    its output. ``refused``: the task cannot be played at all, so no program was started.
    """

    task: str
    number: int
    session: str
    outcome: float | None = None
    paid: bool = False
    calls: int = 0
    seconds: float = 0.0
    exit: int | None = None
    stopped: str = ""
    output: str = ""
    error: str = ""
    refused: bool = False

    @property
    def solved(self) -> bool:
        return self.outcome == 1.0

    @property
    def worth_another_try(self) -> bool:
        """Return True if it failed and a retry may help: a refused task or a program without calls would fail again."""
        ended = self.exit is not None or bool(self.stopped)
        return bool(self.error) and not self.refused and (self.calls > 0 or not ended)


class AgentPlayer:
    """Plays a plan, ``parallel`` episodes at once."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        payments: SessionPayments,
        settings: PlaySettings,
        *,
        serve: Serve,
        admit: Callable[[str], Awaitable[None]],
    ) -> None:
        """``admit`` raises TaskRefused for a task that must not be played."""
        self._make_env = make_env
        self._payments = payments
        self._settings = settings
        self._serve = serve
        self._admit = admit
        self._failed_in_a_row = 0

    async def play(
        self, journal: PlayJournal, *, report: Callable[[PlayedEpisode], None] = lambda _: None
    ) -> list[PlayedEpisode]:
        """Play all episodes in the journal's plan that are not done; return them in the order in which they ended.

        Raise OpenClawError if consecutive episodes fail.
        """
        assert journal.plan is not None
        plan, over = journal.plan, list[PlayedEpisode]()
        waiting = iter([episode for episode in _planned(plan) if episode not in journal.done])

        async def work() -> None:
            for task, number in waiting:
                played = await self._with_retries(journal, plan, task, number)
                over.append(played)
                report(played)
                self._raise_where_all_fail(played)

        workers = [asyncio.create_task(work()) for _ in range(self._settings.parallel)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return over

    def _raise_where_all_fail(self, played: PlayedEpisode) -> None:
        if played.refused:
            return
        self._failed_in_a_row = self._failed_in_a_row + 1 if played.error else 0
        if self._failed_in_a_row >= max(FAILED_IN_A_ROW, self._settings.parallel):
            raise OpenClawError(
                f"the last {self._failed_in_a_row} episodes all failed, the last with: {played.error}",
                remedy="try the agent by hand, or one task with --tasks LEVEL/0 --json, which shows what it printed",
            )

    async def _with_retries(self, journal: PlayJournal, plan: PlayPlan, task: str, number: int) -> PlayedEpisode:
        for tries_left in range(self._settings.retries, -1, -1):
            played = await self._settled(journal, plan, task, number)
            if not tries_left or not played.worth_another_try:
                break
            log.warning("episode failed and is played again task=%s: %s", task, played.error)
        return played

    async def _settled(self, journal: PlayJournal, plan: PlayPlan, task: str, number: int) -> PlayedEpisode:
        """Play one episode in its own session; pay it or mark it as failed, also when cancelled."""
        session = f"play-{new_id()}"
        journal.begun(session, task=task, number=number)
        try:
            played = await self._episode(plan, PlayedEpisode(task=task, number=number, session=session))
        except asyncio.CancelledError:
            await asyncio.shield(self._settle(journal, plan, session, None, "the player was stopped"))
            raise
        if played.outcome is not None:
            journal.scored(session, played.outcome)
        return replace(played, paid=await self._settle(journal, plan, session, played.outcome, played.error))

    async def finish(self, journal: PlayJournal) -> Sequence[KeptEpisode]:
        """Settle the sessions left by an ended player: pay the scored ones, mark the others as failed; return them."""
        episodes = journal.unsettled
        for episode in episodes:
            assert journal.plan is not None
            await self._settle(journal, journal.plan, episode.session, episode.outcome, "the player was killed")
        return episodes

    async def _settle(
        self, journal: PlayJournal, plan: PlayPlan, session: str, outcome: float | None, error: str
    ) -> bool:
        """Pay the session, or mark one without an outcome as failed; return True if it was paid."""
        paid = plan.trains and await self._pay(session, score=outcome, failed=None if outcome is not None else error)
        journal.settled(session)
        return paid

    async def _pay(self, session: str, *, score: float | None, failed: str | None) -> bool:
        """Pay the session; return False if it has no turn, or has failed."""
        for seconds in (*_PAY_SECONDS, None):
            try:
                return await self._paid_once(session, score, failed)
            except BackendDown:
                if seconds is None:
                    raise
                await asyncio.sleep(seconds)
        raise AssertionError("the last try returns or raises")

    async def _paid_once(self, session: str, score: float | None, failed: str | None) -> bool:
        try:
            await self._payments.reward(session, score=score, failed=failed[:500] if failed else None)
        except RequestError as error:
            if error.status == 404:
                return False
            if error.status != 409:  # one of its turns has trained: an earlier attempt's payment stays
                raise
        await self._payments.end(session)
        return score is not None

    async def _episode(self, plan: PlayPlan, begun: PlayedEpisode) -> PlayedEpisode:
        """Play the episode; a failure that the policy did not cause is recorded in ``error``."""
        began = time.monotonic()
        env: Env | None = None
        try:
            await self._admit(begun.task)
            env = self._make_env()
            if not isinstance(env, SupportsAgents):
                raise TaskRefused(
                    f"environment {env.name} has no tasks for agent programs: what it checks is not in files",
                    remedy="take one that has, such as --env terminal",
                )
            task = await env.hand_over(begun.task, seed=self._settings.seed)
            played = await self._run(plan, begun, task)
            return played if played.error else replace(played, outcome=await env.outcome())
        except (OpenClawError, OSError) as error:
            refused = isinstance(error, TaskRefused)
            reason = str(error) if refused else f"{type(error).__name__}: {error}"
            return replace(begun, error=reason, refused=refused, seconds=time.monotonic() - began)
        finally:
            if env is not None:
                await env.close()

    async def _run(self, plan: PlayPlan, begun: PlayedEpisode, task: AgentTask) -> PlayedEpisode:
        command = self._settings.command(task.instruction, task.cwd)
        for path, text in command.files.items():
            await task.sandbox.write(posixpath.join(AGENT_HOME, path), text.encode(), executable=text.startswith("#!"))
        await task.sandbox.run(["mkdir", "-p", AGENT_HOME])
        async with self._forwarding(plan, begun, task) as forwarder:
            ended = await self._until_end(command, task, forwarder)
        played = replace(
            begun,
            calls=forwarder.calls,
            seconds=ended.seconds,
            exit=ended.code,
            stopped=ended.stopped,
            output=ended.output[-4000:],
        )
        return replace(played, error=_fault(played, forwarder.outage))

    @asynccontextmanager
    async def _forwarding(
        self, plan: PlayPlan, begun: PlayedEpisode, task: AgentTask
    ) -> AsyncIterator[GatewayForwarder]:
        settings = self._settings
        listener = await task.sandbox.listen(PORT)
        async with httpx2.AsyncClient(timeout=httpx2.Timeout(None, connect=10.0), verify=False) as client:
            forwarder = GatewayForwarder(
                client,
                root=settings.root,
                headers=_headers(plan, settings.key, begun),
                max_calls=settings.max_calls,
                temperature=settings.temperature,
            )
            async with self._serve(forwarder.app(), listener):
                yield forwarder

    async def _until_end(self, command: AgentCommand, task: AgentTask, forwarder: GatewayForwarder) -> CommandResult:
        """Run the program until it ends, its time is over or its calls are used up."""
        began = time.monotonic()
        path = ":".join((*self._settings.search, "/usr/local/bin", "/usr/bin", "/bin"))
        running = asyncio.ensure_future(
            task.sandbox.run(
                command.words,
                seconds=self._settings.seconds,
                cwd=task.cwd,
                env={"HOME": AGENT_HOME, "PATH": path, **command.env},
            )
        )
        spent = asyncio.ensure_future(forwarder.spent.wait())
        try:
            await asyncio.wait({running, spent}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return await running
        finally:
            for future in (running, spent):
                future.cancel()
            await asyncio.gather(running, spent, return_exceptions=True)
        used = f"stopped after {self._settings.max_calls} calls"
        return CommandResult(code=None, output="", seconds=time.monotonic() - began, stopped=used)


def _planned(plan: PlayPlan) -> Sequence[tuple[str, int]]:
    return [(task, number) for task in plan.tasks for number in range(plan.rollouts)]


def _headers(plan: PlayPlan, key: str | None, begun: PlayedEpisode) -> Mapping[str, str]:
    headers = {
        "x-session-id": begun.session,
        "x-openclaw-rl-group": plan.group(begun.task),
        "x-openclaw-rl-notes": "off",
    }
    if not plan.trains:
        headers["x-openclaw-rl-train"] = "off"
    return {**headers, "authorization": f"Bearer {key}"} if key else headers


def _fault(played: PlayedEpisode, outage: str) -> str:
    """Return the reason why an episode does not count for the policy; "" if it counts."""
    if outage:
        return outage
    if played.calls:
        return ""
    end = f"exit code {played.exit}" if played.exit is not None else played.stopped
    output = " ".join(played.output.split())[-SHOWN:]
    return f"the agent made no call of the model ({end})" + (f"; output: {output}" if output else "")
