"""The tool-call environment: a request, functions to call, and a check of the calls or the answer.

A reply acts by tool calls, or, in the text form, by ``name(key=value)`` in a fenced block. Each result is the next
state. Curriculum tasks end when the required calls are made; a file's tasks end with a reply without calls, which is
the answer. Both end when their replies are used up. An episode pays from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from openclaw_rl.envs.actions import Action, ActionForm, bounded, call_of, calls_of, result_of, vote_on, worked_prompt
from openclaw_rl.envs.curricula import SourcedEnv
from openclaw_rl.envs.toolcall.sources import CurriculumSource, FileSource, TaskSource, ToolEpisode, fenced
from openclaw_rl.envs.toolcall.tools_config import SupportsTurns, WantedCall, signature, written_calls
from openclaw_rl.errors import EnvFailed
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt

TEXT: Final = "Do what is asked with the functions below. Reply with the call in a fenced block and nothing else."
ANSWER: Final = " When you know the answer, reply with it alone."


class ToolCallEnv(SourcedEnv[TaskSource]):
    """See `Env`. Its tasks are those of a source."""

    def __init__(
        self,
        *,
        name: str,
        source: TaskSource,
        form: ActionForm,
        examples: int | None,
        output_chars: int,
        step_votes: bool,
    ) -> None:
        """``step_votes`` adds a vote to each step (`vote_on`)."""
        super().__init__(name=name, source=source, form=form, examples=examples)
        self._output_chars = output_chars
        self._step_votes = step_votes
        self._episode: ToolEpisode | None = None
        self._left = 0

    def gold(self, task: str) -> Sequence[Message]:
        return [self._written(number, part) for number, part in enumerate(self._source.gold(task))]

    def _written(self, number: int, gold: WantedCall | str) -> Message:
        if isinstance(gold, str):
            return Message(role="assistant", content=gold)
        if self._form == "text":
            return Message(role="assistant", content=fenced(gold))
        return call_of(gold.tool, gold.arguments, number)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        await self.close()
        self._episode = episode = self._source.begin(task, examples=self._examples)
        self._left = episode.steps
        if self._form == "text":
            return _text_prompt(episode)
        solutions = "".join(f"\n\nExample: {request}\n{solution}" for request, solution in episode.examples)
        system = Message(
            role="system", content=("Use the tools to do what is asked." + ANSWER * episode.answered + solutions)
        )
        return Prompt(messages=(system, Message(role="user", content=episode.instruction)), tools=episode.tools)

    async def step(self, reply: Message) -> Observation:
        episode = self._begun()
        self._left -= 1
        actions = calls_of(reply, episode.tools) if reply.tool_calls else self._as_text(reply, episode)
        messages = [await self._carry_out(action, episode) for action in actions]
        if not actions and self._left > 0 and (request := await _next_request(episode)) is not None:
            return Observation(messages=(Message(role="user", content=request),))
        answer = reply.content.strip() if episode.answered and not actions else None
        score = await episode.world.score(answer)
        finished = not actions or self._left <= 0 or (not episode.answered and score == 1)
        vote = vote_on(messages) if self._step_votes and (actions or not episode.answered) else None
        return Observation(
            messages=tuple(messages), reward=2 * score - 1 if finished else None, done=finished, vote=vote
        )

    def _as_text(self, reply: Message, episode: ToolEpisode) -> tuple[Action, ...]:
        return written_calls(reply.content, episode.tools) if self._form == "text" else ()

    async def _carry_out(self, action: Action, episode: ToolEpisode) -> Message:
        text = f"error: {action.fault}" if action.fault else await episode.world.call(action.tool, action.arguments)
        text = bounded(text, self._output_chars)
        return result_of(action, text)

    async def outcome(self) -> float:
        """Return the score of the calls so far, from -1 to 1; tasks with an answer score -1 here."""
        return 2 * await self._begun().world.score(None) - 1

    def _begun(self) -> ToolEpisode:
        if self._episode is None:
            raise EnvFailed("no episode has begun in this environment")
        return self._episode

    async def close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.world.close()


def toolcall(
    *,
    tools_config: Path | None,
    form: ActionForm,
    examples: int | None,
    levels: Sequence[str],
    per_level: int,
    output_chars: int,
    step_votes: bool,
) -> ToolCallEnv:
    """Create the environment with the curriculum's tasks, or with those from ``tools_config``."""
    source: TaskSource = (
        CurriculumSource(levels=tuple(levels), per_level=per_level)
        if tools_config is None
        else FileSource(Path(tools_config), levels=tuple(levels))
    )
    return ToolCallEnv(
        name="toolcall",
        source=source,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


async def _next_request(episode: ToolEpisode) -> str | None:
    """Return the user's next request after a reply without calls, or None at the end."""
    return await episode.world.next_request() if isinstance(episode.world, SupportsTurns) else None


def _text_prompt(episode: ToolEpisode) -> Prompt:
    """Build the prompt: reply instructions, functions, solved tasks as turns of the conversation, the task."""
    how = "\n".join([TEXT + ANSWER * episode.answered, "Functions:", *map(signature, episode.tools)])
    return worked_prompt(how, episode.examples, episode.instruction)
