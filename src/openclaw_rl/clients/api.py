"""The one HTTP client of the public API: chat completions, whole or streamed, feedback, sessions, models.

    async with ApiClient("http://127.0.0.1:30000/v1", key=key) as api:
        reply = await api.complete(prompt, session="s1", options={"max_tokens": 100})
        async with api.stream(prompt, session="s1") as reply:
            async for text in reply.deltas: ...

It is a `ports.ChatClient`, so rollouts run on it; any other OpenAI-compatible server answers `complete` and `models`.
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

# Prompts and messages as the JSON of a chat completion. Pure.


def to_wire(prompt: Prompt) -> dict[str, Json]:
    """A prompt as fields of a request."""
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
    """The message of a choice; raises KeyError, TypeError or AttributeError for one that is none."""
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
        shown = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        wire["content"] = [*shown, *([{"type": "text", "text": message.content}] if message.content else [])]
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
"""a server that is there accepts a connection at once; how long a reply may take is the caller's choice"""
VERSION = "x-openclaw-rl-version"
TURN = "x-openclaw-rl-turn"
NOTES = "x-openclaw-rl-notes"
_OTHER_SERVER = "give the address that 'openclaw-rl up' prints, with /v1 at its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReply:
    """A whole reply: the turn behind it, the version that answered, None where a server names none, and its seconds;
    the numbers of the notes in its prompt."""

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
        """The version that answered; raises BackendError for a reply of another kind of server."""
        if self.version is None:
            raise BackendError(
                "the reply names no version: what answers is no OpenClaw-RL server",
                remedy="this needs an OpenClaw-RL server, not the engine behind it",
            )
        return self.version


