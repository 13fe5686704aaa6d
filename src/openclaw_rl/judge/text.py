"""Parsing a message: the person's own words without envelopes, quotes and code, cut into sentences and clauses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from openclaw_rl.types import Message

# Other people's words in a message: documents, tags, fences, quotes, mails, pasted text. Pure, one pass over the text.
#
# What is told apart here is neither praise nor order: a rule comes from the user's own words alone. In doubt text is
# foreign, since silence costs nothing. Whoever wrote the text inside a pair of delimiters may have written the closing
# one too, so a pair reaches from its first opening to its last closing.

# ruff: noqa: E501  (a shape is read in one line)

MOST = 256_000
"""characters of a message in which delimiters are looked for; what comes after is not read"""
_OWN = 16_000  # characters outside of all delimiters in which pasted text is looked for
LONG = 1_200
"""characters of own words beyond which a message is a text, not a remark"""

_FENCE = re.compile(r"```|~~~|\"\"\"|'''")
_RULE = re.compile(r"^[ \t]*+(?:-{3,}+|={3,}+|\*{3,}+|_{3,}+|#{3,}+|~{3,}+|—{2,}+)[ \t]*+$", re.MULTILINE)
_BOUND = re.compile(
    r"^[^\w\n]{0,12}+(BEGIN|START|END|Begin|Start|End)\b(?![ \t]++(?:with|by|your|every|each|all|the|a)\b)",
    re.MULTILINE,
)
_QUOTE_LINE = re.compile(r"^[ \t]*+[>|＞│].*+$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]++`")
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[^\W\d][\w:.-]{0,63}+)(?=\s*+/?>|\s++[\w:-]{1,64}+\s*+=|\s[^<>]{0,400}+>)|(?P<odd><[!?|<%]|<\\)"
)
_EMPTY = re.compile(r"<[bh]r\s*+/?>", re.IGNORECASE)
_BRACKET = re.compile(r"\[(?P<close>/?)(?P<name>[^\W\d]\w{1,30}+)[^\[\]\n]{0,200}+\]")
_BRACED = re.compile(r"(?<![{\[])[{\[]\s*+[{\[]*+\s*+[\"'][^\"'\n]{0,80}+[\"']\s*+[:,\]]")

_NOUN = (
    r"(?:texts?|articles?|e-?mails?|mails?|messages?|letters?|notes?|memos?|(?:web ?)?pages?|(?:web)?sites?|posts?|blogs?|comments?|reviews?|threads?|transcripts?"
    r"|conversations?|chats?|documents?|docs?|files?|paragraphs?|passages?|excerpts?|extracts?|sections?|chapters?|papers?|abstracts?|essays?|stor(?:y|ies)|poems?"
    r"|speech(?:es)?|reports?|minutes|tickets?|issues?|readme|logs?|output|snippets?|sentences?|quotes?|tweets?|captions?|descriptions?|listings?|notices?"
    r"|announcements?|polic(?:y|ies)|contracts?|manuals?|instructions|prompts?|recipes?|lyrics|news|newsletters?|content|contents|data|json|csv|html|xml|code|scripts?|results?|search results|source|input|context|feedback form|press release)"
)
_VERB = (
    r"(?:summari[sz]e|sum up|summary of|translat(?:e|ion of)|proof-?read|paraphrase|rephrase|rewrite|reword|edit|correct|polish|shorten|condense|analy[sz]e"
    r"|classify|categori[sz]e|label|extract|review|critique|explain|simplify|transcribe|format|convert|check|read|reply to|respond to|answer|comment on"
    r"|look at|look over|go through|evaluate|grade|turn|fix(?: the)?(?: grammar| spelling| typos)?(?: (?:in|of))?|tl;?dr|what does|what do|process|parse|quote|repeat|copy|improve|tidy up|clean up|compare)"
)
_HANDS_EN = re.compile(
    rf"\b{_VERB}\b[^.!?\n:]{{0,60}}?\b(?:this|these|following|below|above|attached|pasted|(?:the|my|our|his|her|their|that|some|an) (?:[\w-]{{1,20}}+ ){{0,2}}?{_NOUN})\b[^.!?\n:]{{0,80}}+"
    rf"|\bhere(?:'s|’s| is| are| comes| goes)\b[^.!?\n:]{{0,80}}+"
    rf"|\b(?:the )?(?:following|pasted|attached|below)\b[^.!?\n:]{{0,60}}?\b{_NOUN}\b[^.!?\n:]{{0,60}}+"
    rf"|\b(?:i|we) (?:just )?(?:got|received|found|read|saw|copied|pasted)\b[^.!?\n:]{{0,60}}?\b(?:this|these|{_NOUN})\b[^.!?\n:]{{0,60}}+"
    rf"|\b{_VERB}(?: (?:in)?to [\w ]{{2,30}}+)?(?=\s*+[:\n])"
    rf"|^\W{{0,4}}(?:(?:the|my|our|full|original|complete|page|web|tool|search|their|his|her) ){{0,3}}{_NOUN}\b[^.!?\n:]{{0,30}}+(?=\s*+:)",
    re.IGNORECASE | re.MULTILINE,
)
_HANDS = re.compile(  # the same in other languages: only where a colon or a new line follows
    r"(?:(?<!\w)(?:übersetz|zusammen|fass |korrigier|lektorier|lies |hier ist|hier sind|folgend|tradui|résum|corrig|voici|suivant|traduc|traduz|resum|aquí|siguiente"
    r"|riassum|ecco |seguente|aqui est|seguinte|vertaal|samenvat|vat |volgende|hier is|перевед|перескаж|резюм|кратко|вот |следующ|przetłumacz|streść|poniż|çevir|özetle|aşağıdaki|översätt|sammanfatta|följande)"
    r"|翻译|翻譯|总结|總結|概括|摘要|润色|改写|校对|分析|解释|审阅|提取|以下|下面|这封|这篇|这段|翻訳|要約|次の|번역|요약|다음|아래)[^.!?。！？\n:：]{0,60}+(?=[:：\n])",
    re.IGNORECASE,
)
_SAYS = re.compile(
    r"\b(?:(?:he|she|they|it|someone|somebody|everyone|which|who|(?:the|my|our|his|her|their|an?|this|another|one) (?:[\w'-]{1,20}+ ){0,3}?[\w'-]{1,20}+|(?-i:(?!I\b|You\b|We\b)[A-Z][\w-]{1,20}+))"
    r" (?:just |also |now |then )?(?:says|said|wrote|writes|reads|states|stated|told (?:me|us|you)|asks|asked|tells (?:me|us|you)|claims|insists|(?<=they )(?:say|ask|write|claim)|posted|comment(?:s|ed)|repl(?:ies|ied)|suggest(?:s|ed)|demand(?:s|ed)|request(?:s|ed)|order(?:s|ed))|according to [^.!?\n:,]{1,60}+|and i quote|quote|quoting [^.!?\n:,]{1,40}+)"
    r"\s*+(?:[:,\n\"“‘'«]|that\b|to\b|(?:from now on|always|never|in (?:the )?future|please)\b)"
    r"|(?:他|她|他们|它|老板|同事|客户|用户|对方|上面|里面|邮件|文章|文件|网页|页面|信|有人)[^。！？\n，,:：]{0,12}?(?:说|写|称|要求|提到|指出|写着|写道|回复)[^。！？\n，,:：]{0,6}+[，,:：\"“「]",
    re.IGNORECASE,
)
_ROLE_LINE = re.compile(
    r"^[ \t]*+[*_#\[(]{0,3}(?:user|human|assistant|system|customer|agent|bot|client|ai|model|tool|developer|function|observation|用户|助手|系统)[\])]?[*_]{0,2}[ \t]*+[:：>]",
    re.IGNORECASE | re.MULTILINE,
)
_MAIL = re.compile(
    r"^[ \t]*+(?:(?:from|to|cc|bcc|subject|date|sent|reply-to|von|an|betreff|gesendet|datum|de|à|objet|envoyé|para|asunto|fecha|da|a|oggetto|assunto|van|aan|onderwerp|от|кому|тема|发件人|收件人|主题|日期|差出人|件名)[ \t]?[:：][ \t]*+\S"
    r"|-{2,}[ \t]*+(?:original|forwarded)|begin forwarded message|forwarded message|(?:on|am|le|el|il|op)\b[^\n]{6,120}?(?:wrote|schrieb|a écrit|escribió|ha scritto|schreef)[^\n:]{0,20}+:"
    r"|(?:dear|hello|hi|hey|greetings|good (?:morning|afternoon|evening)|to whom|liebe[rs]?|sehr geehrte|cher|chère|estimad[oa]|caro|cara|gentile|beste|geachte|уважаем\w*|尊敬的|亲爱的)[ \t]++[^\n.!?:]{1,60}+,[ \t]*+$)",
    re.IGNORECASE | re.MULTILINE,
)
_SIGNED = re.compile(
    r"^[ \t]*+(?:(?:best|kind|warm|many)?[ \t]*+(?:regards|wishes)|sincerely|yours (?:sincerely|truly|faithfully)|respectfully|mit freundlichen|viele grüße|cordialement|bien à vous|saludos|atentamente|cordiali saluti|met vriendelijke|с уважением|此致|敬上"
    r"|©|copyright\b|all rights reserved|sent from my|unsubscribe|posted (?:by|on)\b|by [A-Z][a-z]+ [A-Z][a-z]+[ \t]*+$|https?://\S++[ \t]*+$|read more\b|share this\b)",
    re.IGNORECASE | re.MULTILINE,
)
_INTRODUCES = re.compile(r"[:：][ \t]*+\n")
_OWN_LIST = re.compile(
    r"(?i)\b(?:problems?|things?|issues?|points?|changes?|corrections?|mistakes?|errors?|requests?|rules?|wishes|remember|please|next time|from now on|ways?|reasons?|reminders?|wrong|fix(?:es)?|call last)\W*\Z|(?:问题|几点|注意|请|以后|下次)\W*\Z"
)
_STOP = re.compile(r"[:：\n.!?。！？]")


def outside(text: str) -> str:
    """What is left of a message without the words of others: perhaps nothing."""
    text = text[:MOST]
    for without in (_unfenced, _untagged, _unbracketed, _unbraced, _unruled):
        text = without(text)
    return _unpasted(_QUOTE_LINE.sub("\n", text)[:_OWN]).strip()


def is_text(own: str) -> bool:
    """Whether own words are so many that they are rather a text that somebody wrote than a remark on a reply."""
    return len(own) > LONG or own.count("\n\n") >= 3 or own.count("\n") >= 12


def _unfenced(text: str) -> str:
    """Without what stands from the first fence of a kind to its last; to the end where they do not pair."""
    marks: dict[str, list[int]] = {}
    for found in _FENCE.finditer(text):
        marks.setdefault(found.group(), []).append(found.start())
    for mark, at in sorted(marks.items(), key=lambda item: item[1][0], reverse=True):
        stop = len(text) if len(at) % 2 else at[-1] + len(mark)
        text = f"{text[: at[0]]}\n{text[stop:]}"
    return text


def _untagged(text: str) -> str:
    """Without every tag and what it holds: to its last closing tag, or to the end where it has none."""
    shown = _CODE.sub(lambda found: " " * len(found.group()), text)
    tags = list(_TAG.finditer(shown))
    closed = {found["name"].lower(): _after(shown, found.end()) for found in tags if found["close"]}
    kept: list[str] = []
    at = 0
    for found in tags:
        if found.start() < at or _EMPTY.match(shown, found.start()):
            continue
        if found["close"]:  # of a tag that nobody saw open: what came before is inside
            kept, at = [], _after(shown, found.end())
            continue
        stop = closed.get((found["name"] or "").lower(), -1)
        if stop < found.end() and shown[found.start() - 1 : found.start()].isalnum():
            continue  # a type's parameter, as in List<String>
        kept.append(_whole(text[at : found.start()]))
        at = stop if stop > found.end() else len(text)
    return "\n".join([*kept, text[at:]])


def _after(text: str, at: int) -> int:
    """Where a closing tag ends that was read up to ``at``."""
    stop = text.find(">", at, at + 80)
    return at if stop < 0 else stop + 1


def _whole(before: str) -> str:
    """Without the last line where it was broken off in the middle of a sentence: half an order is none."""
    kept, _, last = before.rpartition("\n")
    return before if not last.strip() or last.rstrip()[-1] in ".:!?…。：！？" else kept


def _unbracketed(text: str) -> str:
    """Without ``[name] ... [/name]``: from the first mark of such a pair to the last closing mark of any."""
    marks = list(_BRACKET.finditer(text))
    closed = {found["name"].lower() for found in marks if found["close"]}
    if not closed:
        return text
    first = next(found for found in marks if found["name"].lower() in closed)
    last = next(found for found in reversed(marks) if found["close"])
    return f"{_whole(text[: 0 if first['close'] else first.start()])}\n{text[last.end() :]}"


def _unbraced(text: str) -> str:
    """Without JSON: from its first brace to its last."""
    found = _BRACED.search(text)
    if found is None:
        return text
    stop = max(text.rfind("}"), text.rfind("]")) + 1
    return f"{_whole(text[: found.start()])}\n{text[stop:] if stop > found.end() else ''}"


def _unruled(text: str) -> str:
    """Without what stands between lines of dashes or marks of begin and end; after a single one, to the end."""
    for mark in (_RULE, _BOUND):
        lines = list(mark.finditer(text))
        if lines:
            stop = text.find("\n", lines[-1].end()) if len(lines) > 1 else -1
            text = f"{text[: lines[0].start()]}\n{text[stop:] if stop >= 0 else ''}"
    return text


def _unpasted(text: str) -> str:
    """The words before a text that is handed over bare, without the sentence that does so."""
    if _SIGNED.search(text):
        return ""
    cuts = [found.start() for shape in (_MAIL, _ROLE_LINE, _SAYS) if (found := shape.search(text))]
    listed = (found.start() for found in _INTRODUCES.finditer(text) if not _OWN_LIST.search(_line(text, found.start())))
    cuts += [at for at in (next(listed, None), _handed(text)) if at is not None]
    return text[: _sentence(text, min(cuts))] if cuts else text


def _line(text: str, end: int) -> str:
    return text[max(text.rfind("\n", 0, end) + 1, end - 80) : end]


def _sentence(text: str, at: int) -> int:
    """Where the sentence begins that holds the character ``at``."""
    return max(text.rfind(mark, 0, at) for mark in ".!?…。！？\n") + 1


def _handed(text: str) -> int | None:
    """Where a sentence hands over the text after it, or, on a line of its own at the end, the text before it."""
    for shape in (_HANDS_EN, _HANDS):
        found = shape.search(text)
        if found is None:
            continue
        after = _STOP.search(text, found.end())
        if after and text[after.end() :].strip():
            return found.start()
        before, _, last = text.rstrip().rpartition("\n")
        if before.strip() and shape.search(f"{last}\n"):
            return 0
    return None


_STAMP = re.compile(r"\A\[[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]*\]\s*")
_INTERNAL = re.compile(r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>|\Z)", re.DOTALL)
_RUNTIME = re.compile(r"\n\nRuntime: agent=.*\Z", re.DOTALL)
_MACHINE = re.compile(r"\A(?:A background task completed\.|Follow the heartbeat monitor|System: )")
QUOTED = re.compile(
    r"\"[^\"\n]*+\"|“[^“”\n]*+”|「[^「」\n]*+」|『[^『』\n]*+』|«[^«»\n]*+»|`[^`\n]++`|(?<!\w)'[^'\n]++'(?!\w)"
)
_SENTENCE = re.compile(r"(?<=[.!?…])[\"”')]*+\s++|(?<=[。！？；])\s*+|\n++|;\s++")
_CLAUSE = re.compile(
    r",\s++|，|：|:\s++|(?<![^\S\n])[^\S\n]++[-–—]++\s++|—|\.{3,}+\s*+|…\s*+"
    r"|(?<!\s)\s++(?=(?:but|however|though|although|yet|except)\b)|(?=但是|不过|可是|然而)",
    re.IGNORECASE,
)
_SET_OFF = re.compile(r"[:：–—-]")
_SPELLING = {
    **dict.fromkeys(("pls", "plz", "plaese", "pleas"), "please"),
    **dict.fromkeys(("thx", "thanx", "thnx", "thnks", "tahnks", "thnaks", "tnx", "thanks"), "thanks"),
    **dict.fromkeys(("ty", "tysm", "thankyou"), "thank you"),
    **dict.fromkeys(("dosent", "doesnt", "dosnt", "doesn"), "doesn't"),
    "dont": "don't",
    "didnt": "didn't",
    "isnt": "isn't",
    "wasnt": "wasn't",
    "cant": "can't",
    "wont": "won't",
    "thats": "that's",
    "whats": "what's",
    "im": "i'm",
    "ive": "i've",
    "youre": "you're",
    "u": "you",
    "ur": "your",
    "k": "ok",
    "okay": "ok",
    "okey": "ok",
    "wrng": "wrong",
    "worng": "wrong",
    "metres": "meters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A piece of a sentence: as it was written, and folded for matching with its quotes blanked out.

    ``before`` is the colon or dash that sets it off from the clause before it, else empty.
    """

    text: str
    folded: str
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence as it was written, folded whole, its clauses, and the line it begins on."""

    text: str
    folded: str
    clauses: tuple[Clause, ...]
    asks: bool
    line: int = 0


@lru_cache(maxsize=32)  # a case is looked at from several sides, one after another
def own_words(text: str) -> str:
    """What the person wrote: no time stamp, no machine's context, no words of others; perhaps nothing."""
    return outside(unwrapped(text))


