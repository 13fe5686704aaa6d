"""Other people's words in a message: documents, tags, fences, quotes, mails, pasted text. Pure, one pass over the text.

What is told apart here is neither praise nor order: a rule comes from the user's own words alone. In doubt text is
foreign, since silence costs nothing. Whoever wrote the text inside a pair of delimiters may have written the closing
one too, so a pair reaches from its first opening to its last closing.
"""
# ruff: noqa: E501  (a shape is read in one line)

from __future__ import annotations

import re

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
