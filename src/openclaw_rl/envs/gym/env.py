"""Any environment with Gymnasium's interface: by its registered name, or created by a user's own function.

A text observation is shown unchanged. A numbered action is named by its label; a text action is the reply itself. An
episode's rewards are summed and scaled to -1 to 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from openclaw_rl.envs.actions import Action, ActionForm, block_of, bounded, calls_of, result_of
from openclaw_rl.envs.curricula import Split, split_of
from openclaw_rl.envs.toolcall.tools_config import load_function
from openclaw_rl.errors import ConfigError, EnvFailed, MissingExtra, OpenClawError
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt, Tool

# Conversion between text and Gymnasium's spaces: an observation in a prompt, an action in a reply.

ActionKind = Literal["discrete", "text"]


def action_kind(space: Any) -> ActionKind:
    """Return the kind of actions, numbered or texts; raise ConfigError for actions that a reply cannot name."""
    name = type(space).__name__
    if name == "Discrete":
        return "discrete"
    if name == "Text":
        return "text"
    raise ConfigError(
        f"actions of this environment are {name}: neither numbered (Discrete) nor text (Text)",
        remedy="wrap it in a function of your own, env.options.id = 'file.py:function', whose actions are",
    )


def action_labels(space: Any, given: Sequence[str]) -> tuple[str, ...]:
    """Return a word for each numbered action: the given labels, else the numbers."""
    count, first = int(space.n), int(getattr(space, "start", 0))
    labels = tuple(given) or tuple(str(first + number) for number in range(count))
    if len(labels) != count or len({label.casefold() for label in labels}) != count:
        raise ConfigError(
            f"env.options.labels has {len(labels)} words for {count} actions", remedy="give each its own, in order"
        )
    return labels


def chosen(reply: str, labels: Sequence[str]) -> int | None:
    """Return the index of the label that a reply consists of, or of the only label that it contains.

    >>> chosen("Hit", ["stick", "hit"]), chosen("I would hit here.", ["stick", "hit"])
    (1, 1)
    >>> chosen("stick or hit?", ["stick", "hit"]) is None
    True
    """
    text = (block_of(reply) or reply).strip().strip(".!`\"'").casefold()
    options = [label.casefold() for label in labels]
    if text in options:
        return options.index(text)
    named = [place for place, label in enumerate(options) if re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text)]
    return named[0] if len(named) == 1 else None


def shown(observation: Any) -> str:
    """Return an observation as text: text unchanged, other types as JSON if possible.

    >>> shown((14, 10, 0)), shown({"room": "kitchen"})
    ('[14, 10, 0]', '{"room": "kitchen"}')
    """
    return observation if isinstance(observation, str) else json.dumps(_plain(observation), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Convert NumPy types in numbers, lists and tables to plain ones."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


log = logging.getLogger(__name__)

TOOL: Final = "act"
SEEDS: Final = 1_000_000
ShownAs = Literal["observation", "render"]
_RANGES: Mapping[str, tuple[float, float]] = {
    "Blackjack-v1": (-1.0, 1.0),
    "FrozenLake-v1": (0.0, 1.0),
    "FrozenLake8x8-v1": (0.0, 1.0),
}
"""the minimum and maximum return per episode in Gymnasium's own environments, which pay once, at the end"""
_SAME_PAY: Final = frozenset({"is_slippery", "map_name", "desc", "sab", "render_mode"})
"""arguments that do not change these ranges"""


