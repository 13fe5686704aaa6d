"""From judged turns to samples: what trains, what is dropped and why, and each sample's advantage. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from openclaw_rl.train.consent import SHARE_ALL, Consent
from openclaw_rl.train.credit import Credited, CreditSettings, credited, reward
from openclaw_rl.types import Baseline, Completion, Drop, DropReason, Outcome, PlayedStep, Prompt, Sample, Turn, Verdict

Advantage = Literal["baseline", "raw", "group"]

_LEAST_URGENCY = 0.05
OWN_CHOICE = math.log(0.5)
"""what a format must leave of the policy at a token, as a logarithm, for that token to say anything of it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """The settings that decide what a turn may teach.

    ``policy_gradient`` and ``distillation`` say which terms of the loss have a weight.
    """

    policy_gradient: bool
    distillation: bool
    max_lag: int
    max_hints: int
    train_truncated: bool
    advantage: Advantage
    normalize: bool
    decay: float
    remember: int
    """for how many of a user's next turns a rule goes on teaching"""
    credit: CreditSettings
    grouped: bool
    """whether environments play each task several times, so that episodes are measured against each other"""
    share: str
    """whose rules teach where several people share the policy: all, none, or how many must have given the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """Samples with their advantages, the users' baselines after them, and figures of how they came about."""

    samples: tuple[Sample, ...]
    baselines: Mapping[str, Baseline]
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def without_signal(self) -> bool:
        """Whether every advantage is zero and there is no hint, so that no optimiser step may be taken."""
        return not any(sample.advantage or sample.teachers for sample in self.samples)


def to_sample(
    turn: Turn,
    outcome: Outcome,
    verdict: Verdict,
    *,
    live: int,
    settings: SampleSettings,
    recalled: Verdict | None = None,
    consent: Consent = SHARE_ALL,
) -> Sample | Drop:
    """The sample that a judged turn gives, its ``advantage`` still the plain score; or the reason why it gives none.

    ``recalled`` is the verdict of an earlier turn of the same user, whose rules teach in place of this one's.
    ``consent`` says which rules may teach where several people share the policy.
    """
    unfit = _unfit(turn, outcome, live=live, settings=settings)
    if unfit:
        return _drop(turn, *unfit)
    given = (recalled or verdict).rules
    shared = [rule for rule in given if consent.allows(rule, turn.user)]
    teachers = _teachers(turn.prompt, shared, settings)
    played = _played(turn, outcome, verdict)
    score = _score(verdict, played, settings) if settings.policy_gradient else None
    greedy = score is not None and turn.completion.sampling.greedy
    if not teachers and (score is None or greedy):
        if greedy:
            return _drop(turn, "greedy", "sampled without chance: nothing to explore")
        if len(shared) < len(given) and settings.distillation:
            return _drop(turn, "not shared", consent.detail)
        return _drop(turn, "no signal", _why_no_signal(verdict, settings))
    source = recalled.turn if recalled and teachers else None
    return _sample(turn, outcome, score=None if greedy else score, teachers=teachers, recalled=source, played=played)


def _drop(turn: Turn, reason: DropReason, detail: str) -> Drop:
    return Drop(turn=turn.id, stage="train", reason=reason, detail=detail)


def _sample(
    turn: Turn,
    outcome: Outcome,
    *,
    score: float | None,
    teachers: tuple[Prompt, ...],
    recalled: str | None,
    played: PlayedStep | None,
) -> Sample:
    done = turn.completion
    as_sampled = turn.noted is None  # a note is no part of what is taught: the student answers without it
    return Sample(
        turn=turn.id,
        user=turn.user,
        group=f"{turn.group}/{outcome.index}" if turn.group else None,
        prompt=turn.prompt,
        prompt_tokens=done.prompt_tokens if as_sampled else None,
        reply_tokens=done.reply_tokens,
        logprobs=done.logprobs if as_sampled else None,
        mask=chosen_tokens(done),
        score=score,
        advantage=score,
        teachers=teachers,
        recalled=recalled,
        played=played,
        temperature=done.sampling.temperature,
        version=done.version,
    )


def chosen_tokens(done: Completion) -> tuple[bool, ...]:
    """Which tokens were the policy's own choice: where a format left less than `OWN_CHOICE` of it, it was the format's.

    Such a token says nothing of the policy, and its ratio to what was sampled lies outside of what is trusted.
    """
    if done.allowed is None:
        return (True,) * len(done.reply_tokens)
    return tuple(allowed >= OWN_CHOICE for allowed in done.allowed)


