"""Which version is live, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from openclaw_rl.errors import NotInLedger
from openclaw_rl.types import Version, VersionState


class VersionReader(Protocol):
    """Where versions and the changes of their states are read."""

    def version(self, number: int) -> Version: ...
    def versions(self) -> list[Version]: ...
    def last_live(self) -> int | None: ...
    def ever(self, state: VersionState) -> set[int]: ...


class LiveVersions:
    """The versions of a run and the one that is live. All others ask here, and nowhere else, which one that is."""

    def __init__(self, ledger: VersionReader) -> None:
        self._ledger = ledger

    def live(self, user: str | None = None) -> Version | None:
        """The version that answers new requests of a user (None: of any), None before the first.

        Today one version is live for everybody.
        """
        number = self._ledger.last_live()
        return None if number is None else self._ledger.version(number)

    def version(self, number: int) -> Version:
        """A version by its number; raises NotInLedger."""
        return self._ledger.version(number)

    def versions(self) -> list[Version]:
        """All versions, oldest first; their numbers follow one another."""
        return self._ledger.versions()

    def ever(self, state: VersionState) -> set[int]:
        """The numbers of versions that were in a state once, whatever became of them since."""
        return self._ledger.ever(state)

    def kept(self, number: int) -> Version:
        """A version whose weights are still there; raises NotInLedger."""
        version = self._ledger.version(number)
        if version.state == "deleted":
            raise NotInLedger(f"the weights of version {number} are no longer kept", remedy="see train.keep, and 'pin'")
        return version

    def ancestors(self, version: Version) -> Iterator[Version]:
        """The versions that a version comes from, its parent first."""
        while version.parent is not None:
            version = self._ledger.version(version.parent)
            yield version

    def candidate(self) -> Version | None:
        """The newest version while it waits for the gate's decision, None otherwise."""
        versions = self._ledger.versions()
        return versions[-1] if versions and versions[-1].state == "candidate" else None

    def rollback_target(self, to: int | None) -> Version:
        """The version that a rollback would go back to; ``to`` None is the newest ancestor with other weights.

        Raises NotInLedger where there is none.
        """
        live = self.live()
        if live is None:
            raise NotInLedger("there is nothing to roll back: no version is live yet")
        if to is not None:
            return self.kept(to)
        for older in self.ancestors(live):
            if older.adapter != live.adapter and older.state != "deleted":
                return older
        raise NotInLedger("there is nothing to roll back to: the base model is live")
