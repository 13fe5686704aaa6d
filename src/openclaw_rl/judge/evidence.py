"""Evidence that needs no judge: explicit feedback, an environment's reward, what anyone can see. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from openclaw_rl.judge import tools
from openclaw_rl.judge.channel import channel_of
from openclaw_rl.judge.hearing import Hearing, WrittenWords, hear
from openclaw_rl.judge.hints import HintLimits, borrowed, filter_hints, kind_of
from openclaw_rl.judge.prompt import spoken
from openclaw_rl.judge.reaction import Reaction, read, steers
from openclaw_rl.judge.reader.combination import Combination, KindLogprobs
from openclaw_rl.judge.reported import read_report
from openclaw_rl.judge.text import hands_over, others_words, own_words, unwrapped, user_text
from openclaw_rl.ports import Case
from openclaw_rl.preferences.orders import standing_orders
from openclaw_rl.preferences.standing import reach
from openclaw_rl.text import broken, words
from openclaw_rl.types import Feedback, Hint, Message, Role, Source, Verdict, environment_of, texts

_RETURN_CODE = re.compile(r"\A\s*+<returncode>\s*+(-?\d++)\s*+</returncode>")
_MOST_FOREIGN = 400_000  # characters: what lies further back is hardly on anybody's mind
_FLAWS = {"malformed_tool_call": "a tool call that cannot be parsed"}
_MARKS = {
    "regenerated": "the user asked for another reply to the same request",
    "repeated_call": "the same call with the same arguments again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceItem:
    """One piece of evidence. ``score`` None adds something (a hint) but decides nothing."""

    source: Source
    score: float | None
    note: str


def evidence_items(case: Case) -> tuple[EvidenceItem, ...]:
    """All evidence of a case, strongest first: explicit, environment, deterministic."""
    return (*_explicit(case), *_environment(case), *_deterministic(case))


def decide(case: Case, *, trusted: Collection[str] = (), limits: HintLimits) -> Verdict | None:
    """The verdict of the strongest evidence that decides; None where only a judge can say.

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
    """Whether a user wrote something after a reply whose score anyone can see: it was cut off, a call was repeated.

    What these words teach is for the judge to hear. Not in a recorded conversation, which reports what its user said.
    """
    if decided.source != "deterministic" or case.outcome.kind == "side":
        return False
    live = environment_of(case.turn.user) is None and described(case) is None
    return live and bool(user_text(case.outcome.next_state))


def with_heard(decided: Verdict, heard: Verdict) -> Verdict:
    """The score of the evidence with what the judge has heard, who reads a user's words with more than it has."""
    return replace(decided, hints=heard.hints or decided.hints)


def given_hints(case: Case, trusted: Collection[str] = ()) -> tuple[Hint, ...]:
    """Hints sent outright; an environment's only if its name is trusted."""
    allowed = (
        feedback.hint
        for feedback in _newest_first(case)
        if feedback.hint and (feedback.source == "explicit" or trusts(case, trusted))
    )
    return tuple(Hint(text=hint.strip(), kind=kind_of(hint)) for hint in allowed if hint.strip())


def user_hints(case: Case) -> tuple[Hint, ...]:
    """What the user's next words teach, whatever decided the score."""
    hearing = user_hearing(case)
    return (user_reaction(case) if hearing is None else heard_reaction(case, hearing)).hints


def user_hearing(
    case: Case, *, classifier: KindLogprobs | None = None, combination: Combination | None = None
) -> Hearing | None:
    """What the reader makes of what the user wrote; None where it is nothing, or only a description of it.

    ``combination`` is how the classifier's answer is weighed, None: as for the embedded model.
    """
    said = written(case)
    if said is None:
        return None
    return hear(
        user_text(case.outcome.next_state),
        said=said,
        channel=channel_of(case),
        request=request_of(case),
        reply=reply_of(case),
        classifier=classifier,
        combination=combination,
        same_matter=_same_matter(case),
        whole=not any(hands_over(text) for text in texts(case.outcome.next_state, "user")),
    )


def written(case: Case) -> WrittenWords | None:
    """The request and what the user wrote next, whole: a pasted log is the message of many a coding user.

    None where there is no message, only a description of one, or only matter beside the results of tools.
    """
    texts_after = texts(case.outcome.next_state, "user")
    message = "\n".join(filter(None, map(unwrapped, texts_after)))
    tools_only = not user_text(case.outcome.next_state) and any(each.role == "tool" for each in case.outcome.next_state)
    if not message or tools_only or described(case) is not None:
        return None
    requests = reversed(texts(case.turn.prompt.messages, "user"))
    return WrittenWords(request=next(filter(None, map(unwrapped, requests)), ""), message=message)


def heard_reaction(case: Case, hearing: Hearing) -> Reaction:
    """What was heard, without rules that are other people's words."""
    return _without_borrowed(case, hearing.reaction)


def user_reaction(case: Case) -> Reaction:
    """What the rules make of the user's own words, or a recorded description of them; nothing without any."""
    if (told := described(case)) is not None:
        return told
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
    """Hints without the rules whose words are not the user's."""
    if not hints:
        return ()
    theirs = foreign(case)
    return tuple(hint for hint in hints if hint.kind != "rule" or not borrowed(hint.text, others=theirs))


