"""An agent's actions on a page: as tool calls, and as short lines of text. Pure functions.

click 3 · click "Ok" · click 120,45     double, right, hover: the same
type 4 "some words"                     replaces the field's content
press Enter · press Control+a
select 5 "France"
scroll down · scroll up 3
drag 3 7 · drag "Card" 120,45
back · wait · done · done "an answer" · fail
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from openclaw_rl.envs.actions import Action, block_of
from openclaw_rl.envs.gui.screen import STATES, Element, Screen, known_names
from openclaw_rl.types import Tool

_ELEMENT: Final = "its number, its name, or a point as x,y"
DIRECTIONS: Final[Mapping[str, tuple[int, int]]] = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
LAST: Final = frozenset({"done", "fail"})
"""the actions that end an episode"""


def _tool(name: str, description: str, required: Mapping[str, str], more: Mapping[str, str] | None = None) -> Tool:
    named = {**required, **(more or {})}
    properties = {key: {"description": about} for key, about in named.items()}
    return Tool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": properties, "required": list(required)},
    )


TOOLS: Sequence[Tool] = (
    _tool("click", "Click on an element.", {"element": _ELEMENT}),
    _tool("double", "Click on an element twice.", {"element": _ELEMENT}),
    _tool("right", "Click on an element with the right button.", {"element": _ELEMENT}),
    _tool("hover", "Rest the mouse on an element, without a click.", {"element": _ELEMENT}),
    _tool("type", "Put a text into a field, in place of what it holds.", {"element": _ELEMENT, "text": "the text"}),
    _tool("press", "Press a key.", {"key": "such as Enter, Tab, ArrowDown, Control+a"}),
    _tool("select", "Choose an option of a list.", {"element": _ELEMENT, "option": "its words"}),
    _tool("scroll", "Scroll the page, or an element.", {"direction": ", ".join(DIRECTIONS)}, {"element": _ELEMENT}),
    _tool("drag", "Drag an element to another place.", {"element": _ELEMENT, "to": _ELEMENT}),
    _tool("back", "Go back to the page before.", {}),
    _tool("wait", "Wait a second and look again.", {}),
    _tool("done", "Say that the task is done.", {}, {"answer": "what was asked, where something was"}),
    _tool("fail", "Say that the task cannot be done.", {}, {"reason": "why"}),
)
_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {tool.name: tuple(tool.parameters["properties"]) for tool in TOOLS}
_REQUIRED: Final[Mapping[str, int]] = {tool.name: len(tool.parameters["required"]) for tool in TOOLS}
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_POINT = re.compile(r"\(?\s{0,9}(\d{1,9}(?:\.\d{1,9})?)\s{0,9},\s{0,9}(\d{1,9}(?:\.\d{1,9})?)\s{0,9}\)?")
_NUMBER = re.compile(r"\[?(\d+)\]?")


def written_actions(text: str) -> tuple[Action, ...]:
    """Return the actions in a text's fenced block, or in its single line; none if it has no word.

    >>> [each.arguments for each in written_actions('type 4 "a b"')]
    [{'element': 4, 'text': 'a b'}]
    >>> written_actions("jump 3")[0].fault[:21]
    "there is no 'jump'; t"
    """
    block = block_of(text)
    return tuple(_action(line) for line in block.splitlines() if line.strip()) if block else ()


def _action(line: str) -> Action:
    """Return the action in one line. A quoted text is a name, a bare number is an element's number."""
    words = [_read(match) for match in _WORD.finditer(line)]
    name, values = str(words[0]).casefold().rstrip(":."), words[1:]
    if name not in _ARGUMENTS:
        return Action(tool=name, arguments={}, fault=f"there is no {name!r}; there are: {', '.join(_ARGUMENTS)}")
    parameters = _ARGUMENTS[name]
    if len(parameters) == 1 and len(values) > 1:
        values = _as_one(line, values)
    if not _REQUIRED[name] <= len(values) <= len(parameters):
        return Action(tool=name, arguments={}, fault=f"{name} takes {', '.join(parameters) or 'nothing'}")
    return Action(tool=name, arguments=dict(zip(parameters, values, strict=False)))


def _as_one(line: str, given: list[str | int]) -> list[str | int]:
    """Join words that mean one element: unquoted words are its name; a quoted one may have its role and states.

    >>> _as_one('click the button "Ok" focused', ["the", "button", "Ok", "focused"])
    ['Ok']
    """
    if '"' not in line:
        return [" ".join(map(str, given))]
    quoted = [match[1] is not None for match in _WORD.finditer(line)][1:]
    if quoted.count(True) != 1:
        return given
    at = quoted.index(True)
    beside = [*(isinstance(word, str) for word in given[:at]), *(word in STATES for word in given[at + 1 :])]
    return [given[at]] if all(beside) else given


