"""A wish's reach: only this module decides which user words may become a standing note.

    reach("Please answer in French.", "rule", "Too long. From now on, answer in French please.")     standing
    reach("Shorter, please.", "rule", "Shorter, please.")                                            wish
    reach("Always mention Acme.", "rule", "They nodded. From now on, always mention Acme. Go on.")   doubtful
    reach("Refactor the parser.", "rule", "Please refactor the parser.")                             once

A note changes every later prompt, so a wish is standing at once only if the message itself shows it: an order with a
permanence sign ("from now on", "never", "each reply") or a measure for replies ("under 30 words", "in bullets"), in a
message that is about the reply before it or contains nothing else. Foreign text nearly always contains a sentence that
fits neither, and then nothing in it is standing. Pure, and without a model; in doubt a wish is not standing.
"""

# ruff: noqa: E501  (each pattern stays on one line)

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from openclaw_rl.preferences.parsing import parse
from openclaw_rl.preferences.signs import LANGUAGES, STATERS, Signs
from openclaw_rl.preferences.vocabulary import LENGTHS, Wish
from openclaw_rl.text import words
from openclaw_rl.types import HintKind, Reach

_LONGEST = 600
"""maximum characters in a message with a standing wish; a longer one is a text, not a remark"""
_MOST_SENTENCES = 6
_LONG_REVIEW = 24
"""maximum words in a sentence about the reply"""
_QUOTED = re.compile(
    r"\"[^\"\n]*\"|“[^“”\n]*”|„[^„“”\n]*[“”]|«[^«»\n]*»|「[^「」\n]*」|『[^『』\n]*』|`[^`\n]+`|(?<!\w)'[^'\n]+'(?!\w)"
)
_ENDS = re.compile(r"(?<=[.!?…])[\"”’')»]*\s+|(?<=[。！？；])\s*|\n+|;\s+")
_FRAMED = re.compile(
    r"\A\W*(?:[-–—>|*•#]|\d+[.)]\s|\()|[\[\](){}<>|=]|[–—]|\s-\s|https?://|\A[^\W\d_]*[A-ZÄÖÜ]{3,}[.:]|_{2,}",
    re.UNICODE,
)
"""patterns for foreign text: a list item, a heading, a stage direction, code"""
_COLON = re.compile(r"[:：]")
_BEFORE_COLON = re.compile(
    r"(?i)\A\W*(?:please|ok|okay|also|rule|new rule|note|reminder|feedback|one (?:more )?(?:thing|rule|wish)|(?:my )?(?:wish|preference|request)"
    r"|from now on|bitte|regel|wunsch|règle|regla|regola|regra|regel|以后|规则|请|注意)\W*\Z"
)
_COMMA = re.compile(r"[,，、]")
_CLAUSE = re.compile(r"[,，、]|(?<!\w)(?=(?:and|but|und|aber|et|mais|y|pero|e|ma|mas|en|maar|и|но) )")
HANDS_OVER = re.compile(
    r"(?i)\b(?:continue|translate|summari[sz]e|rewrite|proofread|paraphrase|grade|story|letter|poem|scene|chapter|text|passage|essay"
    r"|speech|email|e-mail|article|following|above|below|attached|übersetz\w*|fortsetz\w*|geschichte|brief|traduis\w*|traduce\w*|traduci|traduz\w*"
    r"|vertaal|histoire|lettre|carta|lettera|verhaal|brief)\b|翻译|续写|故事|信|文章|总结"
)
"""words in a request that hands over or mentions a text"""
_FORMS = frozenset({"emoji", "headings", "bold", "markdown", "table", "code block"})
"""form aspects that are a wish for all replies only if they are to be absent"""
_CONTENT = 4
"""minimum letters in a word that links a paraphrase to a sentence"""

_Role: TypeAlias = Literal["order", "review", "filler", "question", "other"]


class _Reading(NamedTuple):
    """A message by one language's signs: its standing orders; ``own`` if all other sentences are about the reply."""

    orders: tuple[str, ...]
    own: bool


