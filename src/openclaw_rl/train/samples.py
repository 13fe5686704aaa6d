"""Build training samples with advantages from judged turns; report each dropped turn with its reason. Pure."""

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
"""least log-share of the policy's probability that a reply format must leave at a token for the token to train"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """Settings that decide which turns and rules train.

    ``policy_gradient`` and ``distillation`` state which terms of the loss have a weight.
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
    """number of a user's following turns for which a rule keeps teaching"""
    credit: CreditSettings
    grouped: bool
    """True if environments play each task several times, so that episodes are measured against each other"""
    share: str
    """rules that teach when several people share the policy: all, none, or those given by at least this many people"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """Samples with their advantages, the users' baselines after them, and metrics of the credit assignment."""

    samples: tuple[Sample, ...]
    baselines: Mapping[str, Baseline]
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def without_signal(self) -> bool:
        """Return True if every advantage is zero and there is no hint, so that no optimizer step may be taken."""
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
    """Return a judged turn's sample, its ``advantage`` still the plain score, or the drop with its reason.

    ``recalled`` is an earlier turn's verdict for the same user, whose rules teach in place of this one's.
    ``consent`` decides which rules may teach when several people share the policy.
    """
    unfit = _unfit(turn, outcome, live=live, settings=settings)
    if unfit:
        return _drop(turn, *unfit)
    rules = (recalled or verdict).rules
    shared = [rule for rule in rules if consent.allows(rule, turn.user)]
    teachers = _teachers(turn.prompt, shared, settings)
    played = _played(turn, outcome, verdict)
    score = _score(verdict, played, settings) if settings.policy_gradient else None
    greedy = score is not None and turn.completion.sampling.greedy
    if not teachers and (score is None or greedy):
        if greedy:
            return _drop(turn, "greedy", "sampled greedily: nothing to explore")
        if len(shared) < len(rules) and settings.distillation:
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
    completion = turn.completion
    as_sampled = turn.noted is None  # the student answers without the note, so it trains no part of it
    return Sample(
        turn=turn.id,
        user=turn.user,
        group=f"{turn.group}/{outcome.index}" if turn.group else None,
        prompt=turn.prompt,
        prompt_tokens=completion.prompt_tokens if as_sampled else None,
        reply_tokens=completion.reply_tokens,
        logprobs=completion.logprobs if as_sampled else None,
        mask=chosen_tokens(completion),
        score=score,
        advantage=score,
        teachers=teachers,
        recalled=recalled,
        played=played,
        temperature=completion.sampling.temperature,
        version=completion.version,
    )


def chosen_tokens(done: Completion) -> tuple[bool, ...]:
    """Return True per token that the policy chose; False if the format left less than `OWN_CHOICE`.

    A forced token carries no information on the policy, and its probability ratio lies outside the trusted range.
    """
    if done.allowed is None:
        return (True,) * len(done.reply_tokens)
    return tuple(allowed >= OWN_CHOICE for allowed in done.allowed)


def _unfit(turn: Turn, outcome: Outcome, *, live: int, settings: SampleSettings) -> tuple[DropReason, str] | None:
    completion = turn.completion
    if outcome.kind == "side":
        return "side turn", outcome.kind_reason
    if not turn.trainable:
        return "opted out", "the caller keeps this turn out of training"
    if any(message.images for message in turn.prompt.messages):
        return "cannot be trained", "it has images, which the trainer does not read"
    if completion.finish == "aborted":
        return "aborted", "the caller left before the end"
    if not completion.reply_tokens:
        return "empty reply", "no token was sampled"
    if not any(chosen_tokens(completion)):
        return "no signal", "the format of the reply left the policy no choice"
    if completion.finish == "length" and not settings.train_truncated:
        return "cut off", "the reply ran into its token limit; train.train_truncated = true would keep it"
    if live - completion.version > settings.max_lag:
        return "stale", f"sampled by version {completion.version}, live is {live}, train.max_lag is {settings.max_lag}"
    return None


