"""Scripted solutions of MiniWoB++'s pages. A page without one gives no task: nothing shows that it can be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from openclaw_rl.envs.gui.solutions.clicking import CLICKING
from openclaw_rl.envs.gui.solutions.drawing import DRAWING
from openclaw_rl.envs.gui.solutions.filling import FILLING
from openclaw_rl.envs.gui.solutions.view import Solution, View

SOLUTIONS: Final[Mapping[str, Solution]] = {**CLICKING, **FILLING, **DRAWING}
_TIMED: Final = "it is a matter of time, which an agent that thinks between actions does not have"
_FETCHED: Final = "its words are fetched from a server that the package does not bring"
_PICTURE: Final = "what it asks about is only to be seen in a picture"
_EXACT: Final = "it pays in full for a point that lies between pixels"
EXCLUDED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("chase-circle", "hover-shape", "moving-items", "simon-says", "stock-market", "button-delay"), _TIMED
    ),
    **dict.fromkeys(("email-inbox-forward-nl", "email-inbox-forward-nl-turk", "email-inbox-nl-turk"), _FETCHED),
    **dict.fromkeys(("count-sides", "use-colorwheel-2", "hot-cold", "number-checkboxes", "click-shades"), _PICTURE),
    **dict.fromkeys(("circle-center", "find-midpoint", "right-angle", "bisect-angle"), _EXACT),
    **dict.fromkeys(("click-menu", "click-menu-2"), "its menus open under a mouse that rests, which is no action here"),
    "sign-agreement": "its text takes more scrolling than a task has replies",
    "ascending-numbers": "it hides its numbers: a script that looks at the screen alone does not remember them",
    "click-checkboxes-soft": "it asks for synonyms, which a script does not know",
}
"""pages that give no task, with the reason; of those in neither table nobody has written a solution yet"""

__all__ = ["EXCLUDED", "SOLUTIONS", "Solution", "View"]
