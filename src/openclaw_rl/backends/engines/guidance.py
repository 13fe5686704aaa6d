"""What a request's format becomes for an engine's guided decoding. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openclaw_rl.backends.engines.dialect import Guidance
from openclaw_rl.backends.hf.guidance import HeldCalls, HeldReply, JsonPart, Part, held_calls, held_reply
from openclaw_rl.types import Prompt, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What a reply is held to: from its first token, or from where ``trigger`` is written."""

    guidance: Guidance
    trigger: str | None = None

    def held(self, text: str) -> bool:
        """Whether some of a reply with this text was held; what was not is as it would be without a guide."""
        return self.trigger is None or self.trigger in text


def guide_of(prompt: Prompt, sampling: Sampling, *, tool_format: str) -> Guide | None:
    """The schema of a reply, or a structural tag; None where the model is free."""
    held = held_reply(prompt, sampling, tool_format=tool_format)
    if held:
        return Guide(guidance=_whole(held))
    calls = held_calls(prompt, sampling, tool_format=tool_format)
    return None if calls is None else Guide(guidance=_tag(_triggered(calls)), trigger=calls.trigger)


def _whole(held: HeldReply) -> Guidance:
    match held:
        case ((JsonPart(schema=schema),),):
            return "json", dict(schema)
    return _tag(_either([_sequence(parts) for parts in held]))


def _tag(form: dict[str, Any]) -> Guidance:
    return "structural_tag", {"type": "structural_tag", "format": form}


def _triggered(calls: HeldCalls) -> dict[str, Any]:
    """Free text, in which what begins as a call does goes on as one."""
    tags = []
    for before, arguments, end in calls.ways:
        assert isinstance(before, str)
        begin = calls.trigger + _spaced(before)
        tags.append({"type": "tag", "begin": begin, "content": _element(arguments), "end": end})
    return {"type": "triggered_tags", "triggers": [calls.trigger], "tags": tags}


def _sequence(parts: tuple[Part, ...]) -> dict[str, Any]:
    elements = [_element(part) for part in parts]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _element(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "const_string", "value": _spaced(part)}
    return {"type": "json_schema", "json_schema": dict(part.schema)}


def _spaced(text: str) -> str:
    """After a colon models write a space, which a schema does not allow before its value."""
    return f"{text} " if text.endswith(":") else text


def _either(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
