"""Rollouts of environments through the public API, as one more client.

A live user and an environment are the same thing: a client whose reply is the next state. An episode requests a reply,
steps the environment with it, and goes on with what the environment shows; at the end its session is paid its outcome
and ended.
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
"""episodes after which the log tells how many are solved"""
STOP_SECONDS = 10.0
"""how long episodes that are stopped may take to say so to the server"""


async def run_episode(env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int) -> float:
    """One task once, at most ``max_steps`` replies; its outcome. The default rollout.

    The outcome is paid to the whole session, and so reaches every step. A vote or a reward on the way is a step's own.
    """
    session = f"episode-{new_id()}"
    prompt = await env.reset(task, seed=seed)
    for _ in range(max_steps):
        reply = await chat.ask(prompt, session=session, group=group)
        seen = await env.step(reply.message)
        if (own := own_of(seen)) is not None:
            await chat.feedback(reply.turn, score=own)
        if seen.done:
            break
        prompt = replace(prompt, messages=(*prompt.messages, reply.message, *seen.messages))
    outcome = await outcome_of(env, seen)
    await chat.reward(session, score=outcome)
    return outcome


def own_of(seen: Observation) -> float | None:
    """What a step is worth by itself: the environment's vote on it, else a reward that is not the episode's outcome."""
    return seen.vote if seen.vote is not None or seen.done else seen.reward


async def outcome_of(env: Env, last: Observation) -> float:
    """What an episode is worth: the reward of its last step, else what the environment says, else nothing."""
    if last.done and last.reward is not None:
        return last.reward
    return await env.outcome() if isinstance(env, SupportsOutcome) else 0.0


class SessionClient(ChatClient, Protocol):
    """A chat client that can also end a session."""

    async def end(self, session: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """``parallel`` episodes at once, at most ``max_steps`` replies each."""

    parallel: int
    max_steps: int


class Episodes:
    """Keeps ``parallel`` episodes going, in the order of a schedule.

    ``behind()`` True begins no new group: environments wait for the judge and the trainer, users never do.
    An episode that fails is reported and ends alone. When as many in a row fail as run at once, `tick` raises, so that
    the loop is seen to fail and backs off; the episodes under way go on.
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
        """``schedule`` orders the tasks; ``tasks`` None: all of the environment. ``report`` gets each that ended.

        ``describe`` says how the pool of environments is.
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
        """How many episodes are under way."""
        return len(self._running)

    async def tick(self) -> int:
        """Fill the free places, then wait for an episode to end; how many began and ended.

        Raises NothingToPlay where no task may train.
        """
        if self._over is not None:
            raise self._over
        if self._schedule is None:
            self._schedule = await self._scheduled()
        begun = self._begin(self._schedule)
        if not self._running:
            return begun
        try:
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        self._running -= done
        ended = [task.result() for task in done if not task.cancelled()]
        for episode in ended:
            self._report_end(episode)
        self._raise_where_all_fail(ended)
        return begun + len(ended)

    async def status(self) -> Mapping[str, Any]:
        """What `status` and `envs status` show."""
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
        what = f"{len(self._refused)} tasks are not admitted and are played no more, {task} among them: {why}"
        return [{"what": what, "remedy": "'openclaw-rl envs audit' shows all"}]

    async def stop(self) -> None:
        """End the episodes under way and their environments, and tell the server. Safe to call twice."""
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
        except asyncio.CancelledError:  # we are stopped: its steps shall not wait for an outcome that never comes
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
        """Play its task no more; where it was the last one, the next tick raises."""
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
    """The client of one episode: remembers which sessions it opened, so that they can be ended."""

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
        """End them; those of an episode that failed never train."""
        for session in self._sessions:
            if error is not None:
                await self._chat.reward(session, failed=f"{type(error).__name__}: {error}"[:500])
            await self._chat.end(session)


def _log_failure(episode: Episode, trouble: Exception) -> None:
    """What is known to go wrong in a line; what nobody thought of with its traceback."""
    known = isinstance(trouble, OpenClawError)
    said = f": {trouble}" if known else ""
    log.log(
        logging.WARNING if known else logging.ERROR,
        "episode failed task=%s group=%s%s",
        episode.task,
        episode.group,
        said,
        exc_info=None if known else trouble,
    )


async def _tried(work: Awaitable[T]) -> tuple[T | None, Exception | None]:
    """What the work gave, or why it failed: an environment may fail in any way, and its failure is its own."""
    try:
        return await work, None
    except Exception as error:  # it is anyone's code; the caller gives its reason to the episode it ends
        return None, error


# What an environment raises is its own failure, and no fault of the policy's: it is anyone's code.


def told(error: BaseException) -> str:
    """The error in a line."""
    return f"{type(error).__name__}: {error}"


def as_failure(error: BaseException) -> BaseException:
    """An error as EnvFailed; what only stops the program (a cancellation) as it is."""
    if isinstance(error, EnvFailed) or not isinstance(error, Exception):
        return error
    return EnvFailed(told(error))


@contextmanager
def failing_alone() -> Iterator[None]:
    """Whatever is raised within is raised as EnvFailed, and so costs one episode."""
    try:
        yield
    except EnvFailed:
        raise
    except Exception as error:
        raise as_failure(error) from error
