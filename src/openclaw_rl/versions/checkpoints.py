"""Checkpoints: a version's directory, from which training continues in this run or another.

The trainer's own files (weights, optimiser, random state) are beside ``manifest.json``, which names the base and the
step; ``loop.json`` stores the loop's state: the number of steps taken, and the users' baselines.
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
    """A run's progress at the time a version was made."""

    step: int = 0
    baselines: Mapping[str, Baseline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A directory from which training can continue."""

    directory: Path
    base: str
    progress: TrainingProgress


def save_progress(directory: str, progress: TrainingProgress) -> None:
    """Write the training progress beside a trainer's files; a version stored off this disk has none."""
    path = Path(directory)
    if path.is_dir():
        files.write(path / PROGRESS, json.dumps({"step": progress.step, "baselines": dict(progress.baselines)}))


def load_progress(directory: Path) -> TrainingProgress:
    """Read the result of `save_progress`; without it, return the manifest's step and no baselines."""
    if (directory / PROGRESS).exists():
        saved = _json(directory / PROGRESS)
        return TrainingProgress(
            step=int(saved["step"]),
            baselines={user: Baseline.read(written) for user, written in saved["baselines"].items()},
        )
    manifest = _json(directory / MANIFEST) if (directory / MANIFEST).exists() else {}
    return TrainingProgress(step=int(manifest.get("step") or 0))


def read_checkpoint(directory: Path, *, base: str) -> Checkpoint:
    """Return the checkpoint in a directory; raises ConfigError if there is none, it is damaged, or its base differs."""
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
    """Return the base model for the version in a directory; None if the directory has no version."""
    return str(_json(directory / MANIFEST).get("base")) if (directory / MANIFEST).is_file() else None


def same_weights(kept: str, given: str) -> bool:
    """Return True if two base model names mean the same; a name from an earlier release may be a relative path."""
    return given in (kept, str(Path(kept).expanduser().absolute()))


def to_be_adopted(checkpoint: Checkpoint, versions: Sequence[Version], live: Version | None) -> bool:
    """Return True until a checkpoint is adopted, then False; raises ConfigError if the run has diverged."""
    trained = [version for version in versions if version.number > 0]
    if not trained:
        return True
    if trained[0].origin == "checkpoint" and trained[0].source == str(checkpoint.directory):
        return False
    if live is not None and _same_folder(live.adapter, checkpoint.directory):
        return False  # the run continues from it in any case
    match = next(
        (earlier for earlier in reversed(trained) if _same_folder(earlier.adapter, checkpoint.directory)), None
    )
    if match is not None:
        raise _refused(
            checkpoint.directory,
            f"that is version {match.number} of this run, which has gone on to version {trained[-1].number}",
            f"'openclaw-rl rollback {match.number}' goes back to it; leave train.resume out to go on",
        )
    raise _refused(
        checkpoint.directory,
        f"this run has versions of its own already, up to {trained[-1].number}",
        "begin a new run directory (run.dir), or go back within this run with 'openclaw-rl rollback N'",
    )


def _same_folder(adapter: str | None, directory: Path) -> bool:
    return adapter is not None and Path(adapter).resolve() == directory.resolve()


def adopt(checkpoint: Checkpoint, target: Path) -> None:
    """Copy the checkpoint to ``target``, completely or not at all; later changes to the original have no effect."""
    with files.directory(target) as draft:
        shutil.copytree(checkpoint.directory, draft, dirs_exist_ok=True)


def _refused(directory: Path, what: str, remedy: str) -> ConfigError:
    return ConfigError(f"train.resume = {directory}: {what}", remedy=remedy)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(path.parent, f"{path.name} is damaged: {error}", "take another version's directory") from error
    if not isinstance(content, dict):
        raise _refused(path.parent, f"{path.name} is damaged: it holds no object", "take another version's directory")
    return content


# The folder with a run's versions, for people: its owner, and names by step.
#
# 000007/            version 7, as the ledger has it
# checkpoint-5       the version that step 5 made; a link, rewritten whenever versions change
# checkpoint-latest  the live version

log = logging.getLogger(__name__)

OWNER: Final = ".run"
"""the file that names the run directory for the versions in this folder"""
PREFIX: Final = "checkpoint-"
LATEST: Final = "latest"


def claim(directory: Path, *, run: Path, known: Sequence[Version]) -> None:
    """Mark the folder as this run's own; raises ConfigError if it contains another run's versions.

    A run with versions in it already owns it, even if the run directory has been renamed since.
    """
    owner = directory / OWNER
    owner_run = owner.read_text("utf-8").strip() if owner.is_file() else str(run)
    owned = any(version.adapter and Path(version.adapter).parent == directory for version in known)
    if owner_run != str(run) and not owned and any(folder.name.isdecimal() for folder in directory.iterdir()):
        raise ConfigError(
            f"train.save_dir = {directory} holds the versions of the run in {owner_run}",
            remedy=f"go on with that run (--rl-buffer-dir {owner_run}), or give this one a folder of its own",
        )
    if owner_run != str(run) or not owner.exists():
        directory.mkdir(parents=True, exist_ok=True)
        files.write(owner, f"{run}\n")


def link(directory: Path, versions: Sequence[Version], live: Version | None) -> None:
    """Create the names for the versions in ``directory``, and remove those without a target."""
    named = {f"{PREFIX}{version.step}": version for version in versions if version.step is not None}
    if live is not None:
        named[f"{PREFIX}{LATEST}"] = live
    targets = {name: Path(version.adapter) for name, version in named.items() if version.adapter}
    there = {name: path.name for name, path in targets.items() if path.parent == directory and path.is_dir()}
    try:
        for old in directory.glob(f"{PREFIX}*"):
            if old.is_symlink() and old.name not in there:
                old.unlink()
        for name, target in there.items():
            _point(directory / name, target)
    except OSError as error:  # a disk without links still has the numbered folders
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
