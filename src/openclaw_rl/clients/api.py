"""The public API as a client sees it: `ports.ChatClient` over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx2

from openclaw_rl.errors import BackendDown, BackendError, RequestError, TooMany
from openclaw_rl.ports import ChatReply
from openclaw_rl.types import Json, Message, Prompt, Tool, ToolCall

VERSION = "x-openclaw-rl-version"
GROUP = "x-openclaw-rl-group"


class ApiChat:
    """Asks a server like any other client, and says what it knows: the session, the group, that turns are main.

    Raises BackendDown when the server cannot be reached or is busy starting, TooMany at a limit, RequestError for any
    other refusal.
    """

    def __init__(self, client: httpx2.AsyncClient, *, model: str = "policy", options: Mapping[str, Json] | None = None):
        """``client`` knows the server's address, the key and the timeouts; ``options`` are added to each request."""
        self._client = client
        self._model = model
        self._options = dict(options or {})

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> ChatReply:
        headers = {"X-Session-Id": session, "X-Turn-Type": "main"}
        if done:
            headers["X-Session-Done"] = "true"
        if group is not None:
            headers[GROUP] = group
        body = {"model": self._model, **to_wire(prompt), **self._options}
        response = await self._post("/v1/chat/completions", body, headers)
        return _reply(response)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        said = {"score": score, "hint": hint}
        body = {"turn": turn, "source": "environment", **{k: v for k, v in said.items() if v is not None}}
        await self._post("/v1/feedback", body)

    async def end(self, session: str) -> None:
        """Say that nothing more will come of a session."""
        await self._post(f"/v1/sessions/{quote(session, safe='')}/end", {})

    async def _post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        try:
            response = await self._client.post(path, json=body, headers=dict(headers or {}))
        except httpx2.TransportError as error:
            raise BackendDown(
                f"{path}: {type(error).__name__}: {error}", remedy="is the server running at this address?"
            ) from error
        if response.status_code >= 400:
            raise _refusal(path, response)
        return response


def to_wire(prompt: Prompt) -> dict[str, Json]:
    """A prompt as the body of a chat completion."""
    body: dict[str, Json] = {"messages": [_message(message) for message in prompt.messages]}
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        kind, _, name = prompt.tool_choice.partition(":")
        named = {"type": "function", "function": {"name": name}}
        body["tool_choice"] = named if kind == "name" else prompt.tool_choice
    if prompt.template:
        body["chat_template_kwargs"] = dict(prompt.template)
    return body


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


def _reply(response: httpx2.Response) -> ChatReply:
    try:
        body: Any = response.json()
        wire = body["choices"][0]["message"]
        calls = tuple(
            ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in wire.get("tool_calls") or ()
        )
        message = Message(
            role="assistant",
            content=wire.get("content") or "",
            reasoning=wire.get("reasoning_content"),
            tool_calls=calls,
        )
        return ChatReply(turn=body["id"], message=message, version=int(response.headers[VERSION]))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise BackendError(
            f"the answer of {response.url} is no chat completion of this server: {type(error).__name__}: {error}",
            remedy="rollouts need an OpenClaw-RL server, not the engine behind it",
        ) from error


def _refusal(path: str, response: httpx2.Response) -> RequestError | BackendDown:
    wait = response.headers.get("retry-after", "")
    retry_after = float(wait) if wait.replace(".", "", 1).isdigit() else 5.0
    what = f"{path}: status {response.status_code}: {_said(response)}"
    if response.status_code == 429:
        return TooMany(what, retry_after=retry_after)
    if response.status_code >= 500:
        return BackendDown(what, retry_after=retry_after)
    return RequestError(what, status=response.status_code)


def _said(response: httpx2.Response) -> str:
    try:
        return str(json.loads(response.text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
