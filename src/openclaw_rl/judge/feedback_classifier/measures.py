"""A measure for replies in a remark, as a plain sentence.

    named_measure("30 words is my limit")                     "Please answer in at most 30 words.": the remark is short
    missing_measure("Why go on? I want one sentence.", ...)   "Please answer in one sentence.": the reply had more

Pure, and English only. The sentence contains the measure and nothing else from the message, so it carries no foreign
words. "Write a poem in 30 words" is an errand: a message that names a thing to make has no measure for replies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from openclaw_rl.judge.text import Sentence
from openclaw_rl.text import NUMBER, items, number_of, sentence_count, word_count, words

# The user's own sentence with an instruction or a fact, verbatim. Pure.
#
# Only from a message that is surely the user's own: one line without address, code, quotes, brackets, colon or dash,
# without words that point ahead or report speech, and without a question beside the sentence.

LONGEST_SENTENCE = 6
"""maximum sentences in a message with an instruction; a longer one is a text, not a remark"""
_POINTS = re.compile(
    r"(?i)\b(?:these|following|below(?! (?:it|that)\b)|above|attached|copied|pasted)\b"
    r"|\bthis\s*(?:[.!?]|\Z)|\A\W*here\b"
    r"|\b(?:say(?! it\b)|says|said|wrote|writes|reads|texted|claims|goes like|was like|contains|notes?)\b"
    r"|\btold (?:me|us|him|her|them)\b"
)
_FOREIGN = re.compile(
    r"(?i)https?://|www\.|[\w.+-]@[\w-]+\.\w|^\s*(?:\$|#!|//|/\*)|\A[-*•]\s|\A\d+[.)]\s"
    r"|[:：=\[\](){}<>|`\"“”„«»「」『』\n]|(?<!\w)'|'(?!\w)|\s[-–—]+\s|[–—]|\s--"
)
_LEADS = re.compile(
    r"(?i)\A[^\w]*(?:(?:ok|okay|and|also|but|so|well|no|nope|hm+|ah|oh|aber|und|nein|mais|non|et|pero|no|y|mas|não|e|ma|但是|不过|不是|不对)"
    r"[,，.!。:\s]+)+"
)


def carrier(own: str, sentences: Sequence[Sentence], weigh: Callable[[str], float]) -> str | None:
    """Return the sentence of ``own`` with the highest weight, as written; None if it may contain foreign words."""
    if not sentences or len(sentences) > LONGEST_SENTENCE or may_be_foreign(own):
        return None
    if len(sentences) > 1 and any(sentence.asks for sentence in sentences):
        return None
    weights = [weigh(sentence.text) for sentence in sentences]
    return stripped(sentences[weights.index(max(weights))].text)


def may_be_foreign(own: str) -> bool:
    """Check if a message may contain other people's words."""
    return _FOREIGN.search(own) is not None or _POINTS.search(own) is not None


def stripped(sentence: str) -> str:
    """Return the sentence without its lead-in words."""
    bare = _LEADS.sub("", sentence).strip()
    return bare if len(bare) >= 0.4 * len(sentence) else sentence.strip()


# ruff: noqa: SIM905  (word lists stay in one string)

