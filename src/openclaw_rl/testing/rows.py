"""One-line builders of each type: fields that a test does not set have plain defaults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from openclaw_rl.ports import Case
from openclaw_rl.types import Completion, Message, Outcome, Prompt, Sample, Sampling, Turn, Verdict


def make_message(role: Any, content: str, **fields: Any) -> Message:
    """Return a message.

    >>> make_message("user", "Tell me about tea").content
    'Tell me about tea'
    """
    return Message(role=role, content=content, **fields)


def make_prompt(*contents: str) -> Prompt:
    """Return a prompt whose messages alternate user, assistant, user ...

    >>> [message.role for message in make_prompt("Tell me about tea", "It is a plant.", "Shorter!").messages]
    ['user', 'assistant', 'user']
    """
    roles = ("user", "assistant")
    return Prompt(messages=tuple(make_message(roles[at % 2], content) for at, content in enumerate(contents)))


def make_completion(text: str = "ok", **fields: Any) -> Completion:
    """Return a reply of two tokens by version 0.

    >>> make_completion("Tea is a plant.").logprobs
    (-0.5, -0.25)
    """
    plain: dict[str, Any] = {
        "reply": make_message("assistant", text),
        "prompt_tokens": (1, 2, 3),
        "reply_tokens": (7, 8),
        "logprobs": (-0.5, -0.25),
        "sampling": Sampling(),
        "finish": "stop",
        "version": 0,
    }
    return Completion(**{**plain, **fields})


def make_turn(text: str = "hello", *, completion: Completion | None = None, **fields: Any) -> Turn:
    """Return a turn of user u1 with the message ``text``; ``prompt`` replaces the whole prompt.

    >>> make_turn("Tell me about tea", session="s").prompt.messages[0].content
    'Tell me about tea'
    """
    prompt = fields.pop("prompt", None) or make_prompt(text)
    return Turn(**{"prompt": prompt, "completion": completion or make_completion(), "user": "u1", **fields})


def make_outcome(turn: Turn, **fields: Any) -> Outcome:
    """Return the outcome of a main turn that the user answers with "thanks".

    >>> make_outcome(make_turn()).next_state[0].content
    'thanks'
    """
    plain: dict[str, Any] = {
        "turn": turn.id,
        "session": "s",
        "kind": "main",
        "kind_reason": "declared",
        "index": 0,
        "next_state": (make_message("user", "thanks"),),
    }
    return Outcome(**{**plain, **fields})


def make_verdict(turn: Turn, score: float | None = 1.0, **fields: Any) -> Verdict:
    """Return a judge's verdict on a turn.

    >>> make_verdict(make_turn(), -1.0).source
    'judge'
    """
    return Verdict(**{"turn": turn.id, "score": score, "source": "judge", **fields})


def make_case(*next_state: Message | str, reply: str = "ok", **outcome: Any) -> Case:
    """Return a judge's input: a turn and its next state (a string is a user message; default "thanks").

    >>> make_case("Too long!").outcome.next_state[0].role
    'user'
    """
    turn = make_turn("list files", completion=make_completion(reply))
    messages = tuple(make_message("user", part) if isinstance(part, str) else part for part in next_state)
    return Case(turn=turn, outcome=make_outcome(turn, **{"next_state": messages, **outcome}))


def make_sample(advantage: float | None = 1.0, *hints: str, **fields: Any) -> Sample:
    """Return a turn ready to train: with an advantage, with hints, or with both.

    >>> make_sample(None, "Be brief, please.").teachers[0].messages[-1].content
    'hello\\n\\nBe brief, please.'
    """
    turn = make_turn()
    completion = turn.completion
    plain: dict[str, Any] = {
        "turn": turn.id,
        "user": turn.user,
        "prompt": turn.prompt,
        "prompt_tokens": completion.prompt_tokens,
        "reply_tokens": completion.reply_tokens,
        "logprobs": completion.logprobs,
        "mask": (True,) * len(completion.reply_tokens),
        "advantage": advantage,
        "teachers": tuple(turn.prompt.hinted(hint) for hint in hints),
        "temperature": completion.sampling.temperature,
        "version": completion.version,
    }
    return Sample(**{**plain, **fields})


# Time in tests: a clock that a test advances, and a wait for a condition.

PATIENCE = 60.0
"""timeout in seconds: only a failing test takes this long"""


class FakeClock:
    """Clock that advances only by `sleep` or by hand.

    >>> clock = FakeClock(100.0)
    >>> asyncio.run(clock.sleep(5.0))
    >>> clock(), clock.slept
    (105.0, [5.0])
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Advance the time at once."""
        self.slept.append(seconds)
        self.now += seconds


def wait_until(condition: Callable[[], bool], *, pause: float = 0.02) -> None:
    """Wait until ``condition()`` is true, for events in another process or thread; raise TimeoutError after a minute.

    >>> wait_until(lambda: True)
    """
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not true after {PATIENCE:.0f} s: {condition}")
        time.sleep(pause)


async def until(condition: Callable[[], bool], *, pause: float = 0.01) -> None:
    """Wait until ``condition()`` is true without blocking the event loop.

    >>> asyncio.run(until(lambda: True))
    """
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (the condition changes in another process or thread)
            await asyncio.sleep(pause)
