"""Agent programs play tasks: one episode, and all of a plan.

An episode is a sandbox with a task's files, the program in it, a way to the gateway, and at the end what the
environment says of the files. That is paid to the session under which the program's calls went; the calls themselves
were recorded by the gateway, token by token.
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
"""where the gateway is found in a sandbox"""
INSIDE = f"http://127.0.0.1:{PORT}/v1"
SHOWN = 300
"""characters of a program's last words in the reason of a failure"""
FAILED_IN_A_ROW = 4
"""so many episodes that fail one after the other end a play: the next would fail, too"""
_PAY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""waits between tries to pay while the gateway is away"""


class SessionPayments(Protocol):
    """The part of the API by which a session is paid."""

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None: ...

    async def end(self, session: str) -> None: ...


Serve = Callable[[Any, socket], AbstractAsyncContextManager[None]]
"""serves an ASGI application at a socket that listens, as long as the block lasts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """How episodes are played.

    ``root`` is the gateway's address without /v1, ``key`` the one of an environment. ``command`` says how the program
    is started on an instruction in a folder. ``search`` is put in front of the PATH inside. ``retries`` are for what is
    not the policy's fault.
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
    """How an episode went. ``outcome`` is None where it failed through no fault of the policy's, ``error`` says why.

    ``exit`` is the program's own code, None where it was stopped, for the reason in ``stopped``. ``output`` is the end
    of what it printed. ``refused``: the task cannot be played at all, so no program was started.
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
        """Whether it failed, and not because of the task or because the program never called: neither would change."""
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
        """All episodes of the journal's plan that it does not know to be done; in the order in which they ended.

        Raises OpenClawError where they fail one after the other.
        """
        assert journal.plan is not None
        plan, over = journal.plan, list[PlayedEpisode]()
        waiting = iter([one for one in _planned(plan) if one not in journal.done])

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
                remedy="try the agent by hand, or one task with --tasks RUNG/0 --json, which shows what it printed",
            )

    async def _with_retries(self, journal: PlayJournal, plan: PlayPlan, task: str, number: int) -> PlayedEpisode:
        for left in range(self._settings.retries, -1, -1):
            played = await self._settled(journal, plan, task, number)
            if not left or not played.worth_another_try:
                break
            log.warning("episode failed and is played again task=%s: %s", task, played.error)
        return played

    async def _settled(self, journal: PlayJournal, plan: PlayPlan, task: str, number: int) -> PlayedEpisode:
        """One episode in a session of its own, paid or told to have failed; also where it is cancelled."""
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
        """Settle what a player that is gone had left: pay what it scored, tell the rest to have failed; which."""
        found = journal.unsettled
        for kept in found:
            assert journal.plan is not None
            await self._settle(journal, journal.plan, kept.session, kept.outcome, "the player was killed")
        return found

    async def _settle(
        self, journal: PlayJournal, plan: PlayPlan, session: str, outcome: float | None, error: str
    ) -> bool:
        """Whether the session was paid; one without an outcome is told to have failed."""
        paid = plan.trains and await self._pay(session, score=outcome, failed=None if outcome is not None else error)
        journal.settled(session)
        return paid

    async def _pay(self, session: str, *, score: float | None, failed: str | None) -> bool:
        """Whether the session is worth the score now; False where it has no turn, or has failed."""
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
            if error.status != 409:  # a turn of it has trained: what an earlier try has paid stays
                raise
        await self._payments.end(session)
        return score is not None

    async def _episode(self, plan: PlayPlan, begun: PlayedEpisode) -> PlayedEpisode:
        """Plays it; whatever fails that is not the policy's doing is in ``error``."""
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
            why = str(error) if refused else f"{type(error).__name__}: {error}"
            return replace(begun, error=why, refused=refused, seconds=time.monotonic() - began)
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
        """The program, until it ends, its time is over or its calls are used up."""
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
            for each in (running, spent):
                each.cancel()
            await asyncio.gather(running, spent, return_exceptions=True)
        used = f"stopped after {self._settings.max_calls} calls"
        return CommandResult(code=None, output="", seconds=time.monotonic() - began, stopped=used)


def _planned(plan: PlayPlan) -> Sequence[tuple[str, int]]:
    return [(task, number) for task in plan.tasks for number in range(plan.rollouts)]


def _headers(plan: PlayPlan, key: str | None, begun: PlayedEpisode) -> Mapping[str, str]:
    found = {
        "x-session-id": begun.session,
        "x-openclaw-rl-group": plan.group(begun.task),
        "x-openclaw-rl-notes": "off",
    }
    if not plan.trains:
        found["x-openclaw-rl-train"] = "off"
    return {**found, "authorization": f"Bearer {key}"} if key else found


def _fault(played: PlayedEpisode, outage: str) -> str:
    """Why an episode says nothing of the policy; "" where it does."""
    if outage:
        return outage
    if played.calls:
        return ""
    end = f"exit code {played.exit}" if played.exit is not None else played.stopped
    said = " ".join(played.output.split())[-SHOWN:]
    return f"the agent made no call of the model ({end})" + (f"; it said: {said}" if said else "")