LONGEST = 14
"""maximum words in such a remark"""
MOST = 3
"""maximum words beside the measure and the filler"""
_NUMBER = rf"(?P<number>{NUMBER})"
_WORDS = (
    re.compile(
        r"(?i)\b(?:under|below|within|fewer than|less than|shorter than|at (?:the )?most|no more than|not more than"
        r"|up to|max(?:imum)?(?: of)?|over|past|beyond|you get|cap(?:ped)? (?:it |that |them )?at"
        r"|limit(?: is| of|ed to)?)"
        rf" {_NUMBER} words\b"
    ),
    re.compile(
        rf"(?i)\b{_NUMBER} words,? (?:or (?:fewer|less)|tops|max(?:imum)?|at (?:the )?most|no more|and no more"
        r"|(?:is|are) (?:plenty|enough|(?:my|the) (?:limit|ceiling)))\b"
    ),
)
_STRICT = re.compile(r"(?i)under|below|fewer|less|shorter")
_SENTENCE = re.compile(r"(?i)\b(?:one|1|a single|single|the one|only one) sentence\b")
_BULLETS = re.compile(r"(?i)\b(?:bullets|(?:bullet|dot) ?points?|bullet(?:ed)? lists?|one bullet per \w+)\b")
_LIMITS = re.compile(
    r"(?i)\b(?:no|not) more(?: than|\W*\Z)|\bnever (?:go|went|gone) (?:over|past|beyond)\b|\bfull stop\b"
)
_AGAINST = re.compile(
    r"(?i)\b(?:no|not|without|don't|do not|stop|instead of|too|enough with|hate|drop|at least|more than|minimum"
    r"|he|she|they|wants|likes|people|asked|said|says|told|wrote|counted|was|were|had|gave|same)\b|[:=;()?\"“”\n]|[.!…]\s"
)
_ERRAND = re.compile(
    r"(?i)\b(?:write|rewrite|draft|compose|describe|explain|summari[sz]e|translate|tell|give|name|define|suggest"
    r"|convert|turn|add|about|(?<!bullet )(?<!bulleted )list)\b"
    r"|\b(?:an?|the) (?!single|one|dear|bullet|max|limit|ceiling|shopping|side)\w+"
)
_FILLER = frozenset(
    "a an the please pls to of in on at as is are be it its it's this that these those your you my me i i'd i'm we our"
    " for with and or so from now here on next time always never ever just very really should must would will like want"
    " prefer answer answers reply replies response responses future forward going only all every any anything can could"
    " do keep make stay stick below over if up out into down back that's how everything per by".split()
)


def named_measure(own: str) -> str | None:
    """Return the measure as a plain sentence; None without one, or if it is rejected or describes the reply.

    Only for a short remark about little else: others may measure a part, or a thing to make.
    """
    bare = _LIMITS.sub(" ", own)
    if len(words(own)) > LONGEST or _AGAINST.search(bare.strip()) or _ERRAND.search(bare):
        return None
    for pattern, say in _SHAPES:
        match = pattern.search(own)
        if match is not None:
            remainder = f"{own[: match.start()]} {own[match.end() :]}"
            return say(match) if len([word for word in words(remainder) if word not in _FILLER]) <= MOST else None
    return None


def _under(found: re.Match[str]) -> str:
    return f"Please answer in under {found['number'].lower()} words."


def _at_most(found: re.Match[str]) -> str:
    return _under(found) if _STRICT.match(found[0]) else f"Please answer in at most {found['number'].lower()} words."


def _one_sentence(_found: re.Match[str]) -> str:
    return "Please answer in one sentence."


def _bullets(_found: re.Match[str]) -> str:
    return "Please answer in bullet points."


_SHAPES = (*((pattern, _at_most) for pattern in _WORDS), (_SENTENCE, _one_sentence), (_BULLETS, _bullets))


# --- in a complaint

_BRIEF = 10
"""maximum words in a sentence that only calls the reply too long"""
_REMARK = 24
"""maximum words in a sentence with a complaint's measure"""
_OTHERS = re.compile(r"(?i)[\"“”«»`<>|\n]|https?://|\b(?:he|she|people|said|says|told|wrote)\b")
"""signs of other people's words"""
_MADE = re.compile(
    r"(?i)\A\W*(?:(?:please|kindly|now|hi|hey|hello|can|could|would|will|you|i|need|want|to|help|me)\W+)*"
    r"(?:write|rewrite|draft|compose|translate|create|generate|make|design|code|edit|proofread|summari[sz]e|paraphrase)\b"
)
"""a request for a thing that a measure may describe"""
_MAKE = re.compile(
    r"(?i)\b(?:write|draft|compose|translate|describe|explain|define|suggest)"
    r" (?!it|that|this|me|your|everything|all|the same)\w"
)
_PART = re.compile(
    r"(?i)\b(?:per|(?:each|every)(?! (?:time|single|answer|reply|response|message)\b)|first|second|last|numbered"
    r"|titles?|headlines?|captions?|subjects?|intro\w*|summary|abstract|slogans?|e-?mails?|letters?|tweets?|posts?|notices?|poems?|story|stories)\b"
)
_RHETORICAL = re.compile(
    r"(?i)\b(?:can(?:['’]t|not)?|(?:could|would|will)(?:n['’]t)?)(?: not)? (?:you|it|this|that)(?: not)?\b"
    r"|\bwhy\b[^,.;!?]{0,16}?(?:n't|\b(?:not|no))\b"
)
"""phrases that refuse nothing despite a negation, as in "why is there no list?\""""
_REFUSED = re.compile(
    r"(?i)(?:\b(?:no|not|never|without|stop|avoid|hate|drop|enough|instead of|than|at least|minimum)\b|n't\b)"
    r"[^,.;!?]{0,30}\Z|\b(?:add|cut|change|delete|remove|forgot|missing|left out) \Z"
)
_TOO_MANY = re.compile(rf"(?i)\b{_NUMBER} words or (?:more|over|longer)\b")
_ONE_SENTENCE = re.compile(rf"{_SENTENCE.pattern}(?! (?:of|from|about|too many)\b)")
_BARE = re.compile(
    rf"(?i)\bwords\b.{{0,60}}\b(?:under|below|fewer than|less than|shorter than) {_NUMBER}\b(?! words\b)"
)
_COUNTED = re.compile(
    r"(?i)\bsentences\b.{0,60}\b(?:(?:just|only|exactly|single|want(?:ed)?|needed)(?: \w+){0,2} one\b"
    r"(?! (?!would|will)\w)"
    r"|one (?:would be|is|was) (?:enough|plenty|fine))"
)
_LIST = re.compile(r"(?i)\b(?:an?|as|into|in) (?:\w+ ){0,2}list\b(?! of)|\b(?:in|as) (?:\w+ )?points\b(?! of)")


