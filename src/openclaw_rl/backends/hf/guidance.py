"""What a reply that is held to a format must consist of: texts, and JSON by a schema. Pure.

Each engine says it in its own way: a grammar here, a structural tag there. What a reply is made to begin with
(`Prompt.opening`) is in the prompt already, so only what follows it is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TypeAlias

from openclaw_rl.types import Json, Prompt, Sampling, Tool


def can_constrain() -> bool:
    """Whether an engine of ours can hold a reply to a format: whether the package is installed that it needs."""
    return find_spec("llguidance") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPart:
    """A JSON value that fits a schema."""

    schema: Mapping[str, Json]


Part: TypeAlias = str | JsonPart
HeldReply: TypeAlias = tuple[tuple[Part, ...], ...]
"""the ways in which a reply may go on to its end, each a sequence of parts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCalls:
    """Free text; but where ``trigger`` is written, it goes on in one of these ways, and is free again after it."""

    trigger: str
    ways: HeldReply


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallForm:
    """How a model writes a call: what stands before it, the name of its arguments, what ends it."""

    before: str
    arguments: str
    end: str

    def head(self, tool: Tool) -> str:
        name = json.dumps(tool.name, ensure_ascii=False)
        return f'{self.before}{{"name": {name}, "{self.arguments}":'

    def call(self, tool: Tool, written: str) -> tuple[Part, ...]:
        """What of a call follows after what is ``written``."""
        rest = self.head(tool).removeprefix(written)
        parts: tuple[Part, ...] = (JsonPart(schema=tool.parameters or {"type": "object"}), self.end)
        return (rest, *parts) if rest else parts


_FORMS = {
    "hermes": _CallForm(before="<tool_call>\n", arguments="arguments", end="}\n</tool_call>"),
    "llama": _CallForm(before="", arguments="parameters", end="}"),
}


def held_reply(prompt: Prompt, sampling: Sampling, *, tool_format: str) -> HeldReply | None:
    """The rest of a forced call, or JSON by the schema that is asked for; None where the model is free.

    A reply whose opening is in the prompt already is held where what follows it is known.
    """
    form, forced = _FORMS.get(tool_format), prompt.tool_choice not in ("auto", "none")
    if forced and form is not None and prompt.opening:
        return tuple(form.call(tool, prompt.opening) for tool in _fitting(prompt, form))
    if sampling.json_schema is None or prompt.opening:
        return None
    whole: tuple[Part, ...] = (JsonPart(schema=sampling.json_schema),)
    if form is None or not prompt.tools or prompt.tool_choice == "none":
        return (whole,)
    return (whole, *(form.call(tool, "") for tool in prompt.tools))


def held_calls(prompt: Prompt, sampling: Sampling, *, tool_format: str) -> HeldCalls | None:
    """What the calls of a reply are held to that may make some; None where no tool is strict, or nothing marks a call.

    Arguments of a tool that is not strict are any object.
    """
    form = _FORMS.get(tool_format)
    free = prompt.tool_choice == "auto" and not prompt.opening and sampling.json_schema is None
    if not free or form is None or not form.before or not any(tool.strict for tool in prompt.tools):
        return None
    trigger = form.before.rstrip()
    tools = (tool if tool.strict else replace(tool, parameters={}) for tool in prompt.tools)
    return HeldCalls(trigger=trigger, ways=tuple(form.call(tool, trigger) for tool in tools))


def _fitting(prompt: Prompt, form: _CallForm) -> tuple[Tool, ...]:
    """The tools whose call may begin as the prompt's opening does."""
    return tuple(tool for tool in prompt.tools if form.head(tool).startswith(prompt.opening))
