"""Who writes to the ledger, and which rows are work for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

Writer = Literal["serve", "import", "collect", "judge", "train"]
WRITERS: Final[tuple[Writer, ...]] = get_args(Writer)

WAITS_FOR: Final[Mapping[Writer, frozenset[str]]] = {
    "serve": frozenset({"states"}),
    "collect": frozenset({"turns", "endings"}),
    "judge": frozenset({"outcomes", "feedback", "session_rewards"}),
    "train": frozenset({"verdicts", "requests", "endings", "session_rewards"}),
}
"""the tables whose rows are work for a loop"""

WATCHED: Final = frozenset[str]().union(*WAITS_FOR.values())
"""every table that somebody waits for"""

CHANNEL: Final = "openclaw_rl"
"""where a server notifies the names of those that got a row"""
