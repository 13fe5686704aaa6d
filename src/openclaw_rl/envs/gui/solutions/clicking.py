"""Scripted solutions of the pages that are clicked on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from openclaw_rl.envs.gui.screen import Element
from openclaw_rl.envs.gui.solutions.view import Solution, View
from openclaw_rl.envs.gui.tasks import Move


def labelled(pattern: str) -> Solution:
    """Click on what the task names."""
    return lambda view: view.click(view.named(view.found(pattern)))


def dialog(view: View) -> Move | None:
    wanted = view.found(r'labeled "(.+)"') or "x"
    return view.click(view.named("Close" if wanted == "x" else wanted, "button"))


def sequence(view: View) -> Move | None:
    names = re.findall(r"button (\w+)", view.asked)
    return view.click(view.named(names[view.made])) if view.made < len(names) else None


def hidden_link(view: View) -> Move | None:
    """Look through tabs or sections until the link is there."""
    link = view.named(view.found(r'link "(.+)"'), "clickable")
    tabs = view.all("tab")
    return view.click(link or (tabs[view.made % len(tabs)] if tabs else None))


def collapsible(view: View) -> Move | None:
    return view.click(view.all("tab")[0]) if view.made == 0 else view.submit()


def checkboxes(view: View) -> Move | None:
    wanted = view.found(r"Select (.+) and click Submit").split(", ")
    left = (each for each in view.all("checkbox") if each.name in wanted and "checked" not in each.states)
    return view.click(next(left, None)) or view.submit()


def option(view: View) -> Move | None:
    return view.click(view.named(view.found(r"Select (.+) and click"), "radio")) if view.made == 0 else view.submit()


def color(view: View) -> Move | None:
    wanted = view.found(r"on the (\w+) colored")
    return view.click(next((each for each in view.all("box") if each.name.startswith(f"{wanted} ")), None))


def coordinate(view: View) -> Move | None:
    wanted = view.found(r"(\([-\d]+,[-\d]+\))")
    return view.click(next((each for each in view.all("circle") if each.name.endswith(wanted)), None))


def widget(view: View) -> Move | None:
    kind = view.found(r'on a "(\w+)"')
    if kind in ("text", "textarea"):
        fields = [each for each in view.all("textbox") if ("multiline" in each.states) == (kind == "textarea")]
        return view.click(fields[0] if fields else None)
    found = view.all(kind)
    return view.click(found[0] if found else None)


def _number(element: Element) -> str:
    match = re.search(r"(-?\d{1,9})$", element.name)
    return match[1] if match else ""


def ticket(view: View) -> Move | None:
    """The cheapest or dearest, the shortest or longest."""
    hours = [each for each in view.all("text") if re.fullmatch(r"\d{1,3}h \d{1,3}m", each.name)]
    buttons = view.all("button")
    by_time = "duration" in view.asked or "shortest" in view.asked or "longest" in view.asked
    worth = [_minutes(each.name) for each in hours] if by_time else [int(_number(each)) for each in buttons]
    low = any(word in view.asked for word in ("cheapest", "shortest"))
    return view.click(buttons[worth.index((min if low else max)(worth))])


def _minutes(text: str) -> int:
    hours, minutes = re.findall(r"\d+", text)
    return 60 * int(hours) + int(minutes)


def tree(view: View) -> Move | None:
    """Open one folder after the other until the name is there."""
    named = view.named(view.found(r'named "(.+)"'))
    closed = next((each for each in view.all("box") if "expandable-hitarea" in each.name.lower()), None)
    return view.click(named or closed)


def parity(view: View) -> Move | None:
    numbers = [each for each in view.all("text") if re.fullmatch(r"-?\d+", each.name)]
    if view.made >= len(numbers):
        return view.submit()
    name = "Odd" if int(numbers[view.made].name) % 2 else "Even"
    return view.click([each for each in view.all("button") if each.name == name][view.made])


def contacts(view: View) -> Move | None:
    """Turn the pages until the person is there."""
    name, field = view.found(r"Find (.+) in the contact"), view.found(r"click on their (.+)\.")
    labels = {"address": "Address:", "phone number": "Phone:", "email": "Email:"}
    if view.named(name, "heading"):
        return view.click(view.after(labels.get(field, ""), "link", "clickable"))
    return view.click(view.named(">"))


def shape(view: View) -> Move | None:
    """The first that fits what is said of it."""
    return view.click(next(iter(fitting(view, view.found(r"Click on a (.+)"))), None))


def fitting(view: View, words: str) -> list[Element]:
    """The shapes that a description fits: a size, a color and a kind, each of them or not."""
    kinds = {"circle": ["circle"], "rectangle": ["rect"], "triangle": ["triangle"]}
    found = [each for each in view.screen.elements if each.role in ("circle", "rect", "triangle", "letters", "polygon")]
    for word in words.removesuffix("?").split():
        plain = word.rstrip("s") if word.rstrip("s") in (*kinds, "shape", "letter", "digit", "item") else word
        if plain in ("small", "large"):
            found = [each for each in found if (each.place[3] > _MIDDLE[each.role]) == (plain == "large")]
        elif plain in kinds:
            found = [each for each in found if each.role in kinds[plain]]
        elif plain == "shape":
            found = [each for each in found if each.role != "letters"]
        elif plain in ("letter", "digit"):
            found = [each for each in found if each.role == "letters" and each.name[-1].isdigit() == (plain == "digit")]
        elif plain != "item":
            one = plain[0] if len(plain) == 2 else plain  # "Ts" are several of the letter T
            found = [each for each in found if one in each.name.split()]
    return found


_MIDDLE = {"circle": 15, "rect": 15, "triangle": 15, "letters": 15, "polygon": 15}
"""the height between a small shape and a large one"""


def count_shapes(view: View) -> Move | None:
    count = len(fitting(view, view.found(r"How many (.+) are there")))
    return view.click(view.named(str(count), "button"))


def kind_of_shape(view: View) -> Move | None:
    one = next(iter(fitting(view, "")), None)
    if one is None:
        return None
    kinds = {"rect": "Rectangle", "circle": "Circle", "triangle": "Triangle", "polygon": "Triangle"}
    number = "Number" if one.name[-1].isdigit() else "Letter"
    return view.click(view.named(kinds.get(one.role, number), "button"))


def social(view: View) -> Move | None:
    """The button of the person's post; what is not on it is behind its last button."""
    user, wanted = view.found(r"user (@\w+)"), view.found(r'on the "(.+)" button').lower()
    names = {"reply": "reply", "retweet": "retweet", "like": "like"}
    button = next((each for each in _of_post(view, user) if each.name == names.get(wanted, "more")), None)
    listed = next((each for each in view.screen.elements if each.name.lower().startswith(wanted)), None)
    return view.click(button if wanted in names or view.made == 0 else listed)


