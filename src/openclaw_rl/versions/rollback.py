"""Going back: older weights are made live again, as a new version."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from openclaw_rl.errors import NotInLedger
from openclaw_rl.types import Version, VersionState

_FROM = "rollback from "


class Versions(Protocol):
    """Where versions are read."""

    def version(self, number: int) -> Version: ...
    def versions(self) -> list[Version]: ...
    def live_version(self) -> Version | None: ...


class VersionLedger(Versions, Protocol):
    """Where versions are written down."""

    def add_version(self, version: Version) -> None: ...
    def set_state(self, version: int, state: VersionState, reason: str) -> None: ...


def roll_back(ledger: VersionLedger, *, to: int | None, why: str) -> Version:
    """Make older weights live again, as a new version; ``to`` None is the newest ancestor with other weights."""
    live, old = chosen(ledger, to)
    again = replace(
        old,
        number=ledger.versions()[-1].number + 1,
        parent=old.number,
        state="live",
        note=f"{_FROM}{live.number} to {old.number}: {why}",
        at=time.time(),
    )
    ledger.set_state(live.number, "rolled back", why)
    ledger.add_version(again)
    return again


def chosen(ledger: Versions, to: int | None) -> tuple[Version, Version]:
    """The live version and the one that a rollback would go back to; NotInLedger if it cannot be done."""
    live = ledger.live_version()
    if live is None:
        raise NotInLedger("there is nothing to roll back: no version is live yet")
    old = _before(ledger, live) if to is None else ledger.version(to)
    if old.state == "deleted":
        raise NotInLedger(f"the weights of version {old.number} are no longer kept", remedy="see train.keep, and 'pin'")
    return live, old


def rolled_back(version: Version) -> bool:
    """Whether `roll_back` made it."""
    return version.note.startswith(_FROM)


def _before(ledger: Versions, version: Version) -> Version:
    older = version
    while older.parent is not None and (older.adapter == version.adapter or older.state == "deleted"):
        older = ledger.version(older.parent)
    if older.adapter == version.adapter:
        raise NotInLedger("there is nothing to roll back to: the base model is live")
    return older