def unwrapped(text: str) -> str:
    """A message without what a client put around it; empty where all of it is a machine's."""
    text = _INTERNAL.sub("", text)
    text = _RUNTIME.sub("", text)
    text = _STAMP.sub("", text.strip())
    return "" if _MACHINE.match(text) else text.strip()


def others_words(text: str) -> str:
    """What is not the sender's own in a message: the stretches between the lines that are."""
    whole, at = unwrapped(text)[:MOST], 0
    rest: list[str] = []
    for line in filter(None, map(str.strip, own_words(text).splitlines())):
        found = whole.find(line, at)
        if found < 0:
            break
        rest.append(whole[at:found].strip())
        at = found + len(line)
    return "\n".join(filter(None, (*rest, whole[at:].strip())))


def hands_over(text: str) -> bool:
    """Whether a message holds words that are not its sender's own."""
    own = own_words(text)
    return is_text(own) or own.split() != unwrapped(text).split()


def user_text(messages: Sequence[Message]) -> str:
    """The user's own words of a next state; no other role has a say."""
    return "\n".join(filter(None, (own_words(message.content) for message in messages if message.role == "user")))


def fold(text: str) -> str:
    """Small letters, straight apostrophes, common misspellings corrected, no punctuation but what carries meaning."""
    text = text.lower().replace("’", "'").replace("‘", "'")
    text = re.sub(r"(\w)\1{2,}", r"\1\1", text)
    text = re.sub(r"[^\w\s'?/+*%_$.-]", " ", text)
    text = re.sub(r"(?<![.!?])[.!?]++(?=\s|$)", " ", text)
    words = (_SPELLING.get(word, word) for word in text.split())
    return " ".join(words)


