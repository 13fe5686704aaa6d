"""Evidence that needs no judge: explicit feedback, environment rewards and visible defects. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from openclaw_rl.judge import tools
from openclaw_rl.judge.channel import channel_of
from openclaw_rl.judge.classification import FeedbackClassification, WrittenWords, classify_feedback
from openclaw_rl.judge.feedback_classifier.combination import Combination, KindLogprobs
from openclaw_rl.judge.hints import HintLimits, borrowed, filter_hints, kind_of
from openclaw_rl.judge.prompt import spoken
from openclaw_rl.judge.reaction import Reaction, read, steers
from openclaw_rl.judge.reported import read_report
from openclaw_rl.judge.text import hands_over, others_words, own_words, unwrapped, user_text
from openclaw_rl.ports import Case
from openclaw_rl.preferences.orders import standing_orders
from openclaw_rl.preferences.standing import reach
from openclaw_rl.text import broken, words
from openclaw_rl.types import Feedback, Hint, Message, Role, Source, Verdict, environment_of, texts

_RETURN_CODE = re.compile(r"\A\s*+<returncode>\s*+(-?\d++)\s*+</returncode>")
_MOST_FOREIGN = 400_000  # characters: older text hardly influences the user's message
_FLAWS = {"malformed_tool_call": "a tool call that cannot be parsed"}
_MARKS = {
    "regenerated": "the user asked for another reply to the same request",
    "repeated_call": "the same call with the same arguments again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceItem:
    """One piece of evidence; ``score`` None contributes a hint without deciding."""

    source: Source
    score: float | None
    note: str


def evidence_items(case: Case) -> tuple[EvidenceItem, ...]:
    """Return all evidence for a case, strongest first: explicit, environment, deterministic."""
    return (*_explicit(case), *_environment(case), *_deterministic(case))


def decide(case: Case, *, trusted: Collection[str] = (), limits: HintLimits) -> Verdict | None:
    """Return the verdict of the strongest evidence that decides; None if only a judge can decide.

    ``trusted`` names the environments whose hints count.
    """
    turn = case.turn.id
    if case.outcome.kind == "side":
        return Verdict(turn=turn, score=None, source="deterministic", note="side turn", judge="evidence")
    for item in evidence_items(case):
        if item.score is not None:
            hints = filter_hints((*given_hints(case, trusted), *user_hints(case)), reply=reply_of(case), limits=limits)
            return Verdict(
                turn=turn,
                score=item.score,
                source=item.source,
                hints=hints.kept,
                note=item.note,
                judge="evidence",
            )
    return None


def leaves_words(case: Case, decided: Verdict) -> bool:
    """Return True if a user wrote after a reply that visible evidence already scored, such as a repeated call.

    The judge extracts the hints from these words. False for a recorded conversation, which only describes its user.
    """
    if decided.source != "deterministic" or case.outcome.kind == "side":
        return False
    live = environment_of(case.turn.user) is None and described(case) is None
    return live and bool(user_text(case.outcome.next_state))


def with_heard(decided: Verdict, heard: Verdict) -> Verdict:
    """Return the evidence's verdict with the judge's hints; the judge reads a user's words with more models."""
    return replace(decided, hints=heard.hints or decided.hints)


def given_hints(case: Case, trusted: Collection[str] = ()) -> tuple[Hint, ...]:
    """Return the hints in explicit feedback; an environment's hints only if its name is trusted."""
    allowed = (
        feedback.hint
        for feedback in _newest_first(case)
        if feedback.hint and (feedback.source == "explicit" or trusts(case, trusted))
    )
    return tuple(Hint(text=hint.strip(), kind=kind_of(hint)) for hint in allowed if hint.strip())


def user_hints(case: Case) -> tuple[Hint, ...]:
    """Return the hints in the user's next message, independent of the evidence that decided the score."""
    classified = classify_user(case)
    return (user_reaction(case) if classified is None else classified_reaction(case, classified)).hints


def classify_user(
    case: Case, *, classifier: KindLogprobs | None = None, combination: Combination | None = None
) -> FeedbackClassification | None:
    """Classify the user's next message; return None if it is empty or only describes the user.

    ``combination`` weighs the classifier's answer; None uses the weights for the embedded model.
    """
    exchange = written(case)
    if exchange is None:
        return None
    return classify_feedback(
        user_text(case.outcome.next_state),
        said=exchange,
        channel=channel_of(case),
        request=request_of(case),
        reply=reply_of(case),
        classifier=classifier,
        combination=combination,
        same_matter=_same_matter(case),
        whole=not any(hands_over(text) for text in texts(case.outcome.next_state, "user")),
    )


def written(case: Case) -> WrittenWords | None:
    """Return the request and the user's next message in full, since many coding users send a pasted log.

    None if there is no message, only a description, or only foreign text beside tool results.
    """
    texts_after = texts(case.outcome.next_state, "user")
    message = "\n".join(filter(None, map(unwrapped, texts_after)))
    tools_only = not user_text(case.outcome.next_state) and any(
        entry.role == "tool" for entry in case.outcome.next_state
    )
    if not message or tools_only or described(case) is not None:
        return None
    requests = reversed(texts(case.turn.prompt.messages, "user"))
    return WrittenWords(request=next(filter(None, map(unwrapped, requests)), ""), message=message)