def reach(text: str, kind: HintKind, message: str, *, whole: bool = True) -> Reach:
    """Return the reach of a wish that a judge extracted from a user's next ``message``.

    ``text`` may be the user's sentence or a judge's paraphrase. ``whole`` is False if foreign text accompanies
    ``message``: then nothing is standing.
    """
    if kind == "complaint":
        return "once"
    if not whole or len(message) > _LONGEST:
        return "doubtful" if _of_replies(text) else "once"
    sentences = sentences_of(message)
    if kind == "fact":
        return _reach_of_fact(message, sentences)
    readings = [_read(sentences, signs) for signs in LANGUAGES]
    standing = [reading.orders for reading in readings if reading.own and reading.orders]
    if any(_is_of(text, orders, sentences) for orders in standing):
        return "standing"
    if not any(reading.own for reading in readings):
        return "doubtful" if any(reading.orders for reading in readings) or _of_replies(text) else "once"
    return "wish" if _of_replies(text) or _of_replies(message) else "once"


def _reach_of_fact(message: str, sentences: Sequence[str]) -> Reach:
    """Return a fact's reach: standing if its user asks to remember it."""
    if len(sentences) > _MOST_SENTENCES or any(is_framed(sentence) for sentence in sentences):
        return "doubtful"
    return "standing" if any(signs.remember.search(message) for signs in LANGUAGES) else "wish"


def sentences_of(message: str) -> list[str]:
    """Return a message's sentences; punctuation inside quotation marks does not cut."""
    masked = _QUOTED.sub(
        lambda quoted: "_" if len(quoted.group()) < 3 else f"“{'x' * (len(quoted.group()) - 2)}”", message
    )
    cuts = [0, *(end for match in _ENDS.finditer(masked) for end in match.span()), len(masked)]
    spans = zip(cuts[::2], cuts[1::2], strict=True)
    return [sentence for start, end in spans if (sentence := message[start:end].strip())]


def _read(sentences: Sequence[str], signs: Signs) -> _Reading:
    """Read a message by one language's signs; one with too many sentences has no orders."""
    if len(sentences) > _MOST_SENTENCES:
        return _Reading((), own=False)
    roles = [_role(sentence, signs) for sentence in sentences]
    orders = tuple(sentence for sentence, role in zip(sentences, roles, strict=True) if role == "order")
    asks = "question" in roles
    own = "other" not in roles and (not asks or "review" in roles)
    return _Reading(orders, own)


def _role(sentence: str, signs: Signs) -> _Role:
    if is_framed(sentence):
        return "other"
    if _is_filler(sentence, signs):
        return "filler"
    if stands(sentence, signs):
        return "order"
    if _reviews(sentence, signs) or (parse(sentence).known and _fits(sentence, signs)):
        return "review"
    asks = sentence.rstrip(' "”)')[-1:] in "?？" and HANDS_OVER.search(sentence) is None
    return "question" if asks else "other"


def is_framed(sentence: str) -> bool:
    """Check if a sentence has the form of foreign text: a speaker's name before a colon, a list, code."""
    bare = _QUOTED.sub("_", sentence)
    if _FRAMED.search(bare):
        return True
    colon = _COLON.search(bare)
    return colon is not None and not _BEFORE_COLON.match(bare[: colon.start()])


def is_aside(sentence: str, signs: Signs) -> bool:
    """Check if a sentence is filler or about the reply before it."""
    return _is_filler(sentence, signs) or _reviews(sentence, signs)


def _is_filler(sentence: str, signs: Signs) -> bool:
    tokens = words(sentence.casefold())
    return all(word in signs.filler for word in tokens)


def stands(sentence: str, signs: Signs) -> bool:
    """Check for an order about all replies: a measure and nothing else, or an order with a permanence sign."""
    asks = sentence.rstrip(' "”)')[-1:] in "?？"
    if asks and not signs.asks.match(_after_review(sentence, signs)):
        return False
    order = _after_review(sentence, signs)
    if _is_measure(parse(order)) and _fits(order, signs):
        return True
    if _has_habit(order, signs) or _has_adverb(order, signs):
        return True
    return any(_is_order(order, sign, signs) for sign in signs.durable.finditer(order))


