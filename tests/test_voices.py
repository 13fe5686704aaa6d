"""Users who talk in another voice: the same wish, other words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw_rl.errors import ConfigError
from openclaw_rl.experiments.sessions import SimulatedUser
from openclaw_rl.tasks.preferences import PREFERENCES, read_voice


def test_the_unseen_voice_says_nothing_that_the_usual_one_says() -> None:
    voice = read_voice("unseen")
    for name in ("short", "list", "one_sentence"):
        usual, other = PREFERENCES[name], voice.of(PREFERENCES[name])
        assert not set(usual.complaints) & set(other.complaints)
        assert not set(usual.thanks) & set(other.thanks)
        assert (other.met_by, other.hint) == (usual.met_by, usual.hint), "what is wanted is the same"


def test_a_user_complains_and_thanks_in_the_voice(tmp_path: Path) -> None:
    phrases = tmp_path / "mine.toml"
    phrases.write_text('[any]\nthanks = ["ta"]\n[short]\nprecise = ["30 words, love"]\n', encoding="utf-8")
    session = SimulatedUser(read_voice(str(phrases)).of(PREFERENCES["short"])).session(0)
    assert session.respond("Tea is a hot drink made of leaves.") == "ta"
    again = SimulatedUser(read_voice(str(phrases)).of(PREFERENCES["short"]), rounds=2).session(1)
    long = " ".join(f"Point {number} is about {number * number} things." for number in range(9))
    assert again.respond(long) == "30 words, love"
    assert again.respond(long) == "30 words, love", "who knows one phrase only says it again"


def test_a_person_of_the_readers_lines_asks_for_what_their_lines_ask_for(tmp_path: Path) -> None:
    lines = [
        {"voice": "en-somebody", "language": "en", "about": "a clerk"},
        {"next": "one sentence will do, ta", "kind": "rule", "hint": "one sentence will do"},
        {"next": "bullets please. phone screen", "kind": "rule", "hint": "bullets please"},
        {"next": "shorter. its a card", "kind": "rule", "hint": "shorter"},
        {"next": "no swearing", "kind": "rule", "hint": "no swearing"},
        {"next": "grand", "kind": "praise", "hint": None},
    ]
    file = tmp_path / "en-somebody.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    voice = read_voice(str(file))
    said = {name: voice.of(PREFERENCES[name]).complaints for name in ("one_sentence", "list", "short")}
    assert said == {
        "one_sentence": ("one sentence will do, ta",),
        "list": ("bullets please. phone screen",),
        "short": ("shorter. its a card",),
    }
    assert voice.of(PREFERENCES["list"]).thanks == ("grand",)
    with pytest.raises(ConfigError, match="no correction for the preference 'metric'"):
        voice.of(PREFERENCES["metric"])


def test_a_file_that_is_no_voice_is_refused_with_what_is_one(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[short", encoding="utf-8")
    with pytest.raises(ConfigError, match="is no voice"):
        read_voice(str(broken))
    with pytest.raises(ConfigError, match="no voice at nobody"):
        read_voice("nobody")
