"""What this run has saved at the service, and what of it may be deleted there: what no version on disk names any more.

Which versions are kept is decided where all versions are (`train.keep`, pins, what is live, what a request may still be
answered by); here it is only followed. A step that failed after it had saved leaves no version: its checkpoints go too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from openclaw_rl import files
from openclaw_rl.backends.tinker.remote import FILE, read_remote


class SavedCheckpoints:
    """A file in the run's directory: each address with the directory of the version that it was saved for."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "cloud" / "saved.json"

    def add(self, address: str, target: Path) -> None:
        """Remember a checkpoint from the moment that it is there."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._write({**self._read(), address: str(target.absolute())})

    def drop(self, address: str) -> None:
        """It is not there any more."""
        self._write({known: target for known, target in self._read().items() if known != address})

    def unneeded(self) -> list[str]:
        """The addresses that no version names, oldest first; raises BackendError where a version cannot be read.

        Where no version at all is found, the disk may be away or the run was moved: nothing is said of what was there.
        """
        saved = self._read()
        named = {folder: _named(folder) for folder in {Path(target).parent for target in saved.values()}}
        needed = set[str]().union(*named.values())
        return [each for each, target in saved.items() if named[Path(target).parent] and each not in needed]

    def _read(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._file.read_text()) if self._file.is_file() else {}
        return found

    def _write(self, saved: Mapping[str, str]) -> None:
        files.write(self._file, json.dumps(saved, indent=1) + "\n")


def _named(folder: Path) -> set[str]:
    """The addresses that versions in and about a folder name."""
    beside, below, above = folder.glob(f"*/{FILE}"), folder.glob(f"*/*/{FILE}"), folder.parent.glob(f"*/{FILE}")
    found = [read_remote(file.parent) for file in (*beside, *below, *above)]  # drafts lie below versions
    return {address for remote in found for address in (remote.state, remote.sampler)}
