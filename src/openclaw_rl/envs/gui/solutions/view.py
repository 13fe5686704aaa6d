"""The input to a scripted solution: the task's words, the agent's screen, and the progress. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.envs.gui.screen import Element, Screen
from openclaw_rl.envs.gui.tasks import Move

POSITIONS = ("1st", "2nd", "3rd", *(f"{number}th" for number in range(4, 100)))
"""ordinal numbers as the pages write them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A task's state as a solution sees it; ``made`` actions were made before."""

    asked: str
    screen: Screen
    made: int

    def found(self, pattern: str) -> str:
        """Return a pattern's first group in the task's words; "" if it does not match."""
        match = re.search(pattern, self.asked)
        return match[1].strip() if match else ""

    def nth(self, pattern: str) -> int:
        """Return the position that the task names, such as "3rd", from 0; 0 if it names none."""
        place = self.found(pattern)
        return POSITIONS.index(place) if place in POSITIONS else 0

    def all(self, *roles: str) -> Sequence[Element]:
        """Return the elements with these roles, in the page's order."""
        return [element for element in self.screen.elements if element.role in roles]

    def named(self, name: str, *roles: str) -> Element | None:
        """Return the element with exactly this name, with one of these roles or any."""
        named = [
            element for element in self.screen.elements if element.name == name and (not roles or element.role in roles)
        ]
        return next((element for element in named if element.acts), named[0] if named else None)

    def after(self, text: str, *roles: str) -> Element | None:
        """Return the first element with one of these roles after a text."""
        elements = self.screen.elements
        at = next((place for place, element in enumerate(elements) if element.name == text), None)
        return None if at is None else next((element for element in elements[at + 1 :] if element.role in roles), None)

    def click(self, element: Element | None) -> Move | None:
        """Click on an element; None if it is missing."""
        return self.act("click", element)

    def act(self, tool: str, element: Element | None, **more: Any) -> Move | None:
        """Act on an element, by its name if that is unique."""
        if element is None:
            return None
        unique = element.name and list(self.screen.called(element.name)) == [element]
        return Move(tool=tool, arguments={"element": element.name if unique else element.number, **more})

    def at(self, x: float, y: float) -> Move:
        """Click on a point."""
        return Move(tool="click", arguments={"element": point(x, y)})

    def submit(self, name: str = "Submit") -> Move | None:
        """Press the button that submits a form."""
        named = [element for element in self.screen.elements if element.name == name and element.acts]
        return self.click(named[-1] if named else None)

    def fill(self, *fields: tuple[Element | None, str], then: str = "Submit") -> Move | None:
        """Fill these fields one by one, then press the button."""
        for place, (field, text) in enumerate(fields):
            if self.made == place:
                return self.act("type", field, text=text)
        return self.submit(then)


def point(x: float, y: float) -> str:
    """Return a point in the form that actions use."""
    return f"{round(x)},{round(y)}"


def drag(start: tuple[float, float], end: tuple[float, float]) -> Move:
    """Drag from one point to another."""
    return Move(tool="drag", arguments={"element": point(*start), "to": point(*end)})


Solution = Callable[[View], Move | None]
