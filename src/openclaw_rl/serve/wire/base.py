"""The common part of all wire formats' requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from openclaw_rl.errors import InvalidValue, RequestError
from openclaw_rl.formats.variables import check_variables, variables_schema
from openclaw_rl.serve.auth import guess_session, session_name
from openclaw_rl.serve.fields import Flag, Name, Number, RequestModel, Table, TextOr, Variant
from openclaw_rl.types import Json, Message, Sampling, Tool

MaybeText = Annotated[Any, WithJsonSchema({"type": ["string", "null"]})]
"""described as text; any other value counts as absent"""
MaybeObject = Annotated[Any, WithJsonSchema({"type": ["object", "null"]})]
Variables = Annotated[Table, WithJsonSchema(variables_schema())]
Stop = Annotated[str | Annotated[list[Name], Field(max_length=16)], TextOr()]


Temperature = Annotated[float, Number(0, 100)]
TopP = Annotated[float, Number(0, 1)]
ABOVE_ZERO: dict[str, Json] = {"exclusiveMinimum": 0}


class SharedRequest(RequestModel):
    """The fields that every format has."""

    model: str | None = None
    stream: Flag | None = None
    chat_template_kwargs: Variables | None = Field(
        default=None, description="variables of the model's chat template; no other name is accepted"
    )
    session_id: MaybeText = Field(default=None, description="the session, as X-Session-Id")
    metadata: MaybeObject = None
    prompt_cache_key: MaybeText = None
    user: MaybeText = Field(default=None, description="session name if no other field has one")

    @property
    def session(self) -> str | None:
        """The session that the body names explicitly."""
        if self.session_id is None and self.metadata is None:
            return None
        inner = self.metadata.get("session_id") if isinstance(self.metadata, dict) else None
        for text in (self.session_id, inner):
            if isinstance(text, str) and text:
                return session_name(text, "session_id")
        return None

    @property
    def guessed_session(self) -> str | None:
        user_id = self.metadata.get("user_id") if isinstance(self.metadata, dict) else None
        return guess_session(user_id, self.prompt_cache_key, self.user)

    @property
    def template(self) -> dict[str, Json]:
        """The variables for the chat template; raises RequestError for one that a caller may not set."""
        variables = self.chat_template_kwargs
        if not variables:
            return {}
        check_variables(variables)
        return {name: value for name, value in variables.items() if value is not None}


class ApiRequest(SharedRequest):
    """A request with its sampling parameters beside the other fields."""

    temperature: Temperature | None = None
    top_p: TopP | None = Field(default=None, json_schema_extra=ABOVE_ZERO)


class TextFormat(RequestModel):
    """A reply in any form."""

    type: Literal["text"] | None = None


class JsonObjectFormat(RequestModel):
    """A reply that is a JSON object."""

    type: Literal["json_object"]


class NamedSchema(RequestModel):
    """A named JSON schema."""

    schema_: Table | None = Field(default=None, alias="schema")
    strict: Flag | None = None


class JsonSchemaFormat(NamedSchema):
    """A reply that follows a JSON schema: beside the type, or in a nested object."""

    type: Literal["json_schema"]
    json_schema: NamedSchema | None = None


ReplyFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Variant("text, json_object, json_schema", default="text")
]


def schema_of(form: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> Table | None:
    """Return the JSON schema that a reply must follow, None for any text."""
    match form:
        case JsonObjectFormat():
            return {"type": "object"}
        case JsonSchemaFormat():
            return (form.json_schema or form).schema_ or {}
    return None


def is_strict(form: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> bool:
    """Return True if a reply must follow the schema, False if it only should."""
    return isinstance(form, JsonSchemaFormat) and bool((form.json_schema or form).strict)


def build_sampling(defaults: Sampling, names: Mapping[str, str], **values: Json) -> Sampling:
    """Build sampling from a request's values (None: the default). ``names`` maps a field to its name in the format."""
    changes = {key: value for key, value in values.items() if value is not None and value != getattr(defaults, key)}
    if not changes:
        return defaults
    try:
        return replace(defaults, **changes)
    except InvalidValue as error:
        field_name = names.get(error.field, error.field)
        what = error.what.split(": ", 1)[-1]
        raise RequestError(f"{field_name}: {what}", field=field_name) from error


def top_k(value: int | None) -> int | None:
    """Convert -1, by which some clients mean "no limit", to 0."""
    return 0 if value == -1 else value


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,) if stop else ()
    return tuple(stop or ())


def named_choice(name: str, tools: Sequence[Tool], field: str) -> str:
    """Return the choice of one tool; raise RequestError if it is not among the tools. ``field`` names its location."""
    if all(tool.name != name for tool in tools):
        names = ", ".join(tool.name for tool in tools) or "none"
        raise RequestError(f"{field}: no tool is called {name!r}; known: {names}", field=field)
    return f"name:{name}"


def need_messages(messages: Sequence[Message], field: str) -> tuple[Message, ...]:
    if not messages:
        raise RequestError(f"{field}: must hold at least one message", field=field)
    return tuple(messages)