def classified_reaction(case: Case, classified: FeedbackClassification) -> Reaction:
    """Return the reaction without rules that borrow other people's words."""
    return _without_borrowed(case, classified.reaction)


def user_reaction(case: Case) -> Reaction:
    """Apply the rules to the user's own words or to a recorded description; no score without either."""
    if (report := described(case)) is not None:
        return report
    message = user_text(case.outcome.next_state)
    if not message:
        return Reaction(score=None, note="the user wrote nothing")
    reaction = read(message, request=request_of(case) if _same_matter(case) else "", reply=reply_of(case))
    return _without_borrowed(case, reaction)


def _without_borrowed(case: Case, reaction: Reaction) -> Reaction:
    doubt = reaction.doubt
    if doubt is not None:
        return replace(reaction, doubt=replace(doubt, hints=_own_hints(doubt.hints, case)))
    return replace(reaction, hints=_own_hints(reaction.hints, case))


def _own_hints(hints: tuple[Hint, ...], case: Case) -> tuple[Hint, ...]:
    """Return the hints without rules whose words are not the user's."""
    if not hints:
        return ()
    foreign_text = foreign(case)
    return tuple(hint for hint in hints if hint.kind != "rule" or not borrowed(hint.text, others=foreign_text))


def described(case: Case) -> Reaction | None:
    """Return the reaction that a recorded conversation describes; None for a live turn, whose user writes directly.

    Log-probs identify a recorded turn, since no client can send them.
    """
    if not case.turn.completion.scored:
        return None
    text = "\n".join(texts(case.outcome.next_state, "user"))
    return read_report(text, request=request_of(case), reply=reply_of(case))


def foreign(case: Case, *, roles: tuple[Role, ...] = ("tool",)) -> str:
    """Return the newest text in a case that may not instruct: messages with these roles and handed-over text."""
    messages = (*case.turn.prompt.messages, case.turn.completion.reply, *case.outcome.next_state)
    parts: list[str] = []
    remaining = _MOST_FOREIGN
    for message in reversed(messages):
        if remaining > 0 and (message.role in roles or message.role == "user"):
            parts.append((others_words(message.content) if message.role == "user" else spoken(message))[:remaining])
            remaining -= len(parts[-1])
    return "\n".join(reversed(parts))


def _same_matter(case: Case) -> bool:
    """Check that the user's next message has the same foreign text as the request; only then can it be a repetition."""
    requests = texts(case.turn.prompt.messages, "user")
    after = texts(case.outcome.next_state, "user")
    request = next((text for text in reversed(requests) if own_words(text)), "")
    return words(others_words(request)) == words("\n".join(map(others_words, after)))


def may_instruct(case: Case, trusted: Collection[str] = ()) -> bool:
    """Return True if the case may give a hint: it has user words, explicit feedback or a trusted environment."""
    explicit = any(feedback.source == "explicit" for feedback in case.feedback)
    return explicit or bool(user_text(case.outcome.next_state)) or trusts(case, trusted)


def trusts(case: Case, trusted: Collection[str]) -> bool:
    """Return True if the turn used the key of an environment trusted by name; the client's own name does not count."""
    return environment_of(case.turn.user) in trusted


def request_of(case: Case) -> str:
    """Return the user's last words before the reply; empty if there are none."""
    requests = texts(case.turn.prompt.messages, "user")
    return next((request for text in reversed(requests) if (request := own_words(text))), "")


def reply_of(case: Case) -> str:
    """Return the reply's text."""
    return case.turn.completion.reply.content


def _newest_first(case: Case) -> list[Feedback]:
    return sorted(case.feedback, key=lambda feedback: feedback.at, reverse=True)


def _explicit(case: Case) -> Iterator[EvidenceItem]:
    for feedback in _newest_first(case):
        if feedback.source != "explicit":
            continue
        if feedback.score is not None:
            yield EvidenceItem(source="explicit", score=feedback.score, note=f"a score of {feedback.score:g} was given")
        elif feedback.edit is not None:
            same = feedback.edit.split() == reply_of(case).split()
            note = "the reply was kept as it is" if same else "the reply was edited"
            yield EvidenceItem(source="explicit", score=1.0 if same else -1.0, note=note)
        else:
            yield EvidenceItem(source="explicit", score=None, note="a hint was given without a score")


def _environment(case: Case) -> Iterator[EvidenceItem]:
    for feedback in _newest_first(case):
        if feedback.source == "environment" and feedback.score is not None:
            paid = max(-1.0, min(1.0, feedback.score))  # so that no reward outweighs a whole batch
            yield EvidenceItem(source="environment", score=paid, note=f"the environment paid {paid:g}")


