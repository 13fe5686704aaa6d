"""Parses a wish about replies into demands. Table-driven, several languages, without a model. Pure.

    parse("Höchstens 30 Wörter, bitte.").demands    (Demand(aspect="words", relation="most", number=30),)
    parse("Be more like a pirate.")                  no demand and ``rest``: no program can check it

A demand on a part of the reply, or on another thing ("titles under six words"), counts as ``rest``.
"""
# ruff: noqa: E501, SIM905  (each pattern and word list stays on one line)

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from openclaw_rl.preferences.vocabulary import (
    ANY_NUMBER,
    BULLETS,
    CHINESE_LIMITS,
    CHINESE_LIMITS_AFTER,
    CHINESE_NUMBERS,
    CHINESE_UNITS,
    LANGUAGE_NAMES,
    LENGTHS,
    LIMITS,
    LIMITS_AFTER,
    NEGATION,
    UNITS,
    Demand,
    Relation,
    Wish,
    count_of,
    pattern,
)

_UNIT = "|".join(f"(?P<{name}>{words})" for name, words in UNITS.items())
_ADJECTIVES = r"(?:\s*(?:short|single|full|complete|plain|simple|kurzen?|courtes?|cortas?|brevi|korte)){0,2}"
_COUNTED = rf"(?P<number>{ANY_NUMBER}){_ADJECTIVES}\s*(?:{_UNIT})(?!\w)"
_BEFORE = tuple(
    (relation, excluded, pattern(rf"(?<!\w)(?:{words})\s*(?:about\s+|circa\s+|de\s+)?{_COUNTED}"))
    for relation, excluded, words in LIMITS
)
_AFTER = tuple((relation, False, pattern(rf"{_COUNTED}\W{{0,2}}(?:{words})(?!\w)")) for relation, words in LIMITS_AFTER)
_BARE = pattern(rf"(?:(?:\b(?:in|with|as|mit|en|avec|con|em|com|met)|用)\s*(?:just |only |exactly |nur )?)?{_COUNTED}")
_ALONE = pattern(r"\b(?:just|only) one sentence\b|\b(?:a|one) single sentence\b|\bsingle sentence\b|一句话")
_CHINESE = re.compile(
    rf"(?P<before>{'|'.join(CHINESE_LIMITS)})?\s{{0,2}}(?P<number>\d{{1,4}}|[{''.join(CHINESE_NUMBERS)}])\s{{0,2}}[个個]?"
    rf"(?P<unit>[{''.join(CHINESE_UNITS)}])话?(?P<after>{'|'.join(CHINESE_LIMITS_AFTER)})?"
)

_ELSEWHERE = pattern(
    r"\b(?:titles?|head(?:ing|line)s?|captions?|comments?|subjects?|summar(?:y|ies)|intro\w*|e-?mails?|letters?|tweets?"
    r"|posts?|stor(?:y|ies)|poems?|essays?|descriptions?|names?|labels?|quotes?)\b(?=.{0,30}\d|.{0,30}\bwords?)"
    r"|\b(?:when(?:ever)?|unless|except)\b"
)
"""signs that a measure applies to a part or to another thing, or under a condition"""
_EACH = pattern(
    r"\b(?:each|per|every|first|last)\b(?! (?:time|answer|reply|response|message|single time))"
    r"|\b(?:words?|sentences?|lines?)\s+(?:each|per)\b|\b(?:jede[rsn]?|chaque|cada|ogni|elke?) (?!antwort|réponse|respuesta|risposta|resposta|antwoord)"
)

_NUMBERED = pattern(
    r"\bnumbered\b|\bnumber (?:the|your|each|every|all)\b|\bnummerier\w*|\bdurchnummerier\w*|\bnumérot\w*"
    r"|\benumera\w*|\bnumera\w*|\bnummer(?:de|en)\b|编号"
)
_BULLETED = pattern(rf"(?<!\w){BULLETS}(?!\w)(?! of (?!short points|points|bullets))")
_FORMS: dict[str, re.Pattern[str]] = {
    "emoji": pattern(r"\bemo(?:jis?|ticons?)\b|\bsmile?ys?\b|表情"),
    "headings": pattern(r"\bhead(?:ings?|ers?)\b|\büberschriften?\b|\btitres\b|\bencabezados?\b"),
    "bold": pattern(r"\bbold(?:ed|ing)?\b|\bfett\w*|\ben gras\b|\bnegritas?\b"),
    "table": pattern(r"\btables?\b|\btabellen?\b|\btableaux?\b|\btablas?\b"),
    "code block": pattern(r"\bcode[ -]?blocks?\b|\bfenced code\b"),
    "praise": pattern(r"\b(?:praise|compliment) (?:me|my \w+)(?: warmly)?(?: for my \w+)?"),
    "example": pattern(r"\b(?:a|an|one|with|some) (?:(?:specific|concrete|short|real) )*examples?\b"),
}
_PLAIN_TEXT = pattern(rf"\bplain text\b|(?<!\w){NEGATION}(?: \w+){{0,3}} (?:markdown|formatting|formatierung)\b")
_MARKDOWN = pattern(r"\bmarkdown\b")
_UPPER = pattern(r"\b(?:all[ -]?caps|capital letters|upper ?case|großbuchstaben|majuscules|mayúsculas|maiuscol[oe]|maiúsculas)\b")  # fmt: skip
_LOWER = pattern(r"\b(?:lower ?case|kleinbuchstaben|klein geschrieben|minuscules|minúsculas|minuscol[oe])\b|\b(?:no|without) capital(?:s| letters)\b")  # fmt: skip
_METRIC = pattern(r"\b(?:metric|metrisch\w*|métriques?|métricas?|celsius|kilomet(?:er|re)s?|si units)\b")
_IMPERIAL = pattern(r"\b(?:imperial|fahrenheit|miles|feet and inches|pounds)\b")

