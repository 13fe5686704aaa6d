"""From judged turns to samples: what trains, what is dropped and why, and each sample's scalar advantage. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from openclaw_rl.train.sharing import Consent
from openclaw_rl.types import Baseline, Drop, Outcome, Prompt, Sample, Turn, Verdict

Advantage = Literal["baseline", "raw", "group"]

EVERYTHING = Consent()
_LEAST_URGENCY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that decide what a turn may teach. ``scalar`` and ``distil`` say which branches have a weight."""

    scalar: bool = True
    distil: bool = True
    max_lag: int = 4
    max_hints: int = 3
    train_truncated: bool = False
    advantage: Advantage = "baseline"
    normalize: bool = False
    decay: float = 0.95
    remember: int = 0
    """for how many of a user's next turns a rule goes on teaching"""
    share: str = "all"
    """whose rules teach where several people share the policy: all, none, or how many must have given the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples with their advantages, and the users' baselines after them."""

    samples: tuple[Sample, ...]
    baselines: Mapping[str, Baseline]

    @property
    def silent(self) -> bool:
        """Nothing to learn: every advantage is zero and there is no hint, so no optimiser step may be taken."""
        return not any(sample.advantage or sample.teachers for sample in self.samples)


def sift(
    turn: Turn,
    outcome: Outcome,
    verdict: Verdict,
    *,
    live: int,
    rules: Rules,
    recalled: Verdict | None = None,
    consent: Consent = EVERYTHING,
) -> Sample | Drop:
    """The sample that a judged turn gives, its ``advantage`` still the plain score; or the reason why it gives none.

    ``recalled`` is the verdict of an earlier turn of the same user, whose rules teach in place of this one's.
    ``consent`` says which rules may teach where several people share the policy.
    """
    reason = _unfit(turn, outcome, live=live, rules=rules)
    if reason:
        return Drop(turn=turn.id, stage="train", reason=reason[0], detail=reason[1])
    done = turn.completion
    said = (recalled or verdict).rules
    shared = [rule for rule in said if consent.allows(rule, turn.user)]
    teachers = _teachers(turn.prompt, shared, rules)
    score = _scalar(verdict) if rules.scalar else None
    if score is not None and done.sampling.greedy:
        if not teachers:
            return Drop(
                turn=turn.id, stage="train", reason="greedy", detail="sampled without chance: nothing to explore"
            )
        score = None
    if score is None and not teachers and len(shared) < len(said) and rules.distil:
        return Drop(turn=turn.id, stage="train", reason="not shared", detail=consent.detail)
    if score is None and not teachers:
        return Drop(turn=turn.id, stage="train", reason="no signal", detail=_why_silent(verdict, rules))
    return Sample(
        turn=turn.id,
        user=turn.user,
        group=f"{turn.group}/{outcome.index}" if turn.group else None,
        prompt=turn.prompt,
        prompt_tokens=done.prompt_tokens,
        reply_tokens=done.reply_tokens,
        logprobs=done.logprobs,
        mask=(True,) * len(done.reply_tokens),
        advantage=score,
        teachers=teachers,
        recalled=recalled.turn if recalled and teachers else None,
        temperature=done.sampling.temperature,
        version=done.version,
    )


def _unfit(turn: Turn, outcome: Outcome, *, live: int, rules: Rules) -> tuple[str, str] | None:
    done = turn.completion
    if outcome.kind == "side":
        return "side turn", outcome.kind_reason
    if not turn.trainable:
        return "opted out", "the caller keeps this turn out of training"
    if done.finish == "aborted":
        return "aborted", "the caller left before the end"
    if not done.reply_tokens:
        return "empty reply", "no token was sampled"
    if done.finish == "length" and not rules.train_truncated:
        return "cut off", "the reply ran into its token limit; train.train_truncated = true would keep it"
    if live - done.version > rules.max_lag:
        return "stale", f"sampled by version {done.version}, live is {live}, train.max_lag is {rules.max_lag}"
    return None


def _teachers(prompt: Prompt, said: Sequence[str], rules: Rules) -> tuple[Prompt, ...]:
    return tuple(prompt.hinted(text) for text in said[: rules.max_hints]) if rules.distil else ()


