"""The ledger: append-only facts in SQLite or PostgreSQL, each table with one writer and a class for it.

    ServeLedger   -> turns, feedback, endings      ImportLedger -> turns, records
    CollectLedger -> outcomes                      JudgeLedger  -> verdicts
    TrainLedger   -> steps, trained, versions, states, gate_decisions
    drops and notes (NotesLedger) are written by whoever decides them; requests by the person at the command line
    DeletionLedger -> deletions, and the end of a session's rows in all of them (`deletions`)

Each of them reads as `LedgerReader` does. A loop's work list is "rows of the table before mine that have no row in
mine, after my cursor": its cost does not grow with history, a crash costs nothing, and a run resumes by starting.
Cursors are low-water marks, so losing the newest position of one only means looking at some settled rows again.

A ledger is opened by its place: the path of a file, or a `ServerPlace`. Several gateways may write to a server's, each
as a writer of its own.

Every method is synchronous and thread-safe; a call from an event loop goes through ``asyncio.to_thread``.
"""

from __future__ import annotations

from openclaw_rl.store.connection import LedgerWriter
from openclaw_rl.store.database import WAITS_FOR, WRITERS, AnyPlace, Place, ServerPlace, Sync, Writer, is_url, place_of
from openclaw_rl.store.notes import NotesLedger
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.results import LoopState, ScoredTurn
from openclaw_rl.store.stores import exists
from openclaw_rl.store.train import TrainLedger, submit_request
from openclaw_rl.store.writers import CollectLedger, DeletionLedger, ImportLedger, JudgeLedger, ServeLedger

__all__ = [
    "WAITS_FOR",
    "WRITERS",
    "AnyPlace",
    "CollectLedger",
    "DeletionLedger",
    "ImportLedger",
    "JudgeLedger",
    "LedgerReader",
    "LedgerWriter",
    "LoopState",
    "NotesLedger",
    "Place",
    "ScoredTurn",
    "ServeLedger",
    "ServerPlace",
    "Sync",
    "TrainLedger",
    "Writer",
    "exists",
    "is_url",
    "place_of",
    "submit_request",
]
