"""Scripted solutions for pages that are small applications: calendars, mail, menus, sliders. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from openclaw_rl.envs.gui.screen import Element
from openclaw_rl.envs.gui.solutions.view import Solution, View, drag
from openclaw_rl.envs.gui.tasks import Move

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


def day(view: View) -> Move | None:
    """Open the calendar, turn to the month, choose the day."""
    return _dated(view, view.found(r"Select ([\d/]+) as")) or view.submit()


def _dated(view: View, wanted: str) -> Move | None:
    """Return the action that moves the calendar's field closer to a day; None if it has a day."""
    month, date, _ = wanted.split("/")
    box = view.named("datepicker")
    if box is not None and box.value:
        return None
    titles = [element.name for element in view.all("text") if element.name in MONTHS]
    if not titles:
        return view.click(box)
    ahead = int(month) - 1 - MONTHS.index(titles[0])
    return view.click(view.named(str(int(date)) if not ahead else "Next" if ahead > 0 else "Prev", "link"))


def flight(view: View) -> Move | None:
    """Enter origin, destination and date, then choose the best result."""
    prices = [element for element in view.all("button") if element.name.startswith("Book flight")]
    if prices:
        times = [element for element in view.all("text") if re.fullmatch(r"\d{1,3}h \d{1,3}m", element.name)]
        worth = [
            tuple(map(int, re.findall(r"\d+", element.name)))
            for element in (times if "shortest" in view.asked else prices)
        ]
        return view.click(prices[worth.index(min(worth))])
    for label, place in (("From:", view.found(r"from: (.+) to:")), ("To:", view.found(r"to: (.+) on "))):
        box = view.named(label, "textbox")
        if box is not None and not box.value.endswith(")"):
            listed = (element for element in view.all("text") if place in element.name and element.name.endswith(")"))
            return view.click(next(listed, None)) or (
                Move(tool="wait") if box.value else view.act("type", box, text=place)
            )
    return _dated(view, view.found(r" on ([\d/]+)")) or view.submit("Search")


def menu(view: View) -> Move | None:
    """Hover over one item after another until the last is visible; a menu takes a moment to open."""
    path = [view.named(name, "menuitem") for name in view.found(r"Select (.+)").split(">")]
    if path[-1] is not None:
        return view.click(path[-1])
    deepest = [item for item in path if item is not None][-1]
    return Move(tool="wait") if view.made % 2 else view.act("hover", deepest)


def email(view: View) -> Move | None:
    """Open the message, then do the requested action on it."""
    answer = view.found(r'with the text "(.+)"')
    for field, text, send in (
        (view.named("reply-text"), answer, "send-reply"),
        (view.named("forward-sender"), view.found(r"that email to ([\w-]+)"), "send-forward"),
    ):
        if field is not None:
            return view.click(view.named(send)) if field.value else view.act("type", field, text=text)
    if view.named("close-email") is None:
        return view.click(view.named(view.found(r"email by ([\w-]+)")))
    buttons = {"trash icon": "trash", "star icon": "star", "reply to": "Reply", "forward that": "Forward"}
    return view.click(view.named(next(name for words, name in buttons.items() if words in view.asked)))


def items(view: View) -> Move | None:
    """Drag a list item beyond the item at its target position."""
    listed = view.all("text")
    names = [element.name for element in listed]
    now = names.index(view.found(r"Drag (\S+) "))
    steps = {"up by": now - 1, "down by": now + 1, "to the top": 0, "to the bottom": len(names) - 1}
    target = next((place for words, place in steps.items() if words in view.asked), view.nth(r"the (\w+) position"))
    x, y, _, _ = listed[target].place
    return drag(listed[now].place[:2], (x, y + (_BEYOND if target > now else -_BEYOND)))


_BEYOND = 9
"""pixels past an item's middle beyond which it moves aside"""


def food(view: View) -> Move | None:
    """Add one of each named item, or the requested number of the first item of a kind."""
    named = view.found(r"each item: (.+)").split(", ")
    kind = view.found(r"items that are (.+)")
    names = [kind] * int(view.found(r"Order (\d+) items") or 0) if kind else named
    if view.made >= len(names):
        return view.submit("Order!")
    return view.click(_more(view, names[view.made]))


def _more(view: View, name: str) -> Element | None:
    """Return the plus button after a name, or after the sign of a kind."""
    names = [element.name for element in view.screen.elements]
    if name not in names:
        return None
    return next((element for element in view.screen.elements[names.index(name) :] if element.name == "+"), None)


def sliders(view: View) -> Move | None:
    """Drag each slider to its number, and correct the difference with keys."""
    goals = [int(number) for number in view.found(r"combination \[(.+)\]").split(",")]
    return _slid(view, goals) or view.submit()


