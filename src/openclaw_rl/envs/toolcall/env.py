"""The tool-call environment: a request, functions to call, and a check of what was called or answered.

A reply acts by tool calls, or, in the text form, by ``name(key=value)`` in a fenced block. Each result is the next
state. Tasks of the ladder end when the wanted calls are made; tasks of a file end with a reply that calls nothing,
which is the answer. Either ends when its replies are used up. An episode pays from -1 to 1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from openclaw_rl.envs.actions import Action, ActionForm, bounded, calls_of, worked_prompt
from openclaw_rl.envs.ladders import Split
from openclaw_rl.envs.toolcall import tasks_file
from openclaw_rl.envs.toolcall.calls import INTERPRETER, as_call, signature, written_calls
from openclaw_rl.envs.toolcall.ladder import LADDER, CallTask
from openclaw_rl.envs.toolcall.tools_config import read_tools_config
from openclaw_rl.envs.toolcall.worlds import KNOWN, LadderWorld, ToolWorld, WantedCall
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt, Tool, ToolCall

TEXT: Final = "Do what is asked with the functions below. Reply with the call in a fenced block and nothing else."
ANSWER: Final = " When you know the answer, reply with it alone."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEpisode:
    """A task begun: what is asked, with what, and the world that its calls act on."""

    instruction: str
    tools: tuple[Tool, ...]
    world: ToolWorld
    steps: int
    answered: bool
    """whether it ends with an answer, not with its calls"""
    examples: tuple[tuple[str, str], ...]
    """requests, and how they are done as text"""


class TaskSource(Protocol):
    """Where the tasks of an environment come from."""

    def ids(self, split: Split) -> Sequence[str]: ...

    def rung(self, task: str) -> str: ...

    def instruction(self, task: str) -> str: ...

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        """Calls and, at the end where there is one, the answer."""
        ...

    def begin(self, task: str, *, examples: int) -> ToolEpisode: ...


class ToolCallEnv:
    """See `Env`. Its tasks are those of the ladder, or those that ``tools_config`` names."""

    name = "toolcall"

    def __init__(
        self,
        *,
        tools_config: Path | None,
        form: ActionForm,
        examples: int | None,
        rungs: Sequence[str],
        per_rung: int,
        output_chars: int,
    ) -> None:
        """``examples`` solved tasks in the prompt; None: two in the text form, else none."""
        self._form = form
        self._examples = (2 if form == "text" else 0) if examples is None else examples
        self._output_chars = output_chars
        self._source: TaskSource = (
            LadderSource(rungs=tuple(rungs), per_rung=per_rung)
            if tools_config is None
            else FileSource(Path(tools_config), rungs=tuple(rungs))
        )
        self._episode: ToolEpisode | None = None
        self._left = 0

    def tasks(self) -> Sequence[str]:
        return self._source.ids("train")

    def held_out(self) -> Sequence[str]:
        return self._source.ids("held-out")

    def rung(self, task: str) -> str:
        return self._source.rung(task)

    def instruction(self, task: str) -> str:
        return self._source.instruction(task)

    def gold(self, task: str) -> Sequence[Message]:
        return [self._written(number, each) for number, each in enumerate(self._source.gold(task))]

    def _written(self, number: int, gold: WantedCall | str) -> Message:
        if isinstance(gold, str):
            return Message(role="assistant", content=gold)
        if self._form == "text":
            return Message(role="assistant", content=_fenced(gold))
        call = ToolCall(id=f"gold_{number}", name=gold.tool, arguments=json.dumps(dict(gold.arguments)))
        return Message(role="assistant", tool_calls=(call,))

    async def reset(self, task: str, *, seed: int) -> Prompt:
        await self.close()
        self._episode = found = self._source.begin(task, examples=self._examples)
        self._left = found.steps
        if self._form == "text":
            return _text_prompt(found)
        shown = "".join(f"\n\nExample: {asked}\n{done}" for asked, done in found.examples)
        system = Message(
            role="system", content=("Use the tools to do what is asked." + ANSWER * found.answered + shown)
        )
        return Prompt(messages=(system, Message(role="user", content=found.instruction)), tools=found.tools)

    async def step(self, reply: Message) -> Observation:
        episode = self._begun()
        self._left -= 1
        actions = calls_of(reply, episode.tools) if reply.tool_calls else self._as_text(reply, episode)
        said = [await self._carry_out(action, episode) for action in actions]
        answer = reply.content.strip() if episode.answered and not actions else None
        score = await episode.world.score(answer)
        done = not actions or self._left <= 0 or (not episode.answered and score == 1)
        return Observation(messages=tuple(said), reward=2 * score - 1 if done else None, done=done)

    def _as_text(self, reply: Message, episode: ToolEpisode) -> tuple[Action, ...]:
        return written_calls(reply.content, episode.tools) if self._form == "text" else ()

    async def _carry_out(self, action: Action, episode: ToolEpisode) -> Message:
        text = f"error: {action.fault}" if action.fault else await episode.world.call(action.tool, action.arguments)
        text = bounded(text, self._output_chars)
        if action.call is None:
            return Message(role="user", content=text)
        return Message(role="tool", content=text, tool_call_id=action.call, name=action.tool)

    async def outcome(self) -> float:
        """What the calls so far have come to, from -1 to 1; a task that wants an answer has none yet."""
        return 2 * await self._begun().world.score(None) - 1

    def _begun(self) -> ToolEpisode:
        if self._episode is None:
            raise EnvFailed("no episode has begun in this environment")
        return self._episode

    async def close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.world.close()


class LadderSource:
    """Generated tasks."""

    def __init__(self, *, rungs: Sequence[str], per_rung: int) -> None:
        self._rungs, self._per_rung = rungs, per_rung

    def ids(self, split: Split) -> Sequence[str]:
        count = self._per_rung if split == "train" else max(1, self._per_rung // 2)
        return LADDER.ids(split, rungs=self._rungs, per_rung=count)

    def rung(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        return LADDER.task(task).instruction

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        return LADDER.task(task).gold

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        found = LADDER.task(task)
        return ToolEpisode(
            instruction=found.instruction,
            tools=tuple(KNOWN[name] for name in found.tools),
            world=LadderWorld(wanted=found.wanted, facts=found.facts, printed=found.printed),
            steps=found.steps,
            answered=False,
            examples=tuple((each.instruction, _solved(each)) for each in LADDER.examples(task, examples)),
        )


class FileSource:
    """Tasks and tools of a user's own."""

    def __init__(self, config: Path, *, rungs: Sequence[str]) -> None:
        self._config = read_tools_config(config)
        self._tasks = tasks_file.read_tasks(self._config.tasks)
        self._rungs = rungs

    def ids(self, split: Split) -> Sequence[str]:
        return tasks_file.ids(self._tasks, split, self._rungs)

    def _task(self, task: str) -> tasks_file.FileTask:
        if task not in self._tasks:
            raise ConfigError(f"no task {task!r} in {self._config.tasks}", remedy="'openclaw-rl envs list' shows them")
        return self._tasks[task]

    def rung(self, task: str) -> str:
        return self._task(task).rung

    def instruction(self, task: str) -> str:
        return self._task(task).instruction

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        gold = self._task(task).gold
        return () if gold is None else (gold,)

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        """``examples`` are the ladder's alone: a file's tasks would show their answers."""
        found = self._task(task)
        return ToolEpisode(
            instruction=found.instruction,
            tools=tuple(each.tool for each in self._config.tools),
            world=tasks_file.FileWorld(tools={each.tool.name: each for each in self._config.tools}, task=found),
            steps=self._config.steps,
            answered=True,
            examples=(),
        )


def _text_prompt(episode: ToolEpisode) -> Prompt:
    """How to reply, the functions, solved tasks as turns of the conversation, the task."""
    how = "\n".join([TEXT + ANSWER * episode.answered, "Functions:", *map(signature, episode.tools)])
    return worked_prompt(how, episode.examples, episode.instruction)


def _solved(task: CallTask) -> str:
    """How a task is done, as text; of one that looks something up first, what it found beside it."""
    shown = []
    for call in task.gold:
        found = task.facts.get(call.tool)
        result = "" if found is None else f"\n{found[str(next(iter(call.arguments.values()))).casefold()]}"
        shown.append(_fenced(call) + result)
    return "\n".join(shown)


def _fenced(call: WantedCall) -> str:
    if call.tool == INTERPRETER:
        return f"```\n{call.arguments['code']}\n```"
    return f"```\n{as_call(call.tool, call.arguments)}\n```"
