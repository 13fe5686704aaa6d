"""A user's reaction to a reply, read from their next message by rules; they abstain unless sure. Pure."""
# ruff: noqa: E501, SIM905  (each pattern and word list stays on one line)

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw_rl.judge import lexicon_en as en
from openclaw_rl.judge import lexicon_zh as zh
from openclaw_rl.judge.preferences_en import PREFERENCES
from openclaw_rl.judge.text import Clause, Sentence, is_text, own_words, parse
from openclaw_rl.text import is_chinese, words
from openclaw_rl.types import Doubt, Hint, HintKind

Mark = Literal["praise", "complaint", "preference", "fact", "task", "question", "other"]

_REMARKS: frozenset[Mark] = frozenset(("praise", "complaint", "preference", "fact"))
_LONG = 6  # sentences: in a longer message only the ends are about the reply
_CLAUSE = 240  # characters: a longer clause is no judgement
_TAIL = 160  # characters at the end of a reply that are searched for an open question
_OFFER = re.compile(r"(?i)would you like|do you want me|shall i|should i|anything else|let me know|want me to")
_LATER = re.compile(r"(?:(?:and|also|but|so) )?(?:next time|from now on|in (?:the )?future|going forward|please)")
_POINTS = re.compile(r"\S (?:this|these)\b|\A(?:here|these)\b")
_OF_THE_REPLY = re.compile(r"(?:this|that|it|you|your|i don't|i can't)\b")
_APPLAUSE = re.compile(r"[👍❤♥🙏🎉💯😍🥰👏🙌😊🤩💖]")
_BOO = re.compile(r"[👎💩🤦😡😠]")
_ODD = re.compile(r"[🙄😒🤡]|\s/s\b")
_MARKUP = re.compile(r"</?[a-z][^<>]*+>", re.IGNORECASE)
_REDO = re.compile(r"(?:please )?(?:redo|rewrite|fix|undo|revert)(?: (?:it|this|that))?(?: please)?")
_OF_ONESELF = re.compile(r"(?:i|i'm|i've|we|we're|my|never|not yet|maybe)\b")
_STEER = re.compile(
    r"\b(?:scor(?:e|es|ed|ing)|rat(?:e|es|ed|ing)|reward|judge|votes?|upvote|verdict|grade)\b|打分|评分|评价|奖励",
    re.IGNORECASE,
)
_STOP = frozenset(
    "a an the of to in on at for by with and or but is are was were be do does did how what which who when where why i you we my me your it this that "
    "can could would should will please now then so again properly correctly really actually instead just some any about into from as not no have has had get tell give show there".split()
) | frozenset("才能有请问我想到底的了吗呢啊可以该应要究竟再")
_ANSWERS = re.compile(r"(?:no|nope|nah|yes|不是?)\b")
_NOT_A_NO = re.compile(
    r"no (?:worries|problem|problems|thanks|thank you|need|rush|preference|further|more questions|hurry|idea|doubt|kidding|complaints|pressure)\b.*"
    r"|no that's (?:all|it|fine|ok|perfect|great|good)\b.*|no it's (?:fine|ok|perfect|good)\b.*"
)
_FACT = re.compile(
    r"(?:actually )?(?:it's|it is|it was|it should be|that's|that is|that was|they're|they are|there are|there is|i meant|i mean|i said|the|my|her|his|their|our|its|she|he|they|we're|we are)\b.{3,120}"
)
_IS_NOT = re.compile(
    r"(?=.{1,120}\Z)(?P<yes>(?!.*\bnot\b.*\bnot\b).{1,70}?), not (?P<no>(?!sure|yet|really|now|too|necessarily|only|just|because|if|to )[^\s,?][^,?]{0,40})"
)
_SHOULD_BE = re.compile(r".{3,60} (?:is|means) .{2,40}, (?:it|that|this) should be .{2,60}")
_ORDER = re.compile(r"(?:please )?(?:show|give|use|write|talk|tell|answer|make|explain|say|keep|send|speak)\b")
_NO_LEAD = re.compile(r"(?i)^(?:(?:no|nope|nah|wrong|incorrect|actually|well|lol|close|but)[,.! ]+)+")
_NOT_BUT = re.compile(r"not (?:the|a|an|my|in|on|at) \S.{0,30}, (?:but )?(?:the|a|an|my|in|on|at) \S.{0,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """A message's reaction to the reply before it; ``score`` None if it has none.

    ``wish``: the score is based on a preference alone.
    """

    score: int | None
    note: str
    hints: tuple[Hint, ...] = ()
    doubt: Doubt | None = None
    wish: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marked:
    clause: Clause
    mark: Mark
    order: str | None = None
    answerable: bool = False
    vague: bool = False


def read(message: str, *, request: str, reply: str) -> Reaction:
    """Return the reaction of ``message`` to ``reply``, which answered ``request``; abstain unless sure."""
    remark = own_words(message)
    if not remark:
        return Reaction(score=None, note="the message has no words of the user's own")
    if remark.startswith("Traceback (most recent call last):"):
        return _traceback(reply)
    parsed = parse(_bounded(remark, 4_000))
    sentences = _ends(parsed)
    marks = [[_mark(clause, sentence) for clause in _joined(sentence)] for sentence in sentences]
    flat = [marked for row in marks for marked in row]
    asks = _asks(reply)
    hints = _hints(sentences, marks, reply=reply, reply_asks=asks and not _OFFER.search(reply[-_TAIL:]))
    if sentences != parsed or is_text(remark):
        hints = ()  # such a long message is rather a text than a remark, perhaps by another author
    return _decide(remark, flat, hints, request=request, reply_asks=asks)


def is_ironic(message: str) -> bool:
    """Check if a message has a sign of irony."""
    return bool(_ODD.search(message))


def steers(message: str) -> bool:
    """Check if a message mentions scores, votes or rewards; such words are never praise or an instruction."""
    return bool(_STEER.search(message) or _MARKUP.search(message))


def _asks(reply: str) -> bool:
    """Check if the reply ends with a question, which the message may answer."""
    return bool(re.search(r"[?？]", reply[-_TAIL:]))


def _traceback(reply: str) -> Reaction:
    if _asks(reply) and not _OFFER.search(reply[-_TAIL:]):
        return Reaction(score=None, note="a traceback, perhaps in answer to the reply's question")
    return Reaction(score=-1, note="the user answers with a traceback")


def _bounded(text: str, most: int) -> str:
    """Return the head and tail of a very long text; opinions are at its ends."""
    return text if len(text) <= most else f"{text[: most // 2]}\n{text[-most // 2 :]}"


def _ends(sentences: tuple[Sentence, ...]) -> tuple[Sentence, ...]:
    return sentences if len(sentences) <= _LONG else (*sentences[:2], *sentences[-2:])


def _joined(sentence: Sentence) -> tuple[Clause, ...]:
    """Return the clauses, with an introduction such as "next time" joined to its clause."""
    first, *following = sentence.clauses
    if not following or not _LATER.fullmatch(first.folded):
        return sentence.clauses
    joined = Clause(
        text=f"{first.text}, {following[0].text}", folded=f"{first.folded} {following[0].folded}", before=first.before
    )
    return (joined, *following[1:])


def _mark(clause: Clause, sentence: Sentence) -> _Marked:
    """Classify one clause by itself; a very long clause is no opinion."""
    if len(clause.folded) > _CLAUSE:
        return _Marked(clause=clause, mark="other")
    if is_chinese(clause.text):
        return _mark_zh(clause)
    folded = clause.folded
    for preference in PREFERENCES:
        if preference.shape.fullmatch(folded) and not _STEER.search(folded):
            order = preference.say(clause.text) if preference.say else clause.text
            return _Marked(
                clause=clause, mark="preference", order=order, answerable=preference.answerable, vague=preference.vague
            )
    praised = en.PRAISE.fullmatch(folded) and not (" for " in folded and en.IRONY.search(folded))
    if praised and not (sentence.asks and clause is sentence.clauses[-1]):
        return _Marked(clause=clause, mark="praise")
    if _REDO.fullmatch(folded) and clause is not sentence.clauses[-1]:
        return _Marked(clause=clause, mark="task")
    if en.COMPLAINTS.fullmatch(folded):
        return _Marked(clause=clause, mark="complaint")
    if sentence.asks and en.QUESTION.fullmatch(folded):
        return _Marked(clause=clause, mark="question")
    task = en.TASK.fullmatch(folded) and not _IS_NOT.fullmatch(sentence.text.lower().strip(" .!"))
    return _Marked(clause=clause, mark="task" if task else "other")


def _mark_zh(clause: Clause) -> _Marked:
    text = re.sub(r"^(?:但是|不过|可是|然而|但)", "", clause.text.strip())
    if zh.TOO.fullmatch(text):
        opposite = next(
            (order for word, order in sorted(zh.OPPOSITE.items(), key=lambda item: -len(item[0])) if word in text), None
        )
        return _Marked(
            clause=clause,
            mark="preference",
            vague=True,
            order=opposite or f"请不要这么{re.split('太|有点|有些', text)[-1].rstrip('了。！!')}",
        )
    if zh.PRAISE.fullmatch(text):
        return _Marked(clause=clause, mark="praise")
    if zh.TASK.fullmatch(text):
        return _Marked(clause=clause, mark="task")
    if zh.PREFERENCES.fullmatch(text) and not _STEER.search(text) and not re.search("什么|哪|谁|怎么", text):
        return _Marked(clause=clause, mark="preference", order=text)
    if zh.COMPLAINTS.fullmatch(text):
        return _Marked(clause=clause, mark="complaint")
    if zh.QUESTION.fullmatch(text):
        return _Marked(clause=clause, mark="question")
    return _Marked(clause=clause, mark="fact" if zh.FACT.fullmatch(text) else "other")


def _decide(own: str, flat: Sequence[_Marked], hints: tuple[Hint, ...], *, request: str, reply_asks: bool) -> Reaction:
    marks = {marked.mark for marked in flat}
    answers = _is_answer(own, flat, reply_asks=reply_asks)
    complains = "complaint" in marks and not answers
    if answers:
        hints = tuple(hint for hint in hints if hint.kind == "rule")
    if _ODD.search(own) and not complains:
        return _unsure("perhaps meant in irony", hints)
    if complains and "praise" in marks and not _contrast(own) and not hints:
        return _unsure("praise and complaint in one", _complaint(flat))
    if complains or _BOO.search(own):
        return Reaction(score=-1, note="a complaint", hints=hints or _complaint(flat))
    if any(hint.kind == "fact" for hint in hints):
        return Reaction(score=-1, note="a correction of fact", hints=hints)
    if hints and not marks & {"task", "question"} and _to_the_point(flat):
        return Reaction(score=-1, note="a preference about the reply", hints=hints, wish=True)
    if _standing(hints):
        return Reaction(score=-1, note="a preference about replies to come", hints=hints, wish=True)
    if _praises(own, flat):
        return Reaction(score=1, note="praise or thanks")
    if repeated(request, own):
        return Reaction(score=-1, note="the same request again")
    if hints:
        return _unsure("a preference, perhaps about another thing", hints)
    return Reaction(score=None, note="nothing about the reply")


def _unsure(note: str, hints: tuple[Hint, ...]) -> Reaction:
    """Return a possible complaint: no score and no hint, only a doubt to ask about."""
    return Reaction(score=None, note=note, doubt=Doubt(score=-1.0, hints=hints, why=note))


def _to_the_point(flat: Sequence[_Marked]) -> bool:
    """Check that a preference has little beside it; with more, or after other text, it may belong to a new task."""
    if any(marked.mark == "praise" for marked in flat):
        return True
    before = itertools.takewhile(lambda marked: marked.mark != "preference", flat)
    foreign = [marked for marked in flat if marked.mark == "other" and not _OF_THE_REPLY.match(marked.clause.folded)]
    if any(marked in foreign and len(words(marked.clause.text)) > 3 for marked in before):
        return False
    return sum(len(words(marked.clause.text)) for marked in foreign) <= 8


def _contrast(own: str) -> bool:
    return bool(re.search(r"\b(?:but|however|though|although|except|yet)\b|但|不过|可是|然而", own, re.IGNORECASE))


def _standing(hints: Sequence[Hint]) -> bool:
    pattern = r"next time|from now on|in (?:the )?future|going forward|下次|以后|今后"
    return any(re.search(pattern, hint.text, re.IGNORECASE) for hint in hints)


def _is_answer(own: str, flat: Sequence[_Marked], *, reply_asks: bool) -> bool:
    """Check if the message is a bare no, or an answer that only resembles a complaint."""
    folded = own.lower().strip(" .!")
    if _NOT_A_NO.fullmatch(folded.replace(",", "")):
        return True
    refusals = [marked for marked in flat if marked.mark == "complaint"]
    only_no = all(_ANSWERS.match(marked.clause.folded) for marked in refusals)
    of_oneself = any(marked.mark == "other" and _OF_ONESELF.match(marked.clause.folded) for marked in flat)
    return only_no and (reply_asks or of_oneself or folded in ("no", "不", "不是"))


def _complaint(flat: Sequence[_Marked]) -> tuple[Hint, ...]:
    text = ", ".join(marked.clause.text.strip(" .!?,") for marked in flat if marked.mark == "complaint")
    return (Hint(text=text, kind="complaint"),) if text else ()


def _praises(own: str, flat: Sequence[_Marked]) -> bool:
    """Check that the message has praise, and no sign of doubt outside it."""
    if _BOO.search(own) or _ODD.search(own) or _MARKUP.search(own) or _STEER.search(own):
        return False
    remainder = [marked.clause for marked in flat if marked.mark != "praise"]
    if len(remainder) == len(flat):
        bare = re.sub(r"[\W_]+", "", own)
        return bool(_APPLAUSE.search(own)) and not bare
    if any(marked.mark in ("complaint", "preference", "fact") for marked in flat):
        return False
    if any((zh.DANGER if is_chinese(clause.text) else en.DANGER).search(clause.text.lower()) for clause in remainder):
        return False
    return "..." not in own and "…" not in own


def _hints(
    sentences: Sequence[Sentence], marks: Sequence[Sequence[_Marked]], *, reply: str, reply_asks: bool
) -> tuple[Hint, ...]:
    hints: list[Hint] = []
    doubt = False
    vague_only = all(marked.vague for row in marks for marked in row if marked.mark == "preference")
    for at, (sentence, row) in enumerate(zip(sentences, marks, strict=True)):
        if not _own(at, sentences, marks):
            continue
        hints.extend(_rules_of([marked for marked in row if vague_only or not marked.vague], reply_asks=reply_asks))
        fact = _fact_of(sentence, row, reply=reply, doubt=doubt, reply_asks=reply_asks)
        if fact is not None:
            hints.append(fact)
        doubt = doubt or any(marked.mark == "complaint" for marked in row)
    return tuple(hints)


def _own(at: int, sentences: Sequence[Sentence], marks: Sequence[Sequence[_Marked]]) -> bool:
    """Check that a sentence is surely the user's comment on the reply, not text framed by the message.

    False beside a line that is no remark, after a question or pointing words ("this", "these"), and behind a colon or a
    dash.
    """
    for position, (sentence, row) in enumerate(zip(sentences, marks, strict=True)):
        if position <= at and any(marked.clause.before for marked in row) and not _all_remarks(row):
            return False
        if position <= at and any(_points(marked) for marked in (row if position < at else row[:-1])):
            return False
        framed = sentence.line != sentences[at].line or sentence.asks or sentence.text[:1] in "-–—"
        if position != at and framed and not any(marked.mark in _REMARKS for marked in row):
            return False
    return True


def _points(one: _Marked) -> bool:
    """Check if a clause may point at the following text, and neither praises nor complains."""
    return one.mark not in ("praise", "complaint") and bool(_POINTS.search(one.clause.folded))


def _all_remarks(row: Sequence[_Marked]) -> bool:
    """Check that a sentence has remarks on both sides of each dash, and no colon."""
    remark = False
    for marked in row:
        if marked.clause.before == ":" or (marked.clause.before == "-" and not remark):
            return False
        remark = marked.mark in _REMARKS or (remark and not marked.clause.before)
    return remark


def _rules_of(row: Sequence[_Marked], *, reply_asks: bool) -> list[Hint]:
    """Join neighbouring preferences in a sentence to one instruction."""
    runs: list[list[_Marked]] = [[]]
    for marked in row:
        if marked.mark == "preference" and (marked.answerable or not reply_asks):
            runs[-1].append(marked)
        elif runs[-1]:
            runs.append([])
    return [Hint(text=_instruction([marked.order or "" for marked in run]), kind="rule") for run in runs if run]


def _instruction(orders: Sequence[str]) -> str:
    first, *following = (order.strip(" ,.!;:") for order in orders)
    if is_chinese(first):
        return zh.instruction("，".join((first, *following)))
    text = re.sub(r"(?i)^(?:(?:ok|and|also|but|so|then|hey|though|however|maybe|well|almost|good)[, ]+)+", "", first)
    text = re.sub(r"(?i)^(?:can|could|would|will) (?:you|u) (?:please |maybe |also )?", "please ", text).rstrip("?")
    text = re.sub(r"(?i)\bdont\b", "don't", re.sub(r"(?i)\b(?:pls|plz)\b", "please", text))
    text = ", ".join((text, *(re.sub(r"(?i)^please ", "", order[:1].lower() + order[1:]) for order in following)))
    if re.search(r"(?i)\bplease$", text) and not re.match(r"(?i)please", text):
        text = "please " + text[:1].lower() + text[1 : -len("please")].rstrip(" ,")
    if re.fullmatch(r"(?i)please .+ please", text):
        text = text[: -len("please")].rstrip(" ,")
    if not _READS_AS_ORDER.match(text):
        text = f"please {text[:1].lower()}{text[1:]}"
    text = " ".join(text.split())
    return f"{text[:1].upper()}{text[1:]}."


_READS_AS_ORDER = re.compile(
    r"(?i)(?:please|don't|dont|do not|never|always|stop|avoid|no |next time|from now on|in future|in the future|going forward|i prefer|summaries|answers|replies)"
)


def _fact_of(sentence: Sentence, row: Sequence[_Marked], *, reply: str, doubt: bool, reply_asks: bool) -> Hint | None:
    """Return a statement of fact that contradicts the reply; an order that excludes something is a rule."""
    if reply_asks or sentence.asks or any(marked.mark in ("preference", "question", "praise") for marked in row):
        return None
    if is_chinese(sentence.text):
        return _fact_zh(sentence, row)
    text = _NO_LEAD.sub("", sentence.text).strip(" .!")
    folded = " ".join(text.lower().split())
    if _contradicts(folded, reply):
        kind: HintKind = "rule" if _ORDER.match(folded) else "fact"
        return Hint(text=f"{text[:1].upper()}{text[1:]}.", kind=kind)
    denied = doubt or text != sentence.text.strip(" .!") or any(marked.mark == "complaint" for marked in row)
    if denied and _FACT.fullmatch(folded) and not all(marked.mark == "complaint" for marked in row):
        return Hint(text=f"{text[:1].upper()}{text[1:]}.", kind="fact")
    return None


def _contradicts(folded: str, reply: str) -> bool:
    """Check for the form "this, not that" with "that" in the reply, or an order in this form."""
    if _SHOULD_BE.fullmatch(folded) or _NOT_BUT.fullmatch(folded):
        return True
    match = _IS_NOT.fullmatch(folded)
    if not match:
        return False
    return bool(_ORDER.match(folded)) or bool(_content(match["no"]) & _content(reply))


def _fact_zh(sentence: Sentence, row: Sequence[_Marked]) -> Hint | None:
    if len(sentence.text) > _CLAUSE or any(marked.mark == "task" for marked in row):
        return None
    text = re.sub(r"^(?:不是|不对|错了|数字不对吧?)[，,]", "", sentence.text.strip(" 。！!.")).removesuffix("才对")
    return Hint(text=f"{text}。", kind="fact") if zh.FACT.fullmatch(text) else None


def repeated(request: str, message: str) -> bool:
    """Check if the message repeats the request and adds nothing new."""
    request = own_words(request)
    before, again = _content(request), _content(message)
    if len(before) < 2 or len(again) < 2 or _figures(request) != _figures(message):
        return False
    return again <= before and len(again) >= 0.75 * len(before)


def _content(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in words(text)) - _STOP


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _figures(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\d+(?:\.\d+)?|\"[^\"]*\"", text))