def _teachers(prompt: Prompt, rules: Sequence[str], settings: SampleSettings) -> tuple[Prompt, ...]:
    return tuple(prompt.hinted(rule) for rule in rules[: settings.max_hints]) if settings.distillation else ()


def _played(turn: Turn, outcome: Outcome, verdict: Verdict) -> PlayedStep | None:
    """Return the turn as a step of an episode that has an outcome; None for any other turn."""
    if verdict.source != "environment" or verdict.score is None:
        return None
    completion = turn.completion
    return PlayedStep(
        episode=turn.session or outcome.session,
        task=turn.group,
        index=outcome.index,
        outcome=verdict.score,
        vote=verdict.step,
        tokens=len(completion.reply_tokens),
        room=len(completion.reply_tokens) if completion.finish == "length" else completion.sampling.max_tokens,
    )


def _score(verdict: Verdict, played: PlayedStep | None, settings: SampleSettings) -> float | None:
    """Return the score to train on; None for a judge's 0, which means "ambiguous". An environment's 0 is a reward."""
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
    return f"{score}, no rule to distill"


def with_advantages(
    samples: Sequence[Sample],
    *,
    baselines: Mapping[str, Baseline],
    settings: SampleSettings,
    played: Mapping[str, PlayedStep] = MappingProxyType({}),
) -> TrainingBatch:
    """Turn plain scores into advantages, reading each user's baseline before it is updated.

    If environments play each task several times, steps are credited against each other and against ``played``: by turn,
    the other steps of their groups, which have trained already or cannot train.
    """
    after = dict(baselines)
    credit = _credited(samples, settings, played) if settings.grouped else None
    credits = {} if credit is None else credit.advantages
    if settings.advantage == "group":
        measured = iter(
            _group_advantages(
                [scored for scored in samples if scored.turn not in credits], normalize=settings.normalize
            )
        )
        complete = [_with_credit(scored, credits) if scored.turn in credits else next(measured) for scored in samples]
        return TrainingBatch(samples=tuple(map(_fit_for_note, complete)), baselines=after, figures=_figures(credit))
    finished = []
    for sample in samples:
        if sample.advantage is None:
            finished.append(sample)
            continue
        if sample.turn in credits:
            finished.append(_fit_for_note(_with_credit(sample, credits)))
            continue
        score, before = sample.advantage, after.get(sample.user, Baseline())
        after[sample.user] = before.after(score, decay=settings.decay)
        advantage = score - before.mean if settings.advantage == "baseline" else score
        urgency = _urgency(before.satisfaction) if settings.remember else 1.0
        finished.append(_fit_for_note(replace(sample, advantage=advantage, urgency=urgency)))
    return TrainingBatch(samples=tuple(finished), baselines=after, figures=_figures(credit))


def _credited(samples: Sequence[Sample], settings: SampleSettings, played: Mapping[str, PlayedStep]) -> Credited:
    """Return the credit of the samples that are steps; a task belongs to one user, so equal names do not mix users."""
    batch_steps = {
        sample.turn: replace(sample.played, task=f"{sample.user}/{sample.played.task}")
        for sample in samples
        if sample.played is not None and sample.played.task is not None and sample.advantage is not None
    }
    tasks = {step.task for step in batch_steps.values()}
    peer_steps = {turn: step for turn, step in played.items() if step.task in tasks}
    credit = credited({**peer_steps, **batch_steps}, settings.credit)
    return replace(credit, advantages={turn: credit.advantages[turn] for turn in batch_steps})


def _with_credit(sample: Sample, credits: Mapping[str, float | None]) -> Sample:
    """Return the sample with its advantage; without peers it is 0, or None if the sample has hints."""
    advantage = credits[sample.turn]
    return replace(sample, advantage=0.0 if advantage is None and not sample.teachers else advantage)


