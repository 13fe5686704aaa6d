"""State changes of a version: promoted, refused, rolled back, deleted. The train process alone makes them."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from openclaw_rl.errors import NotInLedger
from openclaw_rl.types import Version, VersionState
from openclaw_rl.versions import checkpoints
from openclaw_rl.versions.checkpoints import Checkpoint

# Retention: which versions' weights stay on disk. The ledger keeps its rows for ever and records deletions.

log = logging.getLogger(__name__)

GRACE = 600.0
"""seconds after a version's end as the live one in which it may still answer a request"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Keeps the ``keep`` newest versions, as many ancestors of the live one, every ``interval``-th step, and pins."""

    keep: int
    interval: int
    grace: float = GRACE


def expired(
    versions: Sequence[Version],
    *,
    live: Version,
    live_history: Sequence[tuple[int, float]],
    pinned: Collection[int],
    now: float,
    policy: RetentionPolicy,
) -> list[str]:
    """Return the adapters that no rule keeps, oldest first. A shared adapter expires only with all its versions.

    ``live_history`` has the versions that were made live, with the time of each, oldest first.
    """
    by_number = {version.number: version for version in versions}
    adapters = list(dict.fromkeys(v.adapter for v in versions if v.adapter and v.state != "deleted"))
    retained = {live.adapter, *_newest(versions, policy.keep), *_ancestors(live, by_number, policy.keep)}
    retained |= {v.adapter for v in versions if v.state == "candidate" or v.number in pinned}
    retained |= {v.adapter for v in versions if v.step is not None and v.step % policy.interval == 0}
    retained |= {by_number[number].adapter for number in _live_after(live_history, now - policy.grace)}
    return [adapter for adapter in adapters if adapter not in retained]


def _newest(versions: Sequence[Version], count: int) -> list[str]:
    return list(dict.fromkeys(v.adapter for v in reversed(versions) if v.adapter))[:count]


def _ancestors(version: Version, by_number: Mapping[int, Version], count: int) -> list[str]:
    """Return the nearest ancestors' adapters: the possible rollback targets."""
    adapters: dict[str, None] = {}
    parent = version.parent
    while parent is not None and len(adapters) < count:
        before = by_number[parent]
        if before.adapter and before.adapter != version.adapter:
            adapters[before.adapter] = None
        parent = before.parent
    return list(adapters)


def _live_after(live_history: Sequence[tuple[int, float]], since: float) -> set[int]:
    """Return the versions that were live at ``since`` or later."""
    ended = [at for _, at in live_history[1:]] + [float("inf")]
    return {number for (number, _), end in zip(live_history, ended, strict=True) if end >= since}


def inside(adapter: str, directory: Path) -> bool:
    """Return True if an adapter is in the directory with this run's versions."""
    return Path(adapter).absolute().is_relative_to(directory.absolute())


def remove(adapter: Path, directory: Path) -> bool:
    """Delete a version's directory if it is inside ``directory``; return True if it existed."""
    if not inside(str(adapter), directory):
        return False
    going = adapter.with_name(f".{adapter.name}.deleted")
    there = adapter.is_dir()
    if there:
        adapter.rename(going)
        log.info("version directory %s deleted by retention", adapter)
    shutil.rmtree(going, ignore_errors=True)
    return there


# The live version, by user.


class VersionReader(Protocol):
    """Read access to versions and their state changes."""

    def version(self, number: int) -> Version: ...
    def versions(self) -> list[Version]: ...
    def last_live(self) -> int | None: ...
    def ever(self, state: VersionState) -> set[int]: ...


