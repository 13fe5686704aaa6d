"""The terminal environment: an agent types commands into a sandbox until a checker accepts the result.

A reply acts by the tools `bash`, `read`, `write` and `edit`, or, in the text form, by one fenced command. The next
state is the command's output, exit code and duration. The episode ends when the checks pass, when a reply has no
action, or when the task's steps are used up; its outcome is 1 if the checks pass, else -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from openclaw_rl.envs.actions import Action, ActionForm, block_of, call_of, calls_of, result_of, vote_on, worked_prompt
from openclaw_rl.envs.curricula import SourcedEnv
from openclaw_rl.envs.play.programs import AgentTask
from openclaw_rl.envs.sandbox import SandboxSettings
from openclaw_rl.envs.terminal.curriculum import ANSWER as ANSWER_FILE
from openclaw_rl.envs.terminal.curriculum import CURRICULUM, in_files
from openclaw_rl.envs.terminal.machine import TOOLS, TerminalMachine
from openclaw_rl.envs.terminal.tasks import CurriculumTasks, TerminalSource, TerminalTask
from openclaw_rl.errors import EnvFailed, TaskRefused
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt

TEXT: Final = "Do the task with one shell command. Reply with the command in a fenced block and nothing else."
TEXT_STEPS: Final = (
    "Do the task with shell commands. Reply with one command in a fenced block; you see what it prints and go on. "
    "When all is done, reply with the word done."
)
ANSWER: Final = (
    "Find the answer with shell commands. Reply with one command in a fenced block; you see what it prints and go on. "
    "When you know the answer, reply with it alone, or with the word done where your last command printed it."
)
SYSTEM: Final = (
    "You work in a terminal on a Linux machine without network, in the folder {}. Do the task with the tools. "
)
DONE: Final = "done"
"""final reply to a task that has no answer, or whose answer was printed"""
ENDS: Final = "When all is done, reply without a call."
ANSWERS: Final = (
    "When you know the answer, reply with it alone, or with the word done where your last command printed it."
)


class TerminalEnv(SourcedEnv[TerminalSource]):
    """See `Env`. Its tasks are those of a source."""

    def __init__(
        self,
        *,
        name: str,
        source: TerminalSource,
        sandbox: SandboxSettings,
        form: ActionForm,
        examples: int | None,
        output_chars: int,
        step_votes: bool,
    ) -> None:
        """``step_votes`` adds a vote to each step (`vote_on`)."""
        super().__init__(name=name, source=source, form=form, examples=examples)
        self._settings = sandbox
        self._output_chars = output_chars
        self._step_votes = step_votes
        self._task: TerminalTask | None = None
        self._machine: TerminalMachine | None = None
        self._left = 0

    def gold(self, task: str) -> Sequence[Message]:
        definition = self._source.task(task)
        typed = [self._typed(number, command) for number, command in enumerate(definition.gold)]
        return [*typed, *([] if definition.watched or not typed else [Message(role="assistant", content=DONE)])]

    def _typed(self, number: int, command: str) -> Message:
        if self._form == "text":
            return Message(role="assistant", content=_fenced(command))
        return call_of("bash", {"command": command}, number)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        await self.close()
        self._task = definition = self._source.task(task)
        self._left = definition.steps
        self._machine = await TerminalMachine.begin(self._settings, definition, shown=self._output_chars)
        examples = self._source.examples(task, self._examples)
        return _text_prompt(definition, examples) if self._form == "text" else _tools_prompt(definition, examples)

    async def hand_over(self, task: str, *, seed: int) -> AgentTask:
        await self.close()
        self._task = definition = in_files(self._source.task(task))
        if definition.by_output:
            raise TaskRefused(f"task {task} is checked by command output, which a program does not expose")
        self._machine = await TerminalMachine.begin(self._settings, definition, shown=self._output_chars)
        return AgentTask(
            instruction=definition.instruction, sandbox=self._machine.state().sandbox, cwd=definition.folder
        )

    async def step(self, reply: Message) -> Observation:
        self._left -= 1
        actions = self._actions(reply)
        messages = [await self._carry_out(action) for action in actions]
        over = not actions or self._left <= 0
        finished = over or (self._begun_task().watched and await self._begun_task().score(self._begun().state()) > 0)
        outcome = await self._outcome(self._answer(reply, actions)) if finished else -1.0
        vote = vote_on(messages) if self._step_votes and (actions or self._begun_task().watched) else None
        return Observation(messages=tuple(messages), reward=outcome if finished else None, done=finished, vote=vote)

    def _actions(self, reply: Message) -> tuple[Action, ...]:
        if reply.tool_calls:
            return calls_of(reply, TOOLS)
        command = block_of(reply.content)
        if command is None or _is_done(command):
            return ()
        if "```" not in reply.content and (self._form == "tools" or self._begun_task().answered):
            return ()  # a closing remark, not a command
        return (Action(tool="bash", arguments={"command": command}),)

    def _answer(self, reply: Message, actions: Sequence[Action]) -> str | None:
        """Return the answer in the final reply; "done" refers to the last command's output."""
        if actions or not self._begun_task().answered or not reply.content.strip():
            return None
        return self._begun().printed if _is_done(reply.content) else reply.content

    async def _carry_out(self, action: Action) -> Message:
        machine = self._begun()
        text = f"error: {action.fault}" if action.fault else await machine.act(action.tool, action.arguments)
        return result_of(action, text)

    async def outcome(self) -> float:
        """Return 1 if the task is solved now, -1 if no part of it is."""
        return await self._outcome(await self._begun().written(ANSWER_FILE) if self._begun_task().answered else None)

    async def _outcome(self, answer: str | None) -> float:
        await self._begun().seal()
        return 2 * await self._begun_task().score(self._begun().state(answer)) - 1

    def _begun_task(self) -> TerminalTask:
        assert self._task is not None
        return self._task

    def _begun(self) -> TerminalMachine:
        if self._machine is None:
            raise EnvFailed("no episode has begun in this terminal")
        return self._machine

    async def close(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            await machine.close()


def curriculum(
    *,
    sandbox: SandboxSettings,
    form: ActionForm,
    examples: int | None,
    levels: Sequence[str],
    per_level: int,
    output_chars: int,
    step_votes: bool,
) -> TerminalEnv:
    """Create the environment with the generated tasks: ``per_level`` per level train, half as many are held out."""
    source = CurriculumTasks(CURRICULUM, levels=levels, per_level=per_level)
    return TerminalEnv(
        name="terminal",
        source=source,
        sandbox=sandbox,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


def _text_prompt(task: TerminalTask, examples: Sequence[TerminalTask]) -> Prompt:
    """Build the prompt: reply instructions, solved tasks as turns of the conversation, the task."""
    solved = [(example.instruction, _fenced(" && ".join(example.gold))) for example in examples]
    how = ANSWER if task.answered else TEXT if task.steps == 1 else TEXT_STEPS
    return worked_prompt(how, solved, task.instruction)


def _tools_prompt(task: TerminalTask, examples: Sequence[TerminalTask]) -> Prompt:
    solutions = "".join(
        f"\n\nExample: {example.instruction}\nA command that does it: {' && '.join(example.gold)}"
        for example in examples
    )
    limit = f"\n\nYou have {task.steps} {'reply' if task.steps == 1 else 'replies'} for it."
    system = SYSTEM.format(task.folder) + (ANSWERS if task.answered else ENDS) + solutions
    return Prompt(
        messages=(Message(role="system", content=system), Message(role="user", content=task.instruction + limit)),
        tools=tuple(TOOLS),
    )


def _is_done(text: str) -> bool:
    return text.strip(". \n").casefold() == DONE


def _fenced(command: str) -> str:
    return f"```bash\n{command}\n```"
