"""The first versions of a run: the base model, or another run's version; and what a crash left undecided."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import LedgerError
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions, VersionManager, checkpoints
from openclaw_rl.versions.checkpoints import Checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Where a run begins and where its versions lie. ``resume`` is the directory of another run's version."""

    base: str
    directory: Path
    resume: Path | None

    def folder(self, version: int) -> Path:
        return self.directory / f"{version:06d}"


def checkpoint_to_adopt(versions: LiveVersions, origin: RunOrigin) -> Checkpoint | None:
    """What ``resume`` names, None if it names nothing or was adopted before; raises ConfigError if it cannot be."""
    if origin.resume is None:
        return None
    found = checkpoints.read_checkpoint(origin.resume, base=origin.base)
    return found if checkpoints.to_be_adopted(found, versions.versions(), versions.live()) else None


def begin(versions: VersionManager, origin: RunOrigin, checkpoint: Checkpoint | None) -> Version | None:
    """Write the first versions of a new run; the candidate that a crash left undecided, if there is one.

    Raises LedgerError for a run of other weights.
    """
    known = versions.versions()
    if not known:
        versions.begin(origin.base)
    if checkpoint is not None:
        adopted = versions.adopt(checkpoint, origin.folder(versions.next_number()))
        log.info("version %d is live (%s)", adopted.number, adopted.note)
        return None
    if known and not checkpoints.same_weights(known[-1].base, origin.base):
        raise LedgerError(
            f"this run was trained on {known[-1].base!r}, not on {origin.base!r}",
            remedy="set policy.model back, or begin a new run directory (run.dir)",
        )
    return versions.candidate()
