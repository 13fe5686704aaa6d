"""Reads a request's body: bytes to JSON to typed values, each fault with the path of its field."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from openclaw_rl.errors import RequestError
from openclaw_rl.types import Json

_SHALLOW = 64
_BIGGEST = 2**63 - 1
_MANY = 200_000
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:32]} is too large")
    return value


def parse_json(raw: bytes, *, depth: int, values: int = _MANY) -> At:
    """The body as a JSON object; anything else is a RequestError that says what is wrong with it.

    A body of more than ``values`` values is refused before it is read. Half a character, which a client leaves when it
    cuts an emoji in two, is read as U+FFFD.
    """
    _refuse_crowded(raw, values)
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: bad byte at position {error.start}") from error
    except RecursionError as error:
        raise RequestError(f"the body is nested more than {depth} levels deep") from error
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {_without_text(error)}") from error
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {_kind(value)}")
    if raw.count(b"{") + raw.count(b"[") > min(depth, _SHALLOW) and _deeper(value, depth):
        raise RequestError(f"the body is nested more than {depth} levels deep")
    if b"\\ud" in raw or b"\\uD" in raw:
        value = _mended(value)
    return At(value, "")


def _refuse_crowded(raw: bytes, most: int) -> None:
    """Count values without reading them: commas, colons and opening brackets outside of texts."""
    signs = b",:[{"
    if len(raw) <= most or sum(raw.count(sign) for sign in signs) <= most:
        return
    bare = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') <= 2 * most:  # so many texts at least, and splitting is cheap
        outside = b"".join(bare.split(b'"')[::2])
        if sum(outside.count(sign) for sign in signs) <= most:
            return
    what = f"the body holds more than {most} values (messages, parts, fields)"
    raise RequestError(what, status=413, remedy="send fewer, or larger, parts")


def _mended(value: Json) -> Json:
    """The same without halves of characters; ``value`` is no deeper than was checked."""
    match value:
        case str():
            return whole(value)
        case list():
            return [_mended(item) for item in value]
        case dict():
            return {whole(key): _mended(item) for key, item in value.items()}
    return value


def whole(text: str) -> str:
    """The text with U+FFFD for each half of a character, so that it can be written as UTF-8."""
    return _HALF.sub("\ufffd", text)


def whole_json(text: str) -> str:
    """JSON as text, with U+FFFD for each half of a character that it spells as an escape."""
    if "\\ud" not in text and "\\uD" not in text:
        return whole(text)
    return whole(_ESCAPES.sub(lambda found: "\\ufffd" if found["half"] else found[0], text))


def _without_text(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    return str(error)[:200]


def _deeper(value: Json, depth: int) -> bool:
    layer = [value]
    for _ in range(depth):
        layer = [
            child
            for node in layer
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return False
    return True


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


class At:
    """A value of the body and its path. Absent and null are the same: real clients send both."""

    __slots__ = ("path", "value")

    def __init__(self, value: Json, path: str) -> None:
        self.value = value
        self.path = path

    def fault(self, what: str) -> RequestError:
        """The error for this field."""
        return RequestError(f"{self.path or 'body'}: {what}", field=self.path or None)

    @property
    def absent(self) -> bool:
        return self.value is None

    def key(self, name: str) -> At:
        """The field ``name`` of this object, which may be absent."""
        if not isinstance(self.value, dict):
            raise self.fault(f"must be an object, not {_kind(self.value)}")
        return At(self.value.get(name), f"{self.path}.{name}" if self.path else name)

    def items(self, *, limit: int | None = None) -> list[At]:
        """The elements of this list; none if it is absent."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.fault(f"must be a list, not {_kind(self.value)}")
        if limit is not None and len(self.value) > limit:
            raise self.fault(f"has {len(self.value)} entries, and at most {limit} are allowed")
        return [At(value, f"{self.path}.{index}") for index, value in enumerate(self.value)]

    def need_text(self) -> str:
        """Text that must be there."""
        if not isinstance(self.value, str):
            raise self.fault("is missing" if self.value is None else f"must be text, not {_kind(self.value)}")
        return self.value

    def name(self) -> str:
        """Text that must be there and hold something."""
        text = self.need_text()
        if not text:
            raise self.fault("must not be empty")
        return text

    def text(self) -> str | None:
        return None if self.value is None else self.need_text()

    def number(self, low: float, high: float) -> float | None:
        """A number in ``low .. high``."""
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fault(f"must be a number, not {_kind(self.value)}")
        if not low <= self.value <= high:
            raise self.fault(f"must be in {low:g} .. {high:g}")
        return float(self.value)

    def whole(self, low: int, high: int = _BIGGEST) -> int | None:
        """A whole number in ``low .. high``."""
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or self.value != int(self.value):
            raise self.fault(f"must be a whole number, not {_kind(self.value)}")
        if not low <= self.value <= high:
            raise self.fault(f"must be in {low} .. {high}")
        return int(self.value)

    def flag(self) -> bool:
        """True or false; false if absent."""
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            raise self.fault(f"must be true or false, not {_kind(self.value)}")
        return self.value

    def table(self) -> dict[str, Any]:
        """An object as it is; empty if absent."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.fault(f"must be an object, not {_kind(self.value)}")
        return self.value

    def one_of(self, *known: str) -> str | None:
        """One of the words in ``known``."""
        text = self.text()
        if text is not None and text not in known:
            raise self.fault(f"must be one of {', '.join(known)}")
        return text
