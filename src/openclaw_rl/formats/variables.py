"""The variables that a caller may set in a model's chat template, by name; every other name is refused.

A renderer takes its own parameters (the template itself, the messages, how to cut and pad) by the same road, so what
is allowed is a list, never what is left after a list of what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _whole(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    good = number and 0 <= value <= 2**31 and value == int(value)
    return None if good else f"must be a whole number in 0 .. {2**31}"


def _text(longest: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        good = isinstance(value, str) and len(value) <= longest
        return None if good else f"must be text of at most {longest} letters"

    return check


def _words(value: Any) -> str | None:
    good = isinstance(value, list) and len(value) <= FIELDS and all(_text(WORD)(word) is None for word in value)
    return None if good else f"must be a list of at most {FIELDS} texts of at most {WORD} letters"


def _documents(value: Any) -> str | None:
    if not isinstance(value, list) or len(value) > DOCUMENTS:
        return f"must be a list of at most {DOCUMENTS} documents"
    for document in value:
        if not isinstance(document, Mapping) or len(document) > FIELDS:
            return f"a document must be an object of at most {FIELDS} fields"
        for name, text in document.items():
            if not isinstance(name, str) or len(name) > WORD or not isinstance(text, str):
                return f"a document's fields must be text, with names of at most {WORD} letters"
    return None


ALLOWED: Mapping[str, Callable[[Any], str | None]] = {
    "enable_thinking": _flag,
    "thinking": _flag,
    "preserve_thinking": _flag,
    "clear_thinking": _flag,
    "thinking_budget": _whole,
    "reasoning_effort": _text(WORD),
    "documents": _documents,
    "builtin_tools": _words,
    "model_identity": _text(LINE),
    "date_string": _text(WORD),
    "tools_in_user_message": _flag,
    "add_vision_id": _flag,
}
"""each name with what is wrong with a value of it, None where nothing is"""


def check_variables(given: Mapping[str, Any], *, field: str = "chat_template_kwargs") -> None:
    """Raises RequestError for a name that is not allowed, and for a value of the wrong kind or size. Null is absent."""
    for name, value in given.items():
        if name not in ALLOWED:
            known = ", ".join(sorted(ALLOWED))
            raise RequestError(f"{field}: {str(name)[:WORD]!r} cannot be set; allowed: {known}", field=field)
        what = None if value is None else ALLOWED[name](value)
        if what is not None:
            raise RequestError(f"{field}.{name}: {what}", field=f"{field}.{name}")
