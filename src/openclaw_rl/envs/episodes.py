"""Environment rollouts through the public API, as a client like any other.

A live user and an environment are equivalent: a client whose reply is the next state. An episode requests a reply,
steps the environment with it, and continues from the observation; at the end it sends its outcome as the session's
reward and ends the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from openclaw_rl.envs.schedule import Episode, Schedule, success_line
from openclaw_rl.errors import EnvFailed, NothingToPlay, OpenClawError, TaskRefused
from openclaw_rl.ports import ChatClient, Env, Observation, Rollout, SupportsOutcome, TurnReply
from openclaw_rl.types import Prompt, new_id

log = logging.getLogger(__name__)
T = TypeVar("T")

TOLD = 64
"""episodes between two log lines with the success rate"""
STOP_SECONDS = 10.0
"""most seconds for stopped episodes to end their sessions on the server"""


async def run_episode(env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int) -> float:
    """Play a task once with at most ``max_steps`` replies; return its outcome. The default rollout.

    The outcome is the reward of the whole session, and so reaches every step. A vote or an earlier reward applies to
    its step alone.
    """
    session = f"episode-{new_id()}"
    prompt = await env.reset(task, seed=seed)
    for _ in range(max_steps):
        reply = await chat.ask(prompt, session=session, group=group)
        observation = await env.step(reply.message)
        if (score := own_of(observation)) is not None:
            await chat.feedback(reply.turn, score=score)
        if observation.done:
            break
        prompt = replace(prompt, messages=(*prompt.messages, reply.message, *observation.messages))
    outcome = await outcome_of(env, observation)
    await chat.reward(session, score=outcome)
    return outcome


def own_of(seen: Observation) -> float | None:
    """Return a step's own score: the environment's vote, else a reward that is not the episode's outcome."""
    return seen.vote if seen.vote is not None or seen.done else seen.reward


async def outcome_of(env: Env, last: Observation) -> float:
    """Return an episode's outcome: its last step's reward, else the environment's outcome, else 0."""
    if last.done and last.reward is not None:
        return last.reward
    return await env.outcome() if isinstance(env, SupportsOutcome) else 0.0