_LATIN_NAMES = "|".join(
    f"(?P<{name}>{'|'.join(word for word in row.split('|') if word.isascii() or (word[0].isalpha() and word[0] < 'Ͱ'))})"
    for name, row in LANGUAGE_NAMES.items()
)
_OWN_SCRIPT = {
    name: pattern("|".join(found)) for name, row in LANGUAGE_NAMES.items()
    if (found := [word for word in row.split("|") if word[0] >= "Ͱ"])
}  # fmt: skip
_IN_LANGUAGE = pattern(
    rf"\b(?:in|auf|en|em|po|speak|use|write|reply|respond|answer|sprich|parle|habla|parla|fale|spreek)"
    rf"\s+(?:only |just |nur |simple |plain |proper |het )?(?:{_LATIN_NAMES})\b"
)
_ONLY_LANGUAGE = pattern(
    rf"\A\W*(?:only |nur |solo |please |bitte )?(?:{_LATIN_NAMES})\b[\s,]*(?:only|nur|please|bitte|por favor|per favore|svp)?\W*\Z"
)

_QUOTED = r"[\"“„«‹'‘](?P<text>[^\"“”„«»‹›]{1,80}?)[\"”“»›'’](?!\w)"
_NAMED_WORD = r"the (?:words?|phrase|sentence) (?P<text>[\w' -]{2,40}?)(?=[.,;!?]|\Z| in | at | to | when )"
_MENTIONS = (
    r"(?:mention|include|use|say|write|contain|add|put|sag\w*|schreib\w*|nenn\w*|dis|écris|mentionne|di|menciona|usa)"
)
_CONTAINS = tuple(pattern(rf"\b{_MENTIONS}(?: \w+){{0,4}}? {text}") for text in (_QUOTED, _NAMED_WORD))
_START = r"\b(?:start|begin|open|beginn\w*|fang\w*|commence[rz]?|empieza|comienza|inizia|comece|begin)"
_END = r"\b(?:end|finish|close|sign off|beende|ende|schließ\w*|hör\w*|termine[rz]?|finis|termina|acaba|finisci|termine|eindig)"
_WITH = r"(?:ing|ning)?(?: \S+){0,4}? (?:with|by|mit|par|con|com|met) "
_OPENING = tuple(pattern(rf"{_START}{_WITH}{text}") for text in (_QUOTED, _NAMED_WORD))
_ENDING = tuple(pattern(rf"{_END}{_WITH}{text}") for text in (_QUOTED, _NAMED_WORD))
_QUESTION = pattern(
    rf"{_END}{_WITH}(?:a|an|one|einer|une|una|uma|een)(?: \w+)? (?:question|frage|pregunta|domanda|pergunta|vraag)\b"
    r"|\bask(?:ing)? me (?:a|one|some) (?:\w+ )?questions? (?:back|at the end|in return)\b"
    r"|\b(?:question|frage|pregunta) (?:at the end|am (?:ende|schluss)|al final|à la fin)\b"
)
_CALLED = pattern(
    r"\b(?:call me|address me (?:as|by)|refer to me as|use my name,?|nenn(?:e)? mich|appelle[- ]moi|llámame|chiamami"
    r"|me chame de|noem me)(?: by my name,?)? (?:\"|“|')?(?P<text>[^\W\d_][\w'.-]*(?: [^\W\d_a-zß-ÿ][\w'.-]*)?)"
    r"|叫我(?P<han>[\u4e00-\u9fff\w]{1,6})"
)
_DIRECTIONS: tuple[tuple[Relation, re.Pattern[str]], ...] = (
    (
        "less",
        pattern(
            r"\b(?:short(?:er)?(?! (?:points?|lists?|items?|bullets?|sentences?|words?))|brief(?:er|ly)?|concise(?:ly)?|succinct|terse|fewer words|less wordy|to the point|too (?:long|wordy|verbose)"
            r"|kürzer|(?<!zu )kurz|zu lang|plus court\w*|trop long\w*|más corto\w*|más breve\w*|demasiado largo|più breve|troppo lungo|mais curt\w+"
            r"|korter|te lang)\b|简短|简洁|短一点|太长"
        ),
    ),
    (
        "more",
        pattern(
            r"\b(?:longer|(?:in )?(?:more|full) detail\w*|more detailed|elaborate|thorough|in depth|at length|too short|länger"
            r"|ausführlicher?|zu kurz|plus long\w*|plus de détails|trop court\w*|más (?:largo|detall\w*)|demasiado corto|più lungo|mais longo"
            r"|langer|uitgebreider)\b|详细|长一点|太短"
        ),
    ),
)  # fmt: skip
_AGAINST = pattern(rf"(?<!\w){NEGATION}\b[^.!?;]{{0,40}}\Z")
_SMALL = frozenset(
    "a an the please pls to of in on at as is are be it its it's this that these those your you my me i i'd i'm "
    "we our us for with and or so from now here next time always never ever just very really should must would "
    "will like want need prefer answer answers reply replies response responses respond message messages future "
    "forward going only all every any each can could do does don't not no too keep make give use write stay stick "
    "up out down back how more less than way bit bitte immer nur antworte antworten deine die der das mit und auf "
    "ab jetzt künftig réponds réponse réponses toujours s'il te vous plaît en tes les des responde respuestas "
    "siempre por favor tus las los rispondi sempre per favore le responda thanks thank ok okay hey bulleted list "
    "points short form long much taste".split()
)
"""words beside the demands that ask for nothing"""
_FEW = 2
"""maximum other words in a text that asks for nothing more"""


