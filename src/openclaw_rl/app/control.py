"""What a person tells a run to do, by a command or by the API: written down for the train loop, which does it."""

from __future__ import annotations

from openclaw_rl.serve.control import ControlWord
from openclaw_rl.store import AnyPlace, LedgerReader, submit_request
from openclaw_rl.types import Command
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
