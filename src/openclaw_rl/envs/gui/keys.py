"""Keys as the browser is told of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

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
    """The events of a key or a combination such as ``Control+a``; None for what is no key.

    >>> [event["type"] for event in pressed("Enter")], pressed("Enter")[0]["text"]
    (['keyDown', 'keyUp'], '\\r')
    >>> pressed("Control+a")[0]["modifiers"], pressed("Hyper+a")
    (2, None)
    """
    *held, last = combination.split("+") if combination != "+" else ["+"]
    if any(each.strip().casefold() not in MODIFIERS for each in held):
        return None
    mask = sum({MODIFIERS[each.strip().casefold()] for each in held})
    word = _SAME.get(last.strip().casefold(), last.strip().casefold())
    if word in _NAMED:
        name, code, text = _NAMED[word]
        return _events(name, code, "" if mask & 7 else text, mask)
    return _events(last, _code(last), "" if mask & 7 else last, mask) if len(last) == 1 else None


def typed(text: str) -> Iterator[dict[str, Any]]:
    """The events of a text, key by key; a new line is Enter."""
    for character in text:
        named = {"\n": "enter", "\t": "tab", " ": "space"}.get(character)
        name, code, said = _NAMED[named] if named else (character, _code(character), character)
        yield from _events(name, code, said, 0)


def _code(character: str) -> int:
    upper = character.upper()
    return ord(upper) if upper.isascii() and upper.isalnum() else 0


def _events(name: str, code: int, text: str, mask: int) -> list[dict[str, Any]]:
    same = {"key": name, "windowsVirtualKeyCode": code, "modifiers": mask}
    edit = _EDITS.get(name.casefold()) if mask & 2 else None
    down = {"type": "keyDown", **same, **({"text": text} if text else {}), **({"commands": [edit]} if edit else {})}
    return [down, {"type": "keyUp", **same}]
