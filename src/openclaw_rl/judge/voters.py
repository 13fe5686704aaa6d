"""Voters: an OpenAI-compatible endpoint, or a model that runs here."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, cast

import anyio
import anyio.from_thread
import httpx2

from openclaw_rl.errors import BackendError, RequestError
from openclaw_rl.judge.prompt import approximate
from openclaw_rl.ports import Delta, Policy, SupportsConstraints
from openclaw_rl.types import Completion, Message, Prompt, Sampling

MOST = 1_000_000
"""maximum bytes read per answer; a vote has a few hundred"""
_FORMATS = ("json_schema", "json_object", "none")
_TOKENS = 10_000_000  # more than any one answer costs: a larger count is ignored
_LONGEST_NAME = 256
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_LATER = frozenset({408, 409, 425, 429})
_LOCKED = {
    401: "check the judge's key",
    403: "check what the judge's key may do",
    404: "check the judge's base URL and model name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """A voter's response to one request. ``failed``: the voter was unreachable, ask again later."""

    text: str | None
    tokens: int = 0
    note: str = ""
    failed: bool = False


class Voter(Protocol):
    """Returns one ballot per call; a voter's errors are part of the ballot and never raised."""

    @property
    def model(self) -> str: ...

    async def ask(self, messages: Sequence[Message], *, schema: Mapping[str, Any]) -> Ballot: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """A judge endpoint's address, key and model, and the retries per vote.

    ``model`` empty is the first that the endpoint lists.
    """

    base_url: str
    model: str
    api_key: str | None = field(repr=False)
    timeout: float
    retries: int


