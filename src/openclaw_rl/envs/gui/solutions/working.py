"""Scripted solutions of the pages that are small applications: calendars, mail, menus, sliders. Pure."""

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
    """Open the calendar, turn to the month, take the day."""
    return _dated(view, view.found(r"Select ([\d/]+) as")) or view.submit()


def _dated(view: View, wanted: str) -> Move | None:
    """What brings the field of the calendar nearer to a day; None where it has one."""
    month, date, _ = wanted.split("/")
    box = view.named("datepicker")
    if box is not None and box.value:
        return None
    titles = [each.name for each in view.all("text") if each.name in MONTHS]
    if not titles:
        return view.click(box)
    ahead = int(month) - 1 - MONTHS.index(titles[0])
    return view.click(view.named(str(int(date)) if not ahead else "Next" if ahead > 0 else "Prev", "link"))


def flight(view: View) -> Move | None:
    """Fill in where from, where to and when, then take the best of what is found."""
    prices = [each for each in view.all("button") if each.name.startswith("Book flight")]
    if prices:
        times = [each for each in view.all("text") if re.fullmatch(r"\d{1,3}h \d{1,3}m", each.name)]
        worth = [
            tuple(map(int, re.findall(r"\d+", each.name))) for each in (times if "shortest" in view.asked else prices)
        ]
        return view.click(prices[worth.index(min(worth))])
    for label, place in (("From:", view.found(r"from: (.+) to:")), ("To:", view.found(r"to: (.+) on "))):
        box = view.named(label, "textbox")
        if box is not None and not box.value.endswith(")"):
            listed = (each for each in view.all("text") if place in each.name and each.name.endswith(")"))
            return view.click(next(listed, None)) or (
                Move(tool="wait") if box.value else view.act("type", box, text=place)
            )
    return _dated(view, view.found(r" on ([\d/]+)")) or view.submit("Search")


def menu(view: View) -> Move | None:
    """Rest on one item after the other until the last is there; a menu takes a moment to open."""
    path = [view.named(name, "menuitem") for name in view.found(r"Select (.+)").split(">")]
    if path[-1] is not None:
        return view.click(path[-1])
    deepest = [each for each in path if each is not None][-1]
    return Move(tool="wait") if view.made % 2 else view.act("hover", deepest)


def email(view: View) -> Move | None:
    """Open the message, then do with it what is asked."""
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
    """Drag an item of a list beyond the one whose place it is to have."""
    listed = view.all("text")
    names = [each.name for each in listed]
    now = names.index(view.found(r"Drag (\S+) "))
    steps = {"up by": now - 1, "down by": now + 1, "to the top": 0, "to the bottom": len(names) - 1}
    wanted = next((place for words, place in steps.items() if words in view.asked), view.nth(r"the (\w+) position"))
    x, y, _, _ = listed[wanted].place
    return drag(listed[now].place[:2], (x, y + (_BEYOND if wanted > now else -_BEYOND)))


_BEYOND = 9
"""pixels past the middle of an item, from which on it gives way"""


def food(view: View) -> Move | None:
    """One of each that is named, or so many of the first that is of the kind."""
    named = view.found(r"each item: (.+)").split(", ")
    kind = view.found(r"items that are (.+)")
    wanted = [kind] * int(view.found(r"Order (\d+) items") or 0) if kind else named
    if view.made >= len(wanted):
        return view.submit("Order!")
    return view.click(_more(view, wanted[view.made]))


def _more(view: View, name: str) -> Element | None:
    """The plus that comes after a name, or after the sign of a kind."""
    names = [each.name for each in view.screen.elements]
    if name not in names:
        return None
    return next((each for each in view.screen.elements[names.index(name) :] if each.name == "+"), None)


def sliders(view: View) -> Move | None:
    """Drag each to its number; what is lacking then, key by key."""
    wanted = [int(each) for each in view.found(r"combination \[(.+)\]").split(",")]
    return _slid(view, wanted) or view.submit()


def slider_and_checkbox(view: View) -> Move | None:
    box = view.all("checkbox")[view.nth(r"the (\w+) checkbox")]
    left = None if "checked" in box.states else view.click(box)
    return _slid(view, [int(view.found(r"Select (-?\d+) with"))]) or left or view.submit()


def _slid(view: View, wanted: list[int]) -> Move | None:
    """What brings the first slider that is not there nearer to its number."""
    handles = [each for each in view.screen.elements if each.name.startswith("ui-slider-handle")]
    numbers = [int(each.name) for each in view.all("text") if each.name.lstrip("-").isdecimal()]
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
"""about as many for each number: what a drag has left, the next one brings"""
_BY_KEYS = 3
"""numbers that are left to the keys"""


def styled(view: View) -> Move | None:
    """Select all or a word with the keyboard, as its letters say, then take the style or the color."""
    word, color = view.found(r"give the text (\S+) the"), view.found(r"the color (\w+)")
    text = next(each for each in view.all("clickable") if not each.name.startswith("ql-"))
    keys = _selecting(text.name.split(), word) if word else ["Control+a"]
    if view.made == 0:
        return view.click(text)
    if view.made <= len(keys):
        return Move(tool="press", arguments={"key": keys[view.made - 1]})
    left = view.made - len(keys) - 1
    if not color:
        styles = {"bold": "ql-bold", "italics": "ql-italic", "underlined": "ql-underline"}
        return view.submit() if left else view.click(view.named(styles[view.found(r"the style (\w+)")]))
    if left == 0:
        return view.click(next(each for each in view.screen.elements if each.name.endswith("ql-stroke")))
    shades = [each for each in view.all("clickable") if each.name.endswith("ql-primary")]
    return view.submit() if left > 1 else view.click(shades[_SHADES.index(color)])


_SHADES = ("black", "red", "orange", "yellow", "green", "blue", "purple")
"""the first row of the editor's colors"""


def _selecting(words: list[str], wanted: str) -> list[str]:
    """The keys that select a word: a step by words ends after letters, so that signs take steps of their own."""
    before = words[: words.index(wanted)]
    signs = [len(each) - len(each.rstrip(".,")) for each in (*before[-1:], wanted)]
    over = ["ArrowRight"] * (signs[0] + 1) if before else []
    marked = ["Shift+Control+ArrowRight", *["Shift+ArrowRight"] * signs[-1]]
    return ["Control+Home", *["Control+ArrowRight"] * len(before), *over, *marked]


def painted(view: View) -> Move | None:
    """Type the color's number, click beside the palette so that it closes, and submit."""
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
"""a solution for each page"""
