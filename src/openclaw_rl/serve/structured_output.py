"""Enforce the requested reply format: a call by ``tool_choice`` or a strict tool, JSON by a schema. Pure.

A format that a backend cannot enforce by sampling is enforced by a reply prefix: it is written into the prompt, so that
it is recorded as prompt text, never as sampled text. A format that can only be attempted is named in the
``x-openclaw-rl-unenforced`` header; a mandatory format that cannot be enforced is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from openclaw_rl.errors import RequestError
from openclaw_rl.ports import Ability, Policy
from openclaw_rl.serve.request import GenerationRequest

UNENFORCED = "x-openclaw-rl-unenforced"

SCHEMA_SIZE: Final = 256 * 1024
"""maximum characters in all names and texts in the schemas for one reply"""
LITERAL_SIZE: Final = 8 * 1024
"""maximum characters in one constant, name or choice: each token in a long one costs the engine as much as all of it"""
PATTERNS: Final = 64
"""maximum regular expressions in the schemas"""
PATTERN_SIZE: Final = 1024
"""maximum characters in one regular expression"""
_PROSE: Final = frozenset({"description", "title", "$comment", "examples", "default"})
"""schema parts that do not constrain a reply"""

_CALL_PREFIX = {"hermes": '<tool_call>\n{"name": "', "llama": '{"name": "', "pythonic": "["}


_MARKED = ("hermes",)
"""formats in which a marker begins a call, so that the call can be enforced from there"""


def _wants_strict_calls(request: GenerationRequest) -> bool:
    return request.prompt.tool_choice == "auto" and any(tool.strict for tool in request.prompt.tools)


def _named_call_prefix(tool_format: str, name: str) -> str:
    quoted = json.dumps(name, ensure_ascii=False)
    return {
        "hermes": f'<tool_call>\n{{"name": {quoted}, "arguments":',
        "llama": f'{{"name": {quoted}, "parameters":',
        "pythonic": f"[{name}(",
    }[tool_format]


def at_wire_field(error: RequestError, request: GenerationRequest) -> RequestError:
    """Return a policy's refusal of a format under the format's name in this request; other refusals unchanged.

    To a policy a schema is ``response_format``; the caller sent ``text.format``, ``output_config.format`` or tools.
    """
    if error.field not in ("response_format", "tools"):
        return error
    field = request.schema_at if error.field == "response_format" and request.sampling.json_schema is not None else None
    field = field or "tools"
    return RequestError(f"{field}: {error.what}", field=field, remedy=error.remedy, status=error.status)


def clamp_max_tokens(request: GenerationRequest, context: int) -> GenerationRequest:
    """Replace a limit as large as the whole context by None: as many tokens as fit."""
    limit = request.sampling.max_tokens
    if limit is None or limit < context:
        return request
    return replace(request, sampling=replace(request.sampling, max_tokens=None))


def enforce_format(request: GenerationRequest, policy: Policy) -> tuple[GenerationRequest, str | None]:
    """Return the request with the reply prefix for its format, and the field that can only be attempted, if any."""
    refuse_large_schemas(request)
    able: frozenset[Ability] = getattr(policy, "abilities", frozenset())
    if request.prompt.tool_choice in ("auto", "none") and request.sampling.json_schema is None:
        enforced = "strict_tools" in able and policy.tool_format in _MARKED
        return request, "tools" if _wants_strict_calls(request) and not enforced else None
    prefix = "" if "tool_choice" in able else _call_prefix(request, policy.tool_format, can_prefix="opening" in able)
    unenforced = None
    if request.sampling.json_schema is not None and "json_schema" not in able:
        unenforced = request.schema_at
        if request.strict:
            raise RequestError(
                f"{request.schema_at}: this backend cannot hold a reply to a schema",
                field=request.schema_at,
                remedy="leave strict out, ask for JSON in the prompt and check the reply",
            )
        if not prefix and "opening" in able:
            prefix = _json_prefix(request)
    return (replace(request, prompt=replace(request.prompt, opening=prefix)) if prefix else request), unenforced


def refuse_large_schemas(request: GenerationRequest) -> None:
    """Raise RequestError for schemas too large for an engine to compile, judged by countable properties."""
    size, patterns = 0, 0
    for field, kind, text in _held_texts(request):
        size, patterns = size + len(text), patterns + (kind == "pattern")
        if size > SCHEMA_SIZE:
            raise _too_large(field, f"its schemas have more than {SCHEMA_SIZE:,} characters")
        if kind == "literal" and len(text) > LITERAL_SIZE:
            raise _too_large(field, f"a constant or name has {len(text):,} characters, {LITERAL_SIZE:,} are allowed")
        if kind == "pattern" and len(text) > PATTERN_SIZE:
            raise _too_large(field, f"a pattern has {len(text):,} characters, {PATTERN_SIZE:,} are allowed")
        if patterns > PATTERNS:
            raise _too_large(field, f"there are more than {PATTERNS} patterns")


def _too_large(field: str, what: str) -> RequestError:
    return RequestError(
        f"{field}: {what}", field=field, remedy="make the schema smaller, or leave that part out and check the reply"
    )


def _held_texts(request: GenerationRequest) -> Iterator[tuple[str, str, str]]:
    """Yield field, kind and text for each name and text in the schemas that constrain this request's reply."""
    prompt, schema = request.prompt, request.sampling.json_schema
    if schema is not None:
        at = request.schema_at or "response_format"
        yield from ((at, kind, text) for kind, text in _texts(schema))
    if prompt.tool_choice == "none":
        return
    all_held = schema is not None or prompt.tool_choice != "auto"
    for tool in prompt.tools:
        if all_held or tool.strict:
            yield from (("tools", kind, text) for kind, text in _texts(tool.parameters))


