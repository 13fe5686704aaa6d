"""Request checks for our servers: refuse pages of other sites, and read a body as JSON within limits."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

from openclaw_rl.errors import RequestError
from openclaw_rl.types import Json

_SHALLOW = 64
_NUMBER = re.compile("[0-9]{1,18}")
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)

# --- pages of other sites


def refuse_foreign_page(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Refuse a request that a browser sends for a page of another site; for servers without keys.

    ``headers`` are by lower-case name; ``origins`` are the other sites whose pages may send requests.
    """
    host = headers.get("host", "")
    name = _split("host", f"//{host}").hostname or ""
    if not _is_here(name):  # another site may point its own name at this machine
        what = f"no key is set, so only loopback names are served, not {name[:100]!r}"
        raise RequestError(what, status=403, remedy="ask http://127.0.0.1, or set a key")
    origin = headers.get("origin")
    if origin is not None and origin not in origins and not is_own_origin(origin, host):
        raise RequestError("this origin is not allowed", status=403, remedy="name it in the CORS origins or set a key")


def is_own_origin(origin: str, host: str) -> bool:
    """Check if an Origin header names the server itself; raise `RequestError` for an invalid address."""
    return _split("origin", origin).netloc == host


def _split(header: str, address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise RequestError(f"the {header} header is no address: {error}", field=header) from error


def _is_here(name: str) -> bool:
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


# --- paths


def read_number(text: str) -> int | None:
    """Return the number in a path, or None; Python itself refuses to read more than 4,300 digits."""
    return int(text) if _NUMBER.fullmatch(text) else None


# --- bodies


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:32]} is too large")
    return value


def parse_json(raw: bytes, *, depth: int, values: int) -> dict[str, Json]:
    """Parse the body as a JSON object; raise a `RequestError` with the fault for anything else.

    A body with more than ``values`` values is refused before it is parsed. A lone surrogate, which a client produces
    when it cuts an emoji in two, is read as U+FFFD.
    """
    _refuse_too_many(raw, values)
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
        raise RequestError(f"the body must be a JSON object, not {kind_of(value)}")
    if raw.count(b"{") + raw.count(b"[") > min(depth, _SHALLOW) and is_deeper(value, depth):
        raise RequestError(f"the body is nested more than {depth} levels deep")
    if b"\\ud" in raw or b"\\uD" in raw:
        value = _repaired(value)
    body: dict[str, Json] = value
    return body


def _refuse_too_many(raw: bytes, most: int) -> None:
    """Count values without parsing: commas, colons and opening brackets outside strings."""
    signs = b",:[{"
    if len(raw) <= most or sum(raw.count(sign) for sign in signs) <= most:
        return
    bare = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') <= 2 * most:  # at least this many strings, and splitting is cheap
        outside = b"".join(bare.split(b'"')[::2])
        if sum(outside.count(sign) for sign in signs) <= most:
            return
    what = f"the body holds more than {most} values (messages, parts, fields)"
    raise RequestError(what, status=413, remedy="send fewer, or larger, parts")


def _repaired(value: Json) -> Json:
    """Return the value without lone surrogates; ``value``'s depth was checked before."""
    match value:
        case str():
            return whole(value)
        case list():
            return [_repaired(item) for item in value]
        case dict():
            return {whole(key): _repaired(item) for key, item in value.items()}
    return value


def whole(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, so that it can be encoded as UTF-8."""
    return _HALF.sub("\ufffd", text)


def is_whole(text: str) -> bool:
    """Check if a text has no lone surrogate, so that it can be encoded as UTF-8."""
    return text.isascii() or _HALF.search(text) is None


def whole_json(text: str) -> str:
    """Return JSON text with U+FFFD for each lone surrogate, also one that is written as an escape."""
    if "\\ud" not in text and "\\uD" not in text:
        return whole(text)
    return whole(_ESCAPES.sub(lambda match: "\\ufffd" if match["half"] else match[0], text))


def _without_text(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    return str(error)[:200]


def is_deeper(value: Json, depth: int) -> bool:
    """Check if JSON is nested deeper than ``depth`` levels."""
    layer = [value] if isinstance(value, dict | list) else []
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


def kind_of(value: Json) -> str:
    """Return a JSON value's type in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