class _Match(NamedTuple):
    demand: Demand
    start: int
    end: int


def parse(text: str) -> Wish:
    """Return the demands in a text known to be a wish; ``demands`` is empty if no table matches it."""
    plain = text.replace("’", "'").strip()
    matches = _without_overlaps([match for read in _READERS for match in read(plain)])
    by_aspect: dict[str, _Match] = {}
    for match in matches:
        by_aspect.setdefault(match.demand.aspect, match)
    asks_more = _asks_more(plain, by_aspect.values())
    return Wish(text=text, demands=tuple(match.demand for match in by_aspect.values()), rest=asks_more or not by_aspect)


def _without_overlaps(matches: list[_Match]) -> list[_Match]:
    """Return the matches in order, without those inside an earlier reader's match."""
    separate: list[_Match] = []
    for match in matches:
        if not any(earlier.start <= match.start and match.end <= earlier.end for earlier in separate):
            separate.append(match)
    return separate


def _asks_more(text: str, matches: Iterable[_Match]) -> bool:
    """Check if words beside the matches may ask for something else."""
    remaining = list(text)
    for match in matches:
        remaining[match.start : match.end] = " " * (match.end - match.start)
    beside = "".join(remaining).casefold()
    for _relation, shape in _DIRECTIONS:
        beside = shape.sub(" ", beside)
    words = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", beside)
    return len([word for word in words if word not in _SMALL]) > _FEW


def _is_refused(text: str, start: int) -> bool:
    return _AGAINST.search(text[:start]) is not None


def _measures(text: str) -> Iterator[_Match]:
    if _ELSEWHERE.search(text) or _EACH.search(text):
        return
    for relation, excluded, shape in (*_BEFORE, *_AFTER):
        for match in shape.finditer(text):
            if (measure := _measure(match, relation, excluded)) is not None:
                yield measure
    for match in _CHINESE.finditer(text):
        yield _chinese_measure(match)
    if (single := _ALONE.search(text)) and not _is_refused(text, single.start()):
        yield _Match(Demand(aspect="sentences", relation="most", number=1), *single.span())
    for match in _BARE.finditer(text):
        limit: Relation = "most" if _unit(match) in ("sentences", "paragraphs", "lines") else "about"
        if (measure := _measure(match, limit, excluded=False)) is not None:
            yield measure


def _unit(match: re.Match[str]) -> str | None:
    return next((name for name in UNITS if match.groupdict().get(name)), None)


def _measure(match: re.Match[str], relation: Relation, excluded: bool) -> _Match | None:
    unit, figure = _unit(match), match.groupdict().get("number")
    if unit is None or figure is None:
        return None
    if _is_refused(match.string, match.start()):  # "not more than 30 words" is at most 30
        if relation == "about" or not excluded:
            return None
        relation, excluded = "most" if relation == "least" else "least", False
    number = count_of(figure) + (0 if not excluded else -1 if relation == "most" else 1)
    if number < 1:
        return None
    return _Match(Demand(aspect=unit, relation=relation, number=number), *match.span())


