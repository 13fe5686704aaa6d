"""The HTTP client for the public API: chat completions, complete or streamed, feedback, sessions, models.

    async with ApiClient("http://127.0.0.1:30000/v1", key=key) as api:
        reply = await api.complete(prompt, session="s1", options={"max_tokens": 100})
        async with api.stream(prompt, session="s1") as reply:
            async for text in reply.deltas: ...

It is a `ports.ChatClient`, so rollouts run on it; any other OpenAI-compatible server supports `complete` and `models`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2

from openclaw_rl.errors import BackendDown, BackendError, NotAllowed, OpenClawError, RequestError, TooMany
from openclaw_rl.ports import TurnReply
from openclaw_rl.types import Json, Message, Prompt, Tool, ToolCall

# Prompts and messages as chat completion JSON. Pure.


def to_wire(prompt: Prompt) -> dict[str, Json]:
    """Return a prompt as request fields."""
    body: dict[str, Json] = {"messages": [_message(message) for message in prompt.messages]}
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        kind, _, name = prompt.tool_choice.partition(":")
        named = {"type": "function", "function": {"name": name}}
        body["tool_choice"] = named if kind == "name" else prompt.tool_choice
    if prompt.template:
        body["chat_template_kwargs"] = dict(prompt.template)
    return body


def read_message(wire: Mapping[str, Any]) -> Message:
    """Return the message in a choice; raises KeyError, TypeError or AttributeError if it is malformed."""
    calls = tuple(
        ToolCall(
            id=call.get("id") or "", name=call["function"]["name"], arguments=call["function"]["arguments"] or "{}"
        )
        for call in wire.get("tool_calls") or ()
    )
    return Message(
        role="assistant",
        content=wire.get("content") or "",
        reasoning=wire.get("reasoning_content"),
        tool_calls=calls,
    )


def _message(message: Message) -> dict[str, Json]:
    wire: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.images:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        wire["content"] = [*parts, *([{"type": "text", "text": message.content}] if message.content else [])]
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    extra = {"reasoning_content": message.reasoning, "tool_call_id": message.tool_call_id, "name": message.name}
    return wire | {key: value for key, value in extra.items() if value is not None}


def _tool(tool: Tool) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


CONNECT_SECONDS = 10.0
"""a running server accepts a connection at once; the caller chooses the reply's time limit"""
VERSION = "x-openclaw-rl-version"
TURN = "x-openclaw-rl-turn"
NOTES = "x-openclaw-rl-notes"
_OTHER_SERVER = "give the address that 'openclaw-rl up' prints, with /v1 at its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReply:
    """A complete reply. ``version`` is None if the server names none; ``notes`` are those in the prompt."""

    turn: str
    message: Message
    version: int | None
    seconds: float
    notes: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return self.message.content

    @property
    def own_version(self) -> int:
        """Return the version that answered; raises BackendError for a reply from another kind of server."""
        if self.version is None:
            raise BackendError(
                "the reply names no version: it is not from an OpenClaw-RL server",
                remedy="this needs an OpenClaw-RL server, not the engine behind it",
            )
        return self.version


@dataclass(slots=True)
class StreamedReply:
    """A streamed reply: its turn and the notes in its prompt are known before the first text.

    So is its version, unless the server filled a silence before the version was known: the first text then names it.
    """

    turn: str
    version: int | None
    notes: tuple[int, ...]
    chunks: AsyncIterator[Mapping[str, Any]]

    @property
    async def deltas(self) -> AsyncIterator[str]:
        """Yield the text as it arrives."""
        async for chunk in self.chunks:
            if self.version is None:
                self.version = _fingerprinted(chunk)
            for choice in chunk.get("choices", ()):
                if content := choice.get("delta", {}).get("content"):
                    yield content


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that a server lists; ``context`` and ``version`` are None if the server omits them."""

    name: str
    context: int | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedNote:
    """The caller's standing note, as a server lists it; ``put`` is its text in prompts."""

    number: int
    text: str
    put: str
    kind: str
    state: str
    replaced_by: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyToken:
    """One token of a reply as it was sampled."""

    token: int
    text: str
    logprob: float


