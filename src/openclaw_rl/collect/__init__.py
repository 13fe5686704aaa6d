"""Loop 2, turns -> outcomes: link each turn to its predecessor, classify it as main or side, read its next state.

loop       reads turns and session ends, writes outcomes; also places a single request (`ThreadLookup`)
threads    decides: the conversations in memory                     (pure)
matching   finds the remembered turn that a history contains        (pure)
normalise  reduces a conversation's renderings to their common part  (pure)
classify   main or side                                             (pure)
"""

from __future__ import annotations

from openclaw_rl.collect.loop import CollectLoop

__all__ = ["CollectLoop"]