def all_alike(
    samples: Sequence[Sample],
    *,
    settings: SampleSettings,
    partial: Collection[tuple[str, str]],
    played: Mapping[str, PlayedStep] = MappingProxyType({}),
) -> list[Drop]:
    """Drop the turns of groups whose plays all earned the same reward: they carry no signal and hold up no step.

    Groups in ``partial`` still miss episodes or verdicts. With the "batch" baseline nothing is dropped.
    """
    if not settings.grouped or settings.credit.baseline == "batch":
        return []
    complete = [sample for sample in samples if task_group(sample) not in partial]
    credits = _credited(complete, settings, played).advantages
    informative = {task_group(sample) for sample in complete if credits.get(sample.turn) or sample.teachers}
    alike = [sample for sample in complete if sample.turn in credits and task_group(sample) not in informative]
    what = "all plays of its task earned the same: there is nothing to compare"
    return [Drop(turn=sample.turn, stage="train", reason="alike", detail=what) for sample in alike]


def _figures(found: Credited | None) -> Mapping[str, float]:
    if found is None or not found.buckets:
        return {}
    return {"credit_buckets": float(found.buckets), "credit_buckets_flat": float(found.flat)}


def _fit_for_note(sample: Sample) -> Sample:
    """Remove a negative advantage from a reply that was sampled under a standing note.

    Without the note the policy would hardly have generated the reply, so nothing would bound such a push, and it would
    undo the note's own lesson, which the reply mostly follows. Liked replies and explicit rules still teach.
    """
    if sample.logprobs is not None or sample.advantage is None or sample.advantage >= 0:
        return sample
    return replace(sample, advantage=None if sample.teachers else 0.0)


def _urgency(satisfaction: float) -> float:
    """Return the share left to learn from a user whose recent mean score is ``satisfaction`` (-1 .. 1).

    It is 1 up to a mean score of 0, when at most half the replies meet the preference, and falls from there with the
    square of the missing part: otherwise a rule that keeps teaching would move the weights as far by each good turn as
    by each bad one.
    """
    return max(_LEAST_URGENCY, (1.0 - max(satisfaction, 0.0)) ** 2)


def _group_advantages(samples: Sequence[Sample], *, normalize: bool) -> tuple[Sample, ...]:
    """Measure scores within their group; a group belongs to one user, so equal names do not mix users."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        if sample.advantage is not None:
            scores[sample.user, sample.group or sample.turn].append(sample.advantage)
    measured = []
    for sample in samples:
        if sample.advantage is None:
            measured.append(sample)
            continue
        group = scores[sample.user, sample.group or sample.turn]
        advantage = sample.advantage - statistics.fmean(group)
        spread = statistics.pstdev(group) if normalize else 1.0
        measured.append(replace(sample, advantage=advantage / spread if spread > 0 else 0.0))
    return tuple(measured)


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
    """Return True if a step is due: the batch is full, the oldest sample has waited too long, or requests pause."""
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
    """Return the next step's samples, none until it is due; ``waiting`` pairs each sample with its verdict's time.

    ``grouped`` keeps a group's episodes in one step, so that each is measured against all. Groups in
    ``partial`` still miss episodes or verdicts: they wait without limit, and neither fill a batch nor make it late.
    """
    complete = [(sample, at) for sample, at in waiting if task_group(sample) not in partial]
    due = step_due(
        len(complete),
        oldest=min((at for _, at in complete), default=None),
        last_turn=last_turn,
        now=now,
        batch_size=batch_size,
        max_wait=max_wait,
        idle=idle,
    )
    pool = [sample for sample, _ in complete] if due else []
    return _whole_groups(pool, batch_size) if grouped else pool[:batch_size]


def task_group(sample: Sample) -> tuple[str, str] | None:
    """Return the user and the group of a sample's episode; None for a sample without a group."""
    return (sample.user, sample.group.rpartition("/")[0]) if sample.group else None


def _whole_groups(pool: Sequence[Sample], batch_size: int) -> list[Sample]:
    """Return samples from the oldest on, each with its whole group, until the batch is full or a little over."""
    chosen: dict[str, Sample] = {}
    for first in pool:
        if len(chosen) >= batch_size:
            break
        group = task_group(first)
        peers = [first] if group is None else [peer for peer in pool if task_group(peer) == group]
        chosen |= {peer.turn: peer for peer in peers}
    return list(chosen.values())
