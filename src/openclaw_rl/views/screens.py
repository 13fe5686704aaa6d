"""The screenshots that an environment kept beside the ledger: which of them an episode showed.

They lie in ``screens/`` of the run directory, each under the hash of its bytes; a line of ``episodes.jsonl`` says which
one was shown at which step. An environment has an id of its own for an episode, made between the name of the session
and the id of its first turn, all of which are in the order of time. Where several began in between, what their actions
came to tells them apart; where that does not, their screens were the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "screens"
_LINES: Final = "episodes.jsonl"
_SESSION: Final = re.compile(r"episode-([0-9a-z]{26})")
_EPISODE: Final = re.compile(r'{"episode": "([0-9a-z]{26})"')
_NAME: Final = re.compile(r"[0-9a-f]{64}")


def kept_screens(root: Path, session: str, turns: Sequence[str], came: Sequence[str]) -> dict[int, str]:
    """The name of the screen before each step of an episode, and after its last, by the number of replies before it.

    ``turns`` are the ids of its turns, ``came`` is what came after each of them.
    """
    named, lines = _SESSION.fullmatch(session), root / FOLDER / _LINES
    if named is None or not turns or not lines.exists():
        return {}
    episodes: dict[str, list[Mapping[str, Any]]] = {}
    for line in _between(lines, named[1], turns[0]):
        episodes.setdefault(line["episode"], []).append(line)
    fitting = (shown for shown in episodes.values() if all(_fits(one, came) for one in shown))
    return {int(one["step"]): str(one["screen"]) for one in next(fitting, ())}


def _between(lines: Path, after: str, before: str) -> Iterator[Mapping[str, Any]]:
    with lines.open(encoding="utf-8") as file:
        for line in file:
            found = _EPISODE.match(line)
            if found is not None and after < found[1] < before and line.endswith("\n"):
                yield json.loads(line)


def _fits(shown: Mapping[str, Any], came: Sequence[str]) -> bool:
    """Whether what an action came to, as the environment said it, stands in what came after that turn.

    Nothing came after the last one, as far as the ledger knows.
    """
    step = int(shown["step"])
    if step == 0 or step > len(came):
        return step == 0
    return not came[step - 1] or all(part in came[step - 1] for part in str(shown["said"]).split("; "))


def picture(root: Path, name: str) -> bytes | None:
    """The bytes of a screen by its name, None where there is none."""
    place = root / FOLDER / name[:2] / f"{name}.png"
    return place.read_bytes() if _NAME.fullmatch(name) and place.is_file() else None