@dataclass(slots=True)
class StreamedReply:
    """A reply as it comes: its turn and the notes in its prompt are known before its first words.

    So is its version, unless the server had to fill a silence before it knew it: then its first words tell.
    """

    turn: str
    version: int | None
    notes: tuple[int, ...]
    chunks: AsyncIterator[Mapping[str, Any]]

    @property
    async def deltas(self) -> AsyncIterator[str]:
        """The text, as it comes."""
        async for chunk in self.chunks:
            if self.version is None:
                self.version = _fingerprinted(chunk)
            for choice in chunk.get("choices", ()):
                if content := choice.get("delta", {}).get("content"):
                    yield content


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that a server lists; ``context`` and ``version`` are None where it does not say."""

    name: str
    context: int | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedNote:
    """A standing note of the caller's, as a server lists it; ``put`` is what goes into prompts for it."""

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

    Raises BackendDown when it cannot be reached or is starting, NotAllowed without the right key, TooMany at a limit,
    RequestError for any other refusal, BackendError for an answer that is none of this API.
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
        """``model`` empty is the one that is served; ``timeout`` None waits for a reply without end."""
        self.url = url.rstrip("/").removesuffix("/chat/completions")
        self._key_remedy, self._model = key_remedy, model
        headers = {"authorization": f"Bearer {key}"} if key else {}
        if agent:
            headers["user-agent"] = agent
        waits = httpx2.Timeout(timeout, connect=CONNECT_SECONDS)
        verify = not self.url.startswith("http://")  # reading all certificates takes as long as ten requests
        self._client = httpx2.AsyncClient(headers=headers, timeout=waits, transport=transport, verify=verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back. Safe to call twice."""
        await self._client.aclose()

    async def models(self) -> tuple[ServedModel, ...]:
        """What the server lists, the model that it serves first."""
        body = await self._call("GET", "/models")
        try:
            found = tuple(
                ServedModel(name=str(one["id"]), context=one.get("context_length"), version=one.get("version"))
                for one in body["data"]
            )
        except (KeyError, TypeError, AttributeError):
            found = ()
        if not found:
            raise BackendError(
                f"what answers at {self.url} is no OpenClaw-RL server: it lists no models", remedy=_OTHER_SERVER
            )
        return found

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
        """One whole reply. A ``session`` makes it a main turn of that session, ``done`` its last; ``options`` are
        further fields of the request. ``notes`` False keeps standing notes out of its prompt."""
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
        """The reply, once it has begun; leaving early stops it. ``train`` False keeps it out of training."""
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
        """One reply for a rollout."""
        reply = await self.complete(prompt, session=session, group=group, done=done)
        return TurnReply(turn=reply.turn, message=reply.message, version=reply.own_version)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        """What an environment pays for a turn, and its hint."""
        await self.send_feedback(turn, source="environment", score=score, hint=hint)

    async def send_feedback(self, turn: str, **fields: Json) -> None:
        """Feedback on a turn by the API's own fields, such as ``thumb`` and ``comment``; None is left out."""
        await self._call(
            "POST", "/feedback", {"turn": turn, **{name: value for name, value in fields.items() if value is not None}}
        )

    async def notes(self) -> tuple[ServedNote, ...]:
        """The caller's standing notes, oldest first."""
        return tuple(_served_note(one) for one in (await self._call("GET", "/notes"))["data"])

    async def add_note(self, text: str) -> ServedNote:
        """A note of the caller's own, in force at once."""
        return _served_note(await self._call("POST", "/notes", {"text": text}))

    async def switch_note(self, number: int, enabled: bool) -> ServedNote:
        """Put a note into prompts or keep it out."""
        return _served_note(await self._call("PATCH", f"/notes/{number}", {"enabled": enabled}))

    async def accept_note(self, number: int) -> ServedNote:
        """A proposed note is meant for all replies."""
        return _served_note(await self._call("POST", f"/notes/{number}/accept"))

    async def decline_note(self, number: int, *, only_here: bool = False) -> ServedNote:
        """A proposed note is not meant for all replies; ``only_here``: it was meant for one."""
        return _served_note(await self._call("POST", f"/notes/{number}/decline", {"only_here": only_here}))

    async def remove_note(self, number: int) -> None:
        """Take a note away for good."""
        await self._call("DELETE", f"/notes/{number}")

    async def control(
        self, command: str, *, version: int | None = None, turn: str | None = None, reason: str | None = None
    ) -> int:
        """Tell the run what to do (rollback, pause, resume, pin, unpin); the number of the request."""
        given = {"command": command, "version": version, "turn": turn, "reason": reason}
        found = await self._call("POST", "/control", {name: one for name, one in given.items() if one is not None})
        return int(found["request"])

    async def tokens(self, turn: str) -> tuple[ReplyToken, ...]:
        """The tokens of a turn's reply, each with its text and the log-prob it was sampled with."""
        found = await self._call("GET", f"/turns/{_segment(turn)}/tokens")
        return tuple(ReplyToken(**one) for one in found["reply"])

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None:
        """What an environment pays a whole session, or why it failed through no fault of the policy's."""
        body = {"score": score} if failed is None else {"failed": failed}
        await self._call("POST", f"/sessions/{_segment(session)}/reward", body)

    async def end(self, session: str) -> None:
        """Nothing more comes of a session, so that its last turn need not wait."""
        await self._call("POST", f"/sessions/{_segment(session)}/end", {})

    async def delete_session(self, session: str, *, user: str | None = None) -> str:
        """Delete a session with everything of it; what went and what remains, in a sentence."""
        whose = f"?user={quote(user, safe='')}" if user is not None else ""
        found = await self._call("DELETE", f"/sessions/{_segment(session)}{whose}")
        return str(found["message"])

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
    return httpx2.Headers(headers, encoding="utf-8")  # the default is ASCII, and names are any text


def _segment(name: str) -> str:
    """A name as one segment of a path; its dots are escaped, since "." and ".." would be folded away."""
    return quote(name, safe="").replace(".", "%2E")


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Errors of the connection with what to do about them."""
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
    known = {name: found[name] for name in ("number", "text", "kind", "state", "replaced_by")}
    return ServedNote(**known, put=found.get("put", found["text"]))


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
    """The version that a chunk says it is of."""
    number = str(chunk.get("system_fingerprint") or "").removeprefix("openclaw-rl-v")
    return int(number) if number.isdecimal() else None


async def _chunks(lines: AsyncIterator[str]) -> AsyncIterator[Mapping[str, Any]]:
    """The chunks of a stream; raises BackendDown when the stream reports that it failed."""
    async for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise BackendDown(f"the reply broke off: {chunk['error'].get('message')}")
        yield chunk
