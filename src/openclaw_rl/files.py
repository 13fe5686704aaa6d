"""Whole-or-nothing writes: after a crash a name leads to the old content or to the new, never to a part of it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Put ``text`` into the file at ``path``, synced to disk; its directory must be there.

    A file that was there keeps its mode; a new one gets ``mode`` less the process's umask.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            if path.exists():
                draft.chmod(path.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def directory(target: Path) -> Iterator[Path]:
    """A directory to write into; on leaving it is synced and becomes ``target``, on an error it is removed.

    One process at a time may write a target: what an earlier one has left of it is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}.*.tmp"):
        shutil.rmtree(leftover)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    draft.mkdir()
    try:
        yield draft
        for path in [*draft.rglob("*"), draft]:
            _sync(path)
        _take_place(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _take_place(draft: Path, target: Path) -> None:
    """Rename, moving aside what was there: a rename never lands on a full directory."""
    aside = target.with_name(f".{target.name}.old.tmp")
    if target.exists():
        target.rename(aside)
    draft.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
