"""A git repository that a maker writes: a commit for each state, with no history between them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from openclaw_rl.envs.swe.repositories import MIRRORS, git, unpack

_IDENTITY = ("-c", "user.name=openclaw-rl", "-c", "user.email=openclaw-rl@localhost", "-c", "core.autocrlf=false")


class Mirror:
    """See the module. The same files give the same tree."""

    def __init__(self, folder: Path, name: str) -> None:
        self.place = folder / MIRRORS / name
        if not (self.place / ".git").is_dir():
            self.place.mkdir(parents=True, exist_ok=True)
            git("init", "-q", str(self.place))

    def commit(self, files: bytes, name: str) -> str:
        """A state with exactly these files (a tar), kept under a name; its commit."""
        self._clear()
        self._git("read-tree", "--empty")  # files of one length and date would pass for unchanged
        unpack(files, self.place)
        return self._kept(name)

    def changed(self, commit: str, texts: Mapping[str, bytes], name: str) -> str:
        """A state like another, with the texts of some files changed; its commit."""
        self._git("read-tree", "-u", "--reset", commit)
        for path, text in texts.items():
            (self.place / path).write_bytes(text)
        return self._kept(name)

    def _kept(self, name: str) -> str:
        self._git("add", "-A", "-f")
        tree = self._git("write-tree").strip()
        commit = self._git("commit-tree", tree, "-m", name).strip()
        self._git("update-ref", f"refs/heads/{name}", commit)
        return commit

    def diff(self, old: str, new: str, paths: Sequence[str]) -> str:
        """How these files of one commit become those of another."""
        return self._git("diff", "--binary", "--no-renames", "--no-color", old, new, "--", *paths) if paths else ""

    def differing(self, old: str, new: str) -> list[str]:
        """The files that are not the same in two commits."""
        return self._git("diff", "--name-only", "--no-renames", "-z", old, new).strip("\0").split("\0")

    def files(self, commit: str) -> list[str]:
        """The files of a commit."""
        return self._git("ls-tree", "-r", "--name-only", "-z", commit).strip("\0").split("\0")

    def text(self, commit: str, path: str) -> bytes:
        """What a file of a commit holds."""
        return git("-C", str(self.place), "show", f"{commit}:{path}")

    def _clear(self) -> None:
        for each in self.place.iterdir():
            if each.is_dir() and each.name != ".git":
                shutil.rmtree(each)
            elif each.is_file():
                each.unlink()

    def _git(self, *words: str) -> str:
        return git("-C", str(self.place), *_IDENTITY, *words).decode(errors="replace")
