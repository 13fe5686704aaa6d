"""Checkpoints: a version's directory, from which training goes on in this run or another.

The trainer's own files (weights, optimiser, random state) lie beside ``manifest.json``, which names the base and the
step; ``loop.json`` holds what the loop must remember: how many steps were taken, and the users' baselines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
