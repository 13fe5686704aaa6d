"""Nouns to compact bytes and back, losing nothing.

Token ids take 2, 3 or 4 bytes each (the smallest that holds the largest), log-probs 4 where that is exact and 8 where
not. Messages are JSON without default fields, deflated. The first byte of each blob says how it was packed.
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
"""half a character in a text comes back as it was: a model may write one"""


def pack_tokens(ids: Tokens) -> bytes:
    """One byte for the width, then each id in that many bytes, lowest first."""
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
    """The ids that `pack_tokens` packed."""
    width, body = blob[0], blob[1:]
    if width == 3:
        wide = bytearray(len(body) // 3 * 4)
        for byte in range(3):
            wide[byte::4] = body[byte::3]
        body = bytes(wide)
    return tuple(_values("H" if width == 2 else "I", body))


def pack_logprobs(values: Logprobs) -> bytes:
    """Single precision where that is exact, double where it is not."""
    single = array("f", values)
    exact = all(a == b for a, b in zip(single, values, strict=True))
    return b"f" + _raw(single) if exact else b"d" + _raw(array("d", values))


def unpack_logprobs(blob: bytes) -> Logprobs:
    """The log-probs that `pack_logprobs` packed."""
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
    """Deflated JSON, at the level that costs least for its gain on chat text."""
    return zlib.compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", _HALVES), 1)


def unpack_json(blob: bytes) -> Json:
    """The value that `pack_json` packed."""
    return json.loads(unpacked(blob))


def unpacked(blob: bytes) -> str:
    """The JSON that `pack_json` packed, to be searched as it is."""
    return zlib.decompress(blob).decode("utf-8", _HALVES)


def json_text(value: Json) -> str:
    """JSON for a column of text; half a character is spelled as an escape, since no store takes it as it is."""
    written = json.dumps(value, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return written


def plain(value: Any) -> Json:
    """A noun as plain JSON: default fields left out, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        given = ((f.name, getattr(value, f.name)) for f in fields(value) if not _is_default(value, f))
        return {name: plain(part) for name, part in given}
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
    """A message from its plain form."""
    rest = {key: part for key, part in value.items() if key not in ("tool_calls", "images")}
    calls = tuple(ToolCall(**call) for call in value.get("tool_calls", ()))
    return Message(**rest, tool_calls=calls, images=tuple(value.get("images", ())))


def messages(values: Iterable[Mapping[str, Json]]) -> tuple[Message, ...]:
    """Messages from their plain form."""
    return tuple(message(value) for value in values)


def prompt(value: Mapping[str, Json]) -> Prompt:
    """A prompt from its plain form."""
    return Prompt(
        messages=messages(value["messages"]),
        tools=tuple(Tool(**tool) for tool in value.get("tools", ())),
        tool_choice=value.get("tool_choice", "auto"),
        template=value.get("template", {}),
        opening=value.get("opening", ""),
    )


def sampling(value: Mapping[str, Json]) -> Sampling:
    """Sampling from its plain form."""
    return Sampling(**{**value, "stop": tuple(value.get("stop", ()))})


def hints(values: Sequence[Mapping[str, Json]]) -> tuple[Hint, ...]:
    """Hints from their plain form."""
    return tuple(Hint(**value) for value in values)
