"""Classifies a user's message about a reply: learned models first, the rules as one estimator and as vetoes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from openclaw_rl.judge.channel import Channel
from openclaw_rl.judge.feedback_classifier.combination import (
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
from openclaw_rl.judge.feedback_classifier.measures import (
    carrier,
    may_be_foreign,
    missing_measure,
    named_measure,
    shorter,
)
from openclaw_rl.judge.feedback_classifier.ngrams import NgramModel, Reason, shipped_ngrams
from openclaw_rl.judge.reaction import Reaction, is_ironic, read, steers
from openclaw_rl.judge.text import is_text, own_words, parse
from openclaw_rl.preferences.standing import reach
from openclaw_rl.types import Doubt, Hint, HintKind

MOST = 4_000
"""characters of own words that are read, head and tail"""
PERHAPS = 0.6
"""minimum probability of a complaint that justifies a question to the user"""
ERRAND, WISH = 0.8, 0.014
"""for a remark with a measure: the maximum probability of an errand, and the minimum probability of a rule (0.5 and 0.1
at the written personas' rates, converted to those of real conversations)
"""
DISPLEASED = 0.32
"""minimum probability of a complaint or wish at which a measure that the reply lacks becomes a rule; it never scores
(0.65 at the written personas' rates)
"""
_NOTES = {-1: "a complaint, as read", 1: "praise, as read"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackClassification:
    """A classified message: the six kinds' estimate, each estimator's answer, and the resulting reaction."""

    reaction: Reaction
    group: LanguageGroup
    estimate: KindLogprobs
    ngrams: KindLogprobs
    classifier: KindLogprobs | None
    rules: Reaction
    belief: Belief


class WrittenWords(NamedTuple):
    """A request and the message after its reply, both in full as written."""

    request: str
    message: str


def classify_feedback(
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
) -> FeedbackClassification:
    """Classify ``message`` as feedback on ``reply``.

    ``classifier`` is the classifier's answer, None if it is silent. ``combination`` weighs the estimators; None uses
    the weights for the embedded model. ``said`` is the exchange as written, including pasted logs and quotations: it
    determines the score, while only the user's own words in ``message`` teach. None: the message contains nothing else.
    ``same_matter`` is False if the message has another foreign text than the request, so that it repeats nothing.
    ``whole`` is False if foreign words accompany the message; then no sentence in it becomes a rule, and nothing in it
    counts as praise, since it may be theirs.
    """
    remark = own_words(message)
    remark = remark if len(remark) <= MOST else f"{remark[: MOST // 2]}\n{remark[-MOST // 2 :]}"
    rules = read(message, request=request if same_matter else "", reply=reply)
    read_as = said or WrittenWords(request=request, message=remark)
    group = group_of(read_as.message, request=read_as.request)
    ngrams = shipped_ngrams().logprobs(read_as.request, reply, read_as.message)
    weights = (combination or shipped_combination()).weights(group, channel, classifier=classifier is not None)
    estimate = weights.combined(ngrams, classifier, None if rules.wish else rules.score)
    belief = believe(estimate, weights.thresholds, rules=rules.score, wish=rules.wish)
    belief = belief if whole else replace(belief, score=min(belief.score or 0, 0) or None, rule=False, fact=False)
    reaction = (
        rules
        if _left_to_rules(remark, read_as.message)
        else _reaction(remark, belief, rules, request=request, reply=reply)
    )
    if whole:
        reaction = _with_measure(remark, reaction, estimate, rules, request=request, reply=reply)
    return FeedbackClassification(
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
    """Add a remark's measure for replies as a rule, even if not every estimator is sure of one.

    The rule is worded plainly: a model follows "Please answer in one sentence" better than "you get a single sentence".
    Skip likelier praise, and errands, in which a measure applies to the thing to make. "Could you put that in a
    bulleted list?" resembles an errand, but the ``rules`` know it as a wish about the reply. In a sure complaint or
    wish, a measure that the reply lacks becomes a rule, in any wording.
    """
    if reaction.score == 1 or is_text(own) or steers(own):
        return reaction

    hints = [hint for hint in reaction.hints if hint.kind != "complaint"]
    sure = reaction.score == -1 or any(hint.kind == "rule" for hint in hints)
    sure = sure or mass(estimate, ("complaint", "rule", "fact")) >= DISPLEASED

    def missing(text: str) -> str | None:
        return missing_measure(text, request=request, reply=reply) if sure else None

    if hints and [hint.text for hint in hints] != [own.strip()]:  # a part of the message: add the measure outside it
        measure = None if any(missing(hint.text) for hint in hints) else missing(own)
    else:
        hints, measure = [], (None if may_be_foreign(own) else _remarked(own, estimate, rules)) or missing(own)
        if measure is None and reaction.score == -1:
            measure = shorter(own, request=request, reply=reply)
    if measure is None:
        return reaction
    return replace(reaction, hints=(*hints, Hint(text=measure, kind="rule")), doubt=None)


def _remarked(own: str, estimate: KindLogprobs, rules: Reaction) -> str | None:
    """Return the measure of a short remark, if it is likelier a wish about replies than praise or an errand.

    A remark that explicitly applies to all replies is never an errand.
    """
    wish, praise = mass(estimate, ("complaint", "rule", "mixed")), mass(estimate, ("praise",))
    errand = mass(estimate, ("neutral",)) >= ERRAND or mass(estimate, ("rule", "mixed")) < WISH
    errand = errand and reach(own, "rule", own) != "standing"
    candidates = [hint.text for hint in rules.hints if hint.kind == "rule" and rules.score == -1]
    named = None if errand else named_measure(own)
    return None if wish <= praise else named or (named_measure(candidates[0]) if len(candidates) == 1 else None)


def _left_to_rules(own: str, message: str) -> bool:
    """Check for a message without words, or a traceback that the rules recognise."""
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
    """Return the possible meaning: the rules' reading, or a probable complaint."""
    if rules.score:
        return Doubt(score=float(rules.score), hints=rules.hints, why=rules.note)
    if rules.doubt is not None:
        return rules.doubt
    return Doubt(score=-1.0, why="perhaps a complaint") if belief.bad >= PERHAPS else None


def _rules_only(hints: tuple[Hint, ...]) -> tuple[Hint, ...]:
    """Return only the rules: without a score, facts and complaints do not teach."""
    return tuple(hint for hint in hints if hint.kind == "rule")


def _complaint(own: str) -> tuple[Hint, ...]:
    return (Hint(text=own.strip(), kind="complaint"),) if len(own) <= 200 else ()


def own_hints(
    own: str, belief: Belief, rules: Reaction, *, request: str, reply: str, model: NgramModel
) -> tuple[Hint, ...]:
    """Return the rules' hints if the estimate confirms them or they apply to all replies.

    Otherwise, if the estimate is sure of a rule or a fact, return the user's own sentence.
    """
    hints = tuple(hint for hint in rules.hints if hint.kind != "complaint")
    if hints and (belief.score is not None or belief.rule or belief.fact or _stand(hints, own)):
        return hints
    if not (belief.rule or belief.fact) or is_text(own) or steers(own):
        return ()
    kind: HintKind = "rule" if belief.rule else "fact"
    kinds: tuple[MessageKind, ...] = ("rule", "mixed") if belief.rule else ("fact",)
    text = carrier(own, parse(own), lambda sentence: mass(model.logprobs(request, reply, sentence), kinds))
    return (Hint(text=text, kind=kind),) if text else ()


def _stand(hints: tuple[Hint, ...], own: str) -> bool:
    """Check that a message, surely its user's own, declares each hint valid for all replies."""
    if may_be_foreign(own) or any(named_measure(text) for text in (own, *(hint.text for hint in hints))):
        return False  # a measure has a plainer wording
    return all(reach(hint.text, hint.kind, own) == "standing" for hint in hints)


def reasons(
    classified: FeedbackClassification, request: str, message: str, *, reply: str, most: int = 8
) -> tuple[Reason, ...]:
    """Return the n-grams with the highest weight for the likeliest kind."""
    likeliest = KINDS[max(range(len(KINDS)), key=lambda kind: classified.estimate[kind])]
    return shipped_ngrams().reasons(request, reply, message, likeliest, most=most)
