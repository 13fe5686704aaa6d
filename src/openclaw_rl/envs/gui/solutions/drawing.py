"""Scripted solutions of the pages that take a point or a drag. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from openclaw_rl.envs.gui.screen import Element
from openclaw_rl.envs.gui.solutions.view import Solution, View, drag
from openclaw_rl.envs.gui.tasks import Move

_SIDES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def aside(view: View) -> Move | None:
    """Drag the only shape to the side that is named."""
    if view.made:
        return view.submit()
    right, down = _SIDES[view.found(r"Drag the \w+ (\w+) then")]
    one = next(each for each in view.screen.elements if each.role in ("circle", "rect", "polygon", "triangle"))
    x, y, _, _ = one.place
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
    """Shape by shape: each goes to a place of its own in the box."""
    box = next(each for each in view.all("rect") if "shape-container" in each.name)
    kind = view.found(r"Drag all (\w+)s into")
    roles = {"circle": "circle", "rectangle": "rect", "triangle": "triangle"}
    outside = [each for each in view.all(roles.get(kind, kind)) if each is not box and not _within(each, box)]
    return drag(outside[0].place[:2], box.place[:2]) if outside else view.submit()


def shapes_apart(view: View) -> Move | None:
    left, right = sorted(
        (each for each in view.all("rect") if "shape-container" in each.name), key=lambda each: each.place[0]
    )
    wanted = view.found(r"Drag all (\w+) ")
    kinds = {"circles": "circle", "squares": "rect", "rectangles": "rect", "triangles": "triangle"}
    for each in view.all("circle", "rect", "triangle", "polygon"):
        if each in (left, right):
            continue
        fits = each.role == kinds[wanted] if wanted in kinds else wanted in each.name.split()
        box = left if fits else right
        if not _within(each, box):
            return drag(each.place[:2], box.place[:2])
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
    x, y, _, _ = next(each for each in view.all("box") if "handle" in each.name).place
    far = 20 if "larger" in view.asked else -20
    return drag((x, y), (x + far, y) if "width" in view.asked else (x, y + far))


def sorted_numbers(view: View) -> Move | None:
    """Bring the smallest that is out of order to its place."""
    items = [each for each in view.all("text") if re.fullmatch(r"-?\d+", each.name)]
    wanted = sorted(items, key=lambda each: int(each.name))
    for now, right in zip(items, wanted, strict=True):
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
"""a solution for each page"""
