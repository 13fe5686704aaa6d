"""The variables that a caller may set in a model's chat template, by name; all other names are refused.

A renderer takes its own parameters (the template itself, the messages, truncation and padding) in the same argument, so
this list names the permitted variables instead of the forbidden ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.errors import RequestError

WORD = 64
"""maximum characters in a value that selects among words"""
LINE = 1000
"""maximum characters in a value that is written into the prompt"""
DOCUMENTS = 1000
"""maximum documents per request"""
FIELDS = 16
"""maximum fields per document"""


@dataclass(frozen=True, slots=True)
class Variable:
    """A kind of value: ``refusal`` returns a value's fault, None for a valid one; ``schema`` describes it."""

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
    """Return the JSON schema for an object with these variables; null means absent."""
    properties = {name: {**kind.schema, "type": [kind.schema["type"], "null"]} for name, kind in ALLOWED.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def check_variables(given: Mapping[str, Any], *, field: str = "chat_template_kwargs") -> None:
    """Raise RequestError for a name that is not allowed, or a value with the wrong kind or size; null means absent."""
    for name, value in given.items():
        if name not in ALLOWED:
            names = ", ".join(sorted(ALLOWED))
            raise RequestError(f"{field}: {str(name)[:WORD]!r} cannot be set; allowed: {names}", field=field)
        fault = None if value is None else ALLOWED[name].refusal(value)
        if fault is not None:
            raise RequestError(f"{field}.{name}: {fault}", field=f"{field}.{name}")
