"""What is on the screen: numbered elements with the browser's own roles and names, as bounded text. Pure.

Every word of a page stands in quotation marks, on one line: it cannot pass for an element or for a line of ours.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

NAME: Final = 160
"""most characters of a name, a value or an option"""
OPTIONS: Final = 20
"""most options shown of a list"""
DRAWN: Final = frozenset(
    "box canvas circle ellipse image letters line path polygon polyline rect triangle".split()  # noqa: SIM905
)
"""roles of what has a place and a size rather than words"""
STATES: Final = frozenset(
    "checked collapsed disabled expanded focused multiline selected".split()  # noqa: SIM905
)
"""what may stand behind a name on the screen"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element. ``place`` is its middle, its width and its height, in pixels of the screen.

    ``acts``: it is made to be used. ``inside``: it is on the screen now, without scrolling.
    """

    number: int
    role: str
    name: str
    value: str = ""
    states: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    place: tuple[int, int, int, int] = (0, 0, 0, 0)
    inside: bool = True
    acts: bool = False

    @property
    def described(self) -> str:
        """The element in a line, without its number."""
        words = [self.role, *([_quoted(self.name)] if self.name else [])]
        if self.role in DRAWN:
            x, y, width, height = self.place
            words.append(f"{width}x{height} at {x},{y}")
        if self.value:
            words.append(f"value={_quoted(self.value)}")
        if self.options:
            more = "" if len(self.options) <= OPTIONS else f" and {len(self.options) - OPTIONS} more"
            words.append(f"options={', '.join(map(_quoted, self.options[:OPTIONS]))}{more}")
        return " ".join([*words, *self.states])

    @property
    def line(self) -> str:
        """The element as the agent is shown it."""
        return f"[{self.number}] {self.described}{'' if self.inside else ' (off screen)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A page as it is now."""

    title: str
    elements: tuple[Element, ...]

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Screen:
        """From what `page.js` gives."""
        return cls(title=str(found["title"]), elements=tuple(_element(each) for each in found["items"]))

    def numbered(self, number: int) -> Element | None:
        """The element of this number."""
        return next((each for each in self.elements if each.number == number), None)

    def called(self, name: str) -> Sequence[Element]:
        """Those of this name: the ones made to be used, or, where there is none, any.

        Where none has just this name, those that differ only in marks around it: a link "Neque," is called Neque.
        """
        found = [each for each in self.elements if _folded(each.name) == _folded(name)]
        if not found and (bare := _bare(name)):
            found = [each for each in self.elements if _bare(each.name) == bare]
        return [each for each in found if each.acts] or found


def _element(found: Mapping[str, Any]) -> Element:
    x, y, width, height = found["place"]
    return Element(
        number=found["number"],
        role=found["role"],
        name=found["name"],
        value=found["value"],
        states=tuple(found["states"]),
        options=tuple(found["options"]),
        place=(x, y, width, height),
        inside=found["inside"],
        acts=found["acts"],
    )


def changes(before: Screen, after: Screen) -> list[str]:
    """What is new (+), different (~) and gone (-), in this order."""
    old = {each.number: each for each in before.elements}
    new = {each.number: each for each in after.elements}
    added = [f"+ {each.line}" for each in after.elements if each.number not in old]
    differ = [
        f"~ {each.line}"
        for each in after.elements
        if each.number in old and old[each.number].described != each.described
    ]
    return [*added, *differ, *(f"- {each.line}" for each in before.elements if each.number not in new)]


def shown(screen: Screen, *, most: int, before: Screen | None = None) -> str:
    """The screen in at most ``most`` characters: what changed first, then what is on the screen, then the rest."""
    news = [] if before is None else (changes(before, screen) or ["(nothing)"])
    parts = [f"Changed:\n{_fitting(news, most // 3, 'changes')}\n"] if news else []
    head = "".join(parts) + f"Screen {_quoted(screen.title)}:\n"
    ordered = sorted(screen.elements, key=lambda each: not each.inside)
    return head + _fitting([each.line for each in ordered], max(most - len(head), most // 3), "elements")


def _fitting(lines: Sequence[str], most: int, what: str) -> str:
    """As many lines as fit; the others are counted."""
    kept: list[str] = []
    for line in lines:
        if kept and sum(map(len, kept)) + len(kept) + len(line) > most:
            return "\n".join([*kept, f"... and {len(lines) - len(kept)} more {what}"])
        kept.append(line)
    return "\n".join(kept) or "(empty)"


def _quoted(text: str) -> str:
    """In quotation marks, on one line, and without a fence that would end ours.

    >>> print(_quoted('a "b"\\n```'))
    "a \\"b\\" '''"
    """
    plain = " ".join(text.replace("```", "'''").split())
    half = NAME // 2
    return json.dumps(plain if len(plain) <= NAME else f"{plain[:half]} … {plain[-half:]}", ensure_ascii=False)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _bare(text: str) -> str:
    """Without the marks around it.

    >>> _bare(" 'Neque', ")
    'neque'
    """
    return _folded(text).strip(string.punctuation + "…“”‘’ ")


def known_names(elements: Iterable[Element], most: int = 8) -> str:
    """Some names that can be used, for a message."""
    names = [_quoted(each.name) for each in elements if each.acts and each.name]
    return ", ".join(dict.fromkeys(names[:most])) or "none"
