"""Who earned what in an environment: the advantage of every step of the episodes of a task. Pure.

An episode has an outcome ``O``; a step has its votes. Over the episodes of one task:

    step         R = O + weight * the step's vote, standardised over the steps at the same index
    trajectory   R = O + weight * the mean vote of the episode, standardised over the episodes, the same for every step
    outcome      R = O, likewise

A step that no other episode reached is measured against the outcomes of its task. An episode that is alone teaches
nothing, and neither does a bucket whose rewards are all alike. Episodes that failed through no fault of the policy's
never come here.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw_rl.types import PlayedStep

Credit = Literal["step", "trajectory", "outcome"]
EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSettings:
    """``weight`` is that of a step's votes against the outcome."""

    mode: Credit
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """The advantage of each step by its key, None for one that has nothing to be measured against.

    ``flat`` buckets had no variance, out of ``buckets``.
    """

    advantages: Mapping[str, float | None]
    buckets: int
    flat: int


def reward(step: PlayedStep, settings: CreditSettings) -> float:
    """What one step is worth by itself."""
    vote = 0.0 if step.vote is None or settings.mode == "outcome" else step.vote
    return step.outcome + settings.weight * vote


def credited(steps: Mapping[str, PlayedStep], settings: CreditSettings) -> Credited:
    """The advantages of steps of any number of tasks; ``steps`` has each by a key of the caller's."""
    tasks: dict[str, dict[str, PlayedStep]] = defaultdict(dict)
    for key, step in steps.items():
        tasks[step.task or step.episode][key] = step
    by_task = _per_step if settings.mode == "step" else _per_episode
    advantages: dict[str, float | None] = {}
    buckets = flat = 0
    for played in tasks.values():
        found = by_task(played, settings)
        advantages |= found.advantages
        buckets, flat = buckets + found.buckets, flat + found.flat
    return Credited(advantages=advantages, buckets=buckets, flat=flat)


def _per_step(played: Mapping[str, PlayedStep], settings: CreditSettings) -> Credited:
    outcomes = list({step.episode: step.outcome for step in played.values()}.values())
    rewards = {key: reward(step, settings) for key, step in played.items()}
    buckets: dict[int, list[str]] = defaultdict(list)
    for key, step in played.items():
        buckets[step.index].append(key)
    advantages: dict[str, float | None] = {}
    flat = 0
    for keys in buckets.values():
        peers = [rewards[key] for key in keys] if len(keys) > 1 else outcomes
        flat += len(outcomes) > 1 and statistics.pstdev(peers) == 0
        advantages |= {key: _standard(rewards[key], peers) for key in keys}
    return Credited(advantages=advantages, buckets=len(buckets), flat=flat)


def _per_episode(played: Mapping[str, PlayedStep], settings: CreditSettings) -> Credited:
    rewards = {}
    for episode in {step.episode: None for step in played.values()}:
        own = [step for step in played.values() if step.episode == episode]
        votes = [step.vote for step in own if step.vote is not None] if settings.mode == "trajectory" else []
        rewards[episode] = own[0].outcome + settings.weight * (statistics.fmean(votes) if votes else 0.0)
    peers = list(rewards.values())
    advantages = {key: _standard(rewards[step.episode], peers) for key, step in played.items()}
    return Credited(advantages=advantages, buckets=1, flat=int(len(peers) > 1 and statistics.pstdev(peers) == 0))


def _standard(value: float, peers: Sequence[float]) -> float | None:
    """The value in standard deviations from the mean of its peers; None without any, 0 where they are all alike."""
    if len(peers) < 2:
        return None
    spread = statistics.pstdev(peers)
    return 0.0 if spread == 0 else (value - statistics.fmean(peers)) / (spread + EPSILON)
