"""What a request's format becomes for an engine's guided decoding. Pure."""

from __future__ import annotations

from typing import Any

from openclaw_rl.backends.engines.dialect import Guidance
from openclaw_rl.backends.hf.guidance import JsonPart, Part, held_reply
from openclaw_rl.types import Prompt, Sampling


def guidance_of(prompt: Prompt, sampling: Sampling, *, tool_format: str) -> Guidance | None:
    """The schema of a reply, or a structural tag; None where the model is free."""
    held = held_reply(prompt, sampling, tool_format=tool_format)
    if not held:
        return None
    match held:
        case ((JsonPart(schema=schema),),):
            return "json", dict(schema)
    return "structural_tag", {"type": "structural_tag", "format": _either([_sequence(parts) for parts in held])}


def _sequence(parts: tuple[Part, ...]) -> dict[str, Any]:
    elements = [_element(part) for part in parts]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _element(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "const_string", "value": part}
    return {"type": "json_schema", "json_schema": dict(part.schema)}


def _either(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
