"""Scripted solutions for MiniWoB++'s pages. A page without one has no tasks: it might not be solvable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from openclaw_rl.envs.gui.solutions.clicking import CLICKING
from openclaw_rl.envs.gui.solutions.drawing import DRAWING
from openclaw_rl.envs.gui.solutions.filling import FILLING
from openclaw_rl.envs.gui.solutions.view import Solution, View
from openclaw_rl.envs.gui.solutions.working import WORKING

SOLUTIONS: Final[Mapping[str, Solution]] = {**CLICKING, **FILLING, **DRAWING, **WORKING}
_TIMED: Final = "it depends on time, which an agent that thinks between actions does not have"
_FETCHED: Final = "its words are fetched from a server that the package does not include"
_PICTURE: Final = "its answer is only visible in a picture"
_EXACT: Final = "its full reward requires a point between pixels"
EXCLUDED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("chase-circle", "hover-shape", "moving-items", "simon-says", "stock-market", "button-delay"), _TIMED
    ),
    **dict.fromkeys(("email-inbox-forward-nl", "email-inbox-forward-nl-turk", "email-inbox-nl-turk"), _FETCHED),
    **dict.fromkeys(
        (
            "count-sides",
            "use-colorwheel-2",
            "hot-cold",
            "number-checkboxes",
            "click-shades",
            "click-menu-2",
            "drag-cube",
        ),
        _PICTURE,
    ),
    **dict.fromkeys(("circle-center", "find-midpoint", "right-angle", "bisect-angle"), _EXACT),
    "sign-agreement": "its text takes more scrolling than a task has replies",
    **dict.fromkeys(
        ("ascending-numbers", "find-greatest"),
        "it hides its numbers, which a script without memory cannot recall",
    ),
    **dict.fromkeys(
        ("click-pie", "click-pie-nodelay"),
        "a click on its initial item does not count as a choice, yet it may ask for that item",
    ),
    "daily-calendar": "its rows slip beneath their labels, so that a drag never ends on the event that it draws",
    "use-slider": "it does not show its slider's range",
    "tic-tac-toe": "its result depends on the other player",
    "draw-circle": "a circle cannot be drawn by a drag from one point to another",
    "click-checkboxes-soft": "it asks for synonyms, which a script does not know",
}
"""pages without tasks, with the reason; pages in neither table have no solution yet"""

__all__ = ["EXCLUDED", "SOLUTIONS", "Solution", "View"]