class ApiClient:
    """The server at ``url``, up to /v1.

    Raises BackendDown if it cannot be reached or is starting, NotAllowed without the right key, TooMany at a limit,
    RequestError for any other refusal, BackendError for an answer outside this API.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        key_remedy: str = "give the server's key",
        model: str = "",
        agent: str | None = None,
        timeout: float | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """``model`` empty selects the served one; ``timeout`` None sets no time limit for a reply."""
        self.url = url.rstrip("/").removesuffix("/chat/completions")
        self._key_remedy, self._model = key_remedy, model
        headers = {"authorization": f"Bearer {key}"} if key else {}
        if agent:
            headers["user-agent"] = agent
        waits = httpx2.Timeout(timeout, connect=CONNECT_SECONDS)
        verify = not self.url.startswith("http://")  # loading all certificates takes as long as ten requests
        self._client = httpx2.AsyncClient(headers=headers, timeout=waits, transport=transport, verify=verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        await self._client.aclose()

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the listed models, the served one first."""
        body = await self._call("GET", "/models")
        try:
            models = tuple(
                ServedModel(name=str(item["id"]), context=item.get("context_length"), version=item.get("version"))
                for item in body["data"]
            )
        except (KeyError, TypeError, AttributeError):
            models = ()
        if not models:
            raise BackendError(
                f"what answers at {self.url} is no OpenClaw-RL server: it lists no models", remedy=_OTHER_SERVER
            )
        return models

    async def complete(
        self,
        prompt: Prompt,
        *,
        session: str | None = None,
        group: str | None = None,
        done: bool = False,
        train: bool = True,
        notes: bool = True,
        options: Mapping[str, Json] | None = None,
    ) -> ApiReply:
        """Request one complete reply: a main turn of its ``session``, with ``done`` the last; without ``notes`` in the
        prompt if False. ``options`` are further request fields."""
        began = time.monotonic()
        headers = _headers(session=session, group=group, done=done, train=train, notes=notes)
        with _reaching(self.url):
            response = await self._client.post(
                f"{self.url}/chat/completions", json=self._body(prompt, options), headers=headers
            )
        body = self._read(response)
        try:
            message = read_message(body["choices"][0]["message"])
            turn = str(body.get("id", ""))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise BackendError(
                f"the answer of {response.url} is no chat completion: {type(error).__name__}: {error}",
                remedy=_OTHER_SERVER,
            ) from error
        took = time.monotonic() - began
        return ApiReply(turn=turn, message=message, version=_version(response), notes=_notes(response), seconds=took)

    @asynccontextmanager
    async def stream(
        self,
        prompt: Prompt,
        *,
        session: str | None = None,
        train: bool = True,
        options: Mapping[str, Json] | None = None,
    ) -> AsyncIterator[StreamedReply]:
        """Yield the reply once it has started; leaving early stops it. ``train`` False excludes it from training."""
        body = {**self._body(prompt, options), "stream": True}
        headers = _headers(session=session, train=train)
        request = self._client.stream("POST", f"{self.url}/chat/completions", json=body, headers=headers)
        with _reaching(self.url):
            async with request as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise self._refusal(response)
                turn = response.headers.get(TURN, "")
                yield StreamedReply(turn, _version(response), _notes(response), _chunks(response.aiter_lines()))

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply:
        """Request one reply for a rollout."""
        reply = await self.complete(prompt, session=session, group=group, done=done)
        return TurnReply(turn=reply.turn, message=reply.message, version=reply.own_version)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        """Send an environment's reward for a turn, and its hint."""
        await self.send_feedback(turn, source="environment", score=score, hint=hint)

    async def send_feedback(self, turn: str, **fields: Json) -> None:
        """Send feedback on a turn in the API's own fields, such as ``thumb`` and ``comment``; None is omitted."""
        await self._call(
            "POST", "/feedback", {"turn": turn, **{name: value for name, value in fields.items() if value is not None}}
        )

    async def notes(self) -> tuple[ServedNote, ...]:
        """Return the caller's standing notes, oldest first."""
        return tuple(_served_note(item) for item in (await self._call("GET", "/notes"))["data"])

    async def add_note(self, text: str) -> ServedNote:
        """Add the caller's own note, active at once."""
        return _served_note(await self._call("POST", "/notes", {"text": text}))

    async def switch_note(self, number: int, enabled: bool) -> ServedNote:
        """Enable or disable a note in prompts."""
        return _served_note(await self._call("PATCH", f"/notes/{number}", {"enabled": enabled}))

    async def accept_note(self, number: int) -> ServedNote:
        """Accept a proposed note for all replies."""
        return _served_note(await self._call("POST", f"/notes/{number}/accept"))

    async def decline_note(self, number: int, *, only_here: bool = False) -> ServedNote:
        """Decline a proposed note; ``only_here``: it was meant for one reply."""
        return _served_note(await self._call("POST", f"/notes/{number}/decline", {"only_here": only_here}))

    async def remove_note(self, number: int) -> None:
        """Remove a note permanently."""
        await self._call("DELETE", f"/notes/{number}")

    async def control(
        self, command: str, *, version: int | None = None, turn: str | None = None, reason: str | None = None
    ) -> int:
        """Send a control command (rollback, pause, resume, pin, unpin); return the request's number."""
        fields = {"command": command, "version": version, "turn": turn, "reason": reason}
        answer = await self._call(
            "POST", "/control", {name: value for name, value in fields.items() if value is not None}
        )
        return int(answer["request"])

    async def tokens(self, turn: str) -> tuple[ReplyToken, ...]:
        """Return the tokens in a turn's reply, each with its text and its sampling log-prob."""
        answer = await self._call("GET", f"/turns/{_segment(turn)}/tokens")
        return tuple(ReplyToken(**item) for item in answer["reply"])

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None:
        """Send an environment's reward for an entire session, or the failure that was not the policy's fault."""
        body = {"score": score} if failed is None else {"failed": failed}
        await self._call("POST", f"/sessions/{_segment(session)}/reward", body)

    async def end(self, session: str) -> None:
        """End a session, so that its last turn does not wait for a next message."""
        await self._call("POST", f"/sessions/{_segment(session)}/end", {})

    async def delete_session(self, session: str, *, user: str | None = None) -> str:
        """Delete a session and all its data; return a sentence on the deleted and the remaining data."""
        whose = f"?user={quote(user, safe='')}" if user is not None else ""
        answer = await self._call("DELETE", f"/sessions/{_segment(session)}{whose}")
        return str(answer["message"])

    def _body(self, prompt: Prompt, options: Mapping[str, Json] | None) -> dict[str, Json]:
        return {"model": self._model, **to_wire(prompt), **(options or {})}

    async def _call(self, method: str, path: str, body: Mapping[str, Json] | None = None) -> Any:
        with _reaching(self.url):
            response = await self._client.request(method, f"{self.url}{path}", json=body)
        return self._read(response)

    def _read(self, response: httpx2.Response) -> Any:
        if response.status_code >= 400:
            raise self._refusal(response)
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise BackendError(f"what answers at {self.url} is no OpenClaw-RL server", remedy=_OTHER_SERVER) from error

    def _refusal(self, response: httpx2.Response) -> OpenClawError:
        status, path = response.status_code, response.url.path
        what = f"{_error_message(response)} ({response.request.method} {path}: status {status})"
        wait = response.headers.get("retry-after", "")
        retry_after = float(wait) if wait.replace(".", "", 1).isdigit() else 5.0
        if status in (401, 403):
            return NotAllowed(what, remedy=self._key_remedy)
        if status == 429:
            return TooMany(what, retry_after=retry_after)
        if status >= 500:
            return BackendDown(what, retry_after=retry_after)
        return RequestError(what, status=status)


