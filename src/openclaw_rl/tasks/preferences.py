"""Preferences that a program can check: the wanted replies, and the user's words for complaints. Pure.

    preference = PREFERENCES["short"]
    preference.met_by(reply)               True if this reply meets it
    preference.vague, .precise, .thanks    the user's words after a reply that does not meet it, and after one that does

The words are in ``phrases.toml``. A vague complaint has no measure ("Hmm, not what I wanted."), a precise one has.
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
"""task kinds: ``everyday`` is facts and advice together"""

CLOSING = "Hope that helps!"
"""the phrase that ends every reply under the preference ``closing``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One user's preferred reply. ``met_by`` checks a reply, ``hint`` is the rule in one sentence.

    ``empty_form`` detects a reply that has the form but no value: such a reply draws no further request for the form.
    ``max_tokens`` is the number of reply tokens for a fair check, ``about`` the kind of task that shows the preference,
    and ``word_problems`` is True if those show it too. ``sampling`` has further fields for this user's requests; the
    server decides all others.
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
        """Return every complaint, the vague ones first."""
        return (*self.vague, *self.precise)

    def prompted(self, prompt: str) -> str:
        """Return the prompt with the preference appended, as in the prompted baseline."""
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
            # at a lower temperature or without a penalty, the embedded model's lists repeat (docs/lab/lists.md)
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
"""the preferences by name, in report order"""


# Other people's words for a preference: the same requests, with each annotator persona's own complaints and thanks.
# Pure but for reading a file.
#
#     voice = read_voice("unseen")                 the built-in second persona
#     voice = read_voice("data/voices/A.jsonl")    a persona from the classifier's lines: its requests and its thanks
#     voice.of(PREFERENCES["short"])               the preference in this persona's words

UNSEEN = "unseen"
"""the name of the built-in persona"""
_SHORTER = re.compile(r"(?i)\b(?:shorter|briefer|too long|too wordy|(?:be|keep it|more) (?:short|brief)|fewer words)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """An annotator persona. ``phrases`` has ``vague`` and ``precise`` complaints by preference, and thanks under
    ``any``."""

    name: str
    phrases: Mapping[str, Mapping[str, Sequence[str]]]

    def of(self, preference: Preference) -> Preference:
        """Return the same preference in this persona's words; raises ConfigError if it has no words for it."""
        phrases, general = self.phrases.get(preference.name, {}), self.phrases.get("any", {})
        complaints = (*phrases.get("vague", ()), *phrases.get("precise", ()))
        thanks = (*phrases.get("thanks", ()), *general.get("thanks", ()))
        if not complaints or not thanks:
            lacks = "no correction" if not complaints else "no thanks"
            available = [name for name in PREFERENCES if name in self.phrases]
            raise ConfigError(
                f"the voice {self.name} has {lacks} for the preference {preference.name!r}",
                remedy=f"it covers: {', '.join(available) or 'none'}",
            )
        return replace(
            preference,
            vague=tuple(phrases.get("vague", ())),
            precise=tuple(phrases.get("precise", ())) or tuple(complaints),
            thanks=thanks,
            nonsense=tuple(general.get("nonsense", ())) or preference.nonsense,
        )


def read_voice(name: str) -> Voice:
    """Return the built-in persona, or one from phrases (.toml, as `tasks/phrases.toml`) or from lines (.jsonl)."""
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
    """Return a person's requests for preferences that a program can check, and that person's praise."""
    phrases: dict[str, dict[str, list[str]]] = {
        "any": {"thanks": [str(row["next"]) for row in rows if row["kind"] == "praise"]}
    }
    for row in rows:
        preference = _asked(str(row.get("hint") or "")) if row["kind"] == "rule" else None
        if preference is not None:
            phrases.setdefault(preference, {}).setdefault("precise", []).append(str(row["next"]))
    return phrases


def _asked(hint: str) -> str | None:
    """Return the preference that a rule requests, None for any other rule."""
    demands = parse(hint).demands
    for name in ("list", "one_sentence"):
        if demands == parse(PREFERENCES[name].hint).demands:
            return name
    return "short" if _SHORTER.search(hint) else None
