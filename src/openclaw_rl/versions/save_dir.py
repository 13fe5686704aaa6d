"""The folder of a run's versions as people look at it: whose it is, and names that say the step.

000007/            version 7, as the ledger has it
checkpoint-5       the version that step 5 made; made again as a link whenever versions change
checkpoint-latest  the live version
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from openclaw_rl import files
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Version

log = logging.getLogger(__name__)

OWNER: Final = ".run"
"""the file that names the run directory whose versions lie here"""
PREFIX: Final = "checkpoint-"
LATEST: Final = "latest"


def claim(directory: Path, *, run: Path, known: Sequence[Version]) -> None:
    """Make the folder this run's own; raises ConfigError where versions of another run lie in it.

    A run that has versions in it already owns it, whatever its directory was called when they were made.
    """
    owner = directory / OWNER
    said = owner.read_text("utf-8").strip() if owner.is_file() else str(run)
    own = any(version.adapter and Path(version.adapter).parent == directory for version in known)
    if said != str(run) and not own and any(folder.name.isdecimal() for folder in directory.iterdir()):
        raise ConfigError(
            f"train.save_dir = {directory} holds the versions of the run in {said}",
            remedy=f"go on with that run (--rl-buffer-dir {said}), or give this one a folder of its own",
        )
    if said != str(run) or not owner.exists():
        directory.mkdir(parents=True, exist_ok=True)
        files.write(owner, f"{run}\n")


def link(directory: Path, versions: Sequence[Version], live: Version | None) -> None:
    """Make the names of the versions that lie in ``directory``, and take away those that lead nowhere."""
    wanted = {f"{PREFIX}{version.step}": version for version in versions if version.step is not None}
    if live is not None:
        wanted[f"{PREFIX}{LATEST}"] = live
    targets = {name: Path(version.adapter) for name, version in wanted.items() if version.adapter}
    there = {name: path.name for name, path in targets.items() if path.parent == directory and path.is_dir()}
    try:
        for old in directory.glob(f"{PREFIX}*"):
            if old.is_symlink() and old.name not in there:
                old.unlink()
        for name, target in there.items():
            _point(directory / name, target)
    except OSError as error:  # a disk without links has the numbered folders all the same
        log.warning("the names checkpoint-N could not be made in %s: %s", directory, error)


def _point(name: Path, target: str) -> None:
    if name.is_symlink() and name.readlink() == Path(target):
        return
    if name.exists() and not name.is_symlink():
        return
    draft = name.with_name(f".{name.name}.tmp")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target, target_is_directory=True)
    draft.replace(name)