def _deterministic(case: Case) -> Iterator[EvidenceItem]:
    completion = case.turn.completion
    notes = [_FLAWS[flaw] for flaw in completion.flaws if flaw in _FLAWS]
    notes += [_MARKS[mark] for mark in case.outcome.evidence if mark in _MARKS]
    notes += filter(None, (_failure(message, case) for message in case.outcome.next_state))
    # An episode's outcome covers a reply that its limit cut off: -1 beside it would punish a task that was solved.
    if completion.finish == "length" and environment_of(case.turn.user) is None:
        notes.append("the reply was cut off by its token limit")
    if completion.finish == "aborted":
        notes.append("the reply was aborted")
    if not completion.reply.tool_calls and (why := broken(completion.reply.content)) is not None:
        notes.append(why)
    for note in notes:
        yield EvidenceItem(source="deterministic", score=-1.0, note=note)


def _failure(message: Message, case: Case) -> str | None:
    if message.role == "tool":
        return tools.failure(message.content, tools.call_of(message, case.turn.completion.reply.tool_calls))
    match = _RETURN_CODE.match(message.content)
    return tools.ended(match.group(1)) if match else None


# Episode outcomes and the scores of their steps. Pure.
#
# Votes, a reward for the single step and visible defects (a call that cannot be parsed) belong to the step; the outcome
# belongs to the session. The verdict keeps them apart, and the trainer combines them.


def joined(case: Case, verdict: Verdict) -> Verdict:
    """Return a step's verdict with its session's outcome, or with the step's own reward; otherwise unchanged.

    An explicit verdict stays unchanged.
    """
    if verdict.source == "explicit":
        return verdict
    reward, paid = case.reward, _paid(case)
    if reward is not None and reward.score is not None:
        step = _own(verdict, paid)
        note = f"the session was paid {reward.score:g}" + ("" if step is None else f", the step earned {step:g}")
        return replace(verdict, score=reward.score, step=step, source="environment", note=note)
    if paid is not None:
        step = _own(verdict, None) if verdict.source == "judge" else None
        note = f"the environment paid {paid:g}" + ("" if step is None else f", the step's votes average {step:g}")
        return replace(verdict, score=paid, step=step, source="environment", note=note)
    return verdict


def outcome_alone(case: Case, why: str) -> Verdict:
    """Return the verdict on a step with no evidence but the outcome."""
    silent = Verdict(turn=case.turn.id, score=None, source="environment", judge="evidence", note=why)
    return joined(case, silent)


def failure(case: Case) -> str | None:
    """Return why a turn's episode failed through no fault of the policy; None if it did not."""
    return case.reward.failed if case.reward is not None else None


def _own(verdict: Verdict, paid: float | None) -> float | None:
    """Return a step's score: an existing one, else the mean of its votes and its reward, else the judge's score."""
    if verdict.step is not None:
        return verdict.step
    parts = [float(vote) for vote in verdict.votes if vote is not None]
    parts += [] if paid is None else [paid]
    if not parts and verdict.source in ("judge", "deterministic") and verdict.score is not None:
        parts = [verdict.score]
    return fmean(parts) if parts else None


def _paid(case: Case) -> float | None:
    """Return the newest reward for this turn alone, clipped to -1 .. 1."""
    paid = [feedback for feedback in case.feedback if feedback.source == "environment" and feedback.score is not None]
    newest = max(paid, key=lambda feedback: feedback.at, default=None)
    return None if newest is None or newest.score is None else max(-1.0, min(1.0, newest.score))


# Reach of a user's wish: set on each hint before the verdict is written. Pure.


def with_reach(case: Case, verdict: Verdict) -> Verdict:
    """Return the verdict with each hint's reach, and with the message's standing orders that no hint contains.

    The user's own message decides, regardless of the judge: most orders accompany the next task, which a judge of the
    reply ignores. Such orders teach without a score. A hint in explicit feedback is always standing. Hints from
    environments and recorded conversations, which never become notes, stay unchanged.
    """
    if environment_of(case.turn.user) is not None or described(case) is not None:
        return verdict
    message = user_text(case.outcome.next_state)
    own_only = not any(hands_over(text) for text in texts(case.outcome.next_state, "user"))
    orders = standing_orders(message) if own_only and not steers(message) else ()
    explicit = {_folded(feedback.hint) for feedback in case.feedback if feedback.source == "explicit" and feedback.hint}

    def stands(hint: Hint) -> bool:
        return _folded(hint.text) in explicit or (hint.kind == "rule" and _is_among(hint.text, orders))

    hints = [
        replace(hint, reach="standing" if stands(hint) else reach(hint.text, hint.kind, message, whole=own_only))
        for hint in verdict.hints
    ]
    rules = [hint.text for hint in hints if hint.kind == "rule"]
    added = [Hint(text=order, kind="rule", reach="standing") for order in orders if not _is_among(order, rules)]
    return replace(verdict, hints=(*hints, *added)) if hints or added else verdict


def _is_among(text: str, others: Sequence[str]) -> bool:
    """Check if a text equals, contains or is part of another."""
    return any(text in candidate or candidate in text for candidate in others)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
