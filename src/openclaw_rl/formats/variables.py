"""The variables that a caller may set in a model's chat template, by name; every other name is refused.

A renderer takes its own parameters (the template itself, the messages, how to cut and pad) by the same road, so what
is allowed is a list, never what is left after a list of what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.errors import RequestError

WORD = 64
"""characters of a value that chooses among words"""
LINE = 1000
"""characters of a value that is written into the prompt"""
DOCUMENTS = 1000
"""documents in one request"""
FIELDS = 16
"""fields of one document"""


@dataclass(frozen=True, slots=True)
class Variable:
    """A kind of value: ``refusal`` says what is wrong with one, None where nothing is; ``schema`` describes it."""

    refusal: Callable[[Any], str | None]
    schema: Mapping[str, Any]


def _flag() -> Variable:
    return Variable(lambda value: None if isinstance(value, bool) else "must be true or false", {"type": "boolean"})


def _whole(most: int) -> Variable:
    def refusal(value: Any) -> str | None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        good = number and 0 <= value <= most and value == int(value)
        return None if good else f"must be a whole number in 0 .. {most}"

    return Variable(refusal, {"type": "integer", "minimum": 0, "maximum": most})


def _text(longest: int) -> Variable:
    def refusal(value: Any) -> str | None:
        good = isinstance(value, str) and len(value) <= longest
        return None if good else f"must be text of at most {longest} letters"

    return Variable(refusal, {"type": "string", "maxLength": longest})


def _texts(most: int, item: Variable) -> Variable:
    def refusal(value: Any) -> str | None:
        good = isinstance(value, list) and len(value) <= most and all(item.refusal(text) is None for text in value)
        return None if good else f"must be a list of at most {most} texts of at most {WORD} letters"

    return Variable(refusal, {"type": "array", "items": item.schema, "maxItems": most})


def _documents() -> Variable:
    item = {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "maxProperties": FIELDS,
        "propertyNames": {"maxLength": WORD},
    }
    return Variable(_refused_documents, {"type": "array", "items": item, "maxItems": DOCUMENTS})


def _refused_documents(value: Any) -> str | None:
    if not isinstance(value, list) or len(value) > DOCUMENTS:
        return f"must be a list of at most {DOCUMENTS} documents"
    for document in value:
        if not isinstance(document, Mapping) or len(document) > FIELDS:
            return f"a document must be an object of at most {FIELDS} fields"
        for name, text in document.items():
            if not isinstance(name, str) or len(name) > WORD or not isinstance(text, str):
                return f"a document's fields must be text, with names of at most {WORD} letters"
    return None


ALLOWED: Mapping[str, Variable] = {
    "enable_thinking": _flag(),
    "thinking": _flag(),
    "preserve_thinking": _flag(),
    "clear_thinking": _flag(),
    "thinking_budget": _whole(2**31),
    "reasoning_effort": _text(WORD),
    "documents": _documents(),
    "builtin_tools": _texts(FIELDS, _text(WORD)),
    "model_identity": _text(LINE),
    "date_string": _text(WORD),
    "tools_in_user_message": _flag(),
    "add_vision_id": _flag(),
}


def variables_schema() -> dict[str, Any]:
    """The JSON schema of an object of these variables; null is absent."""
    properties = {name: {**kind.schema, "type": [kind.schema["type"], "null"]} for name, kind in ALLOWED.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def check_variables(given: Mapping[str, Any], *, field: str = "chat_template_kwargs") -> None:
    """Raises RequestError for a name that is not allowed, and for a value of the wrong kind or size. Null is absent."""
    for name, value in given.items():
        if name not in ALLOWED:
            known = ", ".join(sorted(ALLOWED))
            raise RequestError(f"{field}: {str(name)[:WORD]!r} cannot be set; allowed: {known}", field=field)
        what = None if value is None else ALLOWED[name].refusal(value)
        if what is not None:
            raise RequestError(f"{field}.{name}: {what}", field=f"{field}.{name}")
