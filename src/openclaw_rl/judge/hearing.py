"""What a user's message says of the reply: the learned reader first, the rules as one voice and as vetoes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from openclaw_rl.judge.channel import Channel
from openclaw_rl.judge.reaction import Reaction, is_ironic, read, steers
from openclaw_rl.judge.reader.combination import (
    KINDS,
    Belief,
    Combination,
    KindLogprobs,
    LanguageGroup,
    MessageKind,
    believe,
    group_of,
    mass,
    shipped_combination,
)
from openclaw_rl.judge.reader.measures import carrier, may_be_foreign, missing_measure, named_measure, shorter
from openclaw_rl.judge.reader.ngrams import NgramModel, Reason, shipped_ngrams
from openclaw_rl.judge.text import is_text, own_words, parse
from openclaw_rl.preferences.standing import reach
from openclaw_rl.types import Doubt, Hint, HintKind

MOST = 4_000
"""characters of own words that are read, head and tail"""
PERHAPS = 0.6
"""the probability of a complaint from which on it is worth a question"""
ERRAND, WISH = 0.8, 0.014
"""of a remark that names a measure: the probability of an errand up to which, and of a rule from which on, it is one
(0.5 and 0.1 at the rates of the written voices, carried over to those of real talk)"""
DISPLEASED = 0.32
"""the probability of a complaint or a wish from which on the measure that the reply lacks is wanted; it never scores
(0.65 at the rates of the written voices)"""
_NOTES = {-1: "a complaint, as read", 1: "praise, as read"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What was heard, and of whom: the estimate of the six kinds, what each voice said, and what came of it."""

    reaction: Reaction
    group: LanguageGroup
    estimate: KindLogprobs
    ngrams: KindLogprobs
    classifier: KindLogprobs | None
    rules: Reaction
    belief: Belief


class WrittenWords(NamedTuple):
    """A request and the message after its reply, whole as they were written."""

    request: str
    message: str


def hear(
    message: str,
    *,
    request: str,
    reply: str,
    said: WrittenWords | None = None,
    classifier: KindLogprobs | None = None,
    combination: Combination | None = None,
    channel: Channel = "chat",
    same_matter: bool = True,
    whole: bool = True,
) -> Hearing:
    """What ``message`` says of ``reply``; ``classifier`` is what the classifier said of it, None where it is silent;
    ``combination`` is how the voices are weighed, None: as for the embedded model.

    ``said`` is the exchange as it was written, pasted logs and quotations included: that is what is scored, while only
    the user's own words in ``message`` teach. None: there is nothing else in it.
    ``same_matter``: False where the message comes with another text than the request, so that it repeats nothing.
    ``whole``: False where words of others came with it; then no sentence of it is taken for a rule, and nothing in it
    for praise: it may be theirs.
    """
    own = own_words(message)
    own = own if len(own) <= MOST else f"{own[: MOST // 2]}\n{own[-MOST // 2 :]}"
    rules = read(message, request=request if same_matter else "", reply=reply)
    read_as = said or WrittenWords(request=request, message=own)
    group = group_of(read_as.message, request=read_as.request)
    ngrams = shipped_ngrams().logprobs(read_as.request, reply, read_as.message)
    weights = (combination or shipped_combination()).weights(group, channel, classifier=classifier is not None)
    estimate = weights.combined(ngrams, classifier, None if rules.wish else rules.score)
    belief = believe(estimate, weights.thresholds, rules=rules.score, wish=rules.wish)
    belief = belief if whole else replace(belief, score=min(belief.score or 0, 0) or None, rule=False, fact=False)
    reaction = (
        rules if _left_to_rules(own, read_as.message) else _reaction(own, belief, rules, request=request, reply=reply)
    )
    if whole:
        reaction = _with_measure(own, reaction, estimate, rules, request=request, reply=reply)
    return Hearing(
        reaction=reaction,
        group=group,
        estimate=estimate,
        ngrams=ngrams,
        classifier=classifier,
        rules=rules,
        belief=belief,
    )


def _with_measure(
    own: str, reaction: Reaction, estimate: KindLogprobs, rules: Reaction, *, request: str, reply: str
) -> Reaction:
    """The measure of replies that a remark names is a rule, though not every voice was sure that it is one.

    It is said plainly: of "you get a single sentence" a model makes less than of "Please answer in one sentence". Not
    where the remark is likelier praise, or an errand: there a measure is of what is to be made. "Could you put that in
    a bulleted list?" reads like an errand, but the ``rules`` know it for a wish about the reply. Of what is surely a
    complaint or a wish, the measure that the reply lacks is wanted, in whatever words.
    """
    if reaction.score == 1 or is_text(own) or steers(own):
        return reaction

    told = [hint for hint in reaction.hints if hint.kind != "complaint"]
    sure = reaction.score == -1 or any(hint.kind == "rule" for hint in told)
    sure = sure or mass(estimate, ("complaint", "rule", "fact")) >= DISPLEASED

    def missing(text: str) -> str | None:
        return missing_measure(text, request=request, reply=reply) if sure else None

    if told and [hint.text for hint in told] != [own.strip()]:  # a part of the message: what it leaves out is added
        measure = None if any(missing(hint.text) for hint in told) else missing(own)
    else:
        told, measure = [], (None if may_be_foreign(own) else _remarked(own, estimate, rules)) or missing(own)
        if measure is None and reaction.score == -1:
            measure = shorter(own, request=request, reply=reply)
    if measure is None:
        return reaction
    return replace(reaction, hints=(*told, Hint(text=measure, kind="rule")), doubt=None)