def _headers(
    *,
    session: str | None = None,
    group: str | None = None,
    done: bool = False,
    train: bool = True,
    notes: bool = True,
) -> httpx2.Headers:
    headers = {} if session is None else {"x-session-id": session, "x-turn-type": "main"}
    if done:
        headers["x-session-done"] = "true"
    if group is not None:
        headers["x-openclaw-rl-group"] = group
    if not train:
        headers["x-openclaw-rl-train"] = "off"
    if not notes:
        headers["x-openclaw-rl-notes"] = "off"
    return httpx2.Headers(headers, encoding="utf-8")  # the default is ASCII, and names may be any text


def _segment(name: str) -> str:
    """Return a name as one path segment; dots are escaped, since "." and ".." would be normalized away."""
    return quote(name, safe="").replace(".", "%2E")


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Convert connection errors to `BackendDown` with a remedy."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise BackendDown(
            f"no server answers at {url}",
            remedy="start one with 'openclaw-rl up', or give another address (--url http://HOST:PORT/v1)",
        ) from error
    except httpx2.TransportError as error:
        raise BackendDown(
            f"the connection to {url} broke: {type(error).__name__}: {error}", remedy="send the request again"
        ) from error


def _served_note(found: Mapping[str, Json]) -> ServedNote:
    fields = {name: found[name] for name in ("number", "text", "kind", "state", "replaced_by")}
    return ServedNote(**fields, put=found.get("put", found["text"]))


def _version(response: httpx2.Response) -> int | None:
    version = response.headers.get(VERSION, "")
    return int(version) if version.isdecimal() else None


def _notes(response: httpx2.Response) -> tuple[int, ...]:
    numbers = response.headers.get(NOTES, "").split(",")
    return tuple(int(number) for number in map(str.strip, numbers) if number.isdecimal())


def _error_message(response: httpx2.Response) -> str:
    try:
        return str(json.loads(response.text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:300]


def _fingerprinted(chunk: Mapping[str, Any]) -> int | None:
    """Return the version in a chunk's fingerprint."""
    number = str(chunk.get("system_fingerprint") or "").removeprefix("openclaw-rl-v")
    return int(number) if number.isdecimal() else None


async def _chunks(lines: AsyncIterator[str]) -> AsyncIterator[Mapping[str, Any]]:
    """Yield a stream's chunks; raises BackendDown if the stream reports a failure."""
    async for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise BackendDown(f"the reply broke off: {chunk['error'].get('message')}")
        yield chunk
