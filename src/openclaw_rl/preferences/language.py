"""The language of a text: by its script where that decides, else by `py3langid`. None where it cannot be told."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from openclaw_rl.preferences.vocabulary import CODES
from openclaw_rl.text import script, word_count

_BY_SCRIPT: Final = {
    "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "GREEK": "el", "HEBREW": "he", "THAI": "th", "ARABIC": "ar",
    "DEVANAGARI": "hi", "CJK": "zh",
}  # fmt: skip
_FEW_WORDS: Final = 4
"""words below which a text in a shared script is not assigned a language"""


def language_of(text: str) -> str | None:
    """The ISO code of the language of a text; None for a few words, or where `py3langid` is not installed."""
    letters = script(text)
    if letters is None:
        return None
    if letters == "CJK" and any("\u3040" <= sign <= "\u30ff" for sign in text):
        return "ja"
    if letters in _BY_SCRIPT:
        return _BY_SCRIPT[letters]
    if word_count(text) < _FEW_WORDS or (identifier := _identifier()) is None:
        return None
    return str(identifier.classify(text)[0])


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        return None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages(sorted(CODES.values()))
    return identifier
