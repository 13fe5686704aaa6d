"""The types of a request's fields: each refuses a wrong value with a message and describes itself in JSON Schema.

Absent and null are equal everywhere: real clients send both. Undeclared fields are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictBool,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.request import RequestLimits
from openclaw_rl.types import Json
from openclaw_rl.web import kind_of

M = TypeVar("M", bound="RequestModel")
T = TypeVar("T")

_LARGEST = 2**63 - 1


class RequestModel(BaseModel):
    """An object in a request."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


def parse(model: type[M], body: Mapping[str, Json], limits: RequestLimits) -> M:
    """Parse the body as ``model`` declares it; raise RequestError with the path of the first invalid field."""
    try:
        request: M = model.__pydantic_validator__.validate_python(body, context=limits)
        return request
    except ValidationError as error:
        raise request_error(error.errors(include_url=False)[0]) from error


# --- error messages ---


def refusal(what: str) -> PydanticCustomError:
    """Return the error that a validator raises about its value."""
    return PydanticCustomError("refused", "{what}", {"what": what})


def request_error(error: ErrorDetails) -> RequestError:
    """Convert a validation error to the caller's error: the field's path and its fault."""
    path = [str(step) for step in error["loc"] if not (isinstance(step, str) and step.startswith("<"))]
    what = _sentence(error)
    if error["type"] == _NO_VARIANT:
        inner, what = _no_variant(error["input"], error["ctx"])
        path += inner
    where = ".".join(path)
    return RequestError(f"{where or 'body'}: {what}", field=where or None)


_NO_VARIANT = "no_variant"


def _not_text(given: Json) -> str:
    return "is missing" if given is None else f"must be text, not {kind_of(given)}"


def _no_variant(given: Json, details: Mapping[str, Any]) -> tuple[list[str], str]:
    if not isinstance(given, dict):
        return [], f"must be an object, not {kind_of(given)}"
    key, kind = details["key"], given.get(details["key"])
    if not isinstance(kind, str):
        return [key], _not_text(kind)
    if not details["noun"]:
        return [key], f"must be one of {details['known']}"
    return [key], f"no {details['noun']} is called {kind!r:.60}; known: {details['known']}"


def _sentence(error: ErrorDetails) -> str:
    value, details = error["input"], error.get("ctx", {})
    match error["type"]:
        case "refused":
            return str(details["what"])
        case "missing":
            return "is missing"
        case "string_too_short":
            return "must not be empty"
        case "literal_error" if isinstance(value, str):
            return f"must be one of {details['expected']}".replace(" or ", ", ").replace("'", "")
        case "string_type" | "literal_error":
            return _not_text(value)
        case "bool_type":
            return f"must be true or false, not {kind_of(value)}"
        case "list_type":
            return f"must be a list, not {kind_of(value)}"
        case "dict_type" | "model_type":
            return f"must be an object, not {kind_of(value)}"
        case "too_long":
            return too_many(len(value), details["max_length"])
    return error["msg"]


def too_many(count: int, most: int) -> str:
    return f"has {count} entries, and at most {most} are allowed"


# --- types ---

Flag = StrictBool
Name = Annotated[str, Field(min_length=1)]
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Number:
    """A number in ``low .. high``; booleans are refused."""

    low: float
    high: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def _check(self, value: Json) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refusal(f"must be a number, not {kind_of(value)}")
        if not self.low <= value <= self.high:
            raise refusal(f"must be in {self.low:g} .. {self.high:g}")
        return float(value)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number in ``low .. high``; 5.0 is accepted."""

    low: int
    high: int = _LARGEST

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def _check(self, value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise refusal(f"must be a whole number, not {kind_of(value)}")
        if not self.low <= value <= self.high:
            raise refusal(f"must be in {self.low} .. {self.high}")
        return int(value)


@dataclass(frozen=True, slots=True)
class FirstFault:
    """Refuses a list at its first bad entry, so that a long list costs no long report."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast(CoreSchema, {**handler(source), "fail_fast": True})


Many = Annotated[list[T], FirstFault()]


@dataclass(frozen=True, slots=True)
class Counted:
    """Limits the entries to a request's maximum messages, before any of them is parsed."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._check, handler(source))

    def _check(self, value: Json, info: ValidationInfo) -> Json:
        most = cast(RequestLimits, info.context).messages
        if isinstance(value, list) and len(value) > most:
            raise refusal(too_many(len(value), most))
        return value


@dataclass(frozen=True, slots=True)
class Unless:
    """Ignores any value if an earlier field is set: the fields in ``names`` have precedence."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._check, handler(source))

    def _check(self, value: Json, check: Callable[[Json], Json], info: ValidationInfo) -> Json:
        return None if any(info.data.get(name) for name in self.names) else check(value)


@dataclass(frozen=True, slots=True)
class TextOr:
    """A union: its first type for text, its second type for any other value."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text, alternative = map(handler.generate_schema, get_args(source))
        choices = {"<text>": text, "<other>": alternative}
        return core_schema.tagged_union_schema(choices, lambda value: "<text>" if type(value) is str else "<other>")


@dataclass(frozen=True, slots=True)
class ObjectOr:
    """A union: its first type for an object, its second type for a word."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        model, words = map(handler.generate_schema, get_args(source))
        choices = {"<object>": model, "<word>": words}
        return core_schema.tagged_union_schema(choices, lambda value: "<object>" if type(value) is dict else "<word>")


@dataclass(frozen=True, slots=True)
class Variant:
    """One of several models, selected by the word under ``key``: each model declares its words as a Literal.

    A model without words is selected if ``pick`` returns OTHER. ``default`` is the word for an absent key.
    A wrong word is answered "no ``noun`` is called ...", or "must be one of ``known``" without a noun.
    """

    known: str
    noun: str = ""
    key: str = "type"
    default: str | None = None
    pick: Callable[[dict[str, Json], str], str] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        models = get_args(source) or (source,)
        tags = {word: f"<{model.__name__}>" for model in models for word in self._words(model)}
        return core_schema.tagged_union_schema(
            {f"<{model.__name__}>": handler.generate_schema(model) for model in models},
            discriminator=self._discriminator(tags),
            custom_error_type=_NO_VARIANT,
            custom_error_message="no such variant",
            custom_error_context={"noun": self.noun, "key": self.key, "known": self.known},
        )

    def _words(self, model: type[RequestModel]) -> tuple[str, ...]:
        annotation = model.model_fields[self.key].annotation
        literal = next((part for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal), None)
        return get_args(literal) if literal is not None else (OTHER,)

    def _discriminator(self, tags: Mapping[str, str]) -> Callable[[Any], str | None]:
        key, default, pick = self.key, self.default, self.pick

        def tag(value: Any) -> str | None:
            if type(value) is not dict:
                return None
            kind = value.get(key)
            if kind is None:
                kind = default
            if type(kind) is not str:
                return None
            return tags.get(kind if pick is None else pick(value, kind))

        return tag


OTHER = "*"


def _data_url(text: str) -> str:
    if not text.startswith("data:"):
        raise refusal("only data: URLs are accepted; send the image itself, base64 encoded")
    return text


DataUrl = Annotated[Name, AfterValidator(_data_url)]
"""an image inside a data: URL; the server fetches nothing"""
