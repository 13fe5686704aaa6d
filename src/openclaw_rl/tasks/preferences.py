"""Preferences that a program can check: how a user likes replies, and the words in which they complain. Pure.

    preference = PREFERENCES["short"]
    preference.met_by(reply)               whether this reply meets it
    preference.vague, .precise, .thanks    what the user says when it does not, and when it does

The words are in ``phrases.toml``. A vague complaint names no measure ("Hmm, not what I wanted."), a precise one does.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.errors import ConfigError
from openclaw_rl.preferences import parse
from openclaw_rl.preferences.checking import checker_of, repeats_items

About = Literal["everyday", "facts", "advice", "measures"]
"""kinds of task: ``everyday`` is facts and advice together"""

CLOSING = "Hope that helps!"
"""the phrase that ends every reply under the preference ``closing``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """How one user likes replies. ``met_by`` checks a reply, ``hint`` is the rule in one sentence.

    ``empty_form`` finds a reply that has the form and is worthless all the same: nobody asks for the form once more.
    ``max_tokens`` is how many reply tokens a fair check needs, ``about`` the kind of task that shows it, and
    ``word_problems`` says whether those show it too. ``sampling`` are further fields of this user's requests; for all
    others the server decides.
    """

    name: str
    description: str
    hint: str
    met_by: Callable[[str], bool]
    vague: tuple[str, ...]
    precise: tuple[str, ...]
    thanks: tuple[str, ...]
    nonsense: tuple[str, ...]
    empty_form: Callable[[str], bool] = lambda _reply: False
    max_tokens: int = 96
    about: About = "everyday"
    word_problems: bool = True
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Every phrasing of "not like this", the vague ones first."""
        return (*self.vague, *self.precise)

    def prompted(self, prompt: str) -> str:
        """The prompt with the preference in it, as the prompted baseline gets it."""
        return f"{prompt}\n\n{self.hint}"


def _preference(name: str, description: str, hint: str, **more: Any) -> Preference:
    met_by = checker_of(hint)
    assert met_by is not None, f"no program can check: {hint}"
    phrases = _PHRASES[name]
    return Preference(
        name=name,
        description=description,
        hint=hint,
        met_by=met_by,
        vague=(*phrases["vague"],),
        precise=(*phrases["precise"],),
        thanks=(*phrases.get("thanks", ()), *_PHRASES["any"]["thanks"]),
        nonsense=(*_PHRASES["any"]["nonsense"],),
        **more,
    )


_PHRASES: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8")
)

PREFERENCES: dict[str, Preference] = {
    preference.name: preference
    for preference in (
        _preference("short", "replies under 30 words", "Please answer in under 30 words.", max_tokens=64),
        _preference(
            "list",
            "replies as a list",
            "Please answer with a bulleted list of short points.",
            empty_form=repeats_items,
            max_tokens=128,
            word_problems=False,
            # colder, or without a penalty, the embedded model's lists repeat themselves (docs/lab/lists.md)
            sampling={"temperature": 0.7, "presence_penalty": 0.25},
        ),
        _preference("one_sentence", "replies of one sentence", "Please answer in one sentence."),
        _preference(
            "student",
            "plain replies without bold, lists, headings or boxed answers",
            "Please write plain text without bold, lists, headings or boxed answers.",
        ),
        _preference(
            "long",
            "replies of at least 100 words, with an example or figures",
            "Please write at least 100 words and give a specific example.",
            max_tokens=192,
        ),
        _preference("praise", "replies with warm praise", "Please praise me warmly for my question."),
        _preference(
            "metric",
            "replies in metric units",
            "Please use metric units only.",
            about="measures",
            word_problems=False,
        ),
        _preference(
            "closing",
            f'replies that end with "{CLOSING}"',
            f'Please end your reply with "{CLOSING}"',
        ),
    )
}
"""the preferences by name, in the order in which reports list them"""


# Other people's words for a preference: the same wishes, complained and thanked in a voice of its own. Pure but for
# reading a file.
#
#     voice = read_voice("unseen")                 the built-in second voice
#     voice = read_voice("data/voices/A.jsonl")    a person of the reader's lines: what they say for it, how they thank
#     voice.of(PREFERENCES["short"])               the preference, said in that voice

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
