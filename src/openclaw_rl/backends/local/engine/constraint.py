"""Constrained decoding: which tokens a reply may go on with where it is held to a format.

`llguidance` reads the format as a grammar over the model's own vocabulary. Whoever asks for no format pays nothing: the
vocabulary is read with the first request that does.
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
"""formats that are kept, compiled or refused: clients send the same few again and again"""
_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written on one line: a small model that may go on with spaces for ever does"""
_SPACE: Final = "/ ?/"
_FREE: Final = ("start: held* TEXT", "held: call way", r"TEXT: /(.|\n)*/")
"""any text, with calls in it"""


def grammar_of(held: HeldReply | HeldCalls) -> str:
    """The same as a grammar in Lark's notation.

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
    """How a reply may begin, up to its first JSON."""
    trigger, ways = (held.trigger, held.ways) if isinstance(held, HeldCalls) else ("", held)
    return sorted({trigger + (parts[0] if isinstance(parts[0], str) else "") for parts in ways})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _written(parts: tuple[Part, ...]) -> Iterator[str]:
    for number, part in enumerate(parts):
        if isinstance(part, str):
            yield _quoted(part)
        else:
            if number or len(parts) > 1:  # after a colon models write a space
                yield _SPACE
            yield f"%json {json.dumps({**part.schema, 'x-guidance': _SPACING}, ensure_ascii=False)}"


class TokenConstraint:
    """One reply's place in its grammar."""

    def __init__(self, matcher: Any, *, vocabulary: int, ends: frozenset[int], field: str) -> None:
        self._matcher = matcher
        self._field = field
        self._begin: Callable[[], None] | None = None
        self._vocabulary = vocabulary
        self._ends = sorted(ends)

    @property
    def refusal(self) -> RequestError | None:
        """Why the grammar cannot be followed any more; None where it can."""
        return cannot_hold(fault_of(self._matcher), self._field) if self._matcher.is_error() else None

    def before_each(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` before each search for the tokens that are allowed, which may take long."""
        self._begin = begin

    def allowed(self) -> torch.Tensor:
        """The tokens that may come next `[vocabulary]`, bool; the end where the grammar can be followed no more."""
        if self._begin is not None:
            self._begin()
        if self._matcher.is_error():
            return self._only_ends()
        marks = bytearray(self._matcher.compute_logit_bias())  # a byte for each token: quicker to read than bits
        found = torch.frombuffer(marks, dtype=torch.uint8)[: self._vocabulary] != 0
        return found if bool(found.any()) else self._only_ends()

    def _only_ends(self) -> torch.Tensor:
        found = torch.zeros(self._vocabulary, dtype=torch.bool)
        found[self._ends] = True
        return found

    def take(self, token: int) -> None:
        """Go on with a token that was allowed."""
        if token not in self._ends:
            self._matcher.consume_token(token)


class ConstraintCompiler:
    """Makes constraints over one model's vocabulary. `known` is for several threads at once, `constraint` for one."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, ends: frozenset[int]) -> None:
        """``tokenizer`` is one of `transformers` that is fast; ``ends`` are the tokens that end a reply."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = ends
        self._read: Any = None
        self._checker: FormatChecker | None = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        """by grammar, a matcher, or in words why there is none"""
        self._lock = threading.Lock()

    def known(self, held: HeldReply | HeldCalls) -> TokenConstraint | None:
        """As `constraint`, but only where this format was asked for lately; takes no time."""
        grammar, field = grammar_of(held), "tools" if isinstance(held, HeldCalls) else "response_format"
        with self._lock:
            if grammar not in self._compiled:
                return None
            self._compiled.move_to_end(grammar)
            matcher = self._compiled[grammar]
            if not isinstance(matcher, str):
                found = matcher.deep_copy()
                return TokenConstraint(found, vocabulary=self._vocabulary, ends=self._ends, field=field)
        raise cannot_hold(matcher, field)

    def constraint(self, held: HeldReply | HeldCalls) -> TokenConstraint:
        """Raises RequestError for a schema that cannot be held, or not in reasonable time."""
        if (found := self.known(held)) is None:
            grammar = grammar_of(held)
            matcher = self._compile(grammar, _starts(held))
            with self._lock:
                self._compiled[grammar] = matcher
                while len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
            found = self.known(held)
        assert found is not None
        return found

    def close(self) -> None:
        """End the process that tries formats. Safe to call twice."""
        if self._checker is not None:
            self._checker.close()

    def _compile(self, grammar: str, starts: list[str]) -> Any:
        """A matcher, made only once a process that can be ended has made it too; else the fault."""
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
    """The refusal of a format, whether it shows at once or in the middle of a reply."""
    return RequestError(
        f"this format cannot be held: {fault[:300]}",
        field=field,
        remedy="make the schema simpler (fewer optional properties, patterns and references), "
        "or leave that part out and check it in the reply",
    )
