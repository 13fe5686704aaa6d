"""What a person tells a run to do, by a command or by the API: written down for the train loop, which does it."""

from __future__ import annotations

from openclaw_rl.serve.control import ControlWord
from openclaw_rl.store import AnyPlace, DeletionLedger, LedgerReader, submit_request
from openclaw_rl.train.records import forget_samples
from openclaw_rl.types import Command, Deletion
from openclaw_rl.versions import LiveVersions


def submit_control(place: AnyPlace, word: ControlWord, /, *, version: int | None, turn: str | None, reason: str) -> int:
    """Write it down; the number of the request. Raises NotInLedger where it names what is not there."""
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


# A session that a person deletes, by a command, the API or the page: from the ledger, and from the record after it.


def delete_session(place: AnyPlace, session: str, user: str, /, *, by: str) -> Deletion:
    """Delete it, whole or not at all; what went. To be done again where it was cut off: the rest goes then."""
    with DeletionLedger(place) as ledger:
        done = ledger.delete_session(session, user, by=by)
        forget_samples(ledger.root / "record.jsonl", ledger.was_deleted)
    return done
