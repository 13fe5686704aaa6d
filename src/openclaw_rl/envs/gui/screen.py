"""The screen's content: numbered elements with the browser's own roles and names, as bounded text. Pure functions.

Every text from a page is in quotation marks, on one line: it cannot imitate an element or one of our lines.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

NAME: Final = 160
"""maximum characters in a name, a value or an option"""
OPTIONS: Final = 20
"""maximum options shown for a list"""
DRAWN: Final = frozenset(
    "box canvas circle ellipse image letters line path polygon polyline rect triangle".split()  # noqa: SIM905
)
"""roles for elements with a place and a size rather than text"""
STATES: Final = frozenset(
    "checked collapsed disabled expanded focused multiline selected".split()  # noqa: SIM905
)
"""states that may follow a name on the screen"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element. ``place`` is its middle, its width and its height, in screen pixels.

    ``acts``: it is interactive. ``inside``: it is visible now, without scrolling.
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
        """Return the element in one line, without its number."""
        words = [self.role, *([_quoted(self.name)] if self.name else [])]
        if self.role in DRAWN:
            x, y, width, height = self.place
            words.append(f"{width}x{height} at {x},{y}")
        if self.value:
            words.append(f"value={_quoted(self.value)}")
        if self.options:
            suffix = "" if len(self.options) <= OPTIONS else f" and {len(self.options) - OPTIONS} more"
            words.append(f"options={', '.join(map(_quoted, self.options[:OPTIONS]))}{suffix}")
        return " ".join([*words, *self.states])

    @property
    def line(self) -> str:
        """Return the element as shown to the agent."""
        return f"[{self.number}] {self.described}{'' if self.inside else ' (off screen)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The current page."""

    title: str
    elements: tuple[Element, ...]

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Screen:
        """Build the screen from the result of `page.js`."""
        return cls(title=str(found["title"]), elements=tuple(_element(item) for item in found["items"]))

    def numbered(self, number: int) -> Element | None:
        """Return the element with this number."""
        return next((element for element in self.elements if element.number == number), None)

    def called(self, name: str) -> Sequence[Element]:
        """Return the elements with this name: the interactive ones, or, if there are none, any.

        If no name matches exactly, compare without surrounding punctuation: a link "Neque," matches Neque.
        """
        matches = [element for element in self.elements if _folded(element.name) == _folded(name)]
        if not matches and (bare := _bare(name)):
            matches = [element for element in self.elements if _bare(element.name) == bare]
        return [element for element in matches if element.acts] or matches


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
    """Return new (+), changed (~) and removed (-) elements, in this order."""
    old = {element.number: element for element in before.elements}
    new = {element.number: element for element in after.elements}
    added = [f"+ {element.line}" for element in after.elements if element.number not in old]
    differ = [
        f"~ {element.line}"
        for element in after.elements
        if element.number in old and old[element.number].described != element.described
    ]
    return [*added, *differ, *(f"- {element.line}" for element in before.elements if element.number not in new)]


def shown(screen: Screen, *, most: int, before: Screen | None = None) -> str:
    """Return the screen in at most ``most`` characters: changes first, then visible elements, then the others."""
    news = [] if before is None else (changes(before, screen) or ["(nothing)"])
    parts = [f"Changed:\n{_fitting(news, most // 3, 'changes')}\n"] if news else []
    head = "".join(parts) + f"Screen {_quoted(screen.title)}:\n"
    ordered = sorted(screen.elements, key=lambda element: not element.inside)
    return head + _fitting([element.line for element in ordered], max(most - len(head), most // 3), "elements")


def _fitting(lines: Sequence[str], most: int, what: str) -> str:
    """Return as many lines as fit, and the number left out."""
    fitted: list[str] = []
    for line in lines:
        if fitted and sum(map(len, fitted)) + len(fitted) + len(line) > most:
            return "\n".join([*fitted, f"... and {len(lines) - len(fitted)} more {what}"])
        fitted.append(line)
    return "\n".join(fitted) or "(empty)"


def _quoted(text: str) -> str:
    """Quote the text on one line, without a fence that would end the surrounding one.

    >>> print(_quoted('a "b"\\n```'))
    "a \\"b\\" '''"
    """
    plain = " ".join(text.replace("```", "'''").split())
    half = NAME // 2
    return json.dumps(plain if len(plain) <= NAME else f"{plain[:half]} … {plain[-half:]}", ensure_ascii=False)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _bare(text: str) -> str:
    """Remove surrounding punctuation.

    >>> _bare(" 'Neque', ")
    'neque'
    """
    return _folded(text).strip(string.punctuation + "…“”‘’ ")


def known_names(elements: Iterable[Element], most: int = 8) -> str:
    """Return some interactive elements' names, for a message."""
    names = [_quoted(element.name) for element in elements if element.acts and element.name]
    return ", ".join(dict.fromkeys(names[:most])) or "none"
