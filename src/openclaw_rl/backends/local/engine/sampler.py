"""The sampler: from logits to tokens, each batch row with its own request's sampling settings and rng.

A row's random number is drawn from its request's rng alone, so the rest of the batch does not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import torch

from openclaw_rl.types import Sampling

BLOCK = 128
"""probs summed per block, to find the vocabulary block that contains a random number"""
HEAD = 512
"""best tokens that top-p checks first; it sorts the whole vocabulary only if they do not suffice"""
DRY_ALLOWED = 2
"""consecutive tokens that may repeat before the next token of the repeat is penalised"""
DRY_BASE = 1.75
"""growth factor of that penalty per further token"""
DRY_LONGEST = 12
"""longest measured repeat, which keeps the penalty finite"""
DRY_BREAKER = -1
"""stands for signs and figures, so that a repeated list item is recognised whatever its number"""
DRY_WINDOW = 1024
"""newest tokens that are searched for repeats"""


class HoldsTokens(Protocol):
    """A constraint on a reply's tokens."""

    def allowed(self) -> torch.Tensor:
        """Return the allowed next tokens `[vocabulary]`, bool; at least one."""
        ...

    def take(self, token: int) -> None:
        """Advance by a token that was allowed."""
        ...


@dataclass(slots=True)
class RequestSampler:
    """One request's sampling settings, rng and past tokens; ``constraint`` if it has a format."""

    sampling: Sampling
    rng: Random
    prompt: frozenset[int]
    text_of: Callable[[int], str]
    constraint: HoldsTokens | None = None
    counts: Counter[int] = field(default_factory=Counter)
    history: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        sampling: Sampling,
        prompt: Sequence[int],
        text_of: Callable[[int], str],
        constraint: HoldsTokens | None = None,
    ) -> RequestSampler:
        past = frozenset(prompt) if sampling.repetition_penalty != 1.0 else frozenset()
        return cls(sampling, Random(sampling.seed), past, text_of, constraint)

    def note(self, token: int) -> None:
        """Record a sampled token; in ``history`` anything between two words becomes one `DRY_BREAKER`."""
        self.counts[token] += 1
        if self.constraint is not None:
            self.constraint.take(token)
        if not self.sampling.dry_multiplier:
            return
        if any(sign.isalpha() for sign in self.text_of(token)):
            self.history.append(token)
        elif self.history[-1:] != [DRY_BREAKER]:
            self.history.append(DRY_BREAKER)

    @property
    def penalised(self) -> bool:
        s = self.sampling
        return s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0

    def dry_penalties(self) -> dict[int, float]:
        """Return the penalties of tokens that would continue a repeat; empty in most steps."""
        if not self.sampling.dry_multiplier:
            return {}
        repeats = _repeats(self.history[-DRY_WINDOW:]).items()
        return {token: self.sampling.dry_multiplier * DRY_BASE ** (length - DRY_ALLOWED) for token, length in repeats}

    @property
    def filtered(self) -> bool:
        sampling = self.sampling
        return sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, its log-prob before and after the temperature, and the best alternatives.

    ``allowed`` is the logarithm of the probability, after the temperature, of all tokens that the format allows; None
    without a format.
    """

    token: int
    raw: float
    tempered: float
    top: tuple[tuple[int, float], ...] = ()
    allowed: float | None = None


@torch.inference_mode()
def sample(logits: torch.Tensor, samplers: Sequence[RequestSampler]) -> list[SampledToken]:
    """Sample one token per row of ``logits`` `[n, vocabulary]`, float32."""
    temperatures = [sampler.sampling.temperature or 1.0 for sampler in samplers]
    scales = any(temperature != 1.0 for temperature in temperatures)
    scaled = logits / logits.new_tensor(temperatures)[:, None] if scales else logits
    raw_norm = logits.logsumexp(-1)
    scaled_norm = scaled.logsumexp(-1) if scales else raw_norm
    scores = _penalise(scaled, logits, samplers, temperatures)
    norm = scaled_norm if scores is scaled else scores.logsumexp(-1)
    constrained = _hold(scores, norm, scaled, scaled_norm, samplers)
    tokens = _choose(constrained.scores, samplers, constrained.norm)
    at = tokens[:, None]
    raw = (logits.gather(1, at)[:, 0] - raw_norm).tolist()
    tempered = (scaled.gather(1, at)[:, 0] - scaled_norm).tolist()
    tops = _tops(logits, raw_norm, samplers)
    ids = tokens.tolist()
    for sampler, token in zip(samplers, ids, strict=True):
        sampler.note(token)
    return [
        SampledToken(t, min(r, 0.0), min(h, 0.0), top, constrained.allowed.get(row))
        for row, (t, r, h, top) in enumerate(zip(ids, raw, tempered, tops, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class _HeldScores:
    """Scores without the tokens that formats forbid, their log-normalisers `[n]`, and by row the log of the allowed
    share."""

    scores: torch.Tensor
    norm: torch.Tensor
    allowed: dict[int, float]


def _hold(
    scores: torch.Tensor,
    norm: torch.Tensor,
    scaled: torch.Tensor,
    scaled_norm: torch.Tensor,
    samplers: Sequence[RequestSampler],
) -> _HeldScores:
    """Mask forbidden tokens. ``scores`` are ``scaled`` after the penalties, or ``scaled`` itself."""
    rows = {row: sampler.constraint for row, sampler in enumerate(samplers) if sampler.constraint is not None}
    if not rows:
        return _HeldScores(scores, norm, {})
    masked, norms, allowed = scores.clone(), norm.clone(), dict[int, float]()
    for row, constraint in rows.items():
        forbidden = ~constraint.allowed().to(scores.device)
        norms[row] = masked[row].masked_fill_(forbidden, -torch.inf).logsumexp(-1)
        free = norms[row] if scores is scaled else scaled[row].masked_fill(forbidden, -torch.inf).logsumexp(-1)
        allowed[row] = min(0.0, float(free - scaled_norm[row]))
    return _HeldScores(masked, norms, allowed)


def _penalise(
    scaled: torch.Tensor, logits: torch.Tensor, samplers: Sequence[RequestSampler], temperatures: Sequence[float]
) -> torch.Tensor:
    """Apply penalties to the logits before the temperature; other rows are unchanged."""
    dry = [sampler.dry_penalties() for sampler in samplers]
    rows = [row for row, sampler in enumerate(samplers) if sampler.penalised or dry[row]]
    if not rows:
        return scaled
    scaled = scaled.clone()
    for row in rows:
        sampler, sampling = samplers[row], samplers[row].sampling
        scores = logits[row].clone()
        if sampling.repetition_penalty != 1.0 and (past := sorted(sampler.prompt | sampler.counts.keys())):
            index = torch.tensor(past, device=logits.device)
            old = scores[index]
            scores[index] = torch.where(old < 0, old * sampling.repetition_penalty, old / sampling.repetition_penalty)
        if sampler.counts:
            index = torch.tensor(list(sampler.counts), device=logits.device)
            times = logits.new_tensor(list(sampler.counts.values()))
            scores[index] -= sampling.presence_penalty + sampling.frequency_penalty * times
        if dry[row]:
            index = torch.tensor(list(dry[row]), device=logits.device)
            scores[index] -= logits.new_tensor(list(dry[row].values()))
        scaled[row] = scores / temperatures[row]
    return scaled


def _repeats(history: Sequence[int]) -> dict[int, int]:
    """Return the tokens that would continue a repeat of an earlier stretch, each with the repeat's length so far.

    Signs and figures may repeat freely.
    """
    newest = len(history) - 1
    lengths: dict[int, int] = {}
    for at in range(newest):
        length = 0
        while length < DRY_LONGEST and length <= at and history[at - length] == history[newest - length]:
            length += 1
        follower = history[at + 1]
        if length >= DRY_ALLOWED and follower != DRY_BREAKER:
            lengths[follower] = max(length, lengths.get(follower, 0))
    return lengths


def _choose(scores: torch.Tensor, samplers: Sequence[RequestSampler], norm: torch.Tensor) -> torch.Tensor:
    """Return a token for each row of ``scores``, whose log-normaliser is ``norm`` `[n]`."""
    sampled = [row for row, sampler in enumerate(samplers) if not sampler.sampling.greedy]
    plain = [row for row in sampled if not samplers[row].filtered]
    if len(plain) == len(samplers):
        return _pick((scores - norm[:, None]).exp_(), samplers)
    tokens = scores.argmax(-1)
    if plain:
        tokens[plain] = _pick((scores[plain] - norm[plain, None]).exp_(), [samplers[row] for row in plain])
    for row in sampled:
        if samplers[row].filtered:
            tokens[row] = _pick_filtered(scores[row], samplers[row])
    return tokens


def _pick(probs: torch.Tensor, samplers: Sequence[RequestSampler]) -> torch.Tensor:
    """Locate each sampler's random number in the running sum of its row: first the block, then the position in it."""
    width = BLOCK if probs.shape[-1] % BLOCK == 0 else probs.shape[-1]
    blocks = probs.view(len(probs), -1, width)
    sums = blocks.sum(-1).double().cumsum(-1)
    points = sums.new_tensor([[sampler.rng.random()] for sampler in samplers]) * sums[:, -1:]
    block = torch.searchsorted(sums, points, right=True).clamp_(max=sums.shape[-1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inner = blocks[torch.arange(len(probs), device=probs.device), block[:, 0]].double().cumsum(-1)
    place = torch.searchsorted(inner, points - before, right=True).clamp_(max=width - 1)
    picked = (block * width + place)[:, 0]
    # rounding can hit a token of probability zero at the very end of the row or block
    impossible = probs.gather(1, picked[:, None])[:, 0] == 0
    return torch.where(impossible, probs.argmax(-1), picked) if impossible.any() else picked


def _pick_filtered(scores: torch.Tensor, sampler: RequestSampler) -> torch.Tensor:
    """Sample from the tokens that pass top-k, then top-p, then min-p, best first."""
    sampling = sampler.sampling
    size = scores.shape[-1]
    probs = scores.softmax(-1)
    head = min(size, sampling.top_k or HEAD, size)
    best, ids = probs.topk(head)
    if not sampling.top_k and head < size and _needs_more(best, sampling):
        best, ids = probs.sort(descending=True)
    if sampling.top_k:
        best = best / best.sum()
    filtered = best * (best.cumsum(-1) - best < sampling.top_p) * (best >= sampling.min_p * best[0])
    return ids[_pick(filtered[None], [sampler])[0]]


def _needs_more(best: torch.Tensor, sampling: Sampling) -> bool:
    """Return True if a token beyond the head could still be allowed."""
    reached = float(best.sum()) >= sampling.top_p
    return not reached and not float(best[-1]) < sampling.min_p * float(best[0])


def _tops(
    logits: torch.Tensor, norm: torch.Tensor, samplers: Sequence[RequestSampler]
) -> list[tuple[tuple[int, float], ...]]:
    tops: list[tuple[tuple[int, float], ...]] = []
    for row, sampler in enumerate(samplers):
        count = min(sampler.sampling.top_logprobs, logits.shape[-1])
        if not count:
            tops.append(())
            continue
        values, ids = logits[row].topk(count)
        tops.append(tuple(zip(ids.tolist(), (values - norm[row]).clamp(max=0.0).tolist(), strict=True)))
    return tops
