"""Parsing of a message: the person's own words without envelopes, quotes and code, cut into sentences and clauses."""

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
# Such text is neither praise nor an order: a rule requires the user's own words. In doubt text is foreign, since
# silence costs nothing. The author of text between delimiters may have written the closing one too, so a pair extends
# from its first opening to its last closing.

# ruff: noqa: E501  (each pattern stays on one line)

MOST = 256_000
"""characters of a message that are searched for delimiters; later text is not read"""
_OWN = 16_000  # characters outside all delimiters that are searched for pasted text
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
_HANDS = re.compile(  # the same in other languages: only before a colon or a new line
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
    """Return a message without other people's words; it may be empty."""
    text = text[:MOST]
    for without in (_unfenced, _untagged, _unbracketed, _unbraced, _unruled):
        text = without(text)
    return _unpasted(_QUOTE_LINE.sub("\n", text)[:_OWN]).strip()


def is_text(own: str) -> bool:
    """Check if own words are so many that they are rather someone's text than a remark on a reply."""
    return len(own) > LONG or own.count("\n\n") >= 3 or own.count("\n") >= 12


def _unfenced(text: str) -> str:
    """Remove the text from the first fence of a kind to its last; to the end if they do not pair."""
    marks: dict[str, list[int]] = {}
    for match in _FENCE.finditer(text):
        marks.setdefault(match.group(), []).append(match.start())
    for mark, at in sorted(marks.items(), key=lambda item: item[1][0], reverse=True):
        stop = len(text) if len(at) % 2 else at[-1] + len(mark)
        text = f"{text[: at[0]]}\n{text[stop:]}"
    return text


def _untagged(text: str) -> str:
    """Remove every tag with its content: to its last closing tag, or to the end without one."""
    masked = _CODE.sub(lambda match: " " * len(match.group()), text)
    tags = list(_TAG.finditer(masked))
    closed = {match["name"].lower(): _after(masked, match.end()) for match in tags if match["close"]}
    pieces: list[str] = []
    at = 0
    for match in tags:
        if match.start() < at or _EMPTY.match(masked, match.start()):
            continue
        if match["close"]:  # its opening tag is missing: all text before it is inside
            pieces, at = [], _after(masked, match.end())
            continue
        stop = closed.get((match["name"] or "").lower(), -1)
        if stop < match.end() and masked[match.start() - 1 : match.start()].isalnum():
            continue  # a type's parameter, as in List<String>
        pieces.append(_whole(text[at : match.start()]))
        at = stop if stop > match.end() else len(text)
    return "\n".join([*pieces, text[at:]])


def _after(text: str, at: int) -> int:
    """Return the end of a closing tag that was read up to ``at``."""
    stop = text.find(">", at, at + 80)
    return at if stop < 0 else stop + 1


def _whole(before: str) -> str:
    """Drop the last line if it breaks off within a sentence: half an order is none."""
    complete, _, last = before.rpartition("\n")
    return before if not last.strip() or last.rstrip()[-1] in ".:!?…。：！？" else complete


def _unbracketed(text: str) -> str:
    """Remove ``[name] ... [/name]``: from the first mark in such a pair to any last closing mark."""
    marks = list(_BRACKET.finditer(text))
    closed = {match["name"].lower() for match in marks if match["close"]}
    if not closed:
        return text
    first = next(match for match in marks if match["name"].lower() in closed)
    last = next(match for match in reversed(marks) if match["close"])
    return f"{_whole(text[: 0 if first['close'] else first.start()])}\n{text[last.end() :]}"


def _unbraced(text: str) -> str:
    """Remove JSON: from its first brace to its last."""
    match = _BRACED.search(text)
    if match is None:
        return text
    stop = max(text.rfind("}"), text.rfind("]")) + 1
    return f"{_whole(text[: match.start()])}\n{text[stop:] if stop > match.end() else ''}"


def _unruled(text: str) -> str:
    """Remove the text between lines of dashes or begin and end marks; after a single one, to the end."""
    for mark in (_RULE, _BOUND):
        lines = list(mark.finditer(text))
        if lines:
            stop = text.find("\n", lines[-1].end()) if len(lines) > 1 else -1
            text = f"{text[: lines[0].start()]}\n{text[stop:] if stop >= 0 else ''}"
    return text


def _unpasted(text: str) -> str:
    """Return the words before a pasted text, without the sentence that introduces it."""
    if _SIGNED.search(text):
        return ""
    cuts = [match.start() for shape in (_MAIL, _ROLE_LINE, _SAYS) if (match := shape.search(text))]
    listed = (match.start() for match in _INTRODUCES.finditer(text) if not _OWN_LIST.search(_line(text, match.start())))
    cuts += [at for at in (next(listed, None), _handed(text)) if at is not None]
    return text[: _sentence(text, min(cuts))] if cuts else text


def _line(text: str, end: int) -> str:
    return text[max(text.rfind("\n", 0, end) + 1, end - 80) : end]


def _sentence(text: str, at: int) -> int:
    """Return the start of the sentence around the character ``at``."""
    return max(text.rfind(mark, 0, at) for mark in ".!?…。！？\n") + 1


def _handed(text: str) -> int | None:
    """Return the start of the sentence that hands over the next text; 0 if the last line hands over the text before."""
    for shape in (_HANDS_EN, _HANDS):
        match = shape.search(text)
        if match is None:
            continue
        after = _STOP.search(text, match.end())
        if after and text[after.end() :].strip():
            return match.start()
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
    """A piece of a sentence: as written, and folded for matching with its quotes blanked.

    ``before`` is the colon or dash that separates it from the clause before it, else empty.
    """

    text: str
    folded: str
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence as written and folded, its clauses, and its first line."""

    text: str
    folded: str
    clauses: tuple[Clause, ...]
    asks: bool
    line: int = 0


@lru_cache(maxsize=32)  # a case is read several times in a row
def own_words(text: str) -> str:
    """Return the person's words: no time stamp, no machine context, no words of others; they may be empty."""
    return outside(unwrapped(text))


def unwrapped(text: str) -> str:
    """Return a message without the client's envelope; empty if a machine wrote all of it."""
    text = _INTERNAL.sub("", text)
    text = _RUNTIME.sub("", text)
    text = _STAMP.sub("", text.strip())
    return "" if _MACHINE.match(text) else text.strip()


def others_words(text: str) -> str:
    """Return the foreign stretches of a message: the text between the sender's own lines."""
    full, at = unwrapped(text)[:MOST], 0
    stretches: list[str] = []
    for line in filter(None, map(str.strip, own_words(text).splitlines())):
        start = full.find(line, at)
        if start < 0:
            break
        stretches.append(full[at:start].strip())
        at = start + len(line)
    return "\n".join(filter(None, (*stretches, full[at:].strip())))


def hands_over(text: str) -> bool:
    """Check if a message contains words that are not its sender's own."""
    own_text = own_words(text)
    return is_text(own_text) or own_text.split() != unwrapped(text).split()


def user_text(messages: Sequence[Message]) -> str:
    """Return the user's own words in a next state; other roles do not count."""
    return "\n".join(filter(None, (own_words(message.content) for message in messages if message.role == "user")))


def fold(text: str) -> str:
    """Fold text: small letters, straight apostrophes, corrected misspellings, only punctuation with meaning."""
    text = text.lower().replace("’", "'").replace("‘", "'")
    text = re.sub(r"(\w)\1{2,}", r"\1\1", text)
    text = re.sub(r"[^\w\s'?/+*%_$.-]", " ", text)
    text = re.sub(r"(?<![.!?])[.!?]++(?=\s|$)", " ", text)
    words = (_SPELLING.get(word, word) for word in text.split())
    return " ".join(words)


def parse(text: str) -> tuple[Sentence, ...]:
    """Cut a message into sentences and clauses; quoted text is never cut and becomes `_` when folded."""
    masked = QUOTED.sub(lambda match: "\x00" * len(match.group()), text)
    sentences = []
    for start, end in _spans(masked, _SENTENCE):
        piece = masked[start:end]
        clauses = _clauses(text, masked, start, end)
        if clauses:
            asks = piece.strip()[-1:] in "?？"
            line = masked.count("\n", 0, start)
            sentences.append(
                Sentence(text=text[start:end].strip(), folded=_blank(piece), clauses=clauses, asks=asks, line=line)
            )
    return tuple(sentences)


def _clauses(text: str, masked: str, start: int, end: int) -> tuple[Clause, ...]:
    clauses: list[Clause] = []
    at = start
    for a, b in _spans(masked, _CLAUSE, start, end):
        sign = _SET_OFF.search(masked, at, a) if clauses else None
        before = "" if sign is None else ":" if sign.group() in ":：" else "-"
        clauses.append(Clause(text=text[a:b].strip(), folded=_blank(masked[a:b]), before=before))
        at = b
    return tuple(clauses)


def _blank(masked: str) -> str:
    return fold(re.sub(r"\x00+", " _ ", masked))


def _spans(text: str, cut: re.Pattern[str], start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Return the stretches between cuts, without blank ones."""
    end = len(text) if end is None else end
    spans, at = [], start
    for match in cut.finditer(text, start, end):
        spans.append((at, match.start()))
        at = match.end()
    spans.append((at, end))
    return [(a, b) for a, b in spans if text[a:b].strip()]


# Pasted text in a message: logs, traces and listings, separated line by line from a person's words. Pure.

# ruff: noqa: E501  (each pattern stays on one line)

FEWEST = 2
"""minimum machine-like lines in a row for pasted text"""
_MOST = 64_000  # characters of a message that are read, half of them from its end
_PASTED_MACHINE = re.compile(
    r"^(?:Traceback \(most recent|\s+File \"|\s*at [\w.$<>/]+ ?\(|\s*\^+~*\s*$|\s*\d+ ?\||\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d"
    r"|\[?(?:INFO|WARN(?:ING)?|ERROR|DEBUG|TRACE|FATAL|E|W|I)\]?[:\s]|[\w.]*(?:Error|Exception|Warning)\b ?:|error(?:\[\w+\])?:|warning:|npm (?:ERR|error|WARN)"
    r"|FAILED |PASSED |ok \d|not ok \d|\S+:\d+(?::\d+)?: |\s*[-=+|_*]{4,}|[$>#%] \S|\s{4,}\S|\s*[\[{}\]]|\s*\"[\w.-]+\" ?:|\S+\(\d+,\d+\): |make: |E\s{2,}|[\w./-]+\s+\|\s+\d+)"
)


class Stretch(NamedTuple):
    """A stretch of a message; ``pasted`` if a machine wrote it."""

    text: str
    pasted: bool


def stretches_of(message: str) -> tuple[Stretch, ...]:
    """Return a message's stretches in order; blank lines belong to the stretch before them."""
    lines = _looked_at(message).splitlines()
    marks = [bool(_PASTED_MACHINE.match(line)) for line in lines]
    for at, line in enumerate(lines):
        if not line.strip():
            marks[at] = marks[at - 1] if at else False
    return tuple(_joined(list(zip(lines, marks, strict=True))))


def _looked_at(message: str) -> str:
    return message if len(message) <= _MOST else f"{message[: _MOST // 2]}\n...\n{message[-_MOST // 2 :]}"


def _joined(marked: list[tuple[str, bool]]) -> Iterator[Stretch]:
    """Yield stretches of one kind; a single machine-like line beside a person's words stays a person's."""
    runs = [(mark, [line for line, _ in group]) for mark, group in groupby(marked, key=lambda pair: pair[1])]
    single = len(runs) == 1
    stretches: list[tuple[bool, list[str]]] = []
    for mark, lines in runs:
        pasted = mark and (single or sum(bool(line.strip()) for line in lines) >= FEWEST)
        if stretches and stretches[-1][0] == pasted:
            stretches[-1][1].extend(lines)
        else:
            stretches.append((pasted, list(lines)))
    for pasted, lines in stretches:
        if text := "\n".join(lines).strip("\n"):
            yield Stretch(text, pasted)