def _scalar(verdict: Verdict) -> float | None:
    """A judge's 0 is "ambiguous" and teaches nothing; a world's 0 is a reward like any other."""
    if verdict.score == 0 and verdict.source != "environment":
        return None
    return verdict.score


def _why_silent(verdict: Verdict, rules: Rules) -> str:
    if verdict.hints and not rules.distil:
        return "it has hints, but train.loss.w_opd is 0"
    if verdict.score is not None and not rules.scalar:
        return "it has a score, but train.loss.w_rl is 0"
    said = "no opinion" if verdict.score is None else f"score {verdict.score:g}"
    return f"{said}, no rule to distil"


def assemble(samples: Sequence[Sample], *, baselines: Mapping[str, Baseline], rules: Rules) -> Batch:
    """Turn the plain scores into advantages, reading each user's baseline before it is updated."""
    after = dict(baselines)
    if rules.advantage == "group":
        return Batch(samples=_against_group(samples, normalize=rules.normalize), baselines=after)
    done = []
    for sample in samples:
        if sample.advantage is None:
            done.append(sample)
            continue
        score, before = sample.advantage, after.get(sample.user, Baseline())
        after[sample.user] = before.after(score, decay=rules.decay)
        advantage = score - before.mean if rules.advantage == "baseline" else score
        urgency = _urgency(before.satisfaction) if rules.remember else 1.0
        done.append(replace(sample, advantage=advantage, urgency=urgency))
    return Batch(samples=tuple(done), baselines=after)


def _urgency(content: float) -> float:
    """How much is left to learn from somebody whose scores have been about ``content`` (-1 .. 1) of late.

    All while at most half of the replies are as wished, and ever less from there on (the square of what is missing):
    a rule that goes on teaching would otherwise move the weights as far by each content turn as by each complaint.
    """
    return max(_LEAST_URGENCY, (1.0 - max(content, 0.0)) ** 2)


def _against_group(samples: Sequence[Sample], *, normalize: bool) -> tuple[Sample, ...]:
    """A group is of one user: nobody's scores are measured against those of somebody else who took its name."""
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


def ready(
    waiting: int,
    *,
    oldest: float | None,
    last_turn: float | None,
    now: float,
    batch_size: int,
    max_wait: float,
    idle: float,
) -> bool:
    """Is it time for a step? When a batch is full, the oldest has waited long enough, or nobody is talking."""
    if waiting == 0 or oldest is None:
        return False
    quiet = last_turn is not None and now - last_turn >= idle
    return waiting >= batch_size or now - oldest >= max_wait or quiet


def due(
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

    ``grouped`` keeps the plays of a group in one step, so that each is measured against all of them. The groups named
    in ``partial`` still miss plays or verdicts: they wait, until the oldest has waited too long or nobody plays.
    """
    whole = [sample for sample, _ in waiting if task_of(sample) not in partial]
    oldest = min((at for _, at in waiting), default=None)
    late = ready(
        len(waiting),
        oldest=oldest,
        last_turn=last_turn,
        now=now,
        batch_size=len(waiting) + 1,  # by time alone
        max_wait=max_wait,
        idle=idle,
    )
    if not late and len(whole) < batch_size:
        return []
    pool = [sample for sample, _ in waiting] if late else whole
    return _whole_groups(pool, batch_size) if grouped else pool[:batch_size]


def task_of(sample: Sample) -> tuple[str, str] | None:
    """The user and the group that a sample's play belongs to, whatever its step in it; None for one of no group."""
    return (sample.user, sample.group.rpartition("/")[0]) if sample.group else None


def _whole_groups(pool: Sequence[Sample], batch_size: int) -> list[Sample]:
    """From the oldest on, each with all of its group, until the batch is full; it may become a little fuller."""
    chosen: dict[str, Sample] = {}
    for first in pool:
        if len(chosen) >= batch_size:
            break
        group = task_of(first)
        mates = [first] if group is None else [mate for mate in pool if task_of(mate) == group]
        chosen |= {mate.turn: mate for mate in mates}
    return list(chosen.values())
