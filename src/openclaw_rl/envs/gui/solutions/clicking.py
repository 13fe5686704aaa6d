"""Scripted solutions for pages that need clicks. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from openclaw_rl.envs.gui.screen import Element
from openclaw_rl.envs.gui.solutions.view import Solution, View
from openclaw_rl.envs.gui.tasks import Move


def labelled(pattern: str) -> Solution:
    """Click on the element that the task names."""
    return lambda view: view.click(view.named(view.found(pattern)))


def dialog(view: View) -> Move | None:
    label = view.found(r'labeled "(.+)"') or "x"
    return view.click(view.named("Close" if label == "x" else label, "button"))


def sequence(view: View) -> Move | None:
    names = re.findall(r"button (\w+)", view.asked)
    return view.click(view.named(names[view.made])) if view.made < len(names) else None


def hidden_link(view: View) -> Move | None:
    """Search tabs or sections until the link is visible."""
    link = view.named(view.found(r'link "(.+)"'), "clickable")
    tabs = view.all("tab")
    return view.click(link or (tabs[view.made % len(tabs)] if tabs else None))


def collapsible(view: View) -> Move | None:
    return view.click(view.all("tab")[0]) if view.made == 0 else view.submit()


def checkboxes(view: View) -> Move | None:
    names = view.found(r"Select (.+) and click Submit").split(", ")
    unchecked = (
        element for element in view.all("checkbox") if element.name in names and "checked" not in element.states
    )
    return view.click(next(unchecked, None)) or view.submit()


def option(view: View) -> Move | None:
    return view.click(view.named(view.found(r"Select (.+) and click"), "radio")) if view.made == 0 else view.submit()


def color(view: View) -> Move | None:
    shade = view.found(r"on the (\w+) colored")
    return view.click(next((element for element in view.all("box") if element.name.startswith(f"{shade} ")), None))


def coordinate(view: View) -> Move | None:
    label = view.found(r"(\([-\d]+,[-\d]+\))")
    return view.click(next((element for element in view.all("circle") if element.name.endswith(label)), None))


def widget(view: View) -> Move | None:
    kind = view.found(r'on a "(\w+)"')
    if kind in ("text", "textarea"):
        fields = [element for element in view.all("textbox") if ("multiline" in element.states) == (kind == "textarea")]
        return view.click(fields[0] if fields else None)
    elements = view.all(kind)
    return view.click(elements[0] if elements else None)


def _number(element: Element) -> str:
    match = re.search(r"(-?\d{1,9})$", element.name)
    return match[1] if match else ""


def ticket(view: View) -> Move | None:
    """Choose the cheapest or dearest, the shortest or longest."""
    hours = [element for element in view.all("text") if re.fullmatch(r"\d{1,3}h \d{1,3}m", element.name)]
    buttons = view.all("button")
    by_time = "duration" in view.asked or "shortest" in view.asked or "longest" in view.asked
    worth = [_minutes(element.name) for element in hours] if by_time else [int(_number(element)) for element in buttons]
    low = any(word in view.asked for word in ("cheapest", "shortest"))
    return view.click(buttons[worth.index((min if low else max)(worth))])


def _minutes(text: str) -> int:
    hours, minutes = re.findall(r"\d+", text)
    return 60 * int(hours) + int(minutes)


def tree(view: View) -> Move | None:
    """Open one folder after another until the name is visible."""
    named = view.named(view.found(r'named "(.+)"'))
    closed = next((element for element in view.all("box") if "expandable-hitarea" in element.name.lower()), None)
    return view.click(named or closed)


def parity(view: View) -> Move | None:
    numbers = [element for element in view.all("text") if re.fullmatch(r"-?\d+", element.name)]
    if view.made >= len(numbers):
        return view.submit()
    name = "Odd" if int(numbers[view.made].name) % 2 else "Even"
    return view.click([element for element in view.all("button") if element.name == name][view.made])


def contacts(view: View) -> Move | None:
    """Turn the pages until the person is visible."""
    name, field = view.found(r"Find (.+) in the contact"), view.found(r"click on their (.+)\.")
    labels = {"address": "Address:", "phone number": "Phone:", "email": "Email:"}
    if view.named(name, "heading"):
        return view.click(view.after(labels.get(field, ""), "link", "clickable"))
    return view.click(view.named(">"))


def shape(view: View) -> Move | None:
    """Click on the first shape that fits the description."""
    return view.click(next(iter(fitting(view, view.found(r"Click on a (.+)"))), None))


def fitting(view: View, words: str) -> list[Element]:
    """Return the shapes that fit a description: a size, a color and a kind, each optional."""
    kinds = {"circle": ["circle"], "rectangle": ["rect"], "triangle": ["triangle"]}
    shapes = [
        element
        for element in view.screen.elements
        if element.role in ("circle", "rect", "triangle", "letters", "polygon")
    ]
    for word in words.removesuffix("?").split():
        plain = word.rstrip("s") if word.rstrip("s") in (*kinds, "shape", "letter", "digit", "item") else word
        if plain in ("small", "large"):
            shapes = [element for element in shapes if (element.place[3] > _MIDDLE[element.role]) == (plain == "large")]
        elif plain in kinds:
            shapes = [element for element in shapes if element.role in kinds[plain]]
        elif plain == "shape":
            shapes = [element for element in shapes if element.role != "letters"]
        elif plain in ("letter", "digit"):
            shapes = [
                element
                for element in shapes
                if element.role == "letters" and element.name[-1].isdigit() == (plain == "digit")
            ]
        elif plain != "item":
            name = plain[0] if len(plain) == 2 else plain  # "Ts" are several of the letter T
            shapes = [element for element in shapes if name in element.name.split()]
    return shapes


_MIDDLE = {"circle": 15, "rect": 15, "triangle": 15, "letters": 15, "polygon": 15}
"""the height between a small shape and a large one"""


def count_shapes(view: View) -> Move | None:
    count = len(fitting(view, view.found(r"How many (.+) are there")))
    return view.click(view.named(str(count), "button"))


def kind_of_shape(view: View) -> Move | None:
    figure = next(iter(fitting(view, "")), None)
    if figure is None:
        return None
    kinds = {"rect": "Rectangle", "circle": "Circle", "triangle": "Triangle", "polygon": "Triangle"}
    number = "Number" if figure.name[-1].isdigit() else "Letter"
    return view.click(view.named(kinds.get(figure.role, number), "button"))


def social(view: View) -> Move | None:
    """Click on the button in the person's post; other actions are behind the post's last button."""
    user, action = view.found(r"user (@\w+)"), view.found(r'on the "(.+)" button').lower()
    names = {"reply": "reply", "retweet": "retweet", "like": "like"}
    button = next((element for element in _of_post(view, user) if element.name == names.get(action, "more")), None)
    listed = next((element for element in view.screen.elements if element.name.lower().startswith(action)), None)
    return view.click(button if action in names or view.made == 0 else listed)


def social_all(view: View) -> Move | None:
    user, action = view.found(r"by (@\w+)"), view.found(r'Click the "(.+)" button').lower()
    most = int(view.found(r"button on (\d+)") or 100)
    posts = [place for place, element in enumerate(view.screen.elements) if element.name == user][:most]
    if view.made >= len(posts):
        return view.submit()
    after = view.screen.elements[posts[view.made] :]
    return view.click(next((element for element in after if element.name == action), None))


def _of_post(view: View, user: str) -> tuple[Element, ...]:
    names = [element.name for element in view.screen.elements]
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
"""page names and their solutions"""
