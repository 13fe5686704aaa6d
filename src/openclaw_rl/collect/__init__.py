"""Loop 2, turns -> outcomes: which turn follows which, which of them may train, and what was said next.

loop       reads turns and endings, writes outcomes
threads    decides: the conversations in memory                     (pure)
matching   which remembered turn a history shows                    (pure)
normalise  what all renderings of a conversation have in common     (pure)
kinds      main or side                                             (pure)
episodes   plays worlds through the public API, as one more client
chat       the public API as a client sees it
"""

from __future__ import annotations

from openclaw_rl.collect.loop import CollectLoop

__all__ = ["CollectLoop"]