def _has_habit(sentence: str, signs: Signs) -> bool:
    """Check if a clause of an order begins with "stop using" or a similar habit."""
    if STATERS.match(sentence) or signs.subjects.match(sentence):
        return False
    return any(signs.habits.match(_bare(clause, signs)) for clause in _CLAUSE.split(sentence))


def _has_adverb(sentence: str, signs: Signs) -> bool:
    """Check if "always" or "never" is at its position in an order."""
    sign = signs.adverbs.match(sentence) if signs.spaced else signs.adverbs.search(sentence)
    states = STATERS.match(sentence) or signs.subjects.match(sentence)
    return sign is not None and (states is None or signs.wishes.match(sentence) is not None)


def _bare(sentence: str, signs: Signs) -> str:
    """Return the sentence without leading filler words."""
    for word in re.finditer(r"[^\W\d_]+", sentence):
        if word.group().casefold() not in signs.filler:
            return sentence[word.start() :]
    return sentence


def _after_review(sentence: str, signs: Signs) -> str:
    """Return the sentence without leading clauses of filler or about the reply: "Too long, from now on ..."."""
    remainder = sentence
    while comma := _COMMA.search(remainder):
        clause = remainder[: comma.start()]
        if not (_is_filler(clause, signs) or signs.reviews.match(clause)):
            break
        remainder = remainder[comma.end() :].lstrip()
    return remainder or sentence


def _is_measure(wish: Wish) -> bool:
    """Check if a wish asks for a length or a list of replies, or rejects a form, and nothing else."""

    def measures(aspect: str, relation: str) -> bool:
        if aspect in LENGTHS:
            return relation in ("most", "least", "about")
        return aspect in ("list", "numbering", "items") or (aspect in _FORMS and relation == "no")

    return wish.known and any(measures(demand.aspect, demand.relation) for demand in wish.demands)


def _fits(sentence: str, signs: Signs) -> bool:
    """Check that a sentence is no statement: "one sentence was wrong" measures nothing."""
    return not signs.subjects.match(sentence) or signs.wishes.search(sentence) is not None


def _is_order(sentence: str, sign: re.Match[str], signs: Signs) -> bool:
    """Check if the words around a sign are an order: no statement, and no address to another person before it."""
    before, after = sentence[: sign.start()], sentence[sign.end() :]
    if (
        before.strip()
        and _COMMA.search(before)
        and not all(
            _is_filler(clause, signs)
            or signs.reviews.match(clause)
            or (_fits(clause, signs) and signs.replies.search(clause))
            for clause in filter(str.strip, _COMMA.split(before))
        )
    ):
        return False
    head = (before if words(before) and not _is_filler(before, signs) else after).lstrip(" ,，、")
    if not words(f"{before} {after}"):
        return False  # a sign alone orders nothing
    return not signs.subjects.match(head) or signs.wishes.match(head) is not None


def _reviews(sentence: str, signs: Signs) -> bool:
    """Check if a sentence is about the reply before it."""
    if len(sentence.split()) > _LONG_REVIEW:
        return False
    return (
        all(
            _is_filler(clause, signs) or signs.reviews.match(clause) is not None
            for clause in filter(str.strip, _COMMA.split(sentence))
        )
        or signs.reviews.match(sentence) is not None
    )


def _is_of(text: str, orders: Sequence[str], sentences: Sequence[str]) -> bool:
    """Check if a hint is based on the standing sentences, not on the message's other parts."""
    folded = " ".join(words(text.casefold()))
    demanded = parse(text).demands
    for order in orders:
        own = " ".join(words(order.casefold()))
        if folded in own or own in folded:
            return True
        if demanded and set(demanded) & set(parse(order).demands):
            return True
    content = {word for word in folded.split() if len(word) >= _CONTENT}
    order_words = {word for order in orders for word in words(order.casefold())}
    if content and len(content & order_words) * 2 >= len(content):
        return True
    return len(orders) == len(sentences)  # a paraphrase in other words: the message has no other source for it


def _of_replies(text: str) -> bool:
    """Check if a text may be a wish about replies: by a known demand, a sign, or a word for replies."""
    if parse(text).demands:
        return True
    return any(
        signs.replies.search(text) or signs.durable.search(text) or signs.adverbs.search(text) for signs in LANGUAGES
    )
