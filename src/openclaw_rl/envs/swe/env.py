"""The SWE environment: an agent repairs a repository until its failing tests pass and its passing tests still do.

A reply acts by the tools `bash`, `read`, `write`, `edit`, `search` and `test`, or, in the text form, by one fenced
command. The next state is the output, then the diff so far and the linter's findings in it. The episode ends when a
reply has no action or the replies are used up. The changes then pass a gate and are applied to a fresh copy of the
repository, where the instance's tests are staged and run: the agent has seen neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from openclaw_rl.envs.actions import Action, ActionForm, block_of, bounded, calls_of, result_of
from openclaw_rl.envs.play.programs import AgentTask
from openclaw_rl.envs.sandbox import SandboxSettings
from openclaw_rl.envs.swe.evaluation import REPOSITORY, RUN_TESTS, Evaluation, Evaluator, Workspace
from openclaw_rl.envs.swe.instances import Instance, by_id, home_of, read_instances, read_setups
from openclaw_rl.envs.swe.suites import told
from openclaw_rl.envs.terminal.machine import TOOLS as TERMINAL_TOOLS
from openclaw_rl.envs.terminal.machine import TerminalMachine
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt, Tool, ToolCall

STEPS: Final = 40
"""most replies in an episode, unless env.max_steps is lower"""
DONE: Final = "done"
HOW: Final = (
    f"You repair the repository in {REPOSITORY}, on a Linux machine without network. Its tests run with "
    f"{RUN_TESTS} [FILE ...]. Change the code, not the tests: changes of tests and of how they are run are refused. "
)
TEXT: Final = (
    "Reply with one shell command in a fenced block; you see what it prints and go on. "
    "When all is done, reply with the word done."
)
CALLS: Final = "Work with the tools. When all is done, reply without a call."


def _tool(name: str, description: str, required: Sequence[str], **texts: str) -> Tool:
    properties = {key: {"type": "string", "description": about} for key, about in texts.items()}
    return Tool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": properties, "required": list(required)},
    )


TOOLS: Final[Sequence[Tool]] = (
    *TERMINAL_TOOLS,
    _tool(
        "search",
        "Find the lines of the repository that hold a pattern.",
        ["pattern"],
        pattern="an extended regular expression",
        path="where to look; not given: everywhere",
    ),
    _tool("test", "Run tests and see their verdicts.", [], tests="files or names of tests; not given: all"),
)
_CHANGING: Final = frozenset({"bash", "write", "edit"})


class SweEnv:
    """See `Env`. Its tasks are instances, ``LEVEL/ID``."""

    def __init__(
        self,
        *,
        name: str,
        instances: Mapping[str, Instance],
        evaluator: Evaluator,
        form: ActionForm,
        output_chars: int,
        partial: bool,
    ) -> None:
        """``partial`` pays for partial solutions too."""
        self.name = name
        self._instances = instances
        self._evaluator = evaluator
        self._form = form
        self._output_chars = output_chars
        self._partial = partial
        self._instance: Instance | None = None
        self._workspace: Workspace | None = None
        self._machine: TerminalMachine | None = None
        self._shown = ""
        self._left = 0

    def tasks(self) -> Sequence[str]:
        return [task for task, instance in self._instances.items() if instance.split == "train"]

    def held_out(self) -> Sequence[str]:
        return [task for task, instance in self._instances.items() if instance.split == "held-out"]

    def level(self, task: str) -> str:
        return self._found(task).level

    def instruction(self, task: str) -> str:
        return self._found(task).problem

    def gold(self, task: str) -> Sequence[Message]:
        patch = self._found(task).patch
        if not patch:
            return ()
        command = f"git apply --whitespace=nowarn - <<'END_OF_PATCH'\n{patch.rstrip(chr(10))}\nEND_OF_PATCH"
        return [self._typed(command), Message(role="assistant", content=DONE)]

    def _typed(self, command: str) -> Message:
        if self._form == "text":
            return Message(role="assistant", content=f"```bash\n{command}\n```")
        call = ToolCall(id="gold_0", name="bash", arguments=json.dumps({"command": command}))
        return Message(role="assistant", tool_calls=(call,))

    def _found(self, task: str) -> Instance:
        if task not in self._instances:
            raise ConfigError(f"no task {task!r} in {self.name}", remedy="'openclaw-rl envs list --tasks' shows them")
        return self._instances[task]

    async def reset(self, task: str, *, seed: int) -> Prompt:
        await self._begin(task)
        how = HOW + (TEXT if self._form == "text" else CALLS)
        messages = (Message(role="system", content=how), Message(role="user", content=self.instruction(task)))
        return Prompt(messages=messages, tools=() if self._form == "text" else tuple(TOOLS))

    async def hand_over(self, task: str, *, seed: int) -> AgentTask:
        workspace = await self._begin(task)
        return AgentTask(instruction=f"{HOW}\n\n{self.instruction(task)}", sandbox=workspace.sandbox, cwd=REPOSITORY)

    async def _begin(self, task: str) -> Workspace:
        await self.close()
        self._instance = instance = self._found(task)
        self._left, self._shown = STEPS, ""
        self._workspace = workspace = await self._evaluator.workspace(instance)
        await workspace.commit()
        self._machine = TerminalMachine(workspace.sandbox, lasting=True, shown=self._output_chars, folder=REPOSITORY)
        return workspace

    async def step(self, reply: Message) -> Observation:
        self._left -= 1
        actions = self._actions(reply)
        messages = [await self._carry_out(action) for action in actions]
        if any(action.tool in _CHANGING for action in actions):
            messages[-1] = _with_text(messages[-1], await self._changes())
        if actions and self._left > 0:
            return Observation(messages=tuple(messages))
        evaluation = await self._evaluated()
        messages.append(Message(role="user", content=evaluation.told))
        return Observation(messages=tuple(messages), reward=self._worth(evaluation), done=True)

    def _actions(self, reply: Message) -> tuple[Action, ...]:
        if reply.tool_calls:
            return calls_of(reply, TOOLS)
        command = block_of(reply.content)
        if command is None or command.strip(". \n").casefold() == DONE:
            return ()
        if self._form == "tools" and "```" not in reply.content:
            return ()  # a closing remark, not a command
        return (Action(tool="bash", arguments={"command": command}),)

    async def _carry_out(self, action: Action) -> Message:
        text = f"error: {action.fault}" if action.fault else await self._done(action.tool, action.arguments)
        return result_of(action, text)

    async def _done(self, tool: str, arguments: Mapping[str, Any]) -> str:
        machine, workspace = self._begun()
        if tool == "search":
            lines = await workspace.search(arguments["pattern"], arguments.get("path", ""))
            return bounded(lines, self._output_chars)
        if tool == "test":
            verdicts = await workspace.test(arguments.get("tests", "").split())
            parts = [told(verdicts)] if verdicts.outcomes else [verdicts.output, told(verdicts)]
            return bounded("\n".join(parts), self._output_chars)
        return await machine.act(tool, arguments)

    async def _changes(self) -> str:
        """Return the diff and the linter's findings if the diff has changed since it was last shown."""
        _, workspace = self._begun()
        try:
            patch = await workspace.diff()
        except OSError as error:
            return f"error: {error}"
        if patch == self._shown:
            return ""
        self._shown = patch
        lint = await workspace.lint(patch)
        return "\n".join(
            [f"[diff]\n{bounded(patch.rstrip(), self._output_chars)}", *([f"[lint]\n{lint}"] if lint else [])]
        )

    async def outcome(self) -> float:
        """Return 1 if the instance is resolved now, else -1; with ``partial``, values between."""
        return self._worth(await self._evaluated())

    async def _evaluated(self) -> Evaluation:
        assert self._instance is not None
        _, workspace = self._begun()
        await workspace.sandbox.seal()
        try:
            patch = await workspace.diff()
        except OSError as error:
            return Evaluation(refused=str(error))
        return await self._evaluator.evaluate(self._instance, patch)

    def _worth(self, found: Evaluation) -> float:
        return 2 * found.score(partial=self._partial) - 1

    def _begun(self) -> tuple[TerminalMachine, Workspace]:
        if self._machine is None or self._workspace is None:
            raise EnvFailed("no episode has begun in this repository")
        return self._machine, self._workspace

    async def close(self) -> None:
        workspace, self._workspace, self._machine = self._workspace, None, None
        if workspace is not None:
            await workspace.close()


def swe(
    *,
    swe_bench_path: Path | None,
    sandbox: SandboxSettings,
    form: ActionForm,
    levels: Sequence[str],
    output_chars: int,
    cache_dir: Path,
    partial: bool = False,
) -> SweEnv:
    """Create the environment. ``swe_bench_path`` is a folder of instances, or a file in one."""
    tasks = by_id(read_instances(swe_bench_path))
    assert swe_bench_path is not None
    known = {instance.level for instance in tasks.values()}
    for level in levels:
        if level not in known:
            raise ConfigError(f"no level {level!r} in swe", remedy=f"known: {', '.join(sorted(known))}")
    chosen = {task: instance for task, instance in tasks.items() if not levels or instance.level in levels}
    folder = home_of(swe_bench_path)
    evaluator = Evaluator(folder, read_setups(folder), sandbox=sandbox, cache=cache_dir / "swe")
    return SweEnv(
        name="swe", instances=chosen, evaluator=evaluator, form=form, output_chars=output_chars, partial=partial
    )


def _with_text(message: Message, text: str) -> Message:
    """Return the message with text appended."""
    return replace(message, content=f"{message.content}\n{text}") if text else message
