"""The first versions of a run: the base model, or another run's version; and what a crash left undecided."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import LedgerError
from openclaw_rl.types import Version
from openclaw_rl.versions import checkpoints
from openclaw_rl.versions.checkpoints import Checkpoint
from openclaw_rl.versions.rollback import VersionLedger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Where a run begins and where its versions lie. ``resume`` is the directory of another run's version."""

    base: str
    directory: Path
    resume: Path | None

    def folder(self, version: int) -> Path:
        return self.directory / f"{version:06d}"


def checkpoint_to_adopt(ledger: VersionLedger, origin: RunOrigin) -> Checkpoint | None:
    """What ``resume`` names, None if it names nothing or was adopted before; raises ConfigError if it cannot be."""
    if origin.resume is None:
        return None
    found = checkpoints.examine(origin.resume, base=origin.base)
    return found if checkpoints.fresh(found, ledger.versions()) else None


def begin(ledger: VersionLedger, origin: RunOrigin, checkpoint: Checkpoint | None) -> Version | None:
    """Write the first versions of a new run; the candidate that a crash left undecided, if there is one.

    Raises LedgerError for a run of other weights.
    """
    versions = ledger.versions()
    if not versions:
        ledger.add_version(Version(number=0, parent=None, base=origin.base, state="live", note="the base model"))
    if checkpoint is not None:
        _adopt(ledger, origin, checkpoint)
        return None
    if not versions:
        return None
    if versions[-1].base != origin.base:
        raise LedgerError(
            f"this run was trained on {versions[-1].base!r}, not on {origin.base!r}",
            remedy="set policy.model back, or begin a new run directory (run.dir)",
        )
    return versions[-1] if versions[-1].state == "candidate" else None


def next_number(ledger: VersionLedger) -> int:
    """The number of the version that is made next."""
    return ledger.versions()[-1].number + 1


def _adopt(ledger: VersionLedger, origin: RunOrigin, checkpoint: Checkpoint) -> None:
    """Version 1 of this run is a copy of another run's."""
    number = next_number(ledger)
    target = origin.folder(number)
    origin.directory.mkdir(parents=True, exist_ok=True)
    checkpoints.adopt(checkpoint, target)
    ledger.add_version(
        Version(number=number, parent=0, base=origin.base, adapter=str(target), state="live", note=checkpoint.note)
    )
    log.info("version %d is live (%s)", number, checkpoint.note)
