"""The policy at the service: the `Policy` port, token ids both ways, each version a sampler of its own.

A reply arrives complete, as the service does not stream. Its log-probs are the service's own when it samples from the
full distribution at temperature 1; otherwise the reply is scored, so that recorded log-probs are always comparable.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from openclaw_rl.backends.hf.detokenizer import WIDE, Ending, TokenChunk, TopLogprobs, tempered
from openclaw_rl.backends.hf.prompts import PromptEncoder, Reply, read_chat
from openclaw_rl.backends.hf.remote_policy import RemotePolicy
from openclaw_rl.backends.hf.version_table import VersionTable
from openclaw_rl.backends.tinker.remote import sampler_path
from openclaw_rl.backends.tinker.session import TinkerSession, examine
from openclaw_rl.backends.tinker.settings import CloudAccess, TinkerPolicySettings
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused, RequestError
from openclaw_rl.ports import Ability, Delta, EngineFinding, Stream
from openclaw_rl.types import Completion, Prompt, Sampling, Tokens, Version

# Sampling and scoring at the service.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A sampled reply: tokens `[R]`, log-probs `[R]`, and the reason for its end."""

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
    """Sample one reply from the weights at ``path``; ``ends`` maps the tokens that end it to their texts."""
    session.spending.refuse_beyond()
    sampler, types = await session.sampler(path), session.sdk.types
    stops: list[str] | list[int] = [*sampling.stop, *ends.values()] if sampling.stop else list(ends)
    params = types.SamplingParams(
        max_tokens=limit,
        seed=sampling.seed,
        stop=stops,
        temperature=sampling.temperature,
        top_k=sampling.top_k or -1,
        top_p=sampling.top_p,
    )
    future = sampler.sample(prompt=types.ModelInput.from_ints(list(prompt)), num_samples=1, sampling_params=params)
    sequence = (await session.wait(future, "sampling a reply")).sequences[0]
    tokens, logprobs = tuple(sequence.tokens), sequence.logprobs
    session.spending.add(prefill=len(prompt), sample=len(tokens))
    if logprobs is None or len(logprobs) != len(tokens):
        raise BackendError(f"the service gave {len(tokens)} tokens and {len(logprobs or ())} log-probs")
    values = tuple(min(0.0, float(value)) for value in logprobs)
    return Sampled(tokens=tokens, logprobs=values, ending="length" if sequence.stop_reason == "length" else "stop")


async def score_reply(
    session: TinkerSession, path: str | None, prompt: Tokens, reply: Tokens, *, top: int
) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
    """Return a reply's log-probs at temperature 1, and the ``top`` likeliest tokens at each of its positions."""
    session.spending.refuse_beyond()
    sampler, types = await session.sampler(path), session.sdk.types
    future = sampler.sample(
        prompt=types.ModelInput.from_ints([*prompt, *reply]),
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=top,
    )
    answer = await session.wait(future, "scoring a reply")
    session.spending.add(prefill=len(prompt) + len(reply), sample=1)
    values = _last(answer.prompt_logprobs, len(prompt) + len(reply), len(reply))
    tops = _last(answer.topk_prompt_logprobs, len(prompt) + len(reply), len(reply)) if top else [()] * len(reply)
    if any(value is None or not math.isfinite(value) for value in values) or any(row is None for row in tops):
        raise BackendError("the service left log-probs of a reply out")
    rows = (sorted(((int(t), min(0.0, float(v))) for t, v in row), key=lambda entry: -entry[1])[:top] for row in tops)
    return tuple(min(0.0, float(value)) for value in values), tuple(map(tuple, rows))


def _last(found: Any, length: int, count: int) -> list[Any]:
    """Return the service's values for the last ``count`` of ``length`` tokens."""
    if found is None or len(found) != length:
        raise BackendError(f"the service scored {len(found or ())} of {length} tokens")
    return list(found[-count:])


log = logging.getLogger(__name__)

_CONTEXT: Final = 32768
"""the context if neither the service nor the model's files define it"""


