"""Constrained decoding: the tokens that may continue a reply in its format.

`llguidance` reads the format as a grammar over the model's vocabulary. Requests without a format cost nothing: the
vocabulary is read with the first constrained request.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from openclaw_rl.backends.hf.guidance import HeldCalls, HeldReply, Part
from openclaw_rl.backends.local.engine.format_check import FormatChecker, compiled, fault_of, tokenizer_of
from openclaw_rl.errors import BackendError, RequestError

KEPT = 64
"""number of cached formats, compiled or refused: clients repeat the same few formats"""
_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON stays on one line, because a small model that may add spaces adds them forever"""
_SPACE: Final = "/ ?/"
_FREE: Final = ("start: held* TEXT", "held: call way", r"TEXT: /(.|\n)*/")
"""any text that contains calls"""


def grammar_of(held: HeldReply | HeldCalls) -> str:
    """Write the format as a grammar in Lark's notation.

    >>> print(grammar_of((("Yes: ", JsonPart(schema={"type": "integer"})), ("No.",))))
    %llguidance {}
    start: way_0 | way_1
    way_0: "Yes: " / ?/ %json {"type": "integer", "x-guidance": {"whitespace_flexible": false, \
"item_separator": ", ", "key_separator": ": "}}
    way_1: "No."
    """
    if isinstance(held, HeldCalls):
        return "\n".join(
            ["%llguidance {}", *_FREE, f"call[lazy]: TEXT {_quoted(held.trigger)}", *_ways("way", held.ways)]
        )
    return "\n".join(["%llguidance {}", *_ways("start", held)])


def _ways(name: str, held: HeldReply) -> Iterator[str]:
    yield f"{name}: " + " | ".join(f"way_{number}" for number in range(len(held)))
    for number, parts in enumerate(held):
        yield f"way_{number}: {' '.join(_written(parts))}"


def _starts(held: HeldReply | HeldCalls) -> list[str]:
    """Return a reply's possible beginnings, up to its first JSON."""
    trigger, ways = (held.trigger, held.ways) if isinstance(held, HeldCalls) else ("", held)
    return sorted({trigger + (parts[0] if isinstance(parts[0], str) else "") for parts in ways})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _written(parts: tuple[Part, ...]) -> Iterator[str]:
    for number, part in enumerate(parts):
        if isinstance(part, str):
            yield _quoted(part)
        else:
            if number or len(parts) > 1:  # models write a space after a colon
                yield _SPACE
            yield f"%json {json.dumps({**part.schema, 'x-guidance': _SPACING}, ensure_ascii=False)}"


class TokenConstraint:
    """One reply's position in its grammar."""

    def __init__(self, matcher: Any, *, vocabulary: int, ends: frozenset[int], field: str) -> None:
        self._matcher = matcher
        self._field = field
        self._begin: Callable[[], None] | None = None
        self._vocabulary = vocabulary
        self._ends = sorted(ends)

    @property
    def refusal(self) -> RequestError | None:
        """Return the error if the grammar can no longer be followed, otherwise None."""
        return cannot_hold(fault_of(self._matcher), self._field) if self._matcher.is_error() else None

    def before_each(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` before each search for allowed tokens, which may be slow."""
        self._begin = begin

    def allowed(self) -> torch.Tensor:
        """Return the allowed next tokens `[vocabulary]`, bool; only the ends if the grammar cannot be followed."""
        if self._begin is not None:
            self._begin()
        if self._matcher.is_error():
            return self._only_ends()
        marks = bytearray(self._matcher.compute_logit_bias())  # one byte per token: faster to read than bits
        allowed = torch.frombuffer(marks, dtype=torch.uint8)[: self._vocabulary] != 0
        return allowed if bool(allowed.any()) else self._only_ends()

    def _only_ends(self) -> torch.Tensor:
        allowed = torch.zeros(self._vocabulary, dtype=torch.bool)
        allowed[self._ends] = True
        return allowed

    def take(self, token: int) -> None:
        """Advance by a token that was allowed."""
        if token not in self._ends:
            self._matcher.consume_token(token)


class ConstraintCompiler:
    """Builds constraints over one model's vocabulary. `known` is thread-safe; `constraint` is for one thread."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, ends: frozenset[int]) -> None:
        """``tokenizer`` is a fast tokenizer from `transformers`; ``ends`` are the tokens that end a reply."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = ends
        self._read: Any = None
        self._checker: FormatChecker | None = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        """a matcher per grammar, or the fault if it cannot be compiled"""
        self._lock = threading.Lock()

    def known(self, held: HeldReply | HeldCalls) -> TokenConstraint | None:
        """As `constraint`, but only for a recently used format; takes no time."""
        grammar, field = grammar_of(held), "tools" if isinstance(held, HeldCalls) else "response_format"
        with self._lock:
            if grammar not in self._compiled:
                return None
            self._compiled.move_to_end(grammar)
            matcher = self._compiled[grammar]
            if not isinstance(matcher, str):
                copy = matcher.deep_copy()
                return TokenConstraint(copy, vocabulary=self._vocabulary, ends=self._ends, field=field)
        raise cannot_hold(matcher, field)

    def constraint(self, held: HeldReply | HeldCalls) -> TokenConstraint:
        """Return a constraint; raise `RequestError` if the schema cannot be enforced, or not in reasonable time."""
        if (constraint := self.known(held)) is None:
            grammar = grammar_of(held)
            matcher = self._compile(grammar, _starts(held))
            with self._lock:
                self._compiled[grammar] = matcher
                while len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
            constraint = self.known(held)
        assert constraint is not None
        return constraint

    def close(self) -> None:
        """End the process that checks formats. Safe to call twice."""
        if self._checker is not None:
            self._checker.close()

    def _compile(self, grammar: str, starts: list[str]) -> Any:
        """Return a matcher once the checker process has compiled the same grammar, otherwise the fault."""
        if self._checker is None:
            text = self._vocabulary_text()
            self._checker = FormatChecker(text, vocabulary=self._vocabulary, ends=self._ends)
            self._read = tokenizer_of(text, vocabulary=self._vocabulary, ends=sorted(self._ends))
        if fault := self._checker.fault(grammar, starts):
            return fault
        matcher = compiled(self._read, grammar)
        return fault_of(matcher) or matcher

    def _vocabulary_text(self) -> str:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise BackendError("this model's tokenizer cannot be read for constrained decoding")
        return str(backend.to_str())


def cannot_hold(fault: str, field: str) -> RequestError:
    """Return the refusal for a format that fails at compilation or in the middle of a reply."""
    return RequestError(
        f"this format cannot be held: {fault[:300]}",
        field=field,
        remedy="make the schema simpler (fewer optional properties, patterns and references), "
        "or leave that part out and check it in the reply",
    )
