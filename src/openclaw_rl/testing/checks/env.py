"""Check that an environment and a rollout fulfil their ports' contracts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from openclaw_rl import plugins
from openclaw_rl.errors import PluginError
from openclaw_rl.ports import Observation
from openclaw_rl.testing.envs import FakeChatClient, FakeEnv
from openclaw_rl.testing.rows import make_message
from openclaw_rl.types import Message, Prompt

# A port's promises, and those that a plugin breaks.


class Promises:
    """Promises that a plugin has broken; a plugin of the wrong shape raises at once, as nothing else can be tried."""

    def __init__(self, kind: plugins.Kind, thing: Any) -> None:
        self.kind = kind
        self.name = str(getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__)
        self.broken: list[str] = []
        try:
            plugins.refuse_wrong_shape(kind, self.name, thing)
        except PluginError as error:
            raise AssertionError(str(error)) from error

    def hold(self, kept: bool, fault: str) -> bool:
        """Record ``fault`` unless ``kept``."""
        if not kept and fault not in self.broken:
            self.broken.append(fault)
        return kept

    async def tried(self, what: str, work: Awaitable[Any]) -> Any:
        """Return the work's result; on failure record a fault and return None."""
        try:
            return await work
        except Exception as error:  # a plugin may fail in any way; the report shows how
            self.hold(False, f"{what} raises {type(error).__name__}: {error}")
            return None

    async def closes(self, what: str, close: Any) -> None:
        """Call a closing method twice, as it must be safe to."""
        for time in ("first", "second"):
            await self.tried(f"the {time} {what}()", close())

    def plain_numbers(self, metrics: Any) -> None:
        """Check that metrics are numbers by name; NaN is allowed for values that could not be measured."""
        plain = isinstance(metrics, Mapping) and all(
            isinstance(key, str) and isinstance(value, int | float) for key, value in metrics.items()
        )
        self.hold(plain, "the metrics are not plain numbers by name")

    def report(self, work: Coroutine[Any, Any, None] | None = None) -> None:
        """Run an asynchronous check's work, then raise AssertionError with all broken promises."""
        if work is not None:
            asyncio.run(work)
        if self.broken:
            port = plugins.PORTS[self.kind].__name__
            lines = "".join(f"\n- {fault}" for fault in self.broken)
            raise AssertionError(f"{self.kind} {self.name!r} breaks what openclaw_rl.ports.{port} promises:{lines}")


def check_env(env: Any, *, reply: str = "ok", max_steps: int = 5) -> None:
    """Check an environment: two episodes of its first task with one seed, ``reply`` at up to ``max_steps`` steps.

    It lists its tasks, starts the same way for the same seed, pays None or a number in -1 .. 1, returns messages after
    each step until it is done, and closes twice without harm.

    >>> from openclaw_rl.testing import FakeEnv
    >>> check_env(FakeEnv(rewards=(0.0, 1.0)))
    >>> check_env(FakeEnv(rewards=(9.0,)))
    Traceback (most recent call last):
    AssertionError: env 'fake' breaks what openclaw_rl.ports.Env promises:
    - a reward is 9.0, which is not in -1 .. 1
    """
    promises = Promises("env", env)
    promises.report(_env_keeps(promises, env, make_message("assistant", reply), max_steps))


async def _env_keeps(promises: Promises, env: Any, reply: Message, max_steps: int) -> None:
    tasks = list(env.tasks())
    if promises.hold(bool(tasks), "tasks() is empty"):
        promises.hold(all(isinstance(task, str) for task in tasks), "a task is not a string")
        promises.hold(len(set(tasks)) == len(tasks), "a task is named twice")
        first, again = [await _episode(promises, env, tasks[0], reply, max_steps) for _ in range(2)]
        promises.hold(first == again, "the same task and seed begin with two different prompts")
    await promises.closes("close", env.close)


async def _episode(promises: Promises, env: Any, task: str, reply: Message, max_steps: int) -> Prompt | None:
    """Play one episode; return its first prompt."""
    prompt = await promises.tried(f"reset({task!r})", env.reset(task, seed=7))
    if not isinstance(prompt, Prompt):
        promises.hold(prompt is None, f"reset() gives {type(prompt).__name__}, not a Prompt")
        return None
    promises.hold(prompt.messages[-1].role != "assistant", "the first prompt ends with the policy's own message")
    for _ in range(max_steps):
        observation = await promises.tried("step(reply)", env.step(reply))
        if not isinstance(observation, Observation):
            promises.hold(observation is None, f"step() gives {type(observation).__name__}, not an Observation")
            break
        paid = observation.reward is None or -1.0 <= observation.reward <= 1.0
        promises.hold(paid, f"a reward is {observation.reward}, which is not in -1 .. 1")
        if observation.done:
            break
        promises.hold(
            bool(observation.messages), "step() returns no message and is not done: the policy has nothing to reply to"
        )
    return prompt


def check_rollout(rollout: Any) -> None:
    """Check a rollout: an episode of `FakeEnv` through a `FakeChatClient`, with room for all its steps and for one.

    It returns its total reward, asks at most ``max_steps`` times, in one session of its own, and passes the group on.

    >>> from openclaw_rl.envs.episodes import run_episode
    >>> check_rollout(run_episode)
    """
    promises = Promises("rollout", rollout)
    promises.report(_rollout_keeps(promises, rollout))


async def _rollout_keeps(promises: Promises, rollout: Callable[..., Awaitable[float]]) -> None:
    sessions: list[str] = []
    for max_steps in (9, 1):
        env, chat = FakeEnv(rewards=(0.0, 1.0, 1.0)), FakeChatClient()
        work = rollout(env, chat, task="a", seed=7, group="g", max_steps=max_steps)
        total = await promises.tried("the rollout", work)
        number = isinstance(total, int | float) and math.isfinite(total)
        promises.hold(number or total is None, f"it gives {total!r}, not its total reward")
        promises.hold(bool(chat.requests), "it never asks the policy")
        promises.hold(len(chat.requests) <= max_steps, f"it asks {len(chat.requests)} times with max_steps {max_steps}")
        promises.hold(len({session for _, session, _ in chat.requests}) <= 1, "one episode has several sessions")
        sessions += sorted({session for _, session, _ in chat.requests})
        promises.hold({group for _, _, group in chat.requests} <= {"g"}, "the group is not passed on")
        turns = {f"t{number + 1}" for number in range(len(chat.requests))}
        promises.hold({turn for turn, _ in chat.scores} <= turns, "feedback names a turn that was not asked for")
    fault = "two episodes of one task share a session, so that their turns count as one conversation: give each its own"
    promises.hold(len(set(sessions)) == len(sessions), fault)
