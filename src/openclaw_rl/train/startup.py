"""Write the first versions of a run, from the base model or another run's version, and find an undecided candidate."""

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
    """Base model, versions directory and starting point of a run; ``resume`` is another run's version directory."""

    base: str
    directory: Path
    resume: Path | None

    def folder(self, version: int) -> Path:
        return self.directory / f"{version:06d}"


def checkpoint_to_adopt(versions: LiveVersions, origin: RunOrigin) -> Checkpoint | None:
    """Return the checkpoint in ``resume``; None if unset or adopted before; raise ConfigError if it is unfit."""
    if origin.resume is None:
        return None
    checkpoint = checkpoints.read_checkpoint(origin.resume, base=origin.base)
    return checkpoint if checkpoints.to_be_adopted(checkpoint, versions.versions(), versions.live()) else None


def begin(versions: VersionManager, origin: RunOrigin, checkpoint: Checkpoint | None) -> Version | None:
    """Write the first versions of a new run; return the candidate that a crash left undecided, if there is one.

    Raises LedgerError if the run was trained on other weights.
    """
    existing = versions.versions()
    if not existing:
        versions.begin(origin.base)
    if checkpoint is not None:
        adopted = versions.adopt(checkpoint, origin.folder(versions.next_number()))
        log.info("version %d is live (%s)", adopted.number, adopted.note)
        return None
    if existing and not checkpoints.same_weights(existing[-1].base, origin.base):
        raise LedgerError(
            f"this run was trained on {existing[-1].base!r}, not on {origin.base!r}",
            remedy="set policy.model back, or begin a new run directory (run.dir)",
        )
    return versions.candidate()
