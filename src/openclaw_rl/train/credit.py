"""Compute the advantage of every step in a task's episodes. Pure.

An episode has an outcome ``O``; a step has its votes. Over the episodes of one task:

    step         R = O + weight * the step's vote, measured against the steps at the same index
    trajectory   R = O + weight * the episode's mean vote, measured against the episodes, the same for every step
    outcome      R = O, likewise

Measured means: minus the mean, divided by the standard deviation (at least `FLOOR`), clipped to `LIMIT`. A step that no
other episode reached is measured against all steps of its group. A single episode teaches nothing, and neither does a
bucket with equal rewards. Episodes that failed for a reason outside the policy are excluded by the caller.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw_rl.types import PlayedStep

Credit = Literal["step", "trajectory", "outcome"]
CreditBaseline = Literal["mean", "others", "batch"]
EPSILON = 1e-6
FLOOR = 0.2
"""least standard deviation: a tenth of the outcome range, -1 to 1"""
LIMIT = 5.0
"""largest absolute advantage"""
OVERLONG = 0.2
"""final part of a reply's room over which the length penalty grows from 0 to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSettings:
    """``weight`` scales a step's votes against the outcome.

    ``baseline`` is subtracted: the mean over the group, the others in it (RLOO), or the whole batch (REINFORCE++).
    ``scaled`` divides by the standard deviation. ``overlong`` reduces a reply's reward near the end of its room
    (DAPO).
    """

    mode: Credit
    weight: float
    baseline: CreditBaseline
    scaled: bool
    overlong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """Each step's advantage by its key, None for a step without peers.

    ``flat`` of the ``buckets`` had no variance.
    """

    advantages: Mapping[str, float | None]
    buckets: int
    flat: int


def reward(step: PlayedStep, settings: CreditSettings) -> float:
    """Return the reward of one step by itself."""
    vote = 0.0 if step.vote is None or settings.mode == "outcome" else step.vote
    return _outcome(step, settings) + settings.weight * vote


def overlong(tokens: int, room: int | None) -> float:
    """Return the soft length penalty: 0 up to `OVERLONG` before the end of the room, 1 at its end.

    >>> overlong(80, 100), overlong(90, 100), overlong(100, 100), overlong(100, None)
    (0.0, 0.5, 1.0, 0.0)
    """
    if room is None:
        return 0.0
    grace = OVERLONG * room
    return min(1.0, max(0.0, (tokens - (room - grace)) / grace)) if grace else 0.0


def credited(steps: Mapping[str, PlayedStep], settings: CreditSettings) -> Credited:
    """Return the steps' advantages for any number of tasks; ``steps`` uses the caller's keys."""
    if settings.baseline == "batch":
        return _over_batch(steps, settings)
    tasks: dict[str, dict[str, PlayedStep]] = defaultdict(dict)
    for key, step in steps.items():
        tasks[step.task or step.episode][key] = step
    by_task = _per_step if settings.mode == "step" else _per_episode
    advantages: dict[str, float | None] = {}
    buckets = flat = 0
    for played in tasks.values():
        credit = by_task(played, settings)
        advantages |= credit.advantages
        buckets, flat = buckets + credit.buckets, flat + credit.flat
    return Credited(advantages=advantages, buckets=buckets, flat=flat)


def _outcome(step: PlayedStep, settings: CreditSettings) -> float:
    return step.outcome - (overlong(step.tokens, step.room) if settings.overlong else 0.0)


def _per_step(played: Mapping[str, PlayedStep], settings: CreditSettings) -> Credited:
    rewards = {key: reward(step, settings) for key, step in played.items()}
    buckets: dict[int, list[str]] = defaultdict(list)
    for key, step in played.items():
        buckets[step.index].append(key)
    if len({step.episode for step in played.values()}) < 2:
        return Credited(advantages=dict.fromkeys(played), buckets=len(buckets), flat=0)
    everything = list(rewards.values())
    advantages: dict[str, float | None] = {}
    flat = 0
    for keys in buckets.values():
        peers = [rewards[key] for key in keys] if len(keys) > 1 else everything
        flat += statistics.pstdev(peers) == 0
        advantages |= {key: _measured(rewards[key], peers, settings) for key in keys}
    return Credited(advantages=advantages, buckets=len(buckets), flat=flat)


def _per_episode(played: Mapping[str, PlayedStep], settings: CreditSettings) -> Credited:
    rewards = {}
    for episode in {step.episode: None for step in played.values()}:
        episode_steps = [step for step in played.values() if step.episode == episode]
        votes = [step.vote for step in episode_steps if step.vote is not None] if settings.mode == "trajectory" else []
        outcome = statistics.fmean(_outcome(step, settings) for step in episode_steps)
        rewards[episode] = outcome + settings.weight * (statistics.fmean(votes) if votes else 0.0)
    peers = list(rewards.values())
    if len(peers) < 2:
        return Credited(advantages=dict.fromkeys(played), buckets=1, flat=0)
    advantages = {key: _measured(rewards[step.episode], peers, settings) for key, step in played.items()}
    return Credited(advantages=advantages, buckets=1, flat=int(statistics.pstdev(peers) == 0))


def _over_batch(steps: Mapping[str, PlayedStep], settings: CreditSettings) -> Credited:
    """Measure all rewards against those of the whole batch, across tasks."""
    rewards = {key: reward(step, settings) for key, step in steps.items()}
    if len(rewards) < 2:
        return Credited(advantages=dict.fromkeys(rewards), buckets=len(rewards), flat=0)
    peers = list(rewards.values())
    advantages: dict[str, float | None] = {key: _measured(value, peers, settings) for key, value in rewards.items()}
    return Credited(advantages=advantages, buckets=1, flat=int(statistics.pstdev(peers) == 0))


def _measured(value: float, peers: Sequence[float], settings: CreditSettings) -> float:
    """Return the value, one of at least two peers, measured against their mean; 0 if all are equal."""
    spread = statistics.pstdev(peers)
    if spread == 0:
        return 0.0
    gap = value - statistics.fmean(peers)
    if settings.baseline == "others":  # the others' mean is further away than the overall mean
        gap *= len(peers) / (len(peers) - 1)
    scaled = gap / (max(spread, FLOOR) + EPSILON) if settings.scaled else gap
    return max(-LIMIT, min(LIMIT, scaled))
