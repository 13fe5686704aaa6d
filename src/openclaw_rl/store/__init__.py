"""The ledger: append-only facts in SQLite, each table with one writer.

    serve -> turns, feedback, endings      import -> turns, records      collect -> outcomes
    judge -> verdicts                      train  -> steps, trained, versions, states, rulings
    drops are written by whoever decides them; requests by the person at the command line

A loop's work list is "rows of the table before mine that have no row in mine, after my cursor": its cost does not grow
with history, a crash costs nothing, and a run resumes by starting. Cursors are low-water marks, so losing the newest
position of one only means looking at some settled rows again.

Every method is synchronous and thread-safe; a call from an event loop goes through ``asyncio.to_thread``.
"""

from __future__ import annotations

from openclaw_rl.store.file import WRITERS, Sync, Writer
from openclaw_rl.store.ledger import Ledger, ask
from openclaw_rl.store.reviews import PIN, UNPIN, Scored

__all__ = [
    "PIN",
    "UNPIN",
    "WRITERS",
    "Ledger",
    "Scored",
    "Sync",
    "Writer",
    "ask",
]
