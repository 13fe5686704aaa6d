"""Control requests from a command or the API: written to the ledger, carried out by the train loop."""

from __future__ import annotations

from openclaw_rl.serve.control import ControlWord
from openclaw_rl.store import AnyPlace, DeletionLedger, LedgerReader, submit_request
from openclaw_rl.train.records import forget_samples
from openclaw_rl.types import Command, Deletion
from openclaw_rl.versions import LiveVersions


def submit_control(place: AnyPlace, word: ControlWord, /, *, version: int | None, turn: str | None, reason: str) -> int:
    """Write a request and return its number. Raises NotInLedger if its version or turn does not exist."""
    with LedgerReader(place) as ledger:
        versions = LiveVersions(ledger)
        if word == "rollback":
            versions.rollback_target(version)
        elif version is not None:
            versions.kept(version)
        if turn is not None:
            ledger.turn(turn)
    return submit_request(place, _command(word, turn), version=version, turn=turn, reason=reason)


def _command(word: ControlWord, turn: str | None) -> Command:
    if word == "pin":
        return "pin version" if turn is None else "pin turn"
    if word == "unpin":
        return "unpin version" if turn is None else "unpin turn"
    return word


# Session deletion by a command, the API or the page: from the ledger, then from the record.


def delete_session(place: AnyPlace, session: str, user: str, /, *, by: str) -> Deletion:
    """Delete a session atomically; return the deletion. After an interruption repeat it, to clear the record too."""
    with DeletionLedger(place) as ledger:
        deletion = ledger.delete_session(session, user, by=by)
        forget_samples(ledger.root / "record.jsonl", ledger.was_deleted)
    return deletion
