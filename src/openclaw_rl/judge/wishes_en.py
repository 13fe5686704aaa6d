"""English: clauses that say how a reply should have been, and how each is turned into an instruction."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_NUMBER = r"(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|fifty|a hundred|a single|a few|a couple of|1-2|2-3)"
_UNIT = r"(?:words?|sentences?|lines?|paragraphs?|characters?|chars|bullets?|bullet points?|tips|items|points|examples?|steps|options|pages?|syllables)"
_SOFT = r"(?:(?:ok|and|also|but|so|then|hey|next time|from now on|instead|this time|now|rather|again|almost|good|well|please|maybe|perhaps|though|however) )*"
_ASK = rf"{_SOFT}(?:(?:can|could|would|will) you (?:please |maybe |just |also )*)?(?:please )?(?:just |at least |try to )?"
_END = r"(?: (?:please|instead|next time|from now on|this time|in future|in the future|ok|thanks|okay|lol|for once|thank you|a bit|like i (?:asked|said)|as i (?:asked|said)|and nothing else|only))*"
_ADJ = (
    r"(?:warm|friend\w+|kind|concise|brief|short|direct|blunt|formal|informal|casual|honest|specific|polite|precise|detailed|clear|serious|funny|playful"
    r"|technical|simple|positive|critical|neutral|creative|verbose|wordy|stiff|generic|vague|careful|accurate|professional|personal|conversational|natural"
    r"|enthusiastic|cheerful|encouraging|patient|respectful|gentle|succinct|terse|thorough|helpful|human|dramatic|emotional|dry|preachy|repetitive|robotic|cheesy"
    r"|complicated|complex|long|abstract|theoretical|basic|packed|dense|flowery|salesy|pushy|negative|harsh|cold|rude|chatty|literal|poetic|academic|slow|fast)"
)
_ADJER = r"(?:warmer|friendlier|kinder|nicer|shorter|longer|simpler|clearer|softer|calmer|funnier|briefer|blunter|gentler|easier|lighter|stricter|bolder|snappier|punchier|crisper|tighter)"
_DEGREE = r"(?:(?:a bit|a little|a lot|much|far|way|slightly|so|really|very|even|bit|some) )*"
_FORM = (
    r"(?:bullet ?points?|bullets|bullet lists?|(?:numbered )?lists?|tables?|prose|paragraphs?|json(?: only)?|markdown|plain (?:text|english)|yaml|csv|code|full sentences"
    r"|headings?|headers|emojis?|emoticons|jargon|exclamation (?:marks|points)|caps|capital letters|lower ?case|upper ?case|all caps|bold|italics|abbreviations|acronyms|slang|cliches"
    r"|metaphors|adjectives|intros?|introductions?|preambles?|fluff|filler|disclaimers?|apologies|explanations?|commentary|comments|small talk|questions|rhymes|hashtags|links|sources|examples"
    r"|steps|latex|html|first person|second person|third person|past tense|present tense|active voice|passive voice)"
)
_LANG = r"(?:english|german|french|spanish|italian|chinese|japanese|portuguese|russian|korean|dutch|hindi|arabic|python|javascript|typescript|rust|java|c\+\+|bash|sql|simple terms|simple words|layman'?s terms|plain english|plain words|plain language)"
_MEASURE = r"(?:metric(?: units?)?|imperial(?: units?)?|meters|kilometers|km|celsius|fahrenheit|euros?|dollars|pounds|kilos?|kilograms|kg|si units|24.hour time|iso dates)"
_PART = r"(?:intro|introduction|preamble|greeting|sign.?off|ending|conclusion|disclaimer|(?:last|first|final|second) (?:line|sentence|paragraph|part|bit|word)|emojis?|bullets?|bullet points|headings?|fluff|filler|apology|apologies|jargon|_ (?:bit|part|line))"
_BEHAVE = (
    r"(?:us(?:e|ing)|writ(?:e|ing)|start(?:ing)?|begin(?:ning)?|end(?:ing)?|add(?:ing)?|ask(?:ing)?|repeat(?:ing)?|includ(?:e|ing)|chang(?:e|ing)|touch(?:ing)?|edit(?:ing)?|say(?:ing)?|giv(?:e|ing)"
    r"|put(?:ting)?|explain(?:ing)?|editorializ(?:e|ing)|hedg(?:e|ing)|apologi[sz](?:e|ing)|call(?:ing)?|mention(?:ing)?|assum(?:e|ing)|guess(?:ing)?|invent(?:ing)?|lectur(?:e|ing)|format(?:ting)?"
    r"|respond(?:ing)?|answer(?:ing)?|repl(?:y|ying)|delet(?:e|ing)|overwrit(?:e|ing)|mak(?:e|ing) (?:things|stuff|it|this|that|up)|talk(?:ing)?|speak(?:ing)?|show(?:ing)?|list(?:ing)?|ramb\w+|babbl\w+|go(?:ing)? on|translat(?:e|ing)|sound(?:ing)?)"
)


@dataclass(frozen=True, slots=True)
class Wish:
    """A shape of clause and the instruction made of it; ``answerable`` wishes may also answer a question of the reply."""

    shape: re.Pattern[str]
    say: Callable[[str], str] | None = None
    answerable: bool = False


def _wish(shape: str, say: Callable[[str], str] | None = None, *, answerable: bool = False) -> Wish:
    return Wish(re.compile(shape, re.IGNORECASE), say, answerable)


def _strip(text: str) -> str:
    return re.sub(r"(?i)^(?:ok|and|also|but|so|though|however|then|hey|almost|good)[, ]+", "", text.strip(" .!,"))


def _after(pattern: str, lead: str) -> Callable[[str], str]:
    """What follows ``pattern``, put behind ``lead``."""
    return lambda text: f"{lead} {re.sub(f'(?i)^.*?{pattern}', '', text.strip(' .!?')).strip()}"


def _as_form(text: str) -> str:
    bare = re.sub(r"(?i)\b(?:please|pls|plz|ok|thanks|and|but|instead|i need|i want|give me)\b", " ", text)
    bare = " ".join(bare.strip(" .!,?").split())
    return f"Please answer {bare}" if re.match(r"(?i)(?:in|with|as|under|within|at|using)\b", bare) else f"Please answer in {bare}"


def _too(text: str) -> str:
    word = re.sub(r"(?i)^.*\b(?:too|so) (?:much )?", "", text.strip(" .!")).split()[0].lower()
    fixed = {"long": "Please keep it shorter", "short": "Please give a longer answer", "wordy": "Please use fewer words"}
    fixed |= {"verbose": "Please keep it shorter", "complicated": "Please make it simpler", "vague": "Please be more specific"}
    fixed |= {"generic": "Please be more specific", "complex": "Please make it simpler", "slow": "Please get to the point faster"}
    return fixed.get(word, f"Please be less {word}")


def _no_form(text: str) -> str:
    bare = re.sub(r"(?i)\b(?:please|pls|plz|next time)\b", " ", text)
    return "Please use " + " ".join(_strip(bare).split()).replace("No ", "no ", 1)


def _comparative(text: str) -> str:
    bare = re.sub(r"(?i)\b(?:please|pls|plz|ok)\b", " ", text)
    return "Please make it " + " ".join(_strip(bare).lower().split())


WISHES: tuple[Wish, ...] = (
    _wish(rf"{_ASK}(?:don't|do not|never|stop|avoid|quit|no more) (?!you\b|me\b)(?:\w+ly )?(?:be(?:ing)? (?:so |too )?{_ADJ}|{_BEHAVE}\b.*|(?:the )?(?:word|phrase)s? .*|{_FORM}){_END}", answerable=True),
    _wish(rf"{_SOFT}(?:with )?(?:no|without|skip|less|fewer)(?: the| any| more| those| these)? {_FORM}(?: and {_FORM})?{_END}", _no_form),
    _wish(rf"{_ASK}(?:keep|limit|restrict|cut|trim) (?:it|this|that|them|things|your \w+|(?:the |all |your )?(?:answers?|repl(?:y|ies)|responses?|messages?)|yourself)(?: down)? (?:to |under |below |within |at |short|brief|simple|concise|tight|light|clean|formal|casual|professional|friendly|at most|in )\b.*"),
    _wish(rf"{_SOFT}(?:in |with |i need |i want |give me |answer in |answer with |keep to )?(?:just |only |exactly |about |around )?(?:under|at most|max(?:imum)?(?: of)?|no more than|not more than|less than|fewer than|within|up to|at least|a maximum of|below|over|minimum) {_NUMBER} {_UNIT}(?: or (?:less|fewer|so))?(?: max(?:imum)?)?{_END}", _as_form),
    _wish(rf"{_SOFT}(?:in |with |i need |i want |give me |only |just |exactly )*{_NUMBER} (?:short |single |simple )?{_UNIT}(?: or (?:less|fewer|so)| max(?:imum)?| only| at most| is enough| would do| please| instead)+{_END}", _as_form),
    _wish(rf"{_ASK}(?:be|sound|act|stay) {_DEGREE}(?:more |less )?(?:{_ADJ}|{_ADJER})(?: and {_DEGREE}(?:more |less )?(?:{_ADJ}|{_ADJER}))?(?: (?:to|with|towards) me| about (?:it|this))?{_END}", answerable=True),
    _wish(rf"{_SOFT}{_DEGREE}(?:(?:more|less) (?:{_ADJ}|details?|examples?|context|depth|numbers|data)|{_ADJER})(?: and {_DEGREE}(?:(?:more|less) {_ADJ}|{_ADJER}))?{_END}", _comparative),
    _wish(rf"{_ASK}(?:make|keep|write|phrase|say|do|put|rewrite|redo|rephrase|format|have|turn|give|explain) (?:it|this|that|them|everything)(?: me)?(?: again| all| into)? (?:{_DEGREE}(?:(?:more|less) {_ADJ}|{_ADJER})(?: and .{{1,30}})?|(?:in|as|with|like|without|into|to) .{{1,60}}|an? {_FORM}|{_FORM}|but .{{1,40}}){_END}"),
    _wish(rf"{_ASK}(?:use|stick to|switch to|prefer|convert (?:it |that )?to) (?!to\b)(?:\S+ ){{0,5}}?\S+{_END}"),
    _wish(rf"{_ASK}(?:answer|respond|reply|write|speak|talk|explain(?: it)?|sound)(?: to me| me| back)? (?:only |always |it )?(?:in|with|like|as|using|within|without|under) (?:\S+ ){{0,9}}\S+{_END}"),
    _wish(rf"{_SOFT}(?:in|as) (?:an? )?(?:{_LANG}|{_MEASURE}|{_FORM})(?: only)?(?: please| instead| next time| from now on){_END}", _as_form),
    _wish(rf"(?:no |nope )?in (?:{_MEASURE}){_END}", _as_form),
    _wish(rf"{_SOFT}(?:{_LANG}|{_MEASURE}|prose|json|markdown|plain text|all caps|lower ?case|bullet points|bullets|an? list|an? table|first person|past tense) (?:only )?(?:please){_END}", _as_form),
    _wish(rf"{_ASK}(?:end|start|begin|finish|close|open|sign off)(?: (?:your|each|every|all|the|it)(?: \w+){{0,3}}?)? (?:with|by) .{{1,80}}"),
    _wish(rf"{_ASK}(?:next time|from now on|in (?:the )?future|going forward|always|every time)\b(?! i\b| we\b| he\b| she\b| they\b| the\b| it\b).{{6,140}}"),
    _wish(rf"{_ASK}(?!.*\bi (?:will|would|can)\b)(?:add|include|give|mention|ask|check|show|use|write|put|tell|number|explain|list|be|keep)\b.{{2,80}} (?:next time|from now on|in (?:the )?future|going forward|every time|at the end of every \w+|in every \w+|before answering)"),
    _wish(rf"{_ASK}(?:check|verify|read|run|test|look|ask|confirm|think|search)\b.{{0,60}}\b(?:before|first)\b.{{0,60}}"),
    _wish(rf"{_ASK}(?:cite|show|explain|check|quote|number|give|name|list)(?: me)? (?:your|why|concrete|the (?:article|sources?|text)|sources|actual|exact|specific|real|results)\b.{{0,50}}"),
    _wish(rf"{_SOFT}(?:you )?(?:should|must|need to|have to|ought to) (?!have\b|be kidding\b|be joking\b|know\b|see\b|try\b|watch\b|rate\b|score\b)(?:always |never |first |really |also )*\w+ .{{3,100}}", lambda text: "Please " + re.sub(r"(?i)^.*?\b(?:should|must|need to|have to|ought to) ", "", text.strip(" .!"))),
    _wish(rf"{_SOFT}(?:just|only) (?:give(?: me)?|answer|recommend|tell me|show(?: me)?|say|write|output|return|the|do|send|respond|reply|summari[sz]e) (?:\S+ ){{0,5}}\S+{_END}", lambda text: "Please give " + _lower_first(_strip(text)) if re.match(r"(?i)(?:just|only) the\b", _strip(text)) else _strip(text), answerable=True),
    _wish(rf"{_ASK}(?:drop|skip|cut|lose|leave out|remove|omit|delete|get rid of) (?:the |your |that |those |these |all |all the )?{_PART}{_END}"),
    _wish(rf"{_ASK}(?:tone it down|loosen (?:it )?up(?: a bit)?|loosen it up|get to the point|cut to the chase|simplify(?: it| that| this)?|shorten (?:it|this|that)|elaborate|expand on (?:it|that|this)|be yourself|summari[sz]e it in .{{1,30}}|go into more detail|spell it out|cool it|lighten up)(?: please| a bit| a little)*"),
    _wish(rf"{_SOFT}i(?:'d| would)? (?:rather|prefer|rather have|prefer if|prefer it if)(?: (?:you|have|it|that|if you))* (?:used?|it|something|an?|the|more|less|fewer|shorter|longer|in|as|be|being|answered|wrote|kept) ?.{{2,60}}", lambda text: "I prefer " + re.sub(r"(?i)^.*?(?:rather have|rather|prefer)(?: it)? (?:if )?", "", text.strip(" .!"))),
    _wish(rf"{_SOFT}i(?:'d| would) like (?:it|this|that|the \w+|answers|you) (?:to be )?{_DEGREE}(?:(?:more|less) {_ADJ}|{_ADJER}){_END}", lambda text: "Please make it " + re.sub(r"(?i)^.*?\blike (?:it|this|that|the \w+|answers|you)(?: to be)? ", "", text.strip(" .!"))),
    _wish(rf"{_SOFT}i want(?:ed)? you to (?!know|see|meet|imagine).{{4,80}}", _after(r"\bi want(?:ed)? you to ", "Please")),
    _wish(rf"{_SOFT}i (?:already |just |clearly |specifically |explicitly )*(?:asked|told|ask) (?:you )?(?:not )?to .{{4,80}}", lambda text: "Please " + re.sub(r"(?i)^.*?\b(?:asked|told|ask)(?: you)? (not )?to ", lambda found: "do not " if found.group(1) else "", text.strip(" .!"))),
    _wish(rf"{_SOFT}(?:i (?:already |just |clearly |specifically |explicitly )*(?:asked(?: you)? for|wanted|need) )(?:just |only )?(?:{_NUMBER} (?:short |single |simple )?{_UNIT}|(?:an? |the )?(?:\w+ ){{0,4}}{_FORM})(?: only)?{_END}", _after(r"\b(?:asked(?: you)? for|wanted|need) ", "Please give")),
    _wish(rf"(?:{_SOFT}(?:it|this|that|your (?:answer|reply|tone)|the (?:answer|reply|tone|text|wording))(?: is| was|'s|'re) )?{_SOFT}(?:it's |that's |this is |still |just )*(?:way |much |far |a bit |a little |kind of |kinda |really )*too (?:much )?{_ADJ}(?: for (?:me|my taste))?{_END}", _too),
    _wish(r"(?:summaries|answers|replies|responses|lists|emails|tips|they|it) should (?:always )?be .{4,60}"),
)
"""Tried in order; the first shape that fits a whole clause makes the instruction."""


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
