"""From tokens to text that may be shown: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openclaw_rl.types import Finish

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
