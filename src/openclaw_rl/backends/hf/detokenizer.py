"""From tokens to text that may be shown: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openclaw_rl.ports import Scores
from openclaw_rl.types import Finish, Tokens

HALF = "\ufffd"
LONGEST_CHARACTER = 4
"""a character is at most four bytes, so at most four tokens; what is older than that and does not decode is shown"""

Decode = Callable[[Sequence[int]], str]


class IncrementalDetokenizer:
    """Decodes a growing list of tokens piece by piece; half a character waits for its other half."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._before = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that ``token`` completes, which may be none."""
        self._tokens.append(token)
        whole = self._decode(self._tokens[self._before :])
        if not whole.endswith(HALF):
            return self._advance(len(self._tokens), whole)
        if len(self._tokens) - self._shown < LONGEST_CHARACTER:
            return ""
        return self._advance_to(self._end_of_what_never_decodes(whole))

    def flush(self) -> str:
        """What still waits, as it is."""
        return self._advance_to(len(self._tokens)) if self._shown < len(self._tokens) else ""

    def _end_of_what_never_decodes(self, whole: str) -> int:
        """The last tokens may be the beginning of a character, whatever stands before them: they go on waiting."""
        for held in range(LONGEST_CHARACTER - 1, 0, -1):
            end = len(self._tokens) - held
            if self._decode(self._tokens[self._before : end]) + self._decode(self._tokens[end:]) == whole:
                return end
        return len(self._tokens)

    def _advance_to(self, end: int) -> str:
        return self._advance(end, self._decode(self._tokens[self._before : end]))

    def _advance(self, end: int, new: str) -> str:
        # the text before is decoded again with what follows, because some tokenizers write a token's leading space
        # only when another token stands before it
        old = self._decode(self._tokens[self._before : self._shown])
        self._before, self._shown = self._shown, end
        return new[len(old) :]


class StopStrings:
    """Finds stop strings across the borders of tokens."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown, and whether a stop string ended it."""
        if not self._stops:
            return text, False
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        cut = len(self._held) - self._beginning()
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def flush(self) -> str:
        """What was held back, now that no more text will come."""
        shown, self._held = self._held, ""
        return shown

    def _beginning(self) -> int:
        """How much of the end of the held text is the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0


class ReplyText:
    """The text of a reply as its tokens come: what may be shown, and how it ends.

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
        """All that was shown."""
        return "".join(self._shown)

    def take(self, token: int) -> tuple[str, Finish | None]:
        """Add a sampled token: what to show for it, and how the reply ends if it does."""
        self._taken += 1
        ended = token in self._ends
        shown, stopped = ("", False) if ended else self._stops.push(self._words.push(token))
        finish: Finish | None = "stop" if ended or stopped else None
        if finish is None and self._taken >= self.limit:
            finish = "length"
        if finish is not None and not stopped:
            rest, stopped = self._rest()
            shown, finish = shown + rest, "stop" if stopped else finish
        self._shown.append(shown)
        return shown, finish

    def close(self) -> str:
        """What was held back, where whoever samples says that no more tokens will come."""
        rest, _ = self._rest()
        self._shown.append(rest)
        return rest

    def _rest(self) -> tuple[str, bool]:
        more, stopped = self._stops.push(self._words.flush())
        return more + ("" if stopped else self._stops.flush()), stopped


# Sampled tokens as they come from elsewhere, and their log-probs at another temperature.

TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""tokens that could have been sampled at one position, with their log-probs, the likeliest first"""
Ending: TypeAlias = Literal["stop", "length"]

WIDE = 20
"""how many log-probs at a position are asked for where those of another temperature are made of them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Tokens `[N]` of a reply as they came: log-probs as API clients see them and those of the sampling temperature."""

    tokens: Tokens = ()
    logprobs: tuple[float, ...] = ()
    tempered: tuple[float, ...] = ()
    tops: tuple[TopLogprobs, ...] = ()
    prompt: Tokens | None = None
    """the prompt's tokens, where the engine made them"""
    ending: Ending | None = None
    """how the engine says the reply ended; None while it goes on, and where the engine gave it up"""

    @classmethod
    def joined(cls, chunks: Sequence[TokenChunk]) -> TokenChunk:
        """Chunks that came together, as one."""
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
    """The log-prob at another temperature of a token whose log-prob at 1 is ``value``.

    The normaliser is summed over the likeliest tokens, whose log-probs are ``known``; for the rest it takes what they
    can add: each is at most as likely as the last that is known, which bounds them from above below temperature 1 and
    from below above it.
    """
    if temperature in (0.0, 1.0):
        return value
    power = 1.0 / temperature
    total = sum([math.exp(logprob * power) for logprob in known])
    left = max(0.0, 1.0 - sum(map(math.exp, known)))
    if left and known:
        total += left * math.exp(min(known) * (power - 1.0)) * (0.5 if power > 1.0 else 1.0)
    return min(0.0, value * power - math.log(total)) if total > 0 else value


def in_order(found: Mapping[int, float]) -> TopLogprobs:
    """The likeliest first."""
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def scores_at(values: Sequence[float], tops: Sequence[TopLogprobs], *, temperature: float, top_k: int) -> Scores:
    """Scores at a temperature from log-probs at 1 `[R]` and the likeliest tokens of each position `[R]`."""
    known = [[value for _, value in top] for top in tops]
    rows = list(zip(tops, known, strict=True)) if top_k else []
    warm = [[(token, tempered(value, every, temperature)) for token, value in top[:top_k]] for top, every in rows]
    return Scores(
        logprobs=tuple(tempered(value, every, temperature) for value, every in zip(values, known, strict=True)),
        top_tokens=tuple(tuple(token for token, _ in top) for top in warm),
        top_logprobs=tuple(tuple(value for _, value in top) for top in warm),
    )
