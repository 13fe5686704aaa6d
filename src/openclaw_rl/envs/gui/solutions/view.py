"""What a scripted solution has to go by: the task's words, the screen that an agent sees, and how far it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.envs.gui.screen import Element, Screen
from openclaw_rl.envs.gui.tasks import Move

POSITIONS = ("1st", "2nd", "3rd", *(f"{number}th" for number in range(4, 100)))
"""how the pages count, from the first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of a task as a solution sees it; ``made`` actions were made before."""

    asked: str
    screen: Screen
    made: int

    def found(self, pattern: str) -> str:
        """The first group of a pattern in the task's words; "" where it does not match."""
        match = re.search(pattern, self.asked)
        return match[1].strip() if match else ""

    def nth(self, pattern: str) -> int:
        """The place that the task names, such as "3rd", from 0; 0 where it names none."""
        place = self.found(pattern)
        return POSITIONS.index(place) if place in POSITIONS else 0

    def all(self, *roles: str) -> Sequence[Element]:
        """The elements of these roles, in the page's order."""
        return [each for each in self.screen.elements if each.role in roles]

    def named(self, name: str, *roles: str) -> Element | None:
        """The element of exactly this name, of these roles or of any."""
        named = [each for each in self.screen.elements if each.name == name and (not roles or each.role in roles)]
        return next((each for each in named if each.acts), named[0] if named else None)

    def after(self, text: str, *roles: str) -> Element | None:
        """The first element of these roles after a text."""
        elements = self.screen.elements
        at = next((place for place, each in enumerate(elements) if each.name == text), None)
        return None if at is None else next((each for each in elements[at + 1 :] if each.role in roles), None)

    def click(self, element: Element | None) -> Move | None:
        """Click on it; None where it is not there."""
        return self.act("click", element)

    def act(self, tool: str, element: Element | None, **more: Any) -> Move | None:
        """Act on an element, by its name where that is enough."""
        if element is None:
            return None
        alone = element.name and list(self.screen.called(element.name)) == [element]
        return Move(tool=tool, arguments={"element": element.name if alone else element.number, **more})

    def at(self, x: float, y: float) -> Move:
        """Click on a point."""
        return Move(tool="click", arguments={"element": point(x, y)})

    def submit(self, name: str = "Submit") -> Move | None:
        """Press the button that ends a form."""
        named = [each for each in self.screen.elements if each.name == name and each.acts]
        return self.click(named[-1] if named else None)

    def fill(self, *fields: tuple[Element | None, str], then: str = "Submit") -> Move | None:
        """Fill these fields one by one, then press the button."""
        for place, (field, text) in enumerate(fields):
            if self.made == place:
                return self.act("type", field, text=text)
        return self.submit(then)


def point(x: float, y: float) -> str:
    """A point as actions name it."""
    return f"{round(x)},{round(y)}"


def drag(start: tuple[float, float], end: tuple[float, float]) -> Move:
    """Drag from one point to another."""
    return Move(tool="drag", arguments={"element": point(*start), "to": point(*end)})


Solution = Callable[[View], Move | None]
