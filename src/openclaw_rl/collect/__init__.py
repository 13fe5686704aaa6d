"""Loop 2, turns -> outcomes: which turn follows which, which of them may train, and the next state of each.

loop       reads turns and the ends of sessions, writes outcomes
lookup     the same for one request at once                         (pure)
threads    decides: the conversations in memory                     (pure)
matching   which remembered turn a history shows                    (pure)
normalise  what all renderings of a conversation have in common     (pure)
classify   main or side                                             (pure)
"""

from __future__ import annotations

from openclaw_rl.collect.loop import CollectLoop

__all__ = ["CollectLoop"]
