"""A model that runs here as a voter: the policy's base model, or one that is hosted for the judge alone."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, cast

import anyio.from_thread

from openclaw_rl.errors import BackendError, RequestError
from openclaw_rl.judge.prompt import approximate
from openclaw_rl.judge.voters import Ballot
from openclaw_rl.ports import Delta, Policy, SupportsConstraints
from openclaw_rl.types import Completion, Message, Prompt, Sampling

OPENING: Final = '{"reason": "'
"""what an answer is made to begin with where the model can be made to: no thoughts and no greeting before the JSON"""


class PolicyVoter:
    """The base model (version 0) of ``policy`` as a voter: no endpoint.

    An answer ends with its JSON object, whatever the model would say after it. All votes on one question share its
    prefix in the KV cache. `count` counts in the model's own tokens.
    """

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        self._policy, self._sampling = policy, sampling
        able = policy.abilities if isinstance(policy, SupportsConstraints) else frozenset()
        self._opening = OPENING if "opening" in able and "json_schema" not in able else ""

    @property
    def model(self) -> str:
        """The model's name; of a hosted one it is known once it runs."""
        return f"{self._policy.name}@0"

    @property
    def context(self) -> int | None:
        """The most tokens of a question and its answer; None while that is not known."""
        return getattr(self._policy, "context", None) or None

    def count(self, text: str) -> int:
        """The tokens of a text. For worker threads alone; as good as `approximate` while the model cannot be asked."""
        if not isinstance(self._policy, Policy):
            return approximate(text)
        try:
            return len(anyio.from_thread.run(self._policy.tokenize, text)) - 1  # less the end of the turn
        except (BackendError, RequestError):
            return approximate(text)

    async def close(self) -> None:
        """Nothing to give back: the policy belongs to others."""

    async def ask(self, messages: Sequence[Message], *, schema: Mapping[str, Any]) -> Ballot:
        """One vote of the base model."""
        try:
            return await self._answer(messages, replace(self._sampling, json_schema=schema))
        except BackendError as error:
            return Ballot(text=None, failed=True, note=f"the model cannot answer: {error.what}")
        except RequestError as error:
            return Ballot(text=None, note=f"the model refused: {error.what}")

    async def _answer(self, messages: Sequence[Message], sampling: Sampling) -> Ballot:
        prompt = Prompt(messages=tuple(messages), opening=self._opening)
        text, sampled, whole = self._opening, 0, False
        stream = cast(AsyncGenerator[Delta | Completion, None], self._policy.generate(prompt, sampling, version=0))
        async with aclosing(stream):
            async for piece in stream:
                if isinstance(piece, Completion):
                    spent = len(piece.prompt_tokens) + len(piece.reply_tokens)
                    return Ballot(text=self._opening + piece.reply.content, tokens=spent)
                if whole:  # it goes on after the object: that is not waited for
                    asked = sum(approximate(message.content) for message in messages)
                    return Ballot(text=text, tokens=asked + sampled)
                text, sampled = text + piece.text, sampled + len(piece.pieces)
                whole = "}" in piece.text and _is_object(text)
        return Ballot(text=None, failed=True, note="the model ended without a completion")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