def slider_and_checkbox(view: View) -> Move | None:
    box = view.all("checkbox")[view.nth(r"the (\w+) checkbox")]
    click = None if "checked" in box.states else view.click(box)
    return _slid(view, [int(view.found(r"Select (-?\d+) with"))]) or click or view.submit()


def _slid(view: View, wanted: list[int]) -> Move | None:
    """Return the action that moves the first wrong slider closer to its number."""
    handles = [element for element in view.screen.elements if element.name.startswith("ui-slider-handle")]
    numbers = [int(element.name) for element in view.all("text") if element.name.lstrip("-").isdecimal()]
    for handle, now, goal in zip(handles, numbers, wanted, strict=True):
        x, y, _, _ = handle.place
        if abs(goal - now) > _BY_KEYS:
            return drag((x, y), (x + (goal - now) * _PIXELS, y))
        if goal != now and "focused" not in handle.states:
            return view.click(handle)
        if goal != now:
            return Move(tool="press", arguments={"key": "ArrowRight" if goal > now else "ArrowLeft"})
    return None


_PIXELS = 5.0
"""approximate pixels per number: a further drag corrects the difference"""
_BY_KEYS = 3
"""maximum difference that is corrected with keys"""


def styled(view: View) -> Move | None:
    """Select all or a word with the keyboard, depending on its letters, then apply the style or the color."""
    word, color = view.found(r"give the text (\S+) the"), view.found(r"the color (\w+)")
    text = next(element for element in view.all("clickable") if not element.name.startswith("ql-"))
    keys = _selecting(text.name.split(), word) if word else ["Control+a"]
    if view.made == 0:
        return view.click(text)
    if view.made <= len(keys):
        return Move(tool="press", arguments={"key": keys[view.made - 1]})
    step = view.made - len(keys) - 1
    if not color:
        styles = {"bold": "ql-bold", "italics": "ql-italic", "underlined": "ql-underline"}
        return view.submit() if step else view.click(view.named(styles[view.found(r"the style (\w+)")]))
    if step == 0:
        return view.click(next(element for element in view.screen.elements if element.name.endswith("ql-stroke")))
    shades = [element for element in view.all("clickable") if element.name.endswith("ql-primary")]
    return view.submit() if step > 1 else view.click(shades[_SHADES.index(color)])


_SHADES = ("black", "red", "orange", "yellow", "green", "blue", "purple")
"""the first row in the editor's color palette"""


def _selecting(words: list[str], wanted: str) -> list[str]:
    """Return the keys that select a word: a step by words ends after letters, so punctuation needs its own steps."""
    before = words[: words.index(wanted)]
    signs = [len(word) - len(word.rstrip(".,")) for word in (*before[-1:], wanted)]
    over = ["ArrowRight"] * (signs[0] + 1) if before else []
    marked = ["Shift+Control+ArrowRight", *["Shift+ArrowRight"] * signs[-1]]
    return ["Control+Home", *["Control+ArrowRight"] * len(before), *over, *marked]


def painted(view: View) -> Move | None:
    """Type the color's number, click beside the palette to close it, and submit."""
    if view.made == 0:
        return view.act("type", view.named("col", "textbox"), text=_COLORS[view.found(r"Select (\w+) with")])
    return view.click(view.named("Color:")) if view.made == 1 else view.submit()


_COLORS = {
    **{"black": "000000", "white": "ffffff", "aqua": "00ffff", "blue": "0000ff", "gray": "808080", "green": "008000"},
    **{"lime": "00ff00", "maroon": "800000", "navy": "000080", "olive": "808000", "purple": "800080", "red": "ff0000"},
    **{"silver": "c0c0c0", "teal": "008080", "yellow": "ffff00", "pink": "ffc0cb", "magenta": "ff00ff"},
    **{"gold": "ffd700", "orange": "ffa500"},
}

WORKING: Mapping[str, Solution] = {
    "choose-date": day,
    "choose-date-easy": day,
    "choose-date-medium": day,
    "choose-date-nodelay": day,
    "book-flight": flight,
    "book-flight-nodelay": flight,
    "text-editor": styled,
    "use-colorwheel": painted,
    "click-menu": menu,
    "email-inbox": email,
    "email-inbox-delete": email,
    "email-inbox-important": email,
    "email-inbox-noscroll": email,
    "email-inbox-forward": email,
    "email-inbox-reply": email,
    "email-inbox-star-reply": email,
    "drag-items": items,
    "order-food": food,
    "use-slider-2": sliders,
    "form-sequence": slider_and_checkbox,
}
"""page names and their solutions"""
