"""The ledger: append-only facts in SQLite or PostgreSQL, each table with one writer and its class.

    ServeLedger   -> turns, feedback, endings      ImportLedger -> turns, records
    CollectLedger -> outcomes                      JudgeLedger  -> verdicts
    TrainLedger   -> steps, trained, versions, states, gate_decisions
    drops and notes (NotesLedger) are written by the loop or user that decides them; requests by the command line
    DeletionLedger -> deletions, and removes a session's rows from all of them (`deletions`)

Each of them reads like `LedgerReader`. A loop's work list is "rows of the table before mine that have no row in mine,
after my cursor": its cost does not grow with history, a crash costs nothing, and a run resumes by starting. Cursors are
low-water marks: losing a cursor's newest position only means reading some settled rows again.

A ledger is opened by its place: a file's path, or a `ServerPlace`. Several gateways may write to a server's, each as
its own writer.

Every method is synchronous and thread-safe; a call from an event loop uses ``asyncio.to_thread``.
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