class TinkerPolicy(RemotePolicy):
    """A `Policy` at the service. ``base``, ``context`` and ``tool_format`` are set by `start`."""

    abilities: frozenset[Ability] = frozenset({"opening"})

    def __init__(self, settings: TinkerPolicySettings) -> None:
        self.name = Path(settings.model).name if Path(settings.model).is_absolute() else settings.model
        self.base = f"tinker:{settings.model}"
        self.context = settings.context or 0
        self.tool_format = settings.tool_format or "none"
        self._settings = settings
        self._session = TinkerSession(settings.access())
        self._versions = VersionTable()
        self._text: PromptEncoder | None = None

    @property
    def health(self) -> dict[str, Any]:
        """Return the service's address, and today's cost so far."""
        spent = self._session.spending
        state = "ready" if self._text is not None else "stopped"
        tokens = {f"tokens_{kind}": count for kind, count in spent.tokens.items()}
        return {
            "state": state, "engine": "tinker", "url": self._session.url, "live": self.live, "cost_today": spent.today
        } | tokens  # fmt: skip

    @property
    def runner(self) -> str | None:
        """Return the service's address; None before `start`."""
        return f"tinker at {self._session.url}" if self._text is not None else None

    # --- life

    async def start(self) -> None:
        """Read the model's tokenizer and reach the service; raise ModelRefused or BackendDown with the remedy."""
        if self._text is not None:
            return
        settings = self._settings
        chat = await asyncio.to_thread(
            read_chat, settings.tokenizer, cache_dir=settings.cache_dir, chat_template=settings.chat_template
        )
        room = await self._room(self._session.access)
        self._text = PromptEncoder(chat.template)
        self.tool_format = settings.tool_format or chat.tool_format
        self.context = min(filter(None, (room, chat.context, settings.context)), default=_CONTEXT)

    async def _room(self, access: CloudAccess) -> int | None:
        """Return the service's token limit; raise ModelRefused if it does not have the model."""
        models = await self._session.surviving(self._session.models)
        if access.model not in models:
            near = difflib.get_close_matches(access.model, models, n=3, cutoff=0.3) or sorted(models)[:3]
            raise ModelRefused(
                f"{self._session.url} has no model {access.model!r}",
                remedy=f"set policy.model to one that it has, such as {', '.join(near)}",
            )
        return models[access.model]

    async def stop(self) -> None:
        """End the session. Safe to call twice."""
        text, self._text = self._text, None
        if text is not None:
            text.close()
        await self._session.close()

    async def examine(self) -> Sequence[EngineFinding]:
        """Examine the service without sampling."""
        return await examine(self._session, self._settings)

    # --- versions

    def know(self, version: Version) -> None:
        """Register ``version`` by its number; the first request for it opens its sampler."""
        self._versions.know(version)

    async def load(self, version: Version) -> None:
        """Open the sampler for ``version`` and make it live. Requests in flight finish on their version."""
        await self.admit(version)
        self._versions.live = version.number
        self._versions.loaded(version.number)

    async def admit(self, version: Version) -> None:
        """Open the sampler for ``version``; raise ModelRefused if its weights are not at the service."""
        self.know(version)
        path = self._path(version.number)
        try:
            await self._session.surviving(lambda: self._session.sampler(path))
        except RequestError as error:
            raise ModelRefused(error.what, remedy="train from its parent") from error

    async def dismiss(self, number: int) -> None:
        """Do nothing: an unused version holds no resources."""

    # --- replies

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        """Yield a complete reply by ``version`` (None: the live one). Closing the stream early stops generation."""
        return self._generate(prompt, supported(sampling), version)

    async def _generate(
        self, prompt: Prompt, sampling: Sampling, version: int | None
    ) -> AsyncGenerator[Delta | Completion, None]:
        number, text = self._number(version), self._encoder()
        ids = await text.encode(prompt)
        limit = self._limit(len(ids), sampling)
        path = self._path(number)
        sampled = await self._session.surviving(
            lambda: sample_reply(self._session, path, ids, sampling, limit=limit, ends=self._ends())
        )
        reply = Reply(text, ids, sampling, limit=limit)
        delta = reply.take(await self._chunk(ids, sampled, sampling, number))
        if delta is not None:
            yield delta
        yield reply.completion(number)

    async def _chunk(self, ids: Tokens, found: Sampled, sampling: Sampling, number: int) -> TokenChunk:
        """Return the reply with log-probs at temperature 1 and at its own; score it if the two may differ."""
        values = found.logprobs
        tops: tuple[TopLogprobs, ...] = ((),) * len(found.tokens)
        if needs_scores(sampling) and found.tokens:
            values, tops = await self._scored(ids, found.tokens, number, max(sampling.top_logprobs, WIDE))
        top_values = [[value for _, value in top] for top in tops]
        at_temperature = tuple(
            tempered(v, row, sampling.temperature) for v, row in zip(values, top_values, strict=True)
        )
        return TokenChunk(tokens=found.tokens, logprobs=values, tempered=at_temperature, tops=tops, ending=found.ending)

    async def _scored(
        self, prompt: Tokens, reply: Tokens, number: int, top: int
    ) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        path = self._path(number)
        return await self._session.surviving(lambda: score_reply(self._session, path, prompt, reply, top=top))

    def _ends(self) -> dict[int, str]:
        text = self._encoder()
        return {token: text.text_of(token) for token in sorted(text.ends)}

    def _path(self, number: int) -> str | None:
        adapter = self._versions.adapters[number]
        return None if adapter is None else sampler_path(adapter)

    def _encoder(self) -> PromptEncoder:
        if self._text is None:
            raise BackendDown("the policy at the service is not started")
        return self._text


def supported(sampling: Sampling) -> Sampling:
    """Remove the parameters that the service does not support, so that they are not recorded."""
    return replace(
        sampling,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        dry_multiplier=0.0,
        json_schema=None,
    )


def needs_scores(sampling: Sampling) -> bool:
    """Return True if a reply's log-probs may not be from the full distribution at temperature 1."""
    plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == 0
    return not plain or sampling.top_logprobs > 0
