"""From tokens to text that may be shown: whole characters, without a started stop string."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openclaw_rl.ports import Scores
from openclaw_rl.types import Finish, Tokens

HALF = "\ufffd"
LONGEST_CHARACTER = 4
"""a character is at most four bytes, so at most four tokens; older tokens that do not decode are shown"""

Decode = Callable[[Sequence[int]], str]


class IncrementalDetokenizer:
    """Decodes a growing list of tokens piece by piece; half a character waits for its other half."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._before = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """Return the text that ``token`` completes, possibly empty."""
        self._tokens.append(token)
        decoded = self._decode(self._tokens[self._before :])
        if not decoded.endswith(HALF):
            return self._advance(len(self._tokens), decoded)
        if len(self._tokens) - self._shown < LONGEST_CHARACTER:
            return ""
        return self._advance_to(self._end_of_what_never_decodes(decoded))

    def flush(self) -> str:
        """Return the waiting text unchanged."""
        return self._advance_to(len(self._tokens)) if self._shown < len(self._tokens) else ""

    def _end_of_what_never_decodes(self, whole: str) -> int:
        """Return the end of undecodable tokens; trailing tokens that may start a character continue to wait."""
        for waiting in range(LONGEST_CHARACTER - 1, 0, -1):
            end = len(self._tokens) - waiting
            if self._decode(self._tokens[self._before : end]) + self._decode(self._tokens[end:]) == whole:
                return end
        return len(self._tokens)

    def _advance_to(self, end: int) -> str:
        return self._advance(end, self._decode(self._tokens[self._before : end]))

    def _advance(self, end: int, new: str) -> str:
        # decode earlier text together with its continuation, because some tokenizers write a token's leading space only
        # after another token
        old = self._decode(self._tokens[self._before : self._shown])
        self._before, self._shown = self._shown, end
        return new[len(old) :]


class StopStrings:
    """Detects stop strings across token boundaries."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that may be shown, and True if a stop string ended it."""
        if not self._stops:
            return text, False
        self._held += text
        places = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if places:
            ready, self._held = self._held[: min(places)], ""
            return ready, True
        cut = len(self._held) - self._beginning()
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready, False

    def flush(self) -> str:
        """Return the withheld text at the end of the stream."""
        ready, self._held = self._held, ""
        return ready

    def _beginning(self) -> int:
        """Return the length of the withheld text's tail that may begin a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0


class ReplyText:
    """A reply's text as its tokens arrive: the text to show, and the finish reason.

    A reply ends with one of the tokens ``ends``, a stop string, or its ``limit`` of tokens.
    """

    def __init__(self, decode: Decode, *, stops: Sequence[str], ends: frozenset[int], limit: int) -> None:
        self._words = IncrementalDetokenizer(decode)
        self._stops = StopStrings(stops)
        self._ends = ends
        self.limit = limit
        self._taken = 0
        self._shown: list[str] = []

    @property
    def text(self) -> str:
        """All text shown so far."""
        return "".join(self._shown)

    def take(self, token: int) -> tuple[str, Finish | None]:
        """Add a sampled token; return the text to show, and the finish reason if the reply ends."""
        self._taken += 1
        ended = token in self._ends
        text, stopped = ("", False) if ended else self._stops.push(self._words.push(token))
        finish: Finish | None = "stop" if ended or stopped else None
        if finish is None and self._taken >= self.limit:
            finish = "length"
        if finish is not None and not stopped:
            tail, stopped = self._rest()
            text, finish = text + tail, "stop" if stopped else finish
        self._shown.append(text)
        return text, finish

    def close(self) -> str:
        """Return the withheld text when the engine reports the end."""
        tail, _ = self._rest()
        self._shown.append(tail)
        return tail

    def _rest(self) -> tuple[str, bool]:
        tail, stopped = self._stops.push(self._words.flush())
        return tail + ("" if stopped else self._stops.flush()), stopped


# Sampled tokens from an engine, and their log-probs at another temperature.

TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""likeliest tokens at one position with their log-probs, best first"""
Ending: TypeAlias = Literal["stop", "length"]

WIDE = 20
"""log-probs to request per position for a conversion to another temperature"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Tokens `[N]` of a reply as they arrived: log-probs for API clients, and at the sampling temperature."""

    tokens: Tokens = ()
    logprobs: tuple[float, ...] = ()
    tempered: tuple[float, ...] = ()
    tops: tuple[TopLogprobs, ...] = ()
    prompt: Tokens | None = None
    """the prompt's tokens, if the engine rendered them"""
    ending: Ending | None = None
    """finish reason from the engine; None while the reply continues, or if the engine aborted it"""

    @classmethod
    def joined(cls, chunks: Sequence[TokenChunk]) -> TokenChunk:
        """Merge chunks that arrived together."""
        if len(chunks) == 1:
            return chunks[0]
        return cls(
            tokens=tuple(token for chunk in chunks for token in chunk.tokens),
            logprobs=tuple(value for chunk in chunks for value in chunk.logprobs),
            tempered=tuple(value for chunk in chunks for value in chunk.tempered),
            tops=tuple(top for chunk in chunks for top in chunk.tops),
            prompt=next((chunk.prompt for chunk in chunks if chunk.prompt is not None), None),
            ending=next((chunk.ending for chunk in chunks if chunk.ending is not None), None),
        )


def tempered(value: float, known: Sequence[float], temperature: float) -> float:
    """Convert a token's log-prob ``value`` at temperature 1 to another temperature.

    The normaliser sums over the likeliest tokens, with log-probs ``known``, plus an estimate for all other tokens: each
    is at most as likely as the last known one, which bounds their sum from above below temperature 1 and from below
    above it.
    """
    if temperature in (0.0, 1.0):
        return value
    power = 1.0 / temperature
    total = sum([math.exp(logprob * power) for logprob in known])
    mass = max(0.0, 1.0 - sum(map(math.exp, known)))
    if mass and known:
        total += mass * math.exp(min(known) * (power - 1.0)) * (0.5 if power > 1.0 else 1.0)
    return min(0.0, value * power - math.log(total)) if total > 0 else value


def in_order(found: Mapping[int, float]) -> TopLogprobs:
    """Sort by likelihood, best first."""
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def scores_at(values: Sequence[float], tops: Sequence[TopLogprobs], *, temperature: float, top_k: int) -> Scores:
    """Return scores at a temperature, from log-probs at 1 `[R]` and each position's likeliest tokens `[R]`."""
    values_of_tops = [[value for _, value in top] for top in tops]
    rows = list(zip(tops, values_of_tops, strict=True)) if top_k else []
    warm = [[(token, tempered(value, every, temperature)) for token, value in top[:top_k]] for top, every in rows]
    return Scores(
        logprobs=tuple(
            tempered(value, every, temperature) for value, every in zip(values, values_of_tops, strict=True)
        ),
        top_tokens=tuple(tuple(token for token, _ in top) for top in warm),
        top_logprobs=tuple(tuple(value for _, value in top) for top in warm),
    )