def social_all(view: View) -> Move | None:
    user, wanted = view.found(r"by (@\w+)"), view.found(r'Click the "(.+)" button').lower()
    most = int(view.found(r"button on (\d+)") or 100)
    posts = [place for place, each in enumerate(view.screen.elements) if each.name == user][:most]
    if view.made >= len(posts):
        return view.submit()
    after = view.screen.elements[posts[view.made] :]
    return view.click(next((each for each in after if each.name == wanted), None))


def _of_post(view: View, user: str) -> tuple[Element, ...]:
    names = [each.name for each in view.screen.elements]
    return view.screen.elements[names.index(user) :] if user in names else ()


CLICKING: Mapping[str, Solution] = {
    "click-test": lambda view: view.click(view.all("button")[0]),
    "click-test-2": labelled(r"button (\w+)\."),
    "click-test-transfer": labelled(r"button (\w+)\."),
    "click-button": labelled(r'Click on the "(.+)" button'),
    "unicode-test": labelled(r'Click on the "(.+)" button'),
    "click-link": labelled(r'link "(.+)"'),
    "click-tab": labelled(r"Click on (Tab #\d)"),
    "click-dialog": dialog,
    "click-dialog-2": dialog,
    "click-button-sequence": sequence,
    "click-option": option,
    "click-checkboxes": checkboxes,
    "click-checkboxes-large": checkboxes,
    "click-checkboxes-transfer": checkboxes,
    "click-color": color,
    "click-collapsible": collapsible,
    "click-collapsible-nodelay": collapsible,
    "click-collapsible-2": hidden_link,
    "click-collapsible-2-nodelay": hidden_link,
    "click-tab-2": hidden_link,
    "click-tab-2-easy": hidden_link,
    "click-tab-2-medium": hidden_link,
    "click-tab-2-hard": hidden_link,
    "click-widget": widget,
    "click-shape": shape,
    "count-shape": count_shapes,
    "identify-shape": kind_of_shape,
    "grid-coordinate": coordinate,
    "buy-ticket": ticket,
    "navigate-tree": tree,
    "odd-or-even": parity,
    "phone-book": contacts,
    "social-media": social,
    "social-media-all": social_all,
    "social-media-some": social_all,
}
"""a solution for each page"""
