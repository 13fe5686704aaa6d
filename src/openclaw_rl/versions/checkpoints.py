"""Checkpoints: a version's directory, from which training goes on in this run or another.

The trainer's own files (weights, optimiser, random state) lie beside ``manifest.json``, which names the base and the
step; ``loop.json`` holds what the loop must remember: how many steps were taken, and the users' baselines.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from openclaw_rl import files
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Baseline, Version

MANIFEST = "manifest.json"
PROGRESS = "loop.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """Where a run stood after a version was made."""

    step: int = 0
    baselines: Mapping[str, Baseline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A directory that training can go on from."""

    directory: Path
    base: str
    progress: TrainingProgress


def save_progress(directory: str, progress: TrainingProgress) -> None:
    """Put the training progress beside a trainer's files; a version that lies elsewhere than on this disk has none."""
    path = Path(directory)
    if path.is_dir():
        files.write(path / PROGRESS, json.dumps({"step": progress.step, "baselines": dict(progress.baselines)}))


def load_progress(directory: Path) -> TrainingProgress:
    """What `save_progress` wrote; the manifest's step and no baselines where it wrote nothing."""
    if (directory / PROGRESS).exists():
        kept = _json(directory / PROGRESS)
        return TrainingProgress(
            step=int(kept["step"]),
            baselines={user: Baseline.read(written) for user, written in kept["baselines"].items()},
        )
    manifest = _json(directory / MANIFEST) if (directory / MANIFEST).exists() else {}
    return TrainingProgress(step=int(manifest.get("step") or 0))


def read_checkpoint(directory: Path, *, base: str) -> Checkpoint:
    """The checkpoint in a directory; raises ConfigError if it is none, is damaged, or is of other weights."""
    directory = directory.expanduser().absolute()
    if not (directory / MANIFEST).is_file():
        raise _refused(
            directory,
            f"there is no {MANIFEST} in it",
            "give the directory of a version: RUN/versions/N, or SAVE_DIR/checkpoint-N",
        )
    manifest = _json(directory / MANIFEST)
    if not same_weights(str(manifest.get("base")), base):
        raise _refused(
            directory, f"it was trained on {manifest.get('base')!r}, not on {base!r}", "set policy.model to its base"
        )
    return Checkpoint(directory=directory, base=base, progress=load_progress(directory))


def base_of(directory: Path) -> str | None:
    """The base model of the version in a directory; None where no version lies there."""
    return str(_json(directory / MANIFEST).get("base")) if (directory / MANIFEST).is_file() else None


def same_weights(kept: str, given: str) -> bool:
    """Whether two names of a base model mean the same; what an earlier release kept of a folder may be relative."""
    return given in (kept, str(Path(kept).expanduser().absolute()))


def to_be_adopted(checkpoint: Checkpoint, versions: Sequence[Version], live: Version | None) -> bool:
    """Whether it is still to be adopted: False once it has been; raises ConfigError in a run that went another way."""
    trained = [version for version in versions if version.number > 0]
    if not trained:
        return True
    if trained[0].origin == "checkpoint" and trained[0].source == str(checkpoint.directory):
        return False
    if live is not None and _same_folder(live.adapter, checkpoint.directory):
        return False  # it goes on from there in any case
    own = next((each for each in reversed(trained) if _same_folder(each.adapter, checkpoint.directory)), None)
    if own is not None:
        raise _refused(
            checkpoint.directory,
            f"that is version {own.number} of this run, which has gone on to version {trained[-1].number}",
            f"'openclaw-rl rollback {own.number}' goes back to it; leave train.resume out to go on",
        )
    raise _refused(
        checkpoint.directory,
        f"this run has versions of its own already, up to {trained[-1].number}",
        "begin a new run directory (run.dir), or go back within this run with 'openclaw-rl rollback N'",
    )


def _same_folder(adapter: str | None, directory: Path) -> bool:
    return adapter is not None and Path(adapter).resolve() == directory.resolve()


def adopt(checkpoint: Checkpoint, target: Path) -> None:
    """Copy it to ``target``, whole or not at all: what happens to the original is then of no concern."""
    with files.directory(target) as draft:
        shutil.copytree(checkpoint.directory, draft, dirs_exist_ok=True)


def _refused(directory: Path, what: str, remedy: str) -> ConfigError:
    return ConfigError(f"train.resume = {directory}: {what}", remedy=remedy)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(path.parent, f"{path.name} is damaged: {error}", "take another version's directory") from error
    if not isinstance(found, dict):
        raise _refused(path.parent, f"{path.name} is damaged: it holds no object", "take another version's directory")
    return found


# The folder of a run's versions as people look at it: whose it is, and names that say the step.
#
# 000007/            version 7, as the ledger has it
# checkpoint-5       the version that step 5 made; made again as a link whenever versions change
# checkpoint-latest  the live version

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
