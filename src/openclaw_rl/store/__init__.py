"""The ledger: append-only facts in SQLite, each table with one writer and a class for it.

    ServeLedger   -> turns, feedback, endings      ImportLedger -> turns, records
    CollectLedger -> outcomes                      JudgeLedger  -> verdicts
    TrainLedger   -> steps, trained, versions, states, gate_decisions
    drops and notes (NotesLedger) are written by whoever decides them; requests by the person at the command line

Each of them reads as `LedgerReader` does. A loop's work list is "rows of the table before mine that have no row in
mine, after my cursor": its cost does not grow with history, a crash costs nothing, and a run resumes by starting.
Cursors are low-water marks, so losing the newest position of one only means looking at some settled rows again.

Every method is synchronous and thread-safe; a call from an event loop goes through ``asyncio.to_thread``.
"""

from __future__ import annotations

from openclaw_rl.store.collect import CollectLedger
from openclaw_rl.store.file import WRITERS, LedgerWriter, Sync, Writer
from openclaw_rl.store.imports import ImportLedger
from openclaw_rl.store.judge import JudgeLedger
from openclaw_rl.store.notes import NotesLedger
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.requests import submit_request
from openclaw_rl.store.results import LoopState, ScoredTurn
from openclaw_rl.store.serve import ServeLedger
from openclaw_rl.store.train import TrainLedger

__all__ = [
    "WRITERS",
    "CollectLedger",
    "ImportLedger",
    "JudgeLedger",
    "LedgerReader",
    "LedgerWriter",
    "LoopState",
    "NotesLedger",
    "ScoredTurn",
    "ServeLedger",
    "Sync",
    "TrainLedger",
    "Writer",
    "submit_request",
]
