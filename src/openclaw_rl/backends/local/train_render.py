"""Prompts as token ids through the tokenizer's own chat template: what a teacher is shown."""

from __future__ import annotations

import json
from typing import Any

from openclaw_rl.types import Json, Message, Prompt, Tokens


def encode(tokenizer: Any, prompt: Prompt) -> Tokens:
    """The prompt's ids, ready for a reply; raises what the chat template raises."""
    ids = tokenizer.apply_chat_template(
        [_message(message) for message in prompt.messages],
        tools=[_tool(tool.name, tool.description, dict(tool.parameters)) for tool in prompt.tools] or None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **prompt.template,
    )
    return tuple(int(token) for token in ids)


def _message(message: Message) -> dict[str, Json]:
    out: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _arguments(text: str) -> Json:
    """Templates want the object; text that is no JSON stays as it was written."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _tool(name: str, description: str, parameters: Json) -> dict[str, Json]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
