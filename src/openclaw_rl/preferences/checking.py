"""Checks by computation alone if a reply meets a wish. Pure.

check(parse("Please answer in under 30 words."), "Yes, it is.")             True
check(parse("Please answer in under 30 words."), "Yes, it is", cut=True)    False: the reply would have continued
check(parse("Be more like a pirate."), "Arr.")                              None: no program can check it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from openclaw_rl.preferences.parsing import parse
from openclaw_rl.preferences.vocabulary import CODES, LENGTHS, Demand, Wish
from openclaw_rl.text import BOLD, HEADING, ITEM, UNSPACED, items, script, sentence_count, word_count, words

# The language of a text: by its script if that is decisive, else by `py3langid`. None if it cannot be determined.

_BY_SCRIPT: Final = {
    "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "GREEK": "el", "HEBREW": "he", "THAI": "th", "ARABIC": "ar",
    "DEVANAGARI": "hi", "CJK": "zh",
}  # fmt: skip
_FEW_WORDS: Final = 4
"""words below which a text in a shared script has no assigned language"""


def language_of(text: str) -> str | None:
    """Return the ISO code of a text's language; None for a few words, or if `py3langid` is not installed."""
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


_TERMINAL = re.compile(r"(?<![.!?…。！？])[.!?…。！？]++[\"”’')\]*_]*+$")
_NUMBERED_LINE = re.compile(r"^[ \t]*\(?(\d{1,2})[.)][ \t]+(?=\S)", re.MULTILINE)
_EMOJI = re.compile(r"[\U0001F300-\U0001FAFF\u2600-\u27BF\u2B50\u2B55]")
_TABLE = re.compile(r"^[ \t]*(?:\|[ \t]*)?:?-{3,}:?[ \t]*\|", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_LINK = re.compile(r"\[[^\[\]\n]+\]\([^\s)]{1,500}\)")
_BOXED = re.compile(r"\\f?box(?:ed)?\b")
_QUESTION_MARK = re.compile(r"[?？][\"”’')\]*_\s]*\Z")
_EXAMPLE = re.compile(r"\d|\b(?:for example|for instance|such as|e\.g\.|specifically|in particular|imagine)\b", re.I)
_METRIC = re.compile(
    r"\d\s*(?:thousand |million |billion )?-?(?:k?m|cm|mm|km/h|kph|m/s|kg|g|mg|ml|cl|l|°\s*c|c|hectares?"
    r"|(?:square |cubic )?(?:kilo|centi|milli)?met(?:re|er)s?(?: per \w+)?|(?:kilo|milli)?grams?"
    r"|(?:milli)?lit(?:re|er)s?|tonnes?|kilos?|(?:degrees? )?celsius|degrees c)\b",
    re.IGNORECASE,
)
_IMPERIAL = re.compile(
    r"\b(?:inch(?:es)?|foot tall|feet|foot|yards?|miles?|mph|pounds?|lbs?|ounces?|oz|gallons?|pints?|quarts?|acres?"
    r"|fahrenheit|degrees f)\b|\d\s*°\s*f\b|\d['′]\s?\d|\d\s?(?:ft|in|mi)\b\.?",
    re.IGNORECASE,
)
_PRAISED = r"(?:question|work|job|thinking|idea|choice|start|topic|point|effort|try|curiosity|going|thought|attitude)"
_PRAISE = re.compile(
    r"\b(?:great|good|excellent|wonderful|fantastic|lovely|brilliant|thoughtful|interesting|nice|superb|amazing|terrific"
    rf"|awesome|clever|smart|fine|beautiful|outstanding|impressive) {_PRAISED}\b"
    r"|\b(?:well done|nicely done|bravo|kudos|proud of you|way to go|keep (?:it up|up the|going)|good for you)\b"
    r"|\b(?:i love (?:that|your|how)|so (?:glad|happy) (?:that )?you asked|glad you asked|you(?:'re| are) doing "
    r"(?:great|well|so well|wonderfully|amazing)|you(?:'re| are) (?:so |very |really )?(?:clever|smart|brilliant"
    r"|wonderful|amazing|awesome|curious|thoughtful|on the right track|a star))\b"
    r"|(?:^|[.!?]\s+)(?:wonderful|excellent|fantastic|brilliant|amazing|awesome|superb|terrific|marvell?ous|hooray)!",
    re.IGNORECASE,
)
_MOST_CAPITALS = 0.9
_ABOUT_LEAST, _ABOUT_MOST = 0.6, 1.2
"""bounds for a reply to a measure without a limit ("in 50 words"), as shares"""


def is_list(reply: str) -> bool:
    """Check if a reply contains a list with at least two items that does not repeat itself."""
    return len(items(reply)) >= 2 and not repeats_items(reply)


def repeats_items(reply: str) -> bool:
    """Check if at least a third of a list's items repeat earlier ones."""
    lowered = [item.lower() for item in items(reply)]
    return 0 < len(lowered) <= 3 * (len(lowered) - len(set(lowered)))


def is_one_sentence(reply: str) -> bool:
    """Check if a reply is one finished sentence and no list."""
    return (
        word_count(reply) > 0
        and sentence_count(reply) == 1
        and not items(reply)
        and bool(_TERMINAL.search(reply.strip()))
    )


def is_plain_text(reply: str) -> bool:
    """Check if a reply is free of bold, lists, headings, tables, links, fenced code and boxed answers."""
    marks = (BOLD, HEADING, _BOXED, _TABLE, _FENCE, _LINK)
    return word_count(reply) > 0 and not items(reply) and not any(mark.search(reply) for mark in marks)


def is_numbered(reply: str) -> bool:
    """Check if a reply contains a consecutively numbered list."""
    numbers = [int(match[1]) for match in _NUMBERED_LINE.finditer(reply)]
    return len(numbers) >= 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def amount(aspect: str, reply: str) -> int:
    """Return a reply's length in a `LENGTHS` unit, or its list item count."""
    if aspect == "words":
        return len(words(reply)) if script(reply) in UNSPACED else word_count(reply)
    if aspect == "sentences":
        return sentence_count(reply)
    if aspect == "items":
        return len(items(reply))
    if aspect == "characters":
        return len(reply.strip())
    blocks = re.split(r"\n\s*\n" if aspect == "paragraphs" else r"\n+", reply.strip())
    return sum(bool(block.strip()) for block in blocks)


def _measured(demand: Demand, reply: str) -> bool | None:
    if demand.number is None:
        return None
    if demand.aspect == "sentences" and demand.relation == "most" and demand.number == 1:
        return is_one_sentence(reply)
    count = amount(demand.aspect, reply)
    if demand.relation == "most":
        return 0 < count <= demand.number
    if demand.relation == "least":
        return count >= demand.number
    if demand.aspect == "items":
        return count == demand.number
    return _ABOUT_LEAST * demand.number <= count <= _ABOUT_MOST * demand.number


def _language(demand: Demand, reply: str) -> bool | None:
    code = language_of(reply)
    return None if code is None or demand.text is None else code == CODES[demand.text]


def _case(demand: Demand, reply: str) -> bool:
    letters = [sign for sign in reply if sign.isalpha() and sign.upper() != sign.lower()]
    capitals = sum(sign.isupper() for sign in letters)
    return capitals >= _MOST_CAPITALS * len(letters) > 0 if demand.text == "upper" else bool(letters) and not capitals


def _units(demand: Demand, reply: str) -> bool | None:
    metric, imperial = bool(_METRIC.search(reply)), bool(_IMPERIAL.search(reply))
    if not metric and not imperial:
        return None
    return metric and not imperial if demand.text == "metric" else imperial and not metric


def _folded(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]|_", " ", text.casefold()).split())


def _holds(demand: Demand, reply: str) -> bool:
    sought, text = _folded(demand.text or ""), _folded(reply)
    if demand.aspect == "opening":
        return f"{text} ".startswith(f"{sought} ")
    if demand.aspect == "ending":
        return f" {text}".endswith(f" {sought}")
    return f" {sought} " in f" {text} "


_CHECKS: Mapping[str, Callable[[Demand, str], bool | None]] = {
    **dict.fromkeys((*LENGTHS, "items"), _measured),
    "list": lambda demand, reply: is_list(reply) if demand.relation != "no" else bool(items(reply)),
    "numbering": lambda _demand, reply: is_numbered(reply),
    "language": _language,
    "case": _case,
    "units": _units,
    **dict.fromkeys(("opening", "ending", "words in it", "name"), _holds),
    "question at the end": lambda _demand, reply: bool(_QUESTION_MARK.search(reply)),
    "emoji": lambda _demand, reply: bool(_EMOJI.search(reply)),
    "headings": lambda _demand, reply: bool(HEADING.search(reply)),
    "bold": lambda _demand, reply: bool(BOLD.search(reply)),
    "table": lambda _demand, reply: bool(_TABLE.search(reply)),
    "code block": lambda _demand, reply: bool(_FENCE.search(reply)),
    "markdown": lambda _demand, reply: not is_plain_text(reply),
    "praise": lambda _demand, reply: bool(_PRAISE.search(reply)),
    "example": lambda _demand, reply: bool(_EXAMPLE.search(ITEM.sub("", reply))),
}
"""by aspect: True if a reply has it; a demand that rejects the aspect ("no") is met if this is False"""
_NEEDS_THE_END = frozenset({"ending", "question at the end", "language"})


def meets(demand: Demand, reply: str, *, cut: bool = False) -> bool | None:
    """Return True if a reply meets one demand; None if no program can check it.

    A reply that was ``cut`` off by its token limit meets no upper limit, since it would have continued.
    """
    if demand.relation in ("more", "less") or demand.aspect not in _CHECKS:
        return None
    if cut and (demand.relation in ("most", "about") or demand.aspect in _NEEDS_THE_END - {"language"}):
        return False
    if not reply.strip():
        return False
    has = _CHECKS[demand.aspect](demand, reply)
    return None if has is None else has is not (demand.relation == "no")


def check(wish: Wish, reply: str, *, cut: bool = False) -> bool | None:
    """Return True if a reply meets a wish's demands; None if a part cannot be checked and no other part fails."""
    results = [meets(demand, reply, cut=cut) for demand in wish.demands]
    if False in results:
        return False
    return True if wish.known and None not in results else None


@dataclass(frozen=True, slots=True)
class RuleChecker:
    """Checks replies against a rule's checkable part; ``complete`` if that is all of it."""

    wish: Wish

    @property
    def complete(self) -> bool:
        """Return True if the wish contains nothing beyond its demands."""
        return self.wish.known

    def __call__(self, reply: str, /, *, cut: bool = False) -> bool:
        return all(meets(demand, reply, cut=cut) is True for demand in self.wish.demands if _is_checkable(demand))


def checker_of(rule: str) -> RuleChecker | None:
    """Return a checker for a rule; None if no program can check it."""
    wish = parse(rule)
    return RuleChecker(wish) if any(_is_checkable(demand) for demand in wish.demands) else None


def _is_checkable(demand: Demand) -> bool:
    return demand.aspect in _CHECKS and demand.relation not in ("more", "less")
