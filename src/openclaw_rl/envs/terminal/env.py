"""The terminal environment: an agent types commands into a sandbox until a checker finds the task done.

A reply acts by the tools `bash`, `read`, `write` and `edit`, or, in the text form, by one fenced command. What it
printed, its exit code and its seconds are the next state. The episode ends when the checks are met, when a reply acts
no more, or when the task's steps are used up; its outcome is 1 where the checks are met, else -1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from openclaw_rl.envs.actions import Action, ActionForm, block_of, calls_of, worked_prompt
from openclaw_rl.envs.play.contract import AgentTask
from openclaw_rl.envs.sandbox import HOME, SandboxSettings
from openclaw_rl.envs.terminal.checks import all_met
from openclaw_rl.envs.terminal.ladder import LADDER, TerminalTask, in_files
from openclaw_rl.envs.terminal.machine import TOOLS, TerminalMachine
from openclaw_rl.errors import EnvFailed
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt, ToolCall

TEXT: Final = "Do the task with one shell command. Reply with the command in a fenced block and nothing else."
TEXT_STEPS: Final = (
    "Do the task with shell commands. Reply with one command in a fenced block; you see what it prints and go on. "
    "When all is done, reply with the word done."
)
SYSTEM: Final = (
    f"You work in a terminal on a Linux machine without network, in the folder {HOME}. Do the task with the tools. "
    "When all is done, reply without a call."
)


class TerminalEnv:
    """See `Env`. Its tasks are those of the ladder; ``per_rung`` of each rung train, half as many are held out."""

    name = "terminal"

    def __init__(
        self,
        *,
        sandbox: SandboxSettings,
        form: ActionForm,
        examples: int | None,
        rungs: Sequence[str],
        per_rung: int,
        output_chars: int,
    ) -> None:
        """``examples`` solved tasks in the prompt; None: two in the text form, else none."""
        self._settings = sandbox
        self._form = form
        self._examples = (2 if form == "text" else 0) if examples is None else examples
        self._rungs = tuple(rungs)
        self._per_rung = per_rung
        self._output_chars = output_chars
        self._task: TerminalTask | None = None
        self._machine: TerminalMachine | None = None
        self._left = 0

    def tasks(self) -> Sequence[str]:
        return LADDER.ids("train", rungs=self._rungs, per_rung=self._per_rung)

    def held_out(self) -> Sequence[str]:
        return LADDER.ids("held-out", rungs=self._rungs, per_rung=max(1, self._per_rung // 2))

    def rung(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        return LADDER.task(task).instruction

    def gold(self, task: str) -> Sequence[Message]:
        return [self._typed(number, command) for number, command in enumerate(LADDER.task(task).gold)]

    def _typed(self, number: int, command: str) -> Message:
        if self._form == "text":
            return Message(role="assistant", content=_fenced(command))
        arguments = json.dumps({"command": command})
        return Message(role="assistant", tool_calls=(ToolCall(id=f"gold_{number}", name="bash", arguments=arguments),))

    async def reset(self, task: str, *, seed: int) -> Prompt:
        await self.close()
        self._task = found = LADDER.task(task)
        self._left = found.steps
        self._machine = await TerminalMachine.begin(
            self._settings, found.files, lasting=found.steps > 1, shown=self._output_chars
        )
        shown = LADDER.examples(task, self._examples)
        return _text_prompt(found, shown) if self._form == "text" else _tools_prompt(found, shown)

    async def hand_over(self, task: str, *, seed: int) -> AgentTask:
        await self.close()
        self._task = found = in_files(LADDER.task(task))
        self._machine = await TerminalMachine.begin(
            self._settings, found.files, lasting=False, shown=self._output_chars
        )
        return AgentTask(instruction=found.instruction, sandbox=self._machine.state.sandbox, cwd=HOME)

    async def step(self, reply: Message) -> Observation:
        self._left -= 1
        actions = self._actions(reply)
        said = [await self._carry_out(action) for action in actions]
        outcome = await self.outcome()
        done = not actions or self._left <= 0 or outcome > 0
        return Observation(messages=tuple(said), reward=outcome if done else None, done=done)

    def _actions(self, reply: Message) -> tuple[Action, ...]:
        if reply.tool_calls:
            return calls_of(reply, TOOLS)
        command = block_of(reply.content)
        if command is None or command.strip(". ").casefold() == "done":
            return ()
        if self._form == "tools" and "```" not in reply.content:  # a last word, not a command
            return ()
        return (Action(tool="bash", arguments={"command": command}),)

    async def _carry_out(self, action: Action) -> Message:
        machine = self._begun()
        text = f"error: {action.fault}" if action.fault else await machine.act(action.tool, action.arguments)
        if action.call is None:
            return Message(role="user", content=text)
        return Message(role="tool", content=text, tool_call_id=action.call, name=action.tool)

    async def outcome(self) -> float:
        """1 where every check is met now, else -1."""
        assert self._task is not None
        return 1.0 if await all_met(self._task.checks, self._begun().state) else -1.0

    def _begun(self) -> TerminalMachine:
        if self._machine is None:
            raise EnvFailed("no episode has begun in this terminal")
        return self._machine

    async def close(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            await machine.close()


def _text_prompt(task: TerminalTask, examples: Sequence[TerminalTask]) -> Prompt:
    """How to reply, solved tasks as turns of the conversation, the task."""
    solved = [(each.instruction, _fenced(" && ".join(each.gold))) for each in examples]
    return worked_prompt(TEXT if task.steps == 1 else TEXT_STEPS, solved, task.instruction)


def _tools_prompt(task: TerminalTask, examples: Sequence[TerminalTask]) -> Prompt:
    shown = "".join(
        f"\n\nExample: {each.instruction}\nA command that does it: {' && '.join(each.gold)}" for each in examples
    )
    limit = f"\n\nYou have {task.steps} {'reply' if task.steps == 1 else 'replies'} for it."
    return Prompt(
        messages=(
            Message(role="system", content=SYSTEM + shown),
            Message(role="user", content=task.instruction + limit),
        ),
        tools=tuple(TOOLS),
    )


def _fenced(command: str) -> str:
    return f"```bash\n{command}\n```"