def _read(word: re.Match[str]) -> str | int:
    if word[1] is not None:
        return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], word[1])
    number = _NUMBER.fullmatch(word[2])
    return int(number[1]) if number else word[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """An action's target: an element, or a point without one."""

    element: Element | None = None
    point: tuple[float, float] | None = None

    @property
    def described(self) -> str:
        """Return the target's description, for a message."""
        return self.element.described if self.element else f"at {self.point}"


def aim(given: Any, screen: Screen) -> Aim | str:
    """Return the target, matching a text by name before number; or, as text, the reason why there is none."""
    text = str(given).strip()
    if point := _POINT.fullmatch(text):
        return Aim(point=(float(point[1]), float(point[2])))
    named = screen.called(text) if isinstance(given, str) else []
    if len(named) == 1:
        return Aim(element=named[0])
    if named:
        numbers = ", ".join(f"[{element.number}]" for element in named)
        return f"there are {len(named)} of that name: take a number of {numbers}"
    number = _NUMBER.fullmatch(text)
    target = screen.numbered(int(number[1])) if number else None
    if target is not None:
        return Aim(element=target)
    return f"there is no {text!r} on the screen; by name there are {known_names(screen.elements)}"


def as_line(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return an action in its written form.

    >>> as_line("type", {"element": 4, "text": 'say "hi"'}), as_line("click", {"element": "Ok"})
    ('type 4 "say \\\\"hi\\\\""', 'click "Ok"')
    """
    return " ".join([tool, *(_written(name, value) for name, value in arguments.items())])


def _written(name: str, value: Any) -> str:
    text = str(value)
    if isinstance(value, int) or name in ("key", "direction") or _POINT.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{quoted}"'


# Key events in the browser's form. Pure functions.

MODIFIERS: Final[Mapping[str, int]] = {"alt": 1, "control": 2, "ctrl": 2, "meta": 4, "shift": 8}
_NAMED: Final[Mapping[str, tuple[str, int, str]]] = {
    "enter": ("Enter", 13, "\r"),
    "tab": ("Tab", 9, ""),
    "escape": ("Escape", 27, ""),
    "backspace": ("Backspace", 8, ""),
    "delete": ("Delete", 46, ""),
    "space": (" ", 32, " "),
    "arrowleft": ("ArrowLeft", 37, ""),
    "arrowup": ("ArrowUp", 38, ""),
    "arrowright": ("ArrowRight", 39, ""),
    "arrowdown": ("ArrowDown", 40, ""),
    "pageup": ("PageUp", 33, ""),
    "pagedown": ("PageDown", 34, ""),
    "home": ("Home", 36, ""),
    "end": ("End", 35, ""),
    **{f"f{number}": (f"F{number}", 111 + number, "") for number in range(1, 13)},
}
_SAME: Final = {"esc": "escape", "return": "enter", "del": "delete"} | {
    side: f"arrow{side}" for side in ("left", "right", "up", "down")
}
_EDITS: Final = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo"}
NAMES: Final = ", ".join(name for name, _, _ in _NAMED.values() if name.strip())


def pressed(combination: str) -> list[dict[str, Any]] | None:
    """Return the events for a key or a combination such as ``Control+a``; None if there is no such key.

    >>> [event["type"] for event in pressed("Enter")], pressed("Enter")[0]["text"]
    (['keyDown', 'keyUp'], '\\r')
    >>> pressed("Control+a")[0]["modifiers"], pressed("Hyper+a")
    (2, None)
    """
    *modifiers, last = combination.split("+") if combination != "+" else ["+"]
    if any(modifier.strip().casefold() not in MODIFIERS for modifier in modifiers):
        return None
    mask = sum({MODIFIERS[modifier.strip().casefold()] for modifier in modifiers})
    word = _SAME.get(last.strip().casefold(), last.strip().casefold())
    if word in _NAMED:
        name, code, text = _NAMED[word]
        return _events(name, code, "" if mask & 7 else text, mask)
    return _events(last, _code(last), "" if mask & 7 else last, mask) if len(last) == 1 else None


def typed(text: str) -> Iterator[dict[str, Any]]:
    """Return a text's events, key by key; a new line is Enter."""
    for character in text:
        named = {"\n": "enter", "\t": "tab", " ": "space"}.get(character)
        name, code, produced = _NAMED[named] if named else (character, _code(character), character)
        yield from _events(name, code, produced, 0)


def _code(character: str) -> int:
    upper = character.upper()
    return ord(upper) if upper.isascii() and upper.isalnum() else 0


def _events(name: str, code: int, text: str, mask: int) -> list[dict[str, Any]]:
    same = {"key": name, "windowsVirtualKeyCode": code, "modifiers": mask}
    edit = _EDITS.get(name.casefold()) if mask & 2 else None
    down = {"type": "keyDown", **same, **({"text": text} if text else {}), **({"commands": [edit]} if edit else {})}
    return [down, {"type": "keyUp", **same}]