def _chinese_measure(match: re.Match[str]) -> _Match:
    unit = CHINESE_UNITS[match["unit"]]
    limit = CHINESE_LIMITS.get(match["before"] or "") or CHINESE_LIMITS_AFTER.get(match["after"] or "")
    relation: Relation = limit or ("most" if unit == "sentences" else "about")
    figure = match["number"]
    number = CHINESE_NUMBERS[figure] if figure in CHINESE_NUMBERS else int(figure)
    return _Match(
        Demand(aspect=unit, relation=relation, number=max(1, number - (match["before"] == "少于"))), *match.span()
    )


def _lists(text: str) -> Iterator[_Match]:
    if found := _NUMBERED.search(text):
        relation: Relation = "no" if _is_refused(text, found.start()) else "yes"
        yield _Match(Demand(aspect="numbering", relation=relation), *found.span())
        after = _BULLETED.search(text, found.end())
        if after is not None and after.start() - found.end() < 3:
            return
    if (found := _BULLETED.search(text)) and not _EACH.search(text):
        yield _Match(Demand(aspect="list", relation="no" if _is_refused(text, found.start()) else "yes"), *found.span())


def _languages(text: str) -> Iterator[_Match]:
    for shape in (_IN_LANGUAGE, _ONLY_LANGUAGE):
        if found := shape.search(text):
            name = next(name for name, value in found.groupdict().items() if value)
            refused = _is_refused(text, found.start())
            yield _Match(Demand(aspect="language", relation="no" if refused else "yes", text=name), *found.span())
            return
    for name, shape in _OWN_SCRIPT.items():
        if found := shape.search(text):
            refused = _is_refused(text, found.start())
            yield _Match(Demand(aspect="language", relation="no" if refused else "yes", text=name), *found.span())
            return


def _texts(text: str) -> Iterator[_Match]:
    for aspect, shapes in (("opening", _OPENING), ("ending", _ENDING), ("words in it", _CONTAINS)):
        for shape in shapes:
            if found := shape.search(text):
                relation: Relation = "no" if _is_refused(text, found.start()) else "yes"
                yield _Match(Demand(aspect=aspect, relation=relation, text=found["text"].strip()), *found.span())
                break


def _manners(text: str) -> Iterator[_Match]:
    if found := _QUESTION.search(text):
        relation: Relation = "no" if _is_refused(text, found.start()) else "yes"
        yield _Match(Demand(aspect="question at the end", relation=relation), *found.span())
    if found := _CALLED.search(text):
        name = (found["text"] or found["han"]).rstrip(".")
        relation = "no" if _is_refused(text, found.start()) else "yes"
        yield _Match(Demand(aspect="name", relation=relation, text=name), *found.span())
    for case, shape in (("lower", _LOWER), ("upper", _UPPER)):
        if (found := shape.search(text)) and not _is_refused(text, found.start()):
            yield _Match(Demand(aspect="case", text=case), *found.span())
            return
    if (found := _UPPER.search(text)) is not None:
        yield _Match(Demand(aspect="case", relation="no", text="upper"), *found.span())


def _forms(text: str) -> Iterator[_Match]:
    if found := _PLAIN_TEXT.search(text):
        yield _Match(Demand(aspect="markdown", relation="no"), *found.span())
    elif found := _MARKDOWN.search(text):
        yield _Match(Demand(aspect="markdown"), *found.span())
    for aspect, shape in _FORMS.items():
        if found := shape.search(text):
            relation: Relation = "no" if _is_refused(text, found.start()) else "yes"
            yield _Match(Demand(aspect=aspect, relation=relation), *found.span())
    for system, shape in (("metric", _METRIC), ("imperial", _IMPERIAL)):
        if (found := shape.search(text)) and not _is_refused(text, found.start()):
            yield _Match(Demand(aspect="units", text=system), *found.span())
            return


def _directions(text: str) -> Iterator[_Match]:
    """Yield a demand for longer or shorter replies; not beside a measure, which is more precise."""
    if any(match.demand.aspect in LENGTHS for match in _measures(text)):
        return
    for relation, shape in _DIRECTIONS:
        if found := shape.search(text):
            refused = _is_refused(text, found.start())
            turned: Relation = ("more" if relation == "less" else "less") if refused else relation
            yield _Match(Demand(aspect="words", relation=turned), *found.span())
            return


_READERS: tuple[Callable[[str], Iterator[_Match]], ...] = (
    _texts,
    _measures,
    _manners,
    _lists,
    _languages,
    _forms,
    _directions,
)
"""in this order: quoted text is read first, so that words inside it ask for nothing"""