def _unfit(turn: Turn, outcome: Outcome, *, live: int, settings: SampleSettings) -> tuple[DropReason, str] | None:
    done = turn.completion
    if outcome.kind == "side":
        return "side turn", outcome.kind_reason
    if not turn.trainable:
        return "opted out", "the caller keeps this turn out of training"
    if any(message.images for message in turn.prompt.messages):
        return "cannot be trained", "it has images, which the trainer does not read"
    if done.finish == "aborted":
        return "aborted", "the caller left before the end"
    if not done.reply_tokens:
        return "empty reply", "no token was sampled"
    if not any(chosen_tokens(done)):
        return "no signal", "the format of the reply left the policy no choice"
    if done.finish == "length" and not settings.train_truncated:
        return "cut off", "the reply ran into its token limit; train.train_truncated = true would keep it"
    if live - done.version > settings.max_lag:
        return "stale", f"sampled by version {done.version}, live is {live}, train.max_lag is {settings.max_lag}"
    return None


def _teachers(prompt: Prompt, rules: Sequence[str], settings: SampleSettings) -> tuple[Prompt, ...]:
    return tuple(prompt.hinted(rule) for rule in rules[: settings.max_hints]) if settings.distillation else ()


def _played(turn: Turn, outcome: Outcome, verdict: Verdict) -> PlayedStep | None:
    """The turn as a step of an episode that has an outcome; None for any other."""
    if verdict.source != "environment" or verdict.score is None:
        return None
    done = turn.completion
    return PlayedStep(
        episode=turn.session or outcome.session,
        task=turn.group,
        index=outcome.index,
        outcome=verdict.score,
        vote=verdict.step,
        tokens=len(done.reply_tokens),
        room=len(done.reply_tokens) if done.finish == "length" else done.sampling.max_tokens,
    )


def _score(verdict: Verdict, played: PlayedStep | None, settings: SampleSettings) -> float | None:
    """A judge's 0 is "ambiguous" and teaches nothing; an environment's 0 is a reward like any other."""
    if played is not None:
        return reward(played, settings.credit)
    if verdict.score == 0 and verdict.source != "environment":
        return None
    return verdict.score


def _why_no_signal(verdict: Verdict, settings: SampleSettings) -> str:
    if verdict.hints and not settings.distillation:
        return "it has hints, but train.loss.w_opd is 0"
    if verdict.score is not None and not settings.policy_gradient:
        return "it has a score, but train.loss.w_rl is 0"
    score = "no opinion" if verdict.score is None else f"score {verdict.score:g}"
    return f"{score}, no rule to distil"


def with_advantages(
    samples: Sequence[Sample],
    *,
    baselines: Mapping[str, Baseline],
    settings: SampleSettings,
    played: Mapping[str, PlayedStep] = MappingProxyType({}),
) -> TrainingBatch:
    """Turn the plain scores into advantages, reading each user's baseline before it is updated.

    Where environments play each task several times, their steps are credited against each other, and against those in
    ``played``: by turn, the other steps of their groups, which have trained already or cannot train.
    """
    after = dict(baselines)
    credit = _credited(samples, settings, played) if settings.grouped else None
    credits = {} if credit is None else credit.advantages
    if settings.advantage == "group":
        others = iter(
            _group_advantages([each for each in samples if each.turn not in credits], normalize=settings.normalize)
        )
        whole = [_with_credit(each, credits) if each.turn in credits else next(others) for each in samples]
        return TrainingBatch(samples=tuple(map(_fit_for_note, whole)), baselines=after, figures=_figures(credit))
    done = []
    for sample in samples:
        if sample.advantage is None:
            done.append(sample)
            continue
        if sample.turn in credits:
            done.append(_fit_for_note(_with_credit(sample, credits)))
            continue
        score, before = sample.advantage, after.get(sample.user, Baseline())
        after[sample.user] = before.after(score, decay=settings.decay)
        advantage = score - before.mean if settings.advantage == "baseline" else score
        urgency = _urgency(before.satisfaction) if settings.remember else 1.0
        done.append(_fit_for_note(replace(sample, advantage=advantage, urgency=urgency)))
    return TrainingBatch(samples=tuple(done), baselines=after, figures=_figures(credit))


def _credited(samples: Sequence[Sample], settings: SampleSettings, played: Mapping[str, PlayedStep]) -> Credited:
    """The credit of the samples that are steps. A task is of one user: another's of its name is another task."""
    own = {
        sample.turn: replace(sample.played, task=f"{sample.user}/{sample.played.task}")
        for sample in samples
        if sample.played is not None and sample.played.task is not None and sample.advantage is not None
    }
    tasks = {step.task for step in own.values()}
    others = {turn: step for turn, step in played.items() if step.task in tasks}
    credit = credited({**others, **own}, settings.credit)
    return replace(credit, advantages={turn: credit.advantages[turn] for turn in own})


def _with_credit(sample: Sample, credits: Mapping[str, float | None]) -> Sample:
    """With its advantage; a step with nothing to be measured against has none."""
    advantage = credits[sample.turn]
    return replace(sample, advantage=0.0 if advantage is None and not sample.teachers else advantage)


