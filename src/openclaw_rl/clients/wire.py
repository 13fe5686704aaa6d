"""Prompts and messages as the JSON of a chat completion. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.types import Json, Message, Prompt, Tool, ToolCall


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
