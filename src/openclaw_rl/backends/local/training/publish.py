"""A version on disk: a directory that appears whole or not at all, and what is read back from it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openclaw_rl.errors import BackendError

MANIFEST = "manifest.json"
STATE = "trainer.pt"
ADAPTER = "adapter_model.safetensors"
MODEL = "model.safetensors"
FORMAT = 1


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """A directory to write into; on leaving it is synced and renamed to ``target``, on an error it is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}.*.tmp"):
        shutil.rmtree(leftover)
    scratch = target.parent / f".{target.name}.{os.getpid()}.tmp"
    scratch.mkdir()
    try:
        yield scratch
        for path in [*scratch.rglob("*"), scratch]:
            _sync(path)
        _take_place(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _take_place(scratch: Path, target: Path) -> None:
    """Rename, moving aside what a run that ended early had left there: a rename never lands on a full directory."""
    aside = target.parent / f".{target.name}.old.tmp"
    if target.exists():
        target.rename(aside)
    scratch.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Say in words and numbers what lies beside it."""
    text = json.dumps({"format": FORMAT, **manifest}, indent=2, sort_keys=True, allow_nan=False)
    (directory / MANIFEST).write_text(text + "\n")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """What `write_manifest` wrote, None for a directory of another origin; raises BackendError when it is damaged."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BackendError(f"{path} is not readable: {error}", remedy="restore it or train from its parent") from error
    if found.get("format") != FORMAT:
        raise BackendError(f"{path} has format {found.get('format')!r}, this release reads {FORMAT}")
    return dict(found)