def missing_measure(own: str, *, request: str, reply: str) -> str | None:
    """Return the measure that a complaint names and the reply lacks; None without one.

    A complaint about a long reply that mentions one sentence asks for one. None if the request was for a thing that the
    measure may describe, for the measure of a part, and for words that may be foreign.
    """
    if _OTHERS.search(own) or _MADE.search(request):
        return None
    sentences = re.split(r"(?<=[.!?…])\s+", own.strip())
    for sentence in sentences:
        if any("?" in question and not _complains(question) for question in sentences if question is not sentence):
            continue  # the text beside a question may be its subject
        if len(words(sentence)) > _REMARK or _MAKE.search(sentence):
            continue
        for pattern, say, lacks in _LACKED:
            match = pattern.search(sentence)
            if match is None or not lacks(reply, match) or may_be_foreign(own.replace(match[0], "")):
                continue
            if not _REFUSED.search(_RHETORICAL.sub("", sentence[: match.start()])):
                return say(match)
    return None


_LENGTHY = re.compile(
    r"(?i)\b(?:(?:too|so|overly|awfully|needlessly) (?:long|lengthy|wordy|verbose|long-?winded|chatty|many words"
    r"|much (?:text|to read))|long-?winded|(?:are|'re) (?:rambling|waffling)|talk too much)\b"
)
_WORTH_SHORTENING = 30
"""minimum words in a reply that is too long without a measure"""


def shorter(own: str, *, request: str, reply: str) -> str | None:
    """Return the rule in a complaint that a reply is too long, if one sentence is about this alone; None otherwise."""
    if _OTHERS.search(own) or _MADE.search(request) or word_count(reply) < _WORTH_SHORTENING:
        return None
    for sentence in re.split(r"(?<=[.!?…])\s+", own.strip()):
        match = _LENGTHY.search(sentence)
        if match is None or len(words(sentence)) > _BRIEF or _PART.search(sentence):
            continue
        if not _REFUSED.search(_RHETORICAL.sub("", sentence[: match.start()])):
            return "Please keep it shorter."
    return None


def _complains(question: str) -> bool:
    """Check if a question is about the reply: why it is so."""
    return re.match(r"(?i)\W{0,8}why\b", question) is not None


def _is_longer(reply: str, found: re.Match[str]) -> bool:
    return word_count(reply) >= number_of(found["number"]) and not _PART.search(found.string)


def _is_no_sentence(reply: str, found: re.Match[str]) -> bool:
    return (sentence_count(reply) > 1 or bool(items(reply))) and not _PART.search(found.string)


def _is_no_list(reply: str, found: re.Match[str]) -> bool:
    return not items(reply) and "numbered" not in found.string.lower()


_LACKED = (
    *((pattern, _at_most, _is_longer) for pattern in _WORDS),
    *((pattern, _under, _is_longer) for pattern in (_TOO_MANY, _BARE)),
    *((pattern, _one_sentence, _is_no_sentence) for pattern in (_ONE_SENTENCE, _COUNTED)),
    *((pattern, _bullets, _is_no_list) for pattern in (_BULLETS, _LIST)),
)
