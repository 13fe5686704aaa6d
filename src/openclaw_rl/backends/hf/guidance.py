"""Parts of a constrained reply: fixed texts, and JSON by a schema. Pure.

Each engine has its own notation: a grammar here, a structural tag there. A reply's prescribed beginning
(`Prompt.opening`) is already in the prompt, so only its continuation is described.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TypeAlias

from openclaw_rl.types import Json, Prompt, Sampling, Tool


def can_constrain() -> bool:
    """Return True if the local engine can constrain replies: if the package for it is installed."""
    return find_spec("llguidance") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPart:
    """A JSON value that fits a schema."""

    schema: Mapping[str, Json]


Part: TypeAlias = str | JsonPart
HeldReply: TypeAlias = tuple[tuple[Part, ...], ...]
"""possible continuations of a reply to its end, each a sequence of parts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCalls:
    """Free text; after ``trigger`` it continues in one of these ways, and is free again afterwards."""

    trigger: str
    ways: HeldReply


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallForm:
    """A model's notation for calls: the text before a call, its arguments' name, the text after it."""

    before: str
    arguments: str
    end: str

    def head(self, tool: Tool) -> str:
        name = json.dumps(tool.name, ensure_ascii=False)
        return f'{self.before}{{"name": {name}, "{self.arguments}":'

    def call(self, tool: Tool, written: str) -> tuple[Part, ...]:
        """Return a call's parts after the text ``written``."""
        head = self.head(tool).removeprefix(written)
        parts: tuple[Part, ...] = (JsonPart(schema=tool.parameters or {"type": "object"}), self.end)
        return (head, *parts) if head else parts


_FORMS = {
    "hermes": _CallForm(before="<tool_call>\n", arguments="arguments", end="}\n</tool_call>"),
    "llama": _CallForm(before="", arguments="parameters", end="}"),
}


def held_reply(prompt: Prompt, sampling: Sampling, *, tool_format: str) -> HeldReply | None:
    """Return the continuation of a forced call, or JSON by the requested schema; None if the reply is free.

    A reply whose opening is in the prompt is constrained if its continuation is known.
    """
    form, forced = _FORMS.get(tool_format), prompt.tool_choice not in ("auto", "none")
    if forced and form is not None and prompt.opening:
        return tuple(form.call(tool, prompt.opening) for tool in _fitting(prompt, form))
    if sampling.json_schema is None or prompt.opening:
        return None
    answer: tuple[Part, ...] = (JsonPart(schema=sampling.json_schema),)
    if form is None or not prompt.tools or prompt.tool_choice == "none":
        return (answer,)
    return (answer, *(form.call(tool, "") for tool in prompt.tools))


def held_calls(prompt: Prompt, sampling: Sampling, *, tool_format: str) -> HeldCalls | None:
    """Return the format for optional calls; None if no tool is strict, or no text marks a call.

    A tool that is not strict takes any object as arguments.
    """
    form = _FORMS.get(tool_format)
    free = prompt.tool_choice == "auto" and not prompt.opening and sampling.json_schema is None
    if not free or form is None or not form.before or not any(tool.strict for tool in prompt.tools):
        return None
    trigger = form.before.rstrip()
    tools = (tool if tool.strict else replace(tool, parameters={}) for tool in prompt.tools)
    return HeldCalls(trigger=trigger, ways=tuple(form.call(tool, trigger) for tool in tools))


def _fitting(prompt: Prompt, form: _CallForm) -> tuple[Tool, ...]:
    """Return the tools whose call may start with the prompt's opening."""
    return tuple(tool for tool in prompt.tools if form.head(tool).startswith(prompt.opening))