def _texts(schema: object) -> Iterator[tuple[str, str]]:
    """Yield each text in a schema with its kind: pattern, literal or prose. Works at any nesting depth."""
    waiting: list[tuple[str, object]] = [("literal", schema)]
    while waiting:
        kind, value = waiting.pop()
        if isinstance(value, str):
            yield kind, value
        elif isinstance(value, list | tuple):
            waiting += [(kind, part) for part in value]
        elif isinstance(value, Mapping):
            for name, part in value.items():
                yield ("prose" if kind == "prose" else "pattern" if kind == "patterns" else "literal"), name
                waiting.append((_kind_of(kind, name, part), part))


def _kind_of(kind: str, name: str, part: object) -> str:
    if kind == "prose" or (name in _PROSE and not isinstance(part, Mapping)):
        return "prose"
    if name == "pattern" and isinstance(part, str):
        return "pattern"
    return "patterns" if name == "patternProperties" else "literal"


def _call_prefix(request: GenerationRequest, tool_format: str, *, can_prefix: bool) -> str:
    """Return the beginning of the call that ``tool_choice`` requires; empty if it leaves the choice."""
    prompt = request.prompt
    if prompt.tool_choice in ("auto", "none"):
        return ""
    if not prompt.tools:
        raise RequestError("tool_choice: there are no tools to choose from", field="tool_choice")
    if tool_format not in _CALL_PREFIX or not can_prefix:
        subject = "this model, which has no form for tool calls," if tool_format == "none" else "this backend"
        raise RequestError(
            f"tool_choice: {subject} cannot be held to a tool call", field="tool_choice", remedy="use auto or none"
        )
    only = prompt.tools[0].name if len(prompt.tools) == 1 else None
    name = prompt.tool_choice.removeprefix("name:") if prompt.tool_choice != "required" else only
    return _CALL_PREFIX[tool_format] if name is None else _named_call_prefix(tool_format, name)


def _json_prefix(request: GenerationRequest) -> str:
    """Return a brace if the reply must be an object; where tools may be called instead, no prefix is certain."""
    prompt, schema = request.prompt, request.sampling.json_schema or {}
    calls = bool(prompt.tools) and prompt.tool_choice != "none"
    return "{" if schema.get("type") == "object" and not calls else ""
