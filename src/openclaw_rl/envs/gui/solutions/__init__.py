"""Scripted solutions of MiniWoB++'s pages. A page without one gives no task: nothing shows that it can be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from openclaw_rl.envs.gui.solutions.clicking import CLICKING
from openclaw_rl.envs.gui.solutions.drawing import DRAWING
from openclaw_rl.envs.gui.solutions.filling import FILLING
from openclaw_rl.envs.gui.solutions.view import Solution, View
from openclaw_rl.envs.gui.solutions.working import WORKING

SOLUTIONS: Final[Mapping[str, Solution]] = {**CLICKING, **FILLING, **DRAWING, **WORKING}
_TIMED: Final = "it is a matter of time, which an agent that thinks between actions does not have"
_FETCHED: Final = "its words are fetched from a server that the package does not bring"
_PICTURE: Final = "what it asks about is only to be seen in a picture"
_EXACT: Final = "it pays in full for a point that lies between pixels"
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
        "it hides its numbers: a script that looks at the screen alone does not remember them",
    ),
    **dict.fromkeys(
        ("click-pie", "click-pie-nodelay"),
        "a click on the item that it begins with is no choice, yet it may ask for it",
    ),
    "daily-calendar": "its rows slip beneath their labels, so that a drag never ends on the event that it draws",
    "use-slider": "it does not tell how far its slider reaches",
    "tic-tac-toe": "whether it can be won is up to the other player",
    "draw-circle": "a circle is no drag from one point to another",
    "click-checkboxes-soft": "it asks for synonyms, which a script does not know",
}
"""pages that give no task, with the reason; of those in neither table nobody has written a solution yet"""

__all__ = ["EXCLUDED", "SOLUTIONS", "Solution", "View"]
