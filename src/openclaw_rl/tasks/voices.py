"""Other people's words for a preference: the same wishes, complained and thanked in a voice of its own. Pure but for
reading a file.

    voice = read_voice("unseen")                 the built-in second voice
    voice = read_voice("data/voices/A.jsonl")    a person of the reader's lines: what they say for it, how they thank
    voice.of(PREFERENCES["short"])               the preference, said in that voice
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_rl.errors import ConfigError
from openclaw_rl.preferences import parse
from openclaw_rl.tasks.preferences import PREFERENCES, Preference

UNSEEN = "unseen"
"""the name of the built-in voice"""
_SHORTER = re.compile(r"(?i)\b(?:shorter|briefer|too long|too wordy|(?:be|keep it|more) (?:short|brief)|fewer words)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """How somebody talks. ``phrases`` are by preference ``vague`` and ``precise``; everybody's thanks are under any."""

    name: str
    phrases: Mapping[str, Mapping[str, Sequence[str]]]

    def of(self, preference: Preference) -> Preference:
        """The same preference in this voice; raises ConfigError where it has no words for it."""
        own, everybody = self.phrases.get(preference.name, {}), self.phrases.get("any", {})
        said = (*own.get("vague", ()), *own.get("precise", ()))
        thanks = (*own.get("thanks", ()), *everybody.get("thanks", ()))
        if not said or not thanks:
            lacks = "no correction" if not said else "no thanks"
            known = [name for name in PREFERENCES if name in self.phrases]
            raise ConfigError(
                f"the voice {self.name} has {lacks} for the preference {preference.name!r}",
                remedy=f"it can speak for: {', '.join(known) or 'none'}",
            )
        return replace(
            preference,
            vague=tuple(own.get("vague", ())),
            precise=tuple(own.get("precise", ())) or tuple(said),
            thanks=thanks,
            nonsense=tuple(everybody.get("nonsense", ())) or preference.nonsense,
        )


def read_voice(name: str) -> Voice:
    """The built-in voice, a file of phrases (.toml, as `tasks/phrases.toml`), or a voice of the reader's lines."""
    path = Path(__file__).with_name("unseen.toml") if name == UNSEEN else Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"no voice at {name}", remedy=f"give {UNSEEN!r}, a file of phrases (.toml) or of lines (.jsonl)"
        )
    try:
        if path.suffix == ".jsonl":
            return Voice(name=path.stem, phrases=_of_lines(_rows(path)))
        return Voice(name=path.stem, phrases=tomllib.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no voice: {error}", remedy="see data/voices/README.md for its format") from error


def _rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [row for line in lines if line.strip() and "kind" in (row := json.loads(line))]


def _of_lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """What a person says that asks for a preference which a program can check, and their praise."""
    found: dict[str, dict[str, list[str]]] = {
        "any": {"thanks": [str(row["next"]) for row in rows if row["kind"] == "praise"]}
    }
    for row in rows:
        asked = _asked(str(row.get("hint") or "")) if row["kind"] == "rule" else None
        if asked is not None:
            found.setdefault(asked, {}).setdefault("precise", []).append(str(row["next"]))
    return found


def _asked(hint: str) -> str | None:
    """The preference that a rule asks for, None where it is another one."""
    demands = parse(hint).demands
    for name in ("list", "one_sentence"):
        if demands == parse(PREFERENCES[name].hint).demands:
            return name
    return "short" if _SHORTER.search(hint) else None