def _remarked(own: str, estimate: KindLogprobs, rules: Reaction) -> str | None:
    """The measure of a remark that says little else, if it is likelier a wish about replies than anything else,
    or holds for all replies as it is said."""
    wish, praise = mass(estimate, ("complaint", "rule", "mixed")), mass(estimate, ("praise",))
    errand = mass(estimate, ("neutral",)) >= ERRAND or mass(estimate, ("rule", "mixed")) < WISH
    errand = errand and reach(own, "rule", own) != "standing"
    known = [hint.text for hint in rules.hints if hint.kind == "rule" and rules.score == -1]
    named = None if errand else named_measure(own)
    return None if wish <= praise else named or (named_measure(known[0]) if len(known) == 1 else None)


def _left_to_rules(own: str, message: str) -> bool:
    """Nothing to read, or a traceback that the rules know."""
    return not re.search(r"\w", message) or own.startswith("Traceback (most recent call last):")


def _reaction(own: str, belief: Belief, rules: Reaction, *, request: str, reply: str) -> Reaction:
    hints = own_hints(own, belief, rules, request=request, reply=reply, model=shipped_ngrams())
    score = belief.score
    if score == 1 and (is_ironic(own) or steers(own)):
        return Reaction(score=None, note="praise that may be irony, or meant to steer", hints=())
    if score is None:
        note = "nothing sure about the reply"
        return Reaction(score=None, note=note, hints=_rules_only(hints), doubt=_doubt(belief, rules))
    if score == -1 and not hints and own:
        hints = tuple(hint for hint in rules.hints if hint.kind == "complaint") or _complaint(own)
    return Reaction(score=score, note=rules.note if rules.score == score else _NOTES[score], hints=hints)


def _doubt(belief: Belief, rules: Reaction) -> Doubt | None:
    """What it may be all the same: what the rules take it for, or a complaint that is likelier than not."""
    if rules.score:
        return Doubt(score=float(rules.score), hints=rules.hints, why=rules.note)
    if rules.doubt is not None:
        return rules.doubt
    return Doubt(score=-1.0, why="perhaps a complaint") if belief.bad >= PERHAPS else None


def _rules_only(hints: tuple[Hint, ...]) -> tuple[Hint, ...]:
    """Without a score, a rule may teach; the rest says nothing."""
    return tuple(hint for hint in hints if hint.kind == "rule")


def _complaint(own: str) -> tuple[Hint, ...]:
    return (Hint(text=own.strip(), kind="complaint"),) if len(own) <= 200 else ()


def own_hints(
    own: str, belief: Belief, rules: Reaction, *, request: str, reply: str, model: NgramModel
) -> tuple[Hint, ...]:
    """The rules' hints where the reader bears them out, or where they hold for all replies as they are said; else,
    where it is sure of one, the user's own sentence."""
    told = tuple(hint for hint in rules.hints if hint.kind != "complaint")
    if told and (belief.score is not None or belief.rule or belief.fact or _stand(told, own)):
        return told
    if not (belief.rule or belief.fact) or is_text(own) or steers(own):
        return ()
    kind: HintKind = "rule" if belief.rule else "fact"
    wanted: tuple[MessageKind, ...] = ("rule", "mixed") if belief.rule else ("fact",)
    text = carrier(own, parse(own), lambda sentence: mass(model.logprobs(request, reply, sentence), wanted))
    return (Hint(text=text, kind=kind),) if text else ()


def _stand(hints: tuple[Hint, ...], own: str) -> bool:
    """Whether a message that is surely its user's own says of each hint that it holds for all replies."""
    if may_be_foreign(own) or any(named_measure(text) for text in (own, *(hint.text for hint in hints))):
        return False  # what names a measure is said more plainly
    return all(reach(hint.text, hint.kind, own) == "standing" for hint in hints)


def reasons(hearing: Hearing, request: str, message: str, *, reply: str, most: int = 8) -> tuple[Reason, ...]:
    """The n-grams that weighed most for the likeliest kind."""
    likeliest = KINDS[max(range(len(KINDS)), key=lambda kind: hearing.estimate[kind])]
    return shipped_ngrams().reasons(request, reply, message, likeliest, most=most)
