"""A session that was deleted, or is to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.types.validation import need


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What goes with a session: its turns, the notes that came of them, and what no deletion takes back.

    ``trained`` turns were used by steps. ``versions`` have learned from the session, by themselves or through an
    ancestor; ``clean`` is the newest live one before them, None where there is none. ``at`` is None before it is done.
    """

    turns: int
    notes: int
    trained: int
    versions: tuple[int, ...]
    clean: int | None = None
    at: float | None = None

    def __post_init__(self) -> None:
        for name in ("turns", "notes", "trained"):
            need(getattr(self, name) >= 0, name, f"{getattr(self, name)!r} is below 0")

    def plain(self) -> dict[str, Any]:
        """For a script: its numbers, and what remains in a sentence."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "remains": self.remains}

    @property
    def extent(self) -> str:
        """How much it is.

        >>> Deletion(turns=3, notes=1, trained=0, versions=()).extent
        '3 turns and 1 note that came of them'
        """
        turns = f"{self.turns} turn{'s' * (self.turns != 1)}"
        if not self.notes:
            return turns
        return f"{turns} and {self.notes} note{'s' * (self.notes != 1)} that came of them"

    @property
    def remains(self) -> str:
        """What the weights keep of it, in a sentence.

        >>> Deletion(turns=3, notes=0, trained=2, versions=(4, 5, 6, 9), clean=3).remains
        'versions 4 to 6 and 9 were trained on it; weights do not forget by deletion: version 3 is from before it'
        """
        if not self.versions:
            return "nothing was trained on it"
        were = "versions" if len(self.versions) > 1 else "version"
        was = "were" if len(self.versions) > 1 else "was"
        told = f"{were} {in_ranges(self.versions)} {was} trained on it; weights do not forget by deletion"
        return told if self.clean is None else f"{told}: version {self.clean} is from before it"


def in_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow each other as a range.

    >>> in_ranges([1, 2, 3, 7, 9, 10])
    '1 to 3, 7, 9 and 10'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
