"""Where a request stands among turns, for whoever cannot wait for the loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

from openclaw_rl.collect.normalise import clean
from openclaw_rl.collect.threads import Threads
from openclaw_rl.ports import Placement
from openclaw_rl.types import Turn


class ThreadLookup:
    """Reads conversations as the loop does, from what it is given alone."""

    def words(self, text: str) -> str:
        """A user's text without the envelopes that clients put around it."""
        return clean(text)

    def place(self, request: Turn, known: Sequence[Turn]) -> Placement:
        """Where ``request`` stands among turns that are known, oldest first."""
        threads = Threads(idle=math.inf)
        for seq, turn in enumerate(known):
            threads.restore(seq, turn, None)
        return threads.placement(len(known), request)
