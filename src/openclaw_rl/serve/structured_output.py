"""Makes a reply keep to the form that was requested: a call by ``tool_choice``, JSON by a response format. Pure.

What a backend cannot be held to by sampling is held by the reply's first words: they are written into the prompt, so
they are recorded as what they are, never as something that was sampled. A form that can only be tried is named in the
``x-openclaw-rl-unenforced`` header; one that must hold and cannot is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace

from openclaw_rl.errors import RequestError
from openclaw_rl.ports import Ability, Policy
from openclaw_rl.serve.request import GenerationRequest

UNENFORCED = "x-openclaw-rl-unenforced"

_ANY = {"hermes": '<tool_call>\n{"name": "', "llama": '{"name": "', "pythonic": "["}


def _named(tool_format: str, name: str) -> str:
    quoted = json.dumps(name, ensure_ascii=False)
    return {
        "hermes": f'<tool_call>\n{{"name": {quoted}, "arguments":',
        "llama": f'{{"name": {quoted}, "parameters":',
        "pythonic": f"[{name}(",
    }[tool_format]


def clamp_max_tokens(request: GenerationRequest, context: int) -> GenerationRequest:
    """A limit as large as the whole context means: as many tokens as fit."""
    limit = request.sampling.max_tokens
    if limit is None or limit < context:
        return request
    return replace(request, sampling=replace(request.sampling, max_tokens=None))


def enforce_format(request: GenerationRequest, policy: Policy) -> tuple[GenerationRequest, str | None]:
    """The request with the opening that its form needs, and the field that can only be tried, if one can."""
    if request.prompt.tool_choice in ("auto", "none") and request.sampling.json_schema is None:
        return request, None
    able: frozenset[Ability] = getattr(policy, "abilities", frozenset())
    opening = "" if "tool_choice" in able else _call(request, policy.tool_format, can_open="opening" in able)
    unenforced = None
    if request.sampling.json_schema is not None and "json_schema" not in able:
        unenforced = request.schema_at
        if request.strict:
            raise RequestError(
                f"{request.schema_at}: this backend cannot hold a reply to a schema",
                field=request.schema_at,
                remedy="leave strict out, ask for JSON in the prompt and check the reply",
            )
        if not opening and "opening" in able:
            opening = _json(request)
    return (replace(request, prompt=replace(request.prompt, opening=opening)) if opening else request), unenforced


def _call(request: GenerationRequest, tool_format: str, *, can_open: bool) -> str:
    """How the call begins that ``tool_choice`` asks for; nothing where it leaves the choice."""
    prompt = request.prompt
    if prompt.tool_choice in ("auto", "none"):
        return ""
    if not prompt.tools:
        raise RequestError("tool_choice: there are no tools to choose from", field="tool_choice")
    if tool_format not in _ANY or not can_open:
        who = "this backend" if tool_format in _ANY else "this model, which has no form for tool calls,"
        raise RequestError(
            f"tool_choice: {who} cannot be held to a tool call", field="tool_choice", remedy="use auto or none"
        )
    only = prompt.tools[0].name if len(prompt.tools) == 1 else None
    name = prompt.tool_choice.removeprefix("name:") if prompt.tool_choice != "required" else only
    return _ANY[tool_format] if name is None else _named(tool_format, name)


def _json(request: GenerationRequest) -> str:
    """An object begins with a brace; where tools may be called instead, nothing can be said."""
    prompt, schema = request.prompt, request.sampling.json_schema or {}
    calls = bool(prompt.tools) and prompt.tool_choice != "none"
    return "{" if schema.get("type") == "object" and not calls else ""
