"""Atomic writes: after a crash a name leads to the old content or to the new, never to a part of it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write ``text`` to the file at ``path`` and sync it to disk; the directory must exist.

    An existing file keeps its mode; a new file gets ``mode`` less the process's umask.
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
    """Yield a directory to write into; on exit sync it and rename it to ``target``, on an error remove it.

    One process at a time may write a target: leftovers from an earlier one are removed.
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
    """Rename, first moving an existing target aside: a rename cannot replace a directory that is not empty."""
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
