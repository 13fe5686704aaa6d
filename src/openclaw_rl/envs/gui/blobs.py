"""Screenshots, each kept once under the hash of its bytes, with a line for every step that showed it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

EPISODES: Final = "episodes.jsonl"
"""which screen was shown at which step of which episode"""


class ScreenBlobs:
    """A folder of screenshots beside the ledger; several processes may add to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, picture: bytes) -> str:
        """Keep it; its name."""
        name = hashlib.sha256(picture).hexdigest()
        place = self.place(name)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_suffix(f".{id(picture)}.tmp")
            draft.write_bytes(picture)
            draft.replace(place)
        return name

    def place(self, name: str) -> Path:
        """Where the screenshot of this name lies."""
        return self._folder / name[:2] / f"{name}.png"

    def note(self, **line: Any) -> None:
        """Remember what was shown when."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / EPISODES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
