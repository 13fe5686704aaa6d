"""What a request's format becomes for an engine's guided decoding. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from openclaw_rl.backends.engines.dialect import Guidance
from openclaw_rl.types import Prompt, Sampling, Tool

_OPENING = "<tool_call>\n"
_CLOSING = "}\n</tool_call>"


def guidance_of(prompt: Prompt, sampling: Sampling) -> Guidance | None:
    """The rest of a forced call, or the schema of a reply; None where the model is free.

    A reply whose opening is in the prompt already is guided where what follows it is known.
    """
    if prompt.opening.startswith(_OPENING) and prompt.tool_choice not in ("auto", "none"):
        return "structural_tag", {"type": "structural_tag", "format": _rest_of_call(prompt)}
    if sampling.json_schema is None or prompt.opening:
        return None
    if prompt.tools and prompt.tool_choice != "none":
        return "structural_tag", {"type": "structural_tag", "format": _reply_or_call(prompt, sampling.json_schema)}
    return "json", sampling.json_schema


def _rest_of_call(prompt: Prompt) -> dict[str, Any]:
    """What must follow an opening: the arguments of the one tool, or a tool's name and its arguments."""
    written = prompt.opening.removeprefix(_OPENING)
    fitting = [tool for tool in prompt.tools if _head(tool) == written]
    if fitting:
        return _sequence(_schema(fitting[0].parameters), _text(_CLOSING))
    return _either([_sequence(_text(_head(t).removeprefix(written)), *_call(t)) for t in prompt.tools])


def _reply_or_call(prompt: Prompt, schema: Mapping[str, Any]) -> dict[str, Any]:
    calls = [_sequence(_text(_OPENING + _head(tool)), *_call(tool)) for tool in prompt.tools]
    return _either([_schema(schema), *calls])


def _call(tool: Tool) -> tuple[dict[str, Any], dict[str, Any]]:
    return _schema(tool.parameters), _text(_CLOSING)


def _head(tool: Tool) -> str:
    return f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments":'


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": dict(schema) or {"type": "object"}}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _either(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
