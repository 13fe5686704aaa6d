"""The nouns of a preference: a wish for replies, and the demands that it is made of.

Wish("At most 30 words, in German.")  =  length, most 30 words  and  language, german
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Relation: TypeAlias = Literal["most", "least", "about", "more", "less", "yes", "no"]
"""``more`` and ``less`` are vague: they name a direction and no measure"""

LENGTHS = frozenset({"words", "sentences", "paragraphs", "lines", "characters"})
"""aspects that measure the length of a reply, each named after its unit"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One thing that a wish asks of each reply, such as ``Demand(aspect="words", relation="most", number=30)``."""

    aspect: str
    relation: Relation = "yes"
    number: int | None = None
    text: str | None = None
    """the words, the language or the name that it speaks of"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A wish as parsed. All its demands hold together; ``rest`` is True where it asks for more than they cover."""

    text: str
    demands: tuple[Demand, ...] = ()
    rest: bool = False

    @property
    def known(self) -> bool:
        """Whether the demands are all that it asks for."""
        return bool(self.demands) and not self.rest