def all_alike(
    samples: Sequence[Sample],
    *,
    settings: SampleSettings,
    partial: Collection[tuple[str, str]],
    played: Mapping[str, PlayedStep] = MappingProxyType({}),
) -> list[Drop]:
    """The turns of groups whose plays all earned the same: nothing follows from them, so that no step waits for them.

    The groups in ``partial`` still miss episodes or verdicts. Where all of a batch is measured together, none is alike.
    """
    if not settings.grouped or settings.credit.baseline == "batch":
        return []
    whole = [each for each in samples if task_group(each) not in partial]
    credits = _credited(whole, settings, played).advantages
    told = {task_group(each) for each in whole if credits.get(each.turn) or each.teachers}
    alike = [each for each in whole if each.turn in credits and task_group(each) not in told]
    what = "all plays of its task earned the same: there is nothing to compare"
    return [Drop(turn=each.turn, stage="train", reason="alike", detail=what) for each in alike]


def _figures(found: Credited | None) -> Mapping[str, float]:
    if found is None or not found.buckets:
        return {}
    return {"credit_buckets": float(found.buckets), "credit_buckets_flat": float(found.flat)}


def _fit_for_note(sample: Sample) -> Sample:
    """A reply that was sampled under a standing note is not pushed down where the note is gone.

    The policy without the note would hardly have said it, so nothing would hold such a push; and it would
    undo the note's own lesson, which the reply mostly follows. What was liked is taught, what was said too.
    """
    if sample.logprobs is not None or sample.advantage is None or sample.advantage >= 0:
        return sample
    return replace(sample, advantage=None if sample.teachers else 0.0)


def _urgency(satisfaction: float) -> float:
    """How much is left to learn from a user whose mean score of late is ``satisfaction`` (-1 .. 1).

    All while at most half of the replies meet the preference, and ever less from there on (the square of what is
    missing): a rule that goes on teaching would otherwise move the weights as far by each good turn as by each bad one.
    """
    return max(_LEAST_URGENCY, (1.0 - max(satisfaction, 0.0)) ** 2)


def _group_advantages(samples: Sequence[Sample], *, normalize: bool) -> tuple[Sample, ...]:
    """A group is of one user: no score is measured against those of another user who took its name."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.advantage is not None:
            scores[sample.user, sample.group or sample.turn].append(sample.advantage)
    done = []
    for sample in samples:
        if sample.advantage is None:
            done.append(sample)
            continue
        group = scores[sample.user, sample.group or sample.turn]
        advantage = sample.advantage - statistics.fmean(group)
        spread = statistics.pstdev(group) if normalize else 1.0
        done.append(replace(sample, advantage=advantage / spread if spread > 0 else 0.0))
    return tuple(done)


def step_due(
    waiting: int,
    *,
    oldest: float | None,
    last_turn: float | None,
    now: float,
    batch_size: int,
    max_wait: float,
    idle: float,
) -> bool:
    """Whether it is time for a step: a batch is full, the oldest has waited long enough, or no request comes."""
    if waiting == 0 or oldest is None:
        return False
    quiet = last_turn is not None and now - last_turn >= idle
    return waiting >= batch_size or now - oldest >= max_wait or quiet


def next_batch(
    waiting: Sequence[tuple[Sample, float]],
    *,
    last_turn: float | None,
    now: float,
    batch_size: int,
    max_wait: float,
    idle: float,
    grouped: bool = False,
    partial: Collection[tuple[str, str]] = (),
) -> list[Sample]:
    """The samples of the next step; none while it is not time. ``waiting`` has each with the time of its verdict.

    ``grouped`` keeps the episodes of a group in one step, so that each is measured against all of them. The groups in
    ``partial`` still miss episodes or verdicts: they wait, however long, and neither fill a batch nor make it late.
    """
    whole = [(sample, at) for sample, at in waiting if task_group(sample) not in partial]
    due = step_due(
        len(whole),
        oldest=min((at for _, at in whole), default=None),
        last_turn=last_turn,
        now=now,
        batch_size=batch_size,
        max_wait=max_wait,
        idle=idle,
    )
    pool = [sample for sample, _ in whole] if due else []
    return _whole_groups(pool, batch_size) if grouped else pool[:batch_size]


def task_group(sample: Sample) -> tuple[str, str] | None:
    """The user and the group that a sample's episode belongs to; None for one of no group."""
    return (sample.user, sample.group.rpartition("/")[0]) if sample.group else None


def _whole_groups(pool: Sequence[Sample], batch_size: int) -> list[Sample]:
    """From the oldest on, each with all of its group, until the batch is full; it may become a little fuller."""
    chosen: dict[str, Sample] = {}
    for first in pool:
        if len(chosen) >= batch_size:
            break
        group = task_group(first)
        peers = [first] if group is None else [peer for peer in pool if task_group(peer) == group]
        chosen |= {peer.turn: peer for peer in peers}
    return list(chosen.values())