class LiveVersions:
    """The versions in a run and the live one: the single source for this information."""

    def __init__(self, ledger: VersionReader) -> None:
        self._ledger = ledger

    def live(self, user: str | None = None) -> Version | None:
        """Return the version that answers a user's new requests (None: any user), None before the first version.

        At present one version is live for all users.
        """
        number = self._ledger.last_live()
        return None if number is None else self._ledger.version(number)

    def version(self, number: int) -> Version:
        """Return a version by its number; raises NotInLedger."""
        return self._ledger.version(number)

    def versions(self) -> list[Version]:
        """Return all versions, oldest first; their numbers are consecutive."""
        return self._ledger.versions()

    def ever(self, state: VersionState) -> set[int]:
        """Return the numbers of versions that were ever in a state, even if they left it later."""
        return self._ledger.ever(state)

    def kept(self, number: int) -> Version:
        """Return a version whose weights still exist; raises NotInLedger."""
        version = self._ledger.version(number)
        if version.state == "deleted":
            raise NotInLedger(f"the weights of version {number} are no longer kept", remedy="see train.keep, and 'pin'")
        return version

    def ancestors(self, version: Version) -> Iterator[Version]:
        """Yield a version's ancestors, its parent first."""
        while version.parent is not None:
            version = self._ledger.version(version.parent)
            yield version

    def candidate(self) -> Version | None:
        """Return the newest version while it waits for the gate's decision, None otherwise."""
        versions = self._ledger.versions()
        return versions[-1] if versions and versions[-1].state == "candidate" else None

    def rollback_target(self, to: int | None) -> Version:
        """Return the target of a rollback; ``to`` None selects the newest ancestor with other weights.

        Raises NotInLedger if there is none.
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


class VersionLedger(VersionReader, Protocol):
    """Write access to versions and their state changes."""

    def add_version(self, version: Version) -> None: ...
    def set_state(self, version: int, state: VersionState, reason: str) -> None: ...
    def live_history(self) -> Sequence[tuple[int, float]]: ...
    def pinned(self) -> set[int]: ...


class VersionManager(LiveVersions):
    """The versions in a run, with every state change."""

    def __init__(self, ledger: VersionLedger) -> None:
        super().__init__(ledger)
        self._changes = ledger

    def current(self, user: str | None = None) -> Version:
        """Return the live version; version 0 must be written."""
        live = self.live(user)
        assert live is not None, "version 0 is written before anything else"
        return live

    def next_number(self) -> int:
        """Return the number for the next version."""
        return self.versions()[-1].number + 1

    def begin(self, base: str) -> None:
        """Write version 0 for a new run: the base model, live for all users."""
        self._changes.add_version(Version(number=0, parent=None, base=base, state="live", note="the base model"))

    def adopt(self, checkpoint: Checkpoint, target: Path) -> Version:
        """Continue from another run's version: copy it to ``target`` and make it live as the next version."""
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
        """Make a version live for new requests."""
        self._changes.set_state(version.number, "live", reason)

    def refuse(self, version: Version, reason: str) -> None:
        """Refuse a version; the live version stays."""
        self._changes.set_state(version.number, "refused", reason)

    def roll_back(self, to: int | None, reason: str, *, request: int | None = None) -> Version:
        """Make older weights live again, as a new version; ``to`` None selects the newest ancestor with other weights.

        ``request`` is the number of a person's rollback request.
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
        """Roll back to ``to``; mark the live version and its ancestors down to ``version`` as rolled back."""
        at = self.current()
        while at.parent is not None and at.parent != to and at.number > version:
            at = self.version(at.parent)
            self._changes.set_state(at.number, "rolled back", reason)
        return self.roll_back(to, reason)

    def retain(self, directory: Path, policy: RetentionPolicy, *, now: float) -> int:
        """Delete the weights that no rule keeps, and complete an interrupted deletion; return the directory count.

        Only directories inside ``directory`` are touched. The ledger is written first, so that no process requests
        weights that are being deleted; the directory is then renamed at once and emptied under its new name.
        """
        versions, live = self.versions(), self.live()
        if live is None:
            return 0
        going = expired(
            versions,
            live=live,
            live_history=self._changes.live_history(),
            pinned=self._changes.pinned(),
            now=now,
            policy=policy,
        )
        for version in versions:
            if version.adapter in going and version.state != "deleted" and inside(version.adapter, directory):
                reason = "retention: train.keep and train.save_interval"
                self._changes.set_state(version.number, "deleted", reason)
        gone = [v.adapter for v in versions if v.adapter and v.state == "deleted"]
        return sum(remove(Path(adapter), directory) for adapter in dict.fromkeys((*gone, *going)))
