"""One line for each noun. What a test does not name has a plain value; what it names goes to the type as it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from openclaw_rl.ports import Case
from openclaw_rl.types import Completion, Message, Outcome, Prompt, Sample, Sampling, Turn, Verdict


def make_message(role: Any, content: str, **fields: Any) -> Message:
    """A message.

    >>> make_message("user", "Tell me about tea").content
    'Tell me about tea'
    """
    return Message(role=role, content=content, **fields)


def make_prompt(*contents: str) -> Prompt:
    """A prompt whose messages alternate user, assistant, user ...

    >>> [message.role for message in make_prompt("Tell me about tea", "It is a plant.", "Shorter!").messages]
    ['user', 'assistant', 'user']
    """
    roles = ("user", "assistant")
    return Prompt(messages=tuple(make_message(roles[at % 2], content) for at, content in enumerate(contents)))


def make_completion(text: str = "ok", **fields: Any) -> Completion:
    """A reply of two tokens by version 0.

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
    """A turn of user u1, who says ``text``; ``prompt`` replaces the whole prompt.

    >>> make_turn("Tell me about tea", session="s").prompt.messages[0].content
    'Tell me about tea'
    """
    prompt = fields.pop("prompt", None) or make_prompt(text)
    return Turn(**{"prompt": prompt, "completion": completion or make_completion(), "user": "u1", **fields})


def make_outcome(turn: Turn, **fields: Any) -> Outcome:
    """The outcome of a main turn after which the user says "thanks".

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
    """A judge's verdict on a turn.

    >>> make_verdict(make_turn(), -1.0).source
    'judge'
    """
    return Verdict(**{"turn": turn.id, "score": score, "source": "judge", **fields})


def make_case(*next_state: Message | str, reply: str = "ok", **outcome: Any) -> Case:
    """What a judge is given: a turn, and what came after it (a string is what the user says; default "thanks").

    >>> make_case("Too long!").outcome.next_state[0].role
    'user'
    """
    turn = make_turn("list files", completion=make_completion(reply))
    messages = tuple(make_message("user", part) if isinstance(part, str) else part for part in next_state)
    return Case(turn=turn, outcome=make_outcome(turn, **{"next_state": messages, **outcome}))


def make_sample(advantage: float | None = 1.0, *hints: str, **fields: Any) -> Sample:
    """A turn ready to train: with an advantage, with hints, or with both.

    >>> make_sample(None, "Be brief, please.").teachers[0].messages[-1].content
    'hello\\n\\nBe brief, please.'
    """
    turn = make_turn()
    done = turn.completion
    plain: dict[str, Any] = {
        "turn": turn.id,
        "user": turn.user,
        "prompt": turn.prompt,
        "prompt_tokens": done.prompt_tokens,
        "reply_tokens": done.reply_tokens,
        "logprobs": done.logprobs,
        "mask": (True,) * len(done.reply_tokens),
        "advantage": advantage,
        "teachers": tuple(turn.prompt.hinted(hint) for hint in hints),
        "temperature": done.sampling.temperature,
        "version": done.version,
    }
    return Sample(**{**plain, **fields})


# Time in tests: a clock that a test moves, and a wait for something to become true.

PATIENCE = 60.0
"""seconds after which a wait is given up: only a test that fails takes so long"""


class FakeClock:
    """Time that passes only by `sleep` or by hand.

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
        """Pass the time at once."""
        self.slept.append(seconds)
        self.now += seconds


def wait_until(condition: Callable[[], bool], *, pause: float = 0.02) -> None:
    """Return when ``condition()`` holds; raises TimeoutError after a minute. For what another process or thread does.

    >>> wait_until(lambda: True)
    """
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not true after {PATIENCE:.0f} s: {condition}")
        time.sleep(pause)


async def until(condition: Callable[[], bool], *, pause: float = 0.01) -> None:
    """The same in an event loop.

    >>> asyncio.run(until(lambda: True))
    """
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (the condition is of another process or thread)
            await asyncio.sleep(pause)