class GymnasiumEnv:
    """The `Env` for Gymnasium. A task is a seed, ``NAME/SEED``; three tenths of the seeds are held out."""

    name = "gymnasium"

    def __init__(
        self,
        *,
        id: str | None = None,
        form: ActionForm,
        per_level: int,
        output_chars: int,
        labels: Sequence[str] = (),
        instruction: str = "",
        show: ShownAs = "observation",
        lowest: float | None = None,
        highest: float | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """``id`` is registered with Gymnasium, or ``file.py:function``; ``arguments`` are its constructor arguments.

        ``show`` "render": the result of `render()` replaces the observation. A return of ``lowest`` is worth -1, one of
        ``highest`` 1. They are required if neither the environment (``return_range``) nor `_RANGES` defines them.
        """
        if id is None:
            raise ConfigError("env.options.id is not set", remedy="name one: --set env.options.id=Blackjack-v1")
        self._id, self._form, self._per_level, self._output_chars = id, form, per_level, output_chars
        self._instruction, self._show = instruction, show
        self._arguments = {**({"render_mode": "ansi"} if show == "render" else {}), **(arguments or {})}
        self._env = _made(id, self._arguments)
        self._lowest, self._highest = _range(id, self._env, self._arguments, lowest, highest)
        self._closed = False
        space = self._env.action_space
        self._labels = action_labels(space, labels) if action_kind(space) == "discrete" else ()
        self._first = int(getattr(space, "start", 0))
        self._level = id.rpartition(":")[2].replace("/", "__")
        self._total: float | None = None

    def tasks(self) -> Sequence[str]:
        return self._seeds("train", self._per_level)

    def held_out(self) -> Sequence[str]:
        return self._seeds("held-out", max(1, self._per_level // 2))

    def _seeds(self, split: Split, count: int) -> list[str]:
        names = (f"{self._level}/{number}" for number in range(SEEDS))
        return list(islice((name for name in names if split_of(name) == split), count))

    def level(self, task: str) -> str:
        return self._level

    def instruction(self, task: str) -> str:
        return f"{self._instruction or self._id}, seed {self._seed(task)}"

    def gold(self, task: str) -> Sequence[Message]:
        """Return none: no solution is known."""
        return ()

    def _seed(self, task: str) -> int:
        level, _, number = task.rpartition("/")
        if level != self._level or not number.isdecimal():
            raise ConfigError(f"no task {task!r} in {self.name}", remedy=f"name one as {self._level}/0")
        return int(number)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        if self._closed:
            self._env, self._closed = _made(self._id, self._arguments), False
        self._total = None
        observation, _ = await self._asked(self._env.reset, seed=self._seed(task))
        first = Message(role="user", content=await self._seen(observation))
        head = [Message(role="system", content=text) for text in ["\n".join(filter(None, self._how()))] if text]
        return Prompt(messages=(*head, first), tools=(self._tool(),) if self._form == "tools" else ())

    def _how(self) -> tuple[str, str]:
        if self._form == "tools":
            return self._instruction, "Act with the tool."
        return self._instruction, f"Reply with one of these words: {', '.join(self._labels)}." if self._labels else ""

    def _tool(self) -> Tool:
        about: dict[str, Any] = {"type": "string", "description": "what to do"}
        if self._labels:
            about["enum"] = list(self._labels)
        schema = {"type": "object", "properties": {"action": about}, "required": ["action"]}
        return Tool(name=TOOL, description="Act in the environment and see what comes of it.", parameters=schema)

    async def step(self, reply: Message) -> Observation:
        action = self._action(reply)
        choice = None if action.fault else self._meant(str(action.arguments["action"]))
        if choice is None:
            options = f"; there are: {', '.join(self._labels)}" if self._labels else ""
            return Observation(messages=(result_of(action, f"error: {action.fault or f'that is no action{options}'}"),))
        observation, reward, ended, cut, _ = await self._asked(self._env.step, choice)
        self._total = (self._total or 0.0) + float(reward)
        over = bool(ended or cut)
        message = result_of(action, await self._seen(observation))
        return Observation(messages=(message,), reward=self._worth() if over else None, done=over)

    def _action(self, reply: Message) -> Action:
        if reply.tool_calls:
            return calls_of(reply, (self._tool(),))[0]
        if self._form == "tools":
            return Action(tool=TOOL, arguments={}, fault=f"nothing was done: call the tool {TOOL}")
        return Action(tool=TOOL, arguments={"action": reply.content})

    def _meant(self, text: str) -> int | str | None:
        """Return the action that a text names; None if it names none."""
        if not self._labels:
            return text if text.strip() else None
        place = chosen(text, self._labels)
        return None if place is None else self._first + place

    async def _seen(self, observation: Any) -> str:
        text = shown(await self._asked(self._env.render) if self._show == "render" else observation)
        return bounded(text, self._output_chars)

    async def _asked(self, function: Any, *given: Any, **named: Any) -> Any:
        try:
            return await asyncio.to_thread(function, *given, **named)
        except OpenClawError:
            raise
        except Exception as error:  # third-party code; its failure must not count against the policy
            raise EnvFailed(f"{self._id} fails with {type(error).__name__}: {error}") from error

    async def outcome(self) -> float:
        """Return the scaled rewards so far; -1 before the first action."""
        return self._worth()

    def _worth(self) -> float:
        if self._total is None:
            return -1.0
        if not self._lowest <= self._total <= self._highest:
            _warn_outside(self._id, self._lowest, self._highest)
        share = (self._total - self._lowest) / (self._highest - self._lowest)
        return max(-1.0, min(1.0, 2 * share - 1))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(Exception):  # some cannot be closed before their first reset
                self._env.close()


def _range(
    id: str, env: Any, arguments: Mapping[str, Any], lowest: float | None, highest: float | None
) -> tuple[float, float]:
    """Return an episode's return range: configured, from the environment, or from Gymnasium's documentation.

    Raise ConfigError if one is unknown: on a wrong scale every episode could have the same reward.
    """
    limits = getattr(getattr(env, "unwrapped", env), "return_range", None)
    if limits is None and _SAME_PAY.issuperset(arguments):
        limits = _RANGES.get(id)
    low, high = limits or (None, None)
    low, high = low if lowest is None else lowest, high if highest is None else highest
    if low is None or high is None:
        missing = "lowest" if low is None else "highest"
        raise ConfigError(
            f"env.options.{missing} is not set, and the range of an episode's return of {id} is not known",
            remedy="give both, such as --set env.options.lowest=0 --set env.options.highest=1: they are paid -1 and 1",
        )
    if high <= low:
        raise ConfigError("env.options.highest is not above lowest", remedy="give the range of an episode's return")
    return float(low), float(high)


@cache
def _warn_outside(id: str, lowest: float, highest: float) -> None:
    """Warn once: every such return would log the same message."""
    log.warning(
        "returns outside range env=%s lowest=%g highest=%g: they count as the nearest of these", id, lowest, highest
    )


def _made(id: str, arguments: Mapping[str, Any]) -> Any:
    """Create the named environment; raise ConfigError with Gymnasium's or the user function's message."""
    file, _, function = id.partition(":")
    if file.endswith(".py"):
        make = load_function(Path(file).expanduser(), function, "env.options.id")
        return make(**arguments)
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("gymnasium", "gymnasium") from error
    try:
        return gymnasium.make(id, **arguments)
    except (
        Exception
    ) as error:  # its errors share no base class but Exception, and the environments' packages raise their own
        raise ConfigError(
            f"Gymnasium cannot make {id!r}: {error}", remedy="name one as 'Blackjack-v1' or 'module:Name-v0'"
        ) from error
