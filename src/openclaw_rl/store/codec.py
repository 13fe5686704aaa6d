"""Pack the package's types into compact bytes and unpack them without loss.

Token ids take 2, 3 or 4 bytes each (the smallest that holds the largest), log-probs 4 where that is exact and 8
otherwise. Messages are JSON without default fields, deflated. Each blob's first byte is its packing.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from openclaw_rl.types import Hint, Json, Logprobs, Message, Prompt, Sampling, Tokens, Tool, ToolCall

_SWAP = sys.byteorder == "big"
_HALVES = "surrogatepass"
"""lone surrogates in a text survive the round trip: a model may write one"""


def pack_tokens(ids: Tokens) -> bytes:
    """Pack ids: one byte for the width, then each id in that many bytes, lowest first."""
    top = max(ids, default=0)
    if top < 2**16:
        return b"\x02" + _raw(array("H", ids))
    wide = _raw(array("I", ids))
    if top >= 2**24:
        return b"\x04" + wide
    packed = bytearray(len(ids) * 3)
    for byte in range(3):
        packed[byte::3] = wide[byte::4]
    return b"\x03" + bytes(packed)


def unpack_tokens(blob: bytes) -> Tokens:
    """Unpack ids from `pack_tokens`."""
    width, body = blob[0], blob[1:]
    if width == 3:
        wide = bytearray(len(body) // 3 * 4)
        for byte in range(3):
            wide[byte::4] = body[byte::3]
        body = bytes(wide)
    return tuple(_values("H" if width == 2 else "I", body))


def pack_logprobs(values: Logprobs) -> bytes:
    """Pack log-probs: single precision where that is exact, double otherwise."""
    single = array("f", values)
    exact = all(a == b for a, b in zip(single, values, strict=True))
    return b"f" + _raw(single) if exact else b"d" + _raw(array("d", values))


def unpack_logprobs(blob: bytes) -> Logprobs:
    """Unpack log-probs from `pack_logprobs`."""
    return tuple(_values(chr(blob[0]), blob[1:]))


def _raw(values: array[Any]) -> bytes:
    if _SWAP:
        values.byteswap()
    return values.tobytes()


def _values(code: str, body: bytes) -> array[Any]:
    values: array[Any] = array(code)
    values.frombytes(body)
    if _SWAP:
        values.byteswap()
    return values


def pack_json(value: Json) -> bytes:
    """Pack a value as deflated JSON, at the level with the best gain for its cost on chat text."""
    return zlib.compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", _HALVES), 1)


def unpack_json(blob: bytes) -> Json:
    """Unpack a value from `pack_json`."""
    return json.loads(unpacked(blob))


def unpacked(blob: bytes) -> str:
    """Return the JSON text inside `pack_json`'s blob, for searching."""
    return zlib.decompress(blob).decode("utf-8", _HALVES)


def json_text(value: Json) -> str:
    """Return JSON for a text column; a lone surrogate is written as an escape, since no store accepts it raw."""
    written = json.dumps(value, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return written


def plain(value: Any) -> Json:
    """Convert a value to plain JSON: default fields left out, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = ((f.name, getattr(value, f.name)) for f in fields(value) if not _is_default(value, f))
        return {name: plain(part) for name, part in parts}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def _is_default(value: Any, spec: Any) -> bool:
    if spec.default_factory is not MISSING:
        return spec.name not in ("id", "at") and bool(getattr(value, spec.name) == spec.default_factory())
    return spec.default is not MISSING and bool(getattr(value, spec.name) == spec.default)


def message(value: Mapping[str, Json]) -> Message:
    """Return a message from its plain form."""
    scalars = {key: part for key, part in value.items() if key not in ("tool_calls", "images")}
    calls = tuple(ToolCall(**call) for call in value.get("tool_calls", ()))
    return Message(**scalars, tool_calls=calls, images=tuple(value.get("images", ())))


def messages(values: Iterable[Mapping[str, Json]]) -> tuple[Message, ...]:
    """Return messages from their plain form."""
    return tuple(message(value) for value in values)


def prompt(value: Mapping[str, Json]) -> Prompt:
    """Return a prompt from its plain form."""
    return Prompt(
        messages=messages(value["messages"]),
        tools=tuple(Tool(**tool) for tool in value.get("tools", ())),
        tool_choice=value.get("tool_choice", "auto"),
        template=value.get("template", {}),
        opening=value.get("opening", ""),
    )


def sampling(value: Mapping[str, Json]) -> Sampling:
    """Return sampling parameters from their plain form."""
    return Sampling(**{**value, "stop": tuple(value.get("stop", ()))})


def hints(values: Sequence[Mapping[str, Json]]) -> tuple[Hint, ...]:
    """Return hints from their plain form."""
    return tuple(Hint(**value) for value in values)
