"""Sampling and scoring at the service."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.backends.hf.token_chunks import Ending, TopLogprobs
from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.errors import BackendError
from openclaw_rl.types import Sampling, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A reply as it came: tokens `[R]`, log-probs `[R]`, and why it ended."""

    tokens: Tokens
    logprobs: tuple[float, ...]
    ending: Ending


async def sample_reply(
    session: TinkerSession,
    path: str | None,
    prompt: Tokens,
    sampling: Sampling,
    *,
    limit: int,
    ends: Mapping[int, str],
) -> Sampled:
    """One reply of the weights at ``path``; ``ends`` are the tokens that end it, with their texts."""
    session.spending.refuse_beyond()
    sampler, types = await session.sampler(path), session.sdk.types
    stops: list[str] | list[int] = [*sampling.stop, *ends.values()] if sampling.stop else list(ends)
    asked = types.SamplingParams(
        max_tokens=limit,
        seed=sampling.seed,
        stop=stops,
        temperature=sampling.temperature,
        top_k=sampling.top_k or -1,
        top_p=sampling.top_p,
    )
    promised = sampler.sample(prompt=types.ModelInput.from_ints(list(prompt)), num_samples=1, sampling_params=asked)
    found = (await session.wait(promised, "sampling a reply")).sequences[0]
    tokens, logprobs = tuple(found.tokens), found.logprobs
    session.spending.add(prefill=len(prompt), sample=len(tokens))
    if logprobs is None or len(logprobs) != len(tokens):
        raise BackendError(f"the service gave {len(tokens)} tokens and {len(logprobs or ())} log-probs")
    values = tuple(min(0.0, float(value)) for value in logprobs)
    return Sampled(tokens=tokens, logprobs=values, ending="length" if found.stop_reason == "length" else "stop")


async def score_reply(
    session: TinkerSession, path: str | None, prompt: Tokens, reply: Tokens, *, top: int
) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
    """Log-probs of a reply at temperature 1, and the ``top`` likeliest tokens at each of its positions."""
    session.spending.refuse_beyond()
    sampler, types = await session.sampler(path), session.sdk.types
    promised = sampler.sample(
        prompt=types.ModelInput.from_ints([*prompt, *reply]),
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=top,
    )
    found = await session.wait(promised, "scoring a reply")
    session.spending.add(prefill=len(prompt) + len(reply), sample=1)
    values = _last(found.prompt_logprobs, len(prompt) + len(reply), len(reply))
    tops = _last(found.topk_prompt_logprobs, len(prompt) + len(reply), len(reply)) if top else [()] * len(reply)
    if any(value is None or not math.isfinite(value) for value in values) or any(row is None for row in tops):
        raise BackendError("the service left log-probs of a reply out")
    rows = (sorted(((int(t), min(0.0, float(v))) for t, v in row), key=lambda each: -each[1])[:top] for row in tops)
    return tuple(min(0.0, float(value)) for value in values), tuple(map(tuple, rows))


def _last(found: Any, length: int, count: int) -> list[Any]:
    """What the service said of the last ``count`` of ``length`` tokens."""
    if found is None or len(found) != length:
        raise BackendError(f"the service scored {len(found or ())} of {length} tokens")
    return list(found[-count:])