def parse(text: str) -> tuple[Sentence, ...]:
    """A message cut into sentences and clauses; text in quotation marks is never cut and shows as `_` when folded."""
    masked = QUOTED.sub(lambda found: "\x00" * len(found.group()), text)
    found = []
    for start, end in _spans(masked, _SENTENCE):
        whole = masked[start:end]
        clauses = _clauses(text, masked, start, end)
        if clauses:
            asks = whole.strip()[-1:] in "?？"
            line = masked.count("\n", 0, start)
            found.append(
                Sentence(text=text[start:end].strip(), folded=_blank(whole), clauses=clauses, asks=asks, line=line)
            )
    return tuple(found)


def _clauses(text: str, masked: str, start: int, end: int) -> tuple[Clause, ...]:
    found: list[Clause] = []
    at = start
    for a, b in _spans(masked, _CLAUSE, start, end):
        sign = _SET_OFF.search(masked, at, a) if found else None
        before = "" if sign is None else ":" if sign.group() in ":：" else "-"
        found.append(Clause(text=text[a:b].strip(), folded=_blank(masked[a:b]), before=before))
        at = b
    return tuple(found)


def _blank(masked: str) -> str:
    return fold(re.sub(r"\x00+", " _ ", masked))


def _spans(text: str, cut: re.Pattern[str], start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """The stretches between cuts that hold more than space."""
    end = len(text) if end is None else end
    spans, at = [], start
    for found in cut.finditer(text, start, end):
        spans.append((at, found.start()))
        at = found.end()
    spans.append((at, end))
    return [(a, b) for a, b in spans if text[a:b].strip()]


# Pasted matter in a message: logs, traces and listings, told apart line by line from what a person wrote. Pure.

# ruff: noqa: E501  (a shape is read in one line)

FEWEST = 2
"""lines in a row that look like a machine's from which on they are pasted"""
_MOST = 64_000  # characters of a message that are looked at, half of them from its end
_PASTED_MACHINE = re.compile(
    r"^(?:Traceback \(most recent|\s+File \"|\s*at [\w.$<>/]+ ?\(|\s*\^+~*\s*$|\s*\d+ ?\||\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d"
    r"|\[?(?:INFO|WARN(?:ING)?|ERROR|DEBUG|TRACE|FATAL|E|W|I)\]?[:\s]|[\w.]*(?:Error|Exception|Warning)\b ?:|error(?:\[\w+\])?:|warning:|npm (?:ERR|error|WARN)"
    r"|FAILED |PASSED |ok \d|not ok \d|\S+:\d+(?::\d+)?: |\s*[-=+|_*]{4,}|[$>#%] \S|\s{4,}\S|\s*[\[{}\]]|\s*\"[\w.-]+\" ?:|\S+\(\d+,\d+\): |make: |E\s{2,}|[\w./-]+\s+\|\s+\d+)"
)


class Stretch(NamedTuple):
    """A stretch of a message; ``pasted`` where a machine wrote it."""

    text: str
    pasted: bool


def stretches_of(message: str) -> tuple[Stretch, ...]:
    """The stretches of a message in their order; blank lines belong to the stretch before them."""
    lines = _looked_at(message).splitlines()
    marks = [bool(_PASTED_MACHINE.match(line)) for line in lines]
    for at, line in enumerate(lines):
        if not line.strip():
            marks[at] = marks[at - 1] if at else False
    return tuple(_joined(list(zip(lines, marks, strict=True))))


def _looked_at(message: str) -> str:
    return message if len(message) <= _MOST else f"{message[: _MOST // 2]}\n...\n{message[-_MOST // 2 :]}"


def _joined(marked: list[tuple[str, bool]]) -> Iterator[Stretch]:
    """Stretches of one kind; a single line that looks like a machine's, beside a person's words, stays a person's."""
    runs = [(mark, [line for line, _ in group]) for mark, group in groupby(marked, key=lambda pair: pair[1])]
    alone = len(runs) == 1
    kept: list[tuple[bool, list[str]]] = []
    for mark, lines in runs:
        pasted = mark and (alone or sum(bool(line.strip()) for line in lines) >= FEWEST)
        if kept and kept[-1][0] == pasted:
            kept[-1][1].extend(lines)
        else:
            kept.append((pasted, list(lines)))
    for pasted, lines in kept:
        if text := "\n".join(lines).strip("\n"):
            yield Stretch(text, pasted)