def described(case: Case) -> Reaction | None:
    """What a recorded conversation reports of the user; None for a turn of this server, whose user speaks for themself.

    That a turn is recorded shows in its log-probs, which no client can send.
    """
    if not case.turn.completion.scored:
        return None
    text = "\n".join(texts(case.outcome.next_state, "user"))
    return read_report(text, request=request_of(case), reply=reply_of(case))


def foreign(case: Case, *, roles: tuple[Role, ...] = ("tool",)) -> str:
    """Text of a case that may not instruct: of these roles, and what users handed over; the newest of it."""
    messages = (*case.turn.prompt.messages, case.turn.completion.reply, *case.outcome.next_state)
    parts: list[str] = []
    left = _MOST_FOREIGN
    for message in reversed(messages):
        if left > 0 and (message.role in roles or message.role == "user"):
            parts.append((others_words(message.content) if message.role == "user" else spoken(message))[:left])
            left -= len(parts[-1])
    return "\n".join(reversed(parts))


def _same_matter(case: Case) -> bool:
    """Whether the user's next words come with the same text of others as the request: only then can it be repeated."""
    requests = texts(case.turn.prompt.messages, "user")
    after = texts(case.outcome.next_state, "user")
    request = next((text for text in reversed(requests) if own_words(text)), "")
    return words(others_words(request)) == words("\n".join(map(others_words, after)))


def may_instruct(case: Case, trusted: Collection[str] = ()) -> bool:
    """Whether anything in the case may give a hint: the user's words, explicit feedback, or a trusted environment."""
    explicit = any(feedback.source == "explicit" for feedback in case.feedback)
    return explicit or bool(user_text(case.outcome.next_state)) or trusts(case, trusted)


def trusts(case: Case, trusted: Collection[str]) -> bool:
    """Whether the turn came with the key of an environment that is trusted by name; what a client calls itself is not
    looked at."""
    return environment_of(case.turn.user) in trusted


def request_of(case: Case) -> str:
    """The user's last words before the reply; empty if there are none."""
    requests = texts(case.turn.prompt.messages, "user")
    return next((own for text in reversed(requests) if (own := own_words(text))), "")


def reply_of(case: Case) -> str:
    """The text of the reply."""
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
    found = _RETURN_CODE.match(message.content)
    return tools.ended(found.group(1)) if found else None


# The outcome of an episode and what each of its steps earned of its own. Pure.
#
# Votes, a reward for the single step and what anyone can see of it (a call that cannot be parsed) are the step's own;
# the outcome is the session's. Both are kept apart in the verdict: what becomes of them is the trainer's affair.


def joined(case: Case, verdict: Verdict) -> Verdict:
    """The verdict on a step with the outcome of its session, or with what the step itself was paid; else as it is.

    What a person says outright of a turn stands.
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
    """The verdict on a step of which nothing but the outcome is known."""
    silent = Verdict(turn=case.turn.id, score=None, source="environment", judge="evidence", note=why)
    return joined(case, silent)


def failure(case: Case) -> str | None:
    """Why the episode of a turn failed through no fault of the policy's; None where it did not."""
    return case.reward.failed if case.reward is not None else None


def _own(verdict: Verdict, paid: float | None) -> float | None:
    """What a step earned: what is known of it already, else the mean of its votes and of what it was paid."""
    if verdict.step is not None:
        return verdict.step
    parts = [float(vote) for vote in verdict.votes if vote is not None]
    parts += [] if paid is None else [paid]
    if not parts and verdict.source in ("judge", "deterministic") and verdict.score is not None:
        parts = [verdict.score]
    return fmean(parts) if parts else None


def _paid(case: Case) -> float | None:
    """The newest reward for this turn alone."""
    paid = [feedback for feedback in case.feedback if feedback.source == "environment" and feedback.score is not None]
    newest = max(paid, key=lambda feedback: feedback.at, default=None)
    return None if newest is None or newest.score is None else max(-1.0, min(1.0, newest.score))


# How long a user's wish holds: marks each hint of a verdict before it is written. Pure.


def with_reach(case: Case, verdict: Verdict) -> Verdict:
    """The verdict with the reach of each hint, and with the standing orders of the message that no hint holds.

    The user's own message decides, whichever judge gave the verdict: most orders stand beside the next task, where a
    judge of the reply sees nothing. They teach and score nothing. A hint that was sent outright stands. Hints of
    environments and of recorded conversations, of which no note is made, stay as they are.
    """
    if environment_of(case.turn.user) is not None or described(case) is not None:
        return verdict
    message = user_text(case.outcome.next_state)
    whole = not any(hands_over(text) for text in texts(case.outcome.next_state, "user"))
    orders = standing_orders(message) if whole and not steers(message) else ()
    outright = {_folded(feedback.hint) for feedback in case.feedback if feedback.source == "explicit" and feedback.hint}

    def stands(hint: Hint) -> bool:
        return _folded(hint.text) in outright or (hint.kind == "rule" and _is_among(hint.text, orders))

    known = [
        replace(hint, reach="standing" if stands(hint) else reach(hint.text, hint.kind, message, whole=whole))
        for hint in verdict.hints
    ]
    rules = [hint.text for hint in known if hint.kind == "rule"]
    added = [Hint(text=order, kind="rule", reach="standing") for order in orders if not _is_among(order, rules)]
    return replace(verdict, hints=(*known, *added)) if known or added else verdict


def _is_among(text: str, others: Sequence[str]) -> bool:
    """Whether a text is one of the others, a part of one, or holds one."""
    return any(text in other or other in text for other in others)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