class SessionClient(ChatClient, Protocol):
    """A chat client that can also end a session."""

    async def end(self, session: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """Limits: ``parallel`` episodes at once, at most ``max_steps`` replies each."""

    parallel: int
    max_steps: int


class Episodes:
    """Keeps ``parallel`` episodes running, in the order of a schedule.

    While ``behind()`` is True no new group starts: environments wait for the judge and the trainer, users never do. A
    failed episode is reported and ends alone. After ``parallel`` consecutive failures `tick` raises, so that the loop
    fails visibly and backs off; running episodes continue.
    """

    name = "episodes"

    def __init__(
        self,
        make_env: Callable[[], Env],
        chat: SessionClient,
        settings: EpisodeSettings,
        *,
        behind: Callable[[], bool],
        schedule: Callable[[Sequence[str]], Schedule],
        rollout: Rollout = run_episode,
        tasks: Sequence[str] | None = None,
        report: Callable[[Episode], None] | None = None,
        describe: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
    ) -> None:
        """``schedule`` orders the tasks; ``tasks`` None plays all of the environment. ``report`` receives ended
        episodes.

        ``describe`` returns the state of the environment pool.
        """
        self._describe = describe
        self._make_env = make_env
        self._chat = chat
        self._rollout = rollout
        self._parallel = settings.parallel
        self._max_steps = settings.max_steps
        self._behind = behind
        self._report = report
        self._ordered = schedule
        self._schedule = schedule(tasks) if tasks is not None else None
        self._running: set[asyncio.Task[Episode]] = set()
        self._failed_in_a_row = 0
        self._played = 0
        self._refused: dict[str, str] = {}
        self._over: NothingToPlay | None = None

    @property
    def running(self) -> int:
        """The number of running episodes."""
        return len(self._running)

    async def tick(self) -> int:
        """Start episodes up to the limit, then wait for one to end; return the number of starts and ends.

        Raises NothingToPlay if no task may train.
        """
        if self._over is not None:
            raise self._over
        if self._schedule is None:
            self._schedule = await self._scheduled()
        begun = self._begin(self._schedule)
        if not self._running:
            return begun
        try:
            finished, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        self._running -= finished
        ended = [task.result() for task in finished if not task.cancelled()]
        for episode in ended:
            self._report_end(episode)
        self._raise_where_all_fail(ended)
        return begun + len(ended)

    async def status(self) -> Mapping[str, Any]:
        """Return the values that `status` and `envs status` show."""
        pool = dict(await self._describe()) if self._describe else {}
        success = self._schedule.success() if self._schedule is not None else {}
        return {
            "running": self.running,
            "played": self._played,
            "success": dict(success),
            "pool": pool,
            "refused": dict(self._refused),
            "alarms": self._alarms(),
        }

    def _alarms(self) -> list[dict[str, str]]:
        if self._over is not None:
            return [{"what": self._over.what, "remedy": self._over.remedy or ""}]
        if not self._refused:
            return []
        task, why = next(iter(self._refused.items()))
        what = f"{len(self._refused)} tasks are not admitted and no longer played, for example {task}: {why}"
        return [{"what": what, "remedy": "'openclaw-rl envs audit' shows all"}]

    async def stop(self) -> None:
        """End the running episodes, their environments and their server sessions. Safe to call twice."""
        running, self._running = self._running, set()
        for task in running:
            task.cancel()
        if running:
            log.info("episodes stopped running=%d", len(running))
            await asyncio.gather(*running, return_exceptions=True)

    async def _scheduled(self) -> Schedule:
        try:
            return self._ordered(await self._all_tasks())
        except NothingToPlay as error:
            self._over = error
            raise

    async def _all_tasks(self) -> Sequence[str]:
        env = self._make_env()
        try:
            return env.tasks()
        finally:
            await env.close()

    def _begin(self, schedule: Schedule) -> int:
        begun = 0
        while len(self._running) < self._parallel and (schedule.midway or not self._behind()):
            episode = schedule.next()
            if episode is None:
                break
            self._running.add(asyncio.create_task(self._run(episode)))
            begun += 1
        return begun

    async def _run(self, episode: Episode) -> Episode:
        client = _EpisodeClient(self._chat)
        try:
            reward, error = await _tried(self._in_env(episode, client))
        except asyncio.CancelledError:  # on a stop, the steps must not wait for an outcome that never arrives
            await _tried(asyncio.wait_for(client.end_sessions(EnvFailed("the player was stopped")), STOP_SECONDS))
            raise
        _, late = await _tried(client.end_sessions(error))
        for trouble in (error, late):
            if trouble is not None:
                _log_failure(episode, trouble)
        why = error or late
        return replace(
            episode,
            reward=None if error else reward,
            error=f"{type(why).__name__}: {why}" if why else None,
            refused=isinstance(error, TaskRefused),
        )

    async def _in_env(self, episode: Episode, client: _EpisodeClient) -> float:
        env = self._make_env()
        try:
            return await self._rollout(
                env, client, task=episode.task, seed=episode.seed, group=episode.group, max_steps=self._max_steps
            )
        finally:
            await env.close()

    def _report_end(self, episode: Episode) -> None:
        assert self._schedule is not None
        if self._report is not None:
            self._report(episode)
        if episode.refused:
            self._refuse(self._schedule, episode)
            return
        self._failed_in_a_row = 0 if episode.error is None else self._failed_in_a_row + 1
        self._played += 1
        self._schedule.ended(episode)
        if self._played % TOLD == 0:
            log.info("episodes played=%d lately: %s", self._played, success_line(self._schedule.success()))

    def _refuse(self, schedule: Schedule, episode: Episode) -> None:
        """Remove the task from the schedule; after the last one, the next tick raises."""
        self._refused.setdefault(episode.task, str(episode.error))
        try:
            schedule.refuse(episode.task)
        except NothingToPlay as error:
            self._over = error

    def _raise_where_all_fail(self, ended: Sequence[Episode]) -> None:
        if self._failed_in_a_row < self._parallel:
            return
        failed, self._failed_in_a_row = self._failed_in_a_row, 0
        last = next(episode.error for episode in reversed(ended) if episode.error)
        raise OpenClawError(
            f"the last {failed} episodes all failed, the last with {last}",
            remedy="see the log for each traceback; try one task by hand",
        )


class _EpisodeClient:
    """The client of one episode: records its sessions, so that they can be ended."""

    def __init__(self, chat: SessionClient) -> None:
        self._chat = chat
        self._sessions: dict[str, None] = {}

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply:
        reply = await self._chat.ask(prompt, session=session, group=group, done=done)
        self._sessions[session] = None
        return reply

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        await self._chat.feedback(turn, score=score, hint=hint)

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None:
        await self._chat.reward(session, score=score, failed=failed)

    async def end_sessions(self, error: Exception | None) -> None:
        """End the sessions; after a failure they never train."""
        for session in self._sessions:
            if error is not None:
                await self._chat.reward(session, failed=f"{type(error).__name__}: {error}"[:500])
            await self._chat.end(session)


def _log_failure(episode: Episode, trouble: Exception) -> None:
    """Log an expected failure in one line, an unexpected one with its traceback."""
    expected = isinstance(trouble, OpenClawError)
    detail = f": {trouble}" if expected else ""
    log.log(
        logging.WARNING if expected else logging.ERROR,
        "episode failed task=%s group=%s%s",
        episode.task,
        episode.group,
        detail,
        exc_info=None if expected else trouble,
    )


async def _tried(work: Awaitable[T]) -> tuple[T | None, Exception | None]:
    """Return the result of the work, or its exception: environments are third-party code and may raise anything."""
    try:
        return await work, None
    except Exception as error:  # third-party code; the caller attaches the reason to the episode
        return None, error


# An environment's exceptions are failures of its own, not of the policy: environments are third-party code.


def told(error: BaseException) -> str:
    """Return the error in one line."""
    return f"{type(error).__name__}: {error}"


def as_failure(error: BaseException) -> BaseException:
    """Return an error as EnvFailed; a cancellation or other program exit unchanged."""
    if isinstance(error, EnvFailed) or not isinstance(error, Exception):
        return error
    return EnvFailed(told(error))


@contextmanager
def failing_alone() -> Iterator[None]:
    """Convert any exception inside to EnvFailed, so that it costs only one episode."""
    try:
        yield
    except EnvFailed:
        raise
    except Exception as error:
        raise as_failure(error) from error