class EndpointVoter:
    """An OpenAI-compatible server. Retries 429, 5xx and broken connections with jitter; detects its JSON mode.

    Answers are requested uncompressed and read as a stream, up to `MOST` bytes: a compressed, endless or too deeply
    nested answer is a failed vote.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        sampling: Sampling,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.model = endpoint.model
        self._base_url = endpoint.base_url.rstrip("/")
        self._url = f"{self._base_url}/chat/completions"
        self._sampling = sampling
        self._retries = endpoint.retries
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._format = 0
        headers = {"accept-encoding": "identity"}
        if endpoint.api_key:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
        self._client = httpx2.AsyncClient(timeout=endpoint.timeout, headers=headers, transport=transport)

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        await self._client.aclose()

    async def ask(self, messages: Sequence[Message], *, schema: Mapping[str, Any]) -> Ballot:
        """Return one vote, retrying while that can help."""
        ballot = Ballot(text=None, failed=True, note="never asked")
        tried = 0
        while tried <= self._retries:
            form = self._format
            try:
                self.model = self.model or await self._first_model()
                answered = await self._request("POST", self._url, self._body(messages, schema, form))
            except httpx2.TransportError as error:
                ballot, wait = Ballot(text=None, failed=True, note=f"no answer: {type(error).__name__}"), None
            else:
                if answered.status in (400, 422) and form < len(_FORMATS) - 1:
                    self._format = max(self._format, form + 1)
                    continue
                ballot, wait = _read(answered, messages), answered.retry_after
                if not _again(answered.status):
                    return ballot
            tried += 1
            if tried <= self._retries:
                await self._sleep(self._delay(tried, wait))
        return ballot

    async def _first_model(self) -> str:
        """Return the first model that the endpoint lists; if it lists none, an empty name for its default."""
        listed = await self._request("GET", f"{self._base_url}/models")
        try:
            name = json.loads(listed.body or b"")["data"][0]["id"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            return ""
        return name if isinstance(name, str) and len(name) <= _LONGEST_NAME else ""

    async def _request(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> _Answered:
        async with self._client.stream(method, url, json=body) as response:
            raw = None if _packed(response) else bytearray()
            if raw is not None:
                async for chunk in response.aiter_bytes(65_536):
                    raw += chunk
                    if len(raw) > MOST:
                        raw = None
                        break
        return _Answered(response.status_code, response.headers.get("retry-after"), None if raw is None else bytes(raw))

    def _delay(self, tried: int, wait: str | None) -> float:
        """Return half to all of a pause that doubles each time, or a longer retry-after, up to 30 s."""
        pause = 0.5 * (1 << (tried - 1)) * self._rng.uniform(0.5, 1.0)
        requested = float(wait) if wait and _SECONDS.fullmatch(wait) else 0.0
        return max(pause, min(requested, 30.0))

    def _body(self, messages: Sequence[Message], schema: Mapping[str, Any], form: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self._sampling.temperature,
            "max_tokens": self._sampling.max_tokens,
        }
        if _FORMATS[form] == "json_schema":
            verdict_format = {"name": "verdict", "strict": True, "schema": dict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": verdict_format}
        elif _FORMATS[form] == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body


@dataclass(frozen=True, slots=True)
class _Answered:
    """The relevant parts of a response; ``body`` None if it may not be read."""

    status: int
    retry_after: str | None
    body: bytes | None


def _packed(response: httpx2.Response) -> bool:
    return response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")


def _again(status: int) -> bool:
    return status >= 500 or status in _LATER


def _read(answered: _Answered, messages: Sequence[Message]) -> Ballot:
    status = answered.status
    if status != 200:
        failed = _again(status) or status in _LOCKED
        note = f"the endpoint answered {status}"
        return Ballot(text=None, failed=failed, note=f"{note}: {_LOCKED[status]}" if status in _LOCKED else note)
    if answered.body is None:
        return Ballot(text=None, failed=True, note=f"the answer is compressed or longer than {MOST} bytes")
    try:
        value = json.loads(answered.body)
        text = value["choices"][0]["message"]["content"]
    except RecursionError:
        return Ballot(text=None, failed=True, note="the answer is nested too deep to be read")
    except (ValueError, KeyError, IndexError, TypeError):
        return Ballot(text=None, note="the answer is no chat completion")
    if not isinstance(text, str):
        return Ballot(text=None, note="the answer holds no text")
    return Ballot(text=text, tokens=_spent(value, messages, text))


def _spent(value: Mapping[str, Any], messages: Sequence[Message], text: str) -> int:
    usage = value.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    if isinstance(total, int) and 0 < total < _TOKENS:
        return total
    return sum(approximate(message.content) for message in messages) + approximate(text)


# A model that runs here as a voter: the policy's base model, or one hosted for the judge alone.

OPENING: Final = '{"reason": "'
"""forced start of an answer, if the model supports it: no thoughts and no greeting before the JSON"""


class PolicyVoter:
    """The base model (version 0) of ``policy`` as a voter: no endpoint.

    An answer ends with its JSON object; text after it is dropped. All votes on one question share its prefix in the KV
    cache. `count` counts in the model's own tokens.
    """

    def __init__(self, policy: Policy, sampling: Sampling) -> None:
        self._policy, self._sampling = policy, sampling
        able = policy.abilities if isinstance(policy, SupportsConstraints) else frozenset()
        self._opening = OPENING if "opening" in able and "json_schema" not in able else ""

    @property
    def model(self) -> str:
        """Return the model's name; a hosted model's name is available once it runs."""
        return f"{self._policy.name}@0"

    @property
    def context(self) -> int | None:
        """Return the maximum tokens for a question and its answer; None while unknown."""
        return getattr(self._policy, "context", None) or None

    def count(self, text: str) -> int:
        """Count a text's tokens, from worker threads only; use `approximate` while the model is unavailable."""
        if not isinstance(self._policy, Policy):
            return approximate(text)
        try:
            return len(anyio.from_thread.run(self._policy.tokenize, text)) - 1  # less the end of the turn
        except (BackendError, RequestError):
            return approximate(text)

    async def close(self) -> None:
        """Release nothing: the policy has another owner."""

    async def ask(self, messages: Sequence[Message], *, schema: Mapping[str, Any]) -> Ballot:
        """Return one vote of the base model."""
        try:
            return await self._answer(messages, replace(self._sampling, json_schema=schema))
        except BackendError as error:
            return Ballot(text=None, failed=True, note=f"the model cannot answer: {error.what}")
        except RequestError as error:
            return Ballot(text=None, note=f"the model refused: {error.what}")

    async def _answer(self, messages: Sequence[Message], sampling: Sampling) -> Ballot:
        prompt = Prompt(messages=tuple(messages), opening=self._opening)
        text, sampled, complete = self._opening, 0, False
        stream = cast(AsyncGenerator[Delta | Completion, None], self._policy.generate(prompt, sampling, version=0))
        async with aclosing(stream):
            async for piece in stream:
                if isinstance(piece, Completion):
                    spent = len(piece.prompt_tokens) + len(piece.reply_tokens)
                    return Ballot(text=self._opening + piece.reply.content, tokens=spent)
                if complete:  # the object is complete: do not wait for further text
                    question_tokens = sum(approximate(message.content) for message in messages)
                    return Ballot(text=text, tokens=question_tokens + sampled)
                text, sampled = text + piece.text, sampled + len(piece.pieces)
                complete = "}" in piece.text and _is_object(text)
        return Ballot(text=None, failed=True, note="the model ended without a completion")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
