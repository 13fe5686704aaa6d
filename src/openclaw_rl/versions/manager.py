"""What becomes of a version: promoted, refused, rolled back, deleted. Only the train process does this."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from openclaw_rl.types import Version, VersionState
from openclaw_rl.versions import checkpoints, retention
from openclaw_rl.versions.checkpoints import Checkpoint
from openclaw_rl.versions.live import LiveVersions, VersionReader
from openclaw_rl.versions.retention import RetentionPolicy


class VersionLedger(VersionReader, Protocol):
    """Where versions and the changes of their states are written."""

    def add_version(self, version: Version) -> None: ...
    def set_state(self, version: int, state: VersionState, reason: str) -> None: ...
    def live_history(self) -> Sequence[tuple[int, float]]: ...
    def pinned(self) -> set[int]: ...


class VersionManager(LiveVersions):
    """The versions of a run, with every change of their states."""

    def __init__(self, ledger: VersionLedger) -> None:
        super().__init__(ledger)
        self._changes = ledger

    def current(self, user: str | None = None) -> Version:
        """The live version of a run that has begun."""
        live = self.live(user)
        assert live is not None, "version 0 is written before anything else"
        return live

    def next_number(self) -> int:
        """The number of the version that is made next."""
        return self.versions()[-1].number + 1

    def begin(self, base: str) -> None:
        """Write version 0 of a new run: the base model, live for everybody."""
        self._changes.add_version(Version(number=0, parent=None, base=base, state="live", note="the base model"))

    def adopt(self, checkpoint: Checkpoint, target: Path) -> Version:
        """Go on from another run's version: it is copied to ``target`` and live as the next version."""
        checkpoints.adopt(checkpoint, target)
        adopted = Version(
            number=self.next_number(),
            parent=0,
            base=checkpoint.base,
            adapter=str(target),
            state="live",
            note=f"resumed from {checkpoint.directory}",
            origin="checkpoint",
            source=str(checkpoint.directory),
        )
        self._changes.add_version(adopted)
        return adopted

    def promote(self, version: Version, reason: str) -> None:
        """From now on it answers new requests."""
        self._changes.set_state(version.number, "live", reason)

    def refuse(self, version: Version, reason: str) -> None:
        """It will not answer; the live version goes on."""
        self._changes.set_state(version.number, "refused", reason)

    def roll_back(self, to: int | None, reason: str, *, request: int | None = None) -> Version:
        """Make older weights live again, as a new version; ``to`` None is the newest ancestor with other weights.

        ``request`` is the number of the request that a person made for it.
        """
        live, old = self.current(), self.rollback_target(to)
        again = replace(
            old,
            number=self.next_number(),
            parent=old.number,
            state="live",
            note=f"rollback from {live.number} to {old.number}: {reason}",
            origin="rollback",
            request=request,
            at=time.time(),
        )
        self._changes.set_state(live.number, "rolled back", reason)
        self._changes.add_version(again)
        return again

    def roll_back_past(self, version: int, to: int, reason: str) -> Version:
        """Roll back to ``to``, and with the live version every one of its line down to ``version``."""
        at = self.current()
        while at.parent is not None and at.parent != to and at.number > version:
            at = self.version(at.parent)
            self._changes.set_state(at.number, "rolled back", reason)
        return self.roll_back(to, reason)

    def retain(self, directory: Path, policy: RetentionPolicy, *, now: float) -> int:
        """Delete the weights that no rule keeps, and what an earlier call was stopped at; how many directories went.

        Only directories inside ``directory`` are touched. The ledger has it first, so that nobody asks for weights that
        are about to go; the directory then vanishes at once and is emptied under another name.
        """
        versions, live = self.versions(), self.live()
        if live is None:
            return 0
        going = retention.expired(
            versions,
            live=live,
            live_history=self._changes.live_history(),
            pinned=self._changes.pinned(),
            now=now,
            policy=policy,
        )
        for version in versions:
            if version.adapter in going and version.state != "deleted" and retention.inside(version.adapter, directory):
                reason = "retention: train.keep and train.save_interval"
                self._changes.set_state(version.number, "deleted", reason)
        gone = [v.adapter for v in versions if v.adapter and v.state == "deleted"]
        return sum(retention.remove(Path(adapter), directory) for adapter in dict.fromkeys((*gone, *going)))
