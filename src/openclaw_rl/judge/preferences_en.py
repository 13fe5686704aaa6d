"""English: clauses about how a reply should have been, and the instruction derived from each."""
# ruff: noqa: E501  (each pattern stays on one line)

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_NUMBER = r"(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|fifty|a hundred|a single|a few|a couple of|1-2|2-3)"
_UNIT = r"(?:words?|sentences?|lines?|paragraphs?|characters?|chars|bullets?|bullet points?|tips|items|points|examples?|steps|options|pages?|syllables)"
_SOFT = r"(?:(?:ok|and|also|but|so|then|hey|next time|from now on|instead|this time|now|rather|again|almost|good|well|please|maybe|perhaps|though|however) )*"
_ASK = (
    rf"{_SOFT}(?:(?:can|could|would|will) you (?:please |maybe |just |also )*)?(?:please )?(?:just |at least |try to )?"
)
_END = r"(?: (?:please|instead|next time|from now on|this time|in future|in the future|ok|thanks|okay|lol|for once|thank you|a bit|like i (?:asked|said)|as i (?:asked|said)|and nothing else|only))*"
_ADJ = (
    r"(?:warm|friend\w+|kind|concise|brief|short|direct|blunt|formal|informal|casual|honest|specific|polite|precise|detailed|clear|serious|funny|playful"
    r"|technical|simple|positive|critical|neutral|creative|verbose|wordy|stiff|generic|vague|accurate|professional|personal|conversational|natural"
    r"|enthusiastic|cheerful|encouraging|patient|respectful|gentle|succinct|terse|thorough|helpful|human|dramatic|emotional|dry|preachy|repetitive|robotic|cheesy"
    r"|complicated|complex|long|abstract|theoretical|basic|packed|dense|flowery|salesy|pushy|negative|harsh|cold|rude|chatty|literal|poetic|academic|slow|fast)"
)
COMPARATIVE = r"(?:warmer|friendlier|kinder|nicer|shorter|longer|simpler|clearer|softer|calmer|funnier|briefer|blunter|gentler|easier|lighter|stricter|bolder|snappier|punchier|crisper|tighter)"
_DEGREE = r"(?:(?:a bit|a little|a lot|much|far|way|slightly|so|really|very|even|bit|some) )*"
_FORM = (
    r"(?:bullet ?points?|bullets|bullet lists?|(?:(?:numbered|bulleted|ordered|short|simple) )?lists?|tables?|prose|paragraphs?|json(?: only)?|markdown|plain (?:text|english)|yaml|csv|code|full sentences"
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
class PreferenceClause:
    """A clause's pattern and its instruction; ``answerable`` ones count even after a question in the reply.

    ``vague`` ones apply only without another preference in the same message.
    """

    shape: re.Pattern[str]
    say: Callable[[str], str] | None = None
    answerable: bool = False
    vague: bool = False


def _preference(
    shape: str, say: Callable[[str], str] | None = None, *, answerable: bool = False, vague: bool = False
) -> PreferenceClause:
    return PreferenceClause(re.compile(shape, re.IGNORECASE), say, answerable, vague)


def _strip(text: str) -> str:
    return re.sub(r"(?i)^(?:ok|and|also|but|so|though|however|then|hey|almost|good)[, ]+", "", text.strip(" .!,"))


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _after(pattern: str, lead: str) -> Callable[[str], str]:
    """Return a function that puts ``lead`` before the text after ``pattern``."""
    return lambda text: f"{lead} {re.sub(f'(?i)^.*?{pattern}', '', text.strip(' .!?')).strip()}"


def _as_form(text: str) -> str:
    bare = re.sub(
        r"(?i)\b(?:please|pls|plz|ok|thanks|and|but|instead|i need|i want(?:ed)?|i'd like|i(?:'d| would)? prefer|give me|i asked for|i said|i told you)\b",
        " ",
        text,
    )
    bare = re.sub(r"(?i) (?:is enough|would do)$", "", " ".join(bare.strip(" .!,?").split()))
    when = re.match(r"(?i)(next time|from now on)[, ]+", bare)
    bare = bare[when.end() :] if when else bare
    bare = re.sub(r"(?i)^(?:answer|keep) (?=(?:in|with|to)\b)", "", bare)
    bare = bare if re.match(rf"(?i){_LANG}", bare) else _lower_first(bare)
    later = f" {when.group(1).lower()}" if when else ""
    if re.match(r"at least|over|minimum|more", bare):
        return f"Please write {bare}{later}"
    lead = "Please answer" if re.match(r"(?:in|with|as|using)\b", bare) else "Please answer in"
    return f"{lead} {bare}{later}"


def _too(text: str) -> str:
    word = re.sub(r"(?i)^.*\b(?:too|so) (?:much )?", "", text.strip(" .!")).split()[0].lower()
    fixed = {
        "long": "Please keep it shorter",
        "short": "Please give a longer answer",
        "wordy": "Please use fewer words",
    }
    fixed |= {
        "verbose": "Please keep it shorter",
        "complicated": "Please make it simpler",
        "vague": "Please be more specific",
    }
    fixed |= {
        "generic": "Please be more specific",
        "complex": "Please make it simpler",
        "slow": "Please get to the point faster",
    }
    return fixed.get(word, f"Please be less {word}")


def _no_form(text: str) -> str:
    bare = re.sub(r"(?i)\b(?:please|pls|plz|next time)\b", " ", text)
    bare = " ".join(_strip(bare).split())
    return f"Please {_lower_first(bare)}" if re.match(r"(?i)skip\b", bare) else f"Please use {_lower_first(bare)}"


def _comparative(text: str) -> str:
    bare = re.sub(r"(?i)\b(?:please|pls|plz|ok)\b", " ", text)
    bare = " ".join(_strip(bare).lower().split())
    verb = "give" if re.search(r"\b(?:more|less) (?:details?|context|depth|numbers|data)\b", bare) else "make it"
    return f"Please {verb} {bare}"


_LENGTH = r"(?:words?|sentences?|lines?|paragraphs?|characters?|chars|bullets?|bullet points?)"
_NO_FORM = r"(?:bullet ?points?|bullets|bullet lists?|(?:(?:numbered|bulleted|ordered|short|simple) )?lists?|tables?|markdown|headings?|headers|emojis?|emoticons|jargon|exclamation (?:marks|points)|caps|bold|italics|abbreviations|acronyms|slang|cliches|metaphors|adjectives|intros?|introductions?|preambles?|fluff|filler|disclaimers?|apologies|explanations?|commentary|small talk|rhymes|hashtags|latex|html)"
_STYLE = rf"(?:{_MEASURE}|{_LANG}|{_FORM}|analog(?:y|ies)|words|language|sentences|terms|tone|spelling|units|tool|tools|names|dates|numbers|digits|style|voice|tense|quotes|vocabulary|punctuation|grammar|characters|layout)"
_MANNER = rf"(?:(?:in|as|with|like|without|into|to) (?:an? |the |my |i'm |simple |plain |more |less |fewer |only |just |any |all |{_NUMBER} )*(?:{_DEGREE}(?:{_ADJ}|{COMPARATIVE}) )*(?:\w+ )?(?:{_STYLE}|{_UNIT}|five|child|person|human|friend|pirate|manner|way|details?)\b.{{0,30}})"
_VERB = r"(?:run|check|ask|read|test|verify|mention|use|cite|include|write|answer|keep|start|end|give|explain|say|add|follow|stop|focus|confirm|look|avoid|show|quote|listen|be (?:more|less))"

PREFERENCES: tuple[PreferenceClause, ...] = (
    _preference(
        rf"{_ASK}(?:don't|do not|never|stop|avoid|quit|no more) (?!you\b|me\b|.*\b(?:is|was|are) (?:my|a|the|our)\b)(?:\w+ly )?(?:be(?:ing)? (?:so |too )?{_ADJ}|{_BEHAVE}\b.*|(?:the )?(?:word|phrase)s? .*|{_FORM}){_END}",
        answerable=True,
    ),
    _preference(
        rf"{_SOFT}(?:with )?(?:no|without|skip|less|fewer)(?: the| any| more| those| these)? {_NO_FORM}(?: and {_NO_FORM})?{_END}",
        _no_form,
    ),
    _preference(
        rf"{_ASK}(?:keep|limit|restrict|cut|trim) (?:it|this|that|them|things|your \w+|(?:the |all |your )?(?:answers?|repl(?:y|ies)|responses?|messages?)|yourself)(?: down)? (?:(?:to |under |below |within |at most |to at most |to under |at )(?:max(?:imum)? |just |only |about )?{_NUMBER} .{{1,40}}|(?:{_DEGREE}(?:more |less )?(?:{_ADJ}|{COMPARATIVE}|tight|light|clean)\b).{{0,40}})"
    ),
    _preference(
        rf"{_SOFT}(?:in |with |i need |i want(?:ed)? |i'd like |i'd prefer |i prefer |i said |i asked for |i told you |give me |answer in |answer with |keep to |more )?(?:just |only |exactly |about |around )?(?:under|at most|max(?:imum)?(?: of)?|no more than|not more than|less than|fewer than|within|up to|at least|a maximum of|below|over|minimum) {_NUMBER} {_UNIT}(?: or (?:less|fewer|so))?(?: max(?:imum)?)?{_END}",
        _as_form,
    ),
    _preference(
        rf"{_ASK}(?:use|write|say it in|make it|give me|shorten (?:it|that|this|your \w+) to|cut (?:it|that) to|stay|say|aim for)(?: more| a bit more)? ?(?:just |only |exactly |about |around )?(?:under|at most|max(?:imum)?(?: of)?|no more than|not more than|less than|fewer than|within|up to|at least|a maximum of|below|over)? {_NUMBER} {_LENGTH}(?: or (?:less|fewer|more|so))?{_END}"
    ),
    _preference(
        rf"{_SOFT}(?:in |with |i need |i want |give me |only |just |exactly )*{_NUMBER} (?:short |single |simple )?{_LENGTH}(?: or (?:less|fewer|so)| max(?:imum)?| only| at most| is enough| would do| please| instead)+{_END}",
        _as_form,
    ),
    _preference(
        rf"{_SOFT}(?:i need|i want|i asked for) (?:only |just )?{_NUMBER} (?:short |single |simple )?{_LENGTH}{_END}",
        _as_form,
    ),
    _preference(
        rf"{_SOFT}(?:only |just )?{_NUMBER} {_UNIT} (?:max(?:imum)?|at most|only|or (?:less|fewer)){_END}", _as_form
    ),
    _preference(
        rf"{_SOFT}(?:only|just) (?:one|1|two|2|three|3) (?:short )?(?:words?|sentences?|lines?|paragraphs?){_END}",
        _as_form,
    ),
    _preference(
        rf"{_ASK}(?:use|write) (?:only |just )?(?:one|1|two|2|three|3) (?:short )?(?:words?|sentences?|lines?|paragraphs?){_END}"
    ),
    _preference(
        rf"{_ASK}(?:be|sound|act|stay) {_DEGREE}(?:more |less )?(?:{_ADJ}|{COMPARATIVE})(?: and {_DEGREE}(?:more |less )?(?:{_ADJ}|{COMPARATIVE}))?(?: (?:to|with|towards) me| about (?:it|this))?{_END}",
        answerable=True,
    ),
    _preference(
        rf"{_SOFT}{_DEGREE}(?:(?:more|less) (?:{_ADJ}|details?|context|depth|numbers|data)|{COMPARATIVE})(?: and {_DEGREE}(?:(?:more|less) {_ADJ}|{COMPARATIVE}))?{_END}",
        _comparative,
    ),
    _preference(
        rf"{_ASK}(?:make|keep|write|phrase|say|do|put|format|have|turn|give|explain) (?:it|this|that|them|everything)(?: me)?(?: again| all| into)? (?:{_DEGREE}(?:(?:more|less) {_ADJ}|{COMPARATIVE})(?: and .{{1,30}})?|{_MANNER}|an? {_FORM}|{_FORM}){_END}"
    ),
    _preference(
        rf"{_ASK}(?:(?:do|say|write|try|explain) (?:it|this|that) (?:again|over|once more)|try again|redo|rewrite|rephrase|once more|one more time)(?: it| this| that)? (?:but |this time |with |without |in |as |using |and ).{{2,60}}"
    ),
    _preference(
        rf"{_ASK}(?:use|stick to|switch to|prefer|convert (?:it |that )?to) {_DEGREE}(?:(?:an?|the|more|less|fewer|only|simple|simpler|shorter|short|plain|longer|proper|full|active|real|your) )*(?:\w+ )?{_STYLE}{_END}"
    ),
    _preference(
        rf"{_ASK}(?:answer|respond|reply|speak|talk|explain(?: it)?|sound)(?: to me| me| back)? (?:only |always |it )?(?:in|with|like|as|using|within|without|under) (?!the file|my file|this file)(?:\S+ ){{0,6}}\S+{_END}"
    ),
    _preference(rf"{_ASK}write(?: it| everything| this| that)?(?: only| just| always)? {_MANNER}{_END}"),
    _preference(rf"{_ASK}(?:write|say|tell me) (?:a (?:bit|little|lot) )?(?:more|less){_END}"),
    _preference(
        rf"{_ASK}(?:make|keep|give me|give) (?:(?:your|the|all your|all) )?(?:{_DEGREE}(?:(?:more|less) {_ADJ}|{COMPARATIVE}) (?:answers?|repl(?:y|ies)|responses?|sentences|messages)|(?:answers?|repl(?:y|ies)|responses?|sentences|messages) {_DEGREE}(?:(?:more|less) {_ADJ}|{COMPARATIVE}|short|brief|simple)){_END}"
    ),
    _preference(
        rf"{_ASK}(?:don't forget|do not forget|remember|make sure)(?: to)? (?:{_VERB}|end|start|begin|finish|close|sign|greet)\b.{{3,80}}"
    ),
    _preference(
        rf"{_SOFT}you (?:forgot to|did not|didn't|failed to|never) (?!answer)(?:{_VERB}|end|start|begin|finish|close|sign off|greet)\b(?! (?:my|the) (?:question|file|code|article|message|request|text)).{{3,80}}",
        lambda text: (
            "Please " + re.sub(r"(?i)^.*?\byou (?:forgot to|did not|didn't|failed to|never) ", "", _strip(text))
        ),
    ),
    _preference(
        rf"{_SOFT}(?:i(?:'d| would) like |i want |i need |give me )?{_DEGREE}(?:{COMPARATIVE}|fewer|more {_ADJ}|less {_ADJ}) (?:sentences|answers?|repl(?:y|ies)|words|paragraphs|responses?|messages){_END}",
        lambda text: (
            "Please give "
            + _lower_first(
                re.sub(r"(?i)^.*?\b(?:like|want|need|give me) |\b(?:please|pls|plz)\b", "", _strip(text)).strip()
            )
        ),
    ),
    _preference(
        rf"{_ASK}(?:give|make|write|use|send|want)(?: me| us)? (?:an? |the )?{_FORM}(?: instead| please| next time| only| from now on)+{_END}"
    ),
    _preference(
        rf"{_ASK}(?:format|write|give|present|structure|put) (?:your|the) (?:answers?|reply|replies|responses?|points) (?:as|in|into) (?:an? )?{_FORM}{_END}"
    ),
    _preference(
        rf"{_ASK}(?:give|write|make)(?: me| us)? an? {_FORM} of (?:the )?(?:(?:key|main|short|most important) )?(?:points|facts|ideas|things){_END}"
    ),
    _preference(
        rf"{_ASK}list the (?:(?:key|main|most important) )?(?:points|facts|ideas|things) (?:as|in|with) {_FORM}{_END}"
    ),
    _preference(
        rf"{_SOFT}(?:an? |the )?{_FORM} would (?:be|have been) (?:better|nicer|nice|great|good|preferable){_END}",
        lambda text: "Please answer in " + _lower_first(re.sub(r"(?i) would .*$", "", _strip(text))),
    ),
    _preference(
        rf"{_ASK}(?:say|put|add|write|include) (?:the (?:word|words|phrase) )?_ (?:first|last|at the (?:end|start|beginning)(?: of .{{1,30}})?){_END}"
    ),
    _preference(rf"{_ASK}(?:praise|compliment|encourage|greet|thank|congratulate) (?:me|my|the question)\b.{{0,40}}"),
    _preference(
        rf"{_SOFT}i (?:really )?(?:don't like|do not like|don't want|do not want|hate|dislike|can't stand) (?:your |the |such |these |those |so many )?(?:{_ADJ} )?(?:{_NO_FORM}|answers|replies|responses|sentences|paragraphs){_END}",
        lambda text: (
            "Please avoid "
            + re.sub(
                r"(?i)^.*?\b(?:like|want|hate|dislike|stand) (?:your |the |such |these |those |so many )?",
                "",
                _strip(text),
            )
        ),
    ),
    _preference(
        rf"{_SOFT}(?:in|as) (?:an? )?(?:{_LANG}|{_MEASURE}|{_FORM})(?: only)?(?: please| instead| next time| from now on){_END}",
        _as_form,
    ),
    _preference(rf"(?:no |nope )?in (?:{_MEASURE}){_END}", _as_form),
    _preference(
        rf"{_SOFT}(?:{_LANG}|{_MEASURE}|prose|json|markdown|plain text|all caps|lower ?case|bullet points|bullets|an? (?:bulleted |numbered |short )?list|an? table|first person|past tense) (?:only )?(?:please){_END}",
        _as_form,
    ),
    _preference(
        rf"{_ASK}(?:give|show|list|quote|state|convert)(?: me)?(?: \w+){{0,3}} (?:in|to) (?:the )?{_MEASURE}{_END}"
    ),
    _preference(
        rf"{_ASK}(?:end|start|begin|finish|close|open|sign off)(?: (?:it|them|(?:your|each|every|all|the)(?: your)? (?:answers?|repl(?:y|ies)|messages?|responses?|emails?|sentences?|texts?|turns?)))? (?:with|by) .{{1,80}}"
    ),
    _preference(
        rf"{_ASK}(?:next time|from now on|in (?:the )?future(?! tense)|going forward|every time)\b(?! i\b| we\b| he\b| she\b| they\b| the\b| it\b).{{6,140}}"
    ),
    _preference(
        rf"{_ASK}(?:always|never) (?:{_VERB}|address|number|put|begin|finish|round|respond|reply|speak|think|make|format|sign|greet)\b.{{3,120}}"
    ),
    _preference(
        rf"{_ASK}(?!.*\bi (?:will|would|can)\b)(?:add|include|give|mention|ask|check|show|use|write|put|tell|number|explain|list|be|keep|call|address)\b.{{2,80}} (?:next time|from now on|in (?:the )?future|going forward|every time|at the end of every \w+|in every \w+|before answering)"
    ),
    _preference(
        rf"{_ASK}(?:always )?(?:check|verify|read|run|test|look|ask|confirm|think|search)\b.{{0,60}}\bbefore (?:you\b|\w+ing\b).{{0,60}}"
    ),
    _preference(
        rf"{_ASK}(?:cite|show|give|quote|name|list|check|verify)(?: me)? (?:(?:your|the|concrete|actual|exact|specific|real) )?(?:work|steps|sources?|reasoning|calculations?|numbers|article|text|references|facts|figures|math)(?: directly| properly| twice)?{_END}"
    ),
    _preference(rf"{_ASK}explain why (?:for each(?: one)?|each time){_END}"),
    _preference(
        rf"{_SOFT}you (?:should|must|need to|have to|ought to) (?:always |never |first |really |also )*{_VERB} .{{3,100}}",
        lambda text: "Please " + re.sub(r"(?i)^.*?\b(?:should|must|need to|have to|ought to) ", "", text.strip(" .!")),
    ),
    _preference(
        rf"{_SOFT}(?:just|only) (?:answer|recommend|output|return|respond with|reply with|summari[sz]e|the|give(?: me)? (?:the|an|one|a)|tell me the|show(?: me)? the|say the|write the) ?(?!(?:first|second|third|last|one|other)\b)(?:\S+ ){{0,4}}\S+{_END}|{_SOFT}just summari[sz]e",
        lambda text: (
            "Please give " + _lower_first(_strip(text))
            if re.match(r"(?i)(?:just|only) the\b", _strip(text))
            else _strip(text)
        ),
        answerable=True,
    ),
    _preference(
        rf"{_ASK}(?:drop|skip|cut|lose|leave out|remove|omit|delete|get rid of) (?:the |your |that |those |these |all |all the )?{_PART}{_END}"
    ),
    _preference(
        rf"{_ASK}(?:tone it down|loosen (?:it )?up(?: a bit)?|loosen it up|get to the point|cut to the chase|simplify(?: it| that| this)?|shorten (?:it|this|that|your \w+)|elaborate|be yourself|summari[sz]e it in .{{1,30}}|go into more detail|spell it out|lighten up)(?: please| a bit| a little)*"
    ),
    _preference(
        rf"{_SOFT}i(?:'d| would)? (?:rather|prefer|rather have|prefer if|prefer it if|much prefer)(?: (?:you|have|it|that|if you|your))* (?:(?:used?|answered|wrote|kept|gave) .{{2,50}}|(?:something |an? |the |in |as |as an? )?(?:{_DEGREE}(?:more |less |fewer )?(?:{_ADJ}|{COMPARATIVE}) ?)?(?:{_STYLE}|{_FORM}|answers|replies|responses|ones?|{_NUMBER} {_UNIT})?(?: {_DEGREE}(?:(?:more|less) {_ADJ}|{COMPARATIVE}))?){_END}",
        lambda text: (
            "I prefer " + re.sub(r"(?i)^.*?(?:rather have|rather|prefer)(?: it)? (?:if )?", "", text.strip(" .!"))
        ),
    ),
    _preference(
        rf"{_SOFT}i(?:'d like| would like| need| want) (?:it|this|that|the \w+|answers|you) (?:to be )?{_DEGREE}(?:(?:more|less) {_ADJ}|{COMPARATIVE}){_END}",
        lambda text: (
            "Please make it "
            + re.sub(
                r"(?i)^.*?\b(?:like|need|want) (?:it|this|that|the \w+|answers|you)(?: to be)? ", "", text.strip(" .!")
            )
        ),
    ),
    _preference(
        rf"{_SOFT}i want(?:ed)? you to (?:{_VERB}|talk|speak|respond|reply|be|sound|act) .{{3,80}}",
        _after(r"\bi want(?:ed)? you to ", "Please"),
    ),
    _preference(
        rf"{_SOFT}i (?:already |just |clearly |specifically |explicitly )*(?:asked|told) you (?:not )?to .{{4,80}}",
        lambda text: (
            "Please "
            + re.sub(
                r"(?i)^.*?\b(?:asked|told)(?: you)? (not )?to ",
                lambda match: "do not " if match.group(1) else "",
                text.strip(" .!"),
            )
        ),
    ),
    _preference(
        rf"{_SOFT}i (?:already |just |clearly |specifically |explicitly )*(?:asked(?: you)? for|wanted) (?:just |only )?(?:{_NUMBER} (?:short |single |simple )?{_UNIT}|(?:an? |the )?(?:\w+ ){{0,4}}{_FORM})(?: only)?{_END}",
        _after(r"\b(?:asked(?: you)? for|wanted) ", "Please give"),
    ),
    _preference(
        rf"(?:{_SOFT}(?:it|this|that|your (?:answer|reply|tone)|the (?:answer|reply|tone|text|wording))(?: is| was|'s|'re) )?{_SOFT}(?:it's |that's |this is |still |just )*(?:way |much |far |a bit |a little |kind of |kinda |really )*too (?:much )?{_ADJ}(?: for (?:me|my taste))?{_END}",
        _too,
        vague=True,
    ),
    _preference(
        rf"{_SOFT}(?:it's |that's |this is |you (?:use|used) |there (?:is|are) )?(?:way |far |much )?too (?:much|many) (?:text|details?|information|info|words|fluff|jargon|emojis|bullets|bullet points|lists|filler|apologies|adjectives){_END}",
        lambda text: "Please use less " + re.sub(r"(?i)^.*\btoo (?:much|many) ", "", text.strip(" .!")),
        vague=True,
    ),
    _preference(
        rf"{_ASK}(?:answer|reply|respond|write) {_DEGREE}(?:shorter|longer|briefly|more briefly|simply|more simply|politely|more politely){_END}"
    ),
    _preference(r"(?:summaries|answers|replies|responses|lists) should (?:always )?be .{4,60}"),
)
"""Tried in order; the first pattern that matches a whole clause determines the instruction."""
