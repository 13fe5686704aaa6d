"""Scripted solutions for pages that need a point or a drag. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from openclaw_rl.envs.gui.screen import Element
from openclaw_rl.envs.gui.solutions.view import Solution, View, drag
from openclaw_rl.envs.gui.tasks import Move

_SIDES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def aside(view: View) -> Move | None:
    """Drag the only shape to the side that the task names."""
    if view.made:
        return view.submit()
    right, down = _SIDES[view.found(r"Drag the \w+ (\w+) then")]
    figure = next(
        element for element in view.screen.elements if element.role in ("circle", "rect", "polygon", "triangle")
    )
    x, y, _, _ = figure.place
    return drag((x, y), (x + 30 * right, y + 30 * down))


def line(view: View) -> Move | None:
    if view.made:
        return view.submit()
    x, y, _, _ = view.all("circle")[0].place
    return drag((x, y - 25), (x, y + 25)) if "vertical" in view.asked else drag((x - 30, y), (x + 30, y))


def into_box(view: View) -> Move | None:
    small, large = view.named("s"), view.named("L")
    if view.made or small is None or large is None:
        return view.submit()
    return drag(small.place[:2], large.place[:2])


def shapes_into_box(view: View) -> Move | None:
    """Drag one shape after another into the box."""
    box = next(element for element in view.all("rect") if "shape-container" in element.name)
    kind = view.found(r"Drag all (\w+)s into")
    roles = {"circle": "circle", "rectangle": "rect", "triangle": "triangle"}
    outside = [
        element for element in view.all(roles.get(kind, kind)) if element is not box and not _within(element, box)
    ]
    return drag(outside[0].place[:2], box.place[:2]) if outside else view.submit()


def shapes_apart(view: View) -> Move | None:
    left_box, right_box = sorted(
        (element for element in view.all("rect") if "shape-container" in element.name),
        key=lambda element: element.place[0],
    )
    kind = view.found(r"Drag all (\w+) ")
    kinds = {"circles": "circle", "squares": "rect", "rectangles": "rect", "triangles": "triangle"}
    for element in view.all("circle", "rect", "triangle", "polygon"):
        if element in (left_box, right_box):
            continue
        fits = element.role == kinds[kind] if kind in kinds else kind in element.name.split()
        box = left_box if fits else right_box
        if not _within(element, box):
            return drag(element.place[:2], box.place[:2])
    return view.submit()


def _within(inner: Element, outer: Element) -> bool:
    x, y, _, _ = inner.place
    return abs(x - outer.place[0]) < outer.place[2] / 2 and abs(y - outer.place[1]) < outer.place[3] / 2


def highlighted(view: View) -> Move | None:
    if view.made:
        return view.submit()
    x, y, width, height = view.all("text")[view.nth(r"in the (\w+) paragraph")].place
    return drag((x - width / 2 + 1, y - height / 2 + 3), (x + width / 2 - 1, y + height / 2 - 3))


def resized(view: View) -> Move | None:
    if view.made:
        return view.submit()
    x, y, _, _ = next(element for element in view.all("box") if "handle" in element.name).place
    far = 20 if "larger" in view.asked else -20
    return drag((x, y), (x + far, y) if "width" in view.asked else (x, y + far))


def sorted_numbers(view: View) -> Move | None:
    """Move the smallest number that is out of order to its place."""
    items = [element for element in view.all("text") if re.fullmatch(r"-?\d+", element.name)]
    ordered = sorted(items, key=lambda element: int(element.name))
    for now, right in zip(items, ordered, strict=True):
        if now is not right:
            return drag(right.place[:2], (now.place[0], now.place[1] - 6))
    return view.submit()


DRAWING: Mapping[str, Solution] = {
    "drag-circle": aside,
    "drag-single-shape": aside,
    "drag-box": into_box,
    "drag-shapes": shapes_into_box,
    "drag-shapes-2": shapes_apart,
    "drag-sort-numbers": sorted_numbers,
    "draw-line": line,
    "highlight-text": highlighted,
    "highlight-text-2": highlighted,
    "resize-textarea": resized,
}
"""page names and their solutions"""
