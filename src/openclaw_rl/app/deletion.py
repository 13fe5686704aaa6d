"""A session that a person deletes, by a command, the API or the page: from the ledger, and from the record after it."""

from __future__ import annotations

from openclaw_rl.store import AnyPlace, DeletionLedger
from openclaw_rl.train.records import forget_samples
from openclaw_rl.types import Deletion


def delete_session(place: AnyPlace, session: str, user: str, /, *, by: str) -> Deletion:
    """Delete it, whole or not at all; what went. To be done again where it was cut off: the rest goes then."""
    with DeletionLedger(place) as ledger:
        done = ledger.delete_session(session, user, by=by)
        forget_samples(ledger.root / "record.jsonl", ledger.was_deleted)
    return done
