"""Whole-or-nothing writes: a name leads to the old content or to the new, and a failure leaves nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw_rl import files


def test_a_new_file_gets_the_mode_it_is_given_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    files.write(path, "one\n", mode=0o600)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("one\n", 0o600)
    path.chmod(0o640)
    files.write(path, "zwei ü\n")
    assert (path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777) == ("zwei ü\n", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_changes_nothing_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: int) -> None:
        raise OSError("no space left on device")

    path = tmp_path / "loop.json"
    files.write(path, "old")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="no space"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_takes_the_place_of_the_one_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "versions" / "1"
    for content in ("first", "second"):
        (tmp_path / "versions" / ".1.77.tmp").mkdir(parents=True)  # a process that was killed has left this
        with files.directory(target) as draft:
            (draft / "part").mkdir()
            (draft / "part" / "file").write_text(content)
            assert not target.exists() or content == "second"
    assert (target / "part" / "file").read_text() == "second"
    assert list(target.parent.iterdir()) == [target]


def test_a_directory_that_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    def write() -> None:
        with files.directory(tmp_path / "v1") as draft:
            (draft / "half").write_text("x")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write()
    assert list(tmp_path.iterdir()) == []
