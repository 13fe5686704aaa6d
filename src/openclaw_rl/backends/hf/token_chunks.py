"""Sampled tokens as they come from elsewhere, and their log-probs at another temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openclaw_rl.ports import Scores
from openclaw_rl.types import Tokens

TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""tokens that could have been sampled at one position, with their log-probs, the likeliest first"""
Ending: TypeAlias = Literal["stop", "length"]

WIDE = 20
"""how many log-probs at a position are asked for where those of another temperature are made of them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Tokens `[N]` of a reply as they came: log-probs as API clients see them and those of the sampling temperature."""

    tokens: Tokens = ()
    logprobs: tuple[float, ...] = ()
    tempered: tuple[float, ...] = ()
    tops: tuple[TopLogprobs, ...] = ()
    prompt: Tokens | None = None
    """the prompt's tokens, where the engine made them"""
    ending: Ending | None = None
    """how the engine says the reply ended; None while it goes on, and where the engine gave it up"""

    @classmethod
    def joined(cls, chunks: Sequence[TokenChunk]) -> TokenChunk:
        """Chunks that came together, as one."""
        if len(chunks) == 1:
            return chunks[0]
        return cls(
            tokens=tuple(token for chunk in chunks for token in chunk.tokens),
            logprobs=tuple(value for chunk in chunks for value in chunk.logprobs),
            tempered=tuple(value for chunk in chunks for value in chunk.tempered),
            tops=tuple(top for chunk in chunks for top in chunk.tops),
            prompt=next((chunk.prompt for chunk in chunks if chunk.prompt is not None), None),
            ending=next((chunk.ending for chunk in chunks if chunk.ending is not None), None),
        )


def tempered(value: float, known: Sequence[float], temperature: float) -> float:
    """The log-prob at another temperature of a token whose log-prob at 1 is ``value``.

    The normaliser is summed over the likeliest tokens, whose log-probs are ``known``; for the rest it takes what they
    can add: each is at most as likely as the last that is known, which bounds them from above below temperature 1 and
    from below above it.
    """
    if temperature in (0.0, 1.0):
        return value
    power = 1.0 / temperature
    total = sum([math.exp(logprob * power) for logprob in known])
    left = max(0.0, 1.0 - sum(map(math.exp, known)))
    if left and known:
        total += left * math.exp(min(known) * (power - 1.0)) * (0.5 if power > 1.0 else 1.0)
    return min(0.0, value * power - math.log(total)) if total > 0 else value


def in_order(found: Mapping[int, float]) -> TopLogprobs:
    """The likeliest first."""
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def scores_at(values: Sequence[float], tops: Sequence[TopLogprobs], *, temperature: float, top_k: int) -> Scores:
    """Scores at a temperature from log-probs at 1 `[R]` and the likeliest tokens of each position `[R]`."""
    known = [[value for _, value in top] for top in tops]
    rows = list(zip(tops, known, strict=True)) if top_k else []
    warm = [[(token, tempered(value, every, temperature)) for token, value in top[:top_k]] for top, every in rows]
    return Scores(
        logprobs=tuple(tempered(value, every, temperature) for value, every in zip(values, known, strict=True)),
        top_tokens=tuple(tuple(token for token, _ in top) for top in warm),
        top_logprobs=tuple(tuple(value for _, value in top) for top in warm),
    )
