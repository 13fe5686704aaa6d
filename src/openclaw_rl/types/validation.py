"""What the types check when they are built. Each raises InvalidValue, which names the field."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias, get_args

from openclaw_rl.errors import InvalidValue

Tokens: TypeAlias = tuple[int, ...]
Logprobs: TypeAlias = tuple[float, ...]

LONGEST_NAME: Final = 1_000
"""bytes of a name: a row of an index in PostgreSQL has 2,704, and takes a session's name and its user's"""


def need(ok: bool, field_name: str, what: str) -> None:
    if not ok:
        raise InvalidValue(field_name, what)


def need_one_of(value: str, choices: Any, field_name: str) -> None:
    known = get_args(choices)
    need(value in known, field_name, f"{value!r} is none of {', '.join(known)}")


def need_text(text: str, field_name: str) -> None:
    """No store takes half a character: it has no bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValue(field_name, "the text holds half a character (a lone surrogate)") from None


def need_name(name: str, field_name: str) -> None:
    need_text(name, field_name)
    length = len(name.encode())
    need(length <= LONGEST_NAME, field_name, f"a name of {length} bytes; at most {LONGEST_NAME} can be looked up")


def need_tokens(ids: Tokens, field_name: str) -> None:
    need(isinstance(ids, tuple), field_name, "must be a tuple of token ids")
    if ids:
        need(set(map(type, ids)) == {int}, field_name, "token ids must be plain integers")
        need(min(ids) >= 0 and max(ids) < 2**32, field_name, "token ids must lie in 0 .. 2**32 - 1")


def need_logprobs(values: Logprobs, length: int, field_name: str) -> None:
    need(isinstance(values, tuple), field_name, "must be a tuple of log-probs")
    need(len(values) == length, field_name, f"{len(values)} log-probs for {length} reply tokens")
    need(all(-math.inf < value <= 0.0 for value in values), field_name, "a log-prob must be finite and at most 0")


def need_finite(value: float | None, field_name: str) -> None:
    need(value is None or math.isfinite(value), field_name, f"{value!r} is not a finite number")
