"""From logits to tokens: each row of a batch is drawn by its own request's settings and its own chance.

The number drawn for a row comes from that request's generator alone, so who else is in the batch does not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch

from openclaw_rl.types import Sampling

BLOCK = 128
"""chances that are added up before it is looked in which of such blocks a drawn number falls"""
HEAD = 512
"""top-p looks at this many of the best tokens first, and sorts the whole vocabulary only where they do not suffice"""
FREE = 2
"""so many tokens in a row may come again before what came after them is penalised"""
GROWTH = 1.75
"""by how much that penalty grows with each token more"""
LONGEST = 12
"""a stretch that comes again is measured up to here, which keeps the penalty finite"""
SIGNS = -1
"""stands for signs and figures, so that an item of a list that comes again is known whatever its number"""
WINDOW = 1024
"""stretches are looked for in so many of the newest tokens"""


@dataclass(slots=True)
class Drawer:
    """One request's settings, chance and past tokens."""

    sampling: Sampling
    chance: Random
    prompt: frozenset[int]
    text_of: Callable[[int], str]
    said: Counter[int] = field(default_factory=Counter)
    trail: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, sampling: Sampling, prompt: Sequence[int], text_of: Callable[[int], str]) -> Drawer:
        seen = frozenset(prompt) if sampling.repetition_penalty != 1.0 else frozenset()
        return cls(sampling, Random(sampling.seed), seen, text_of)

    def note(self, token: int) -> None:
        """Remember a token that was drawn; in ``trail`` whatever stands between two words is one `SIGNS`."""
        self.said[token] += 1
        if not self.sampling.dry_multiplier:
            return
        if any(sign.isalpha() for sign in self.text_of(token)):
            self.trail.append(token)
        elif self.trail[-1:] != [SIGNS]:
            self.trail.append(SIGNS)

    @property
    def penalised(self) -> bool:
        ask = self.sampling
        return ask.repetition_penalty != 1.0 or ask.presence_penalty != 0.0 or ask.frequency_penalty != 0.0

    def again(self) -> dict[int, float]:
        """What tokens lose that would go on with a repeat; nothing in most steps."""
        if not self.sampling.dry_multiplier:
            return {}
        found = _again(self.trail[-WINDOW:]).items()
        return {token: self.sampling.dry_multiplier * GROWTH ** (length - FREE) for token, length in found}

    @property
    def filtered(self) -> bool:
        ask = self.sampling
        return ask.top_p < 1.0 or ask.top_k > 0 or ask.min_p > 0.0


@dataclass(frozen=True, slots=True)
class Draw:
    """A token, its log-prob as the model gave it and after the temperature, and the best alternatives."""

    token: int
    raw: float
    tempered: float
    top: tuple[tuple[int, float], ...] = ()


@torch.inference_mode()
def draw(logits: torch.Tensor, drawers: Sequence[Drawer]) -> list[Draw]:
    """One token per row of ``logits`` `[n, vocabulary]`, float32."""
    heats = [drawer.sampling.temperature or 1.0 for drawer in drawers]
    hot = any(heat != 1.0 for heat in heats)
    scaled = logits / logits.new_tensor(heats)[:, None] if hot else logits
    raw_norm = logits.logsumexp(-1)
    hot_norm = scaled.logsumexp(-1) if hot else raw_norm
    scores = _penalise(scaled, logits, drawers, heats)
    tokens = _choose(scores, drawers, hot_norm if scores is scaled else scores.logsumexp(-1))
    at = tokens[:, None]
    raw = (logits.gather(1, at)[:, 0] - raw_norm).tolist()
    tempered = (scaled.gather(1, at)[:, 0] - hot_norm).tolist()
    tops = _tops(logits, raw_norm, drawers)
    ids = tokens.tolist()
    for drawer, token in zip(drawers, ids, strict=True):
        drawer.note(token)
    return [Draw(t, min(r, 0.0), min(h, 0.0), top) for t, r, h, top in zip(ids, raw, tempered, tops, strict=True)]


def _penalise(
    scaled: torch.Tensor, logits: torch.Tensor, drawers: Sequence[Drawer], heats: Sequence[float]
) -> torch.Tensor:
    """Penalties act on the logits before the temperature; rows without any are left alone."""
    again = [drawer.again() for drawer in drawers]
    rows = [row for row, drawer in enumerate(drawers) if drawer.penalised or again[row]]
    if not rows:
        return scaled
    scaled = scaled.clone()
    for row in rows:
        drawer, ask = drawers[row], drawers[row].sampling
        scores = logits[row].clone()
        if ask.repetition_penalty != 1.0 and (seen := sorted(drawer.prompt | drawer.said.keys())):
            index = torch.tensor(seen, device=logits.device)
            old = scores[index]
            scores[index] = torch.where(old < 0, old * ask.repetition_penalty, old / ask.repetition_penalty)
        if drawer.said:
            index = torch.tensor(list(drawer.said), device=logits.device)
            counts = logits.new_tensor(list(drawer.said.values()))
            scores[index] -= ask.presence_penalty + ask.frequency_penalty * counts
        if again[row]:
            index = torch.tensor(list(again[row]), device=logits.device)
            scores[index] -= logits.new_tensor(list(again[row].values()))
        scaled[row] = scores / heats[row]
    return scaled


def _again(trail: Sequence[int]) -> dict[int, int]:
    """Which tokens would go on repeating something said before, and how many tokens in a row are a repeat already.

    Signs and figures may come as often as they like.
    """
    newest = len(trail) - 1
    found: dict[int, int] = {}
    for at in range(newest):
        length = 0
        while length < LONGEST and length <= at and trail[at - length] == trail[newest - length]:
            length += 1
        follower = trail[at + 1]
        if length >= FREE and follower != SIGNS:
            found[follower] = max(length, found.get(follower, 0))
    return found


def _choose(scores: torch.Tensor, drawers: Sequence[Drawer], norm: torch.Tensor) -> torch.Tensor:
    """A token for each row of ``scores``, whose log-normaliser is ``norm`` `[n]`."""
    chance = [row for row, drawer in enumerate(drawers) if not drawer.sampling.greedy]
    plain = [row for row in chance if not drawers[row].filtered]
    if len(plain) == len(drawers):
        return _pick((scores - norm[:, None]).exp_(), drawers)
    tokens = scores.argmax(-1)
    if plain:
        tokens[plain] = _pick((scores[plain] - norm[plain, None]).exp_(), [drawers[row] for row in plain])
    for row in chance:
        if drawers[row].filtered:
            tokens[row] = _pick_filtered(scores[row], drawers[row])
    return tokens


def _pick(chances: torch.Tensor, drawers: Sequence[Drawer]) -> torch.Tensor:
    """Where each drawer's number falls in the running sum of its row: first in which block, then where in it."""
    width = BLOCK if chances.shape[-1] % BLOCK == 0 else chances.shape[-1]
    blocks = chances.view(len(chances), -1, width)
    sums = blocks.sum(-1).double().cumsum(-1)
    points = sums.new_tensor([[drawer.chance.random()] for drawer in drawers]) * sums[:, -1:]
    block = torch.searchsorted(sums, points, right=True).clamp_(max=sums.shape[-1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inner = blocks[torch.arange(len(chances), device=chances.device), block[:, 0]].double().cumsum(-1)
    place = torch.searchsorted(inner, points - before, right=True).clamp_(max=width - 1)
    picked = (block * width + place)[:, 0]
    # rounding can land on a token of chance zero at the very end of the row or block
    impossible = chances.gather(1, picked[:, None])[:, 0] == 0
    return torch.where(impossible, chances.argmax(-1), picked) if impossible.any() else picked


def _pick_filtered(scores: torch.Tensor, drawer: Drawer) -> torch.Tensor:
    """Among the tokens that top-k, then top-p, then min-p leave, best first."""
    ask = drawer.sampling
    size = scores.shape[-1]
    chances = scores.softmax(-1)
    head = min(size, ask.top_k or HEAD, size)
    best, ids = chances.topk(head)
    if not ask.top_k and head < size and _needs_more(best, ask):
        best, ids = chances.sort(descending=True)
    if ask.top_k:
        best = best / best.sum()
    kept = best * (best.cumsum(-1) - best < ask.top_p) * (best >= ask.min_p * best[0])
    return ids[_pick(kept[None], [drawer])[0]]


def _needs_more(best: torch.Tensor, ask: Sampling) -> bool:
    """Whether a token behind the head could still be allowed."""
    reached = float(best.sum()) >= ask.top_p
    return not reached and not float(best[-1]) < ask.min_p * float(best[0])


def _tops(logits: torch.Tensor, norm: torch.Tensor, drawers: Sequence[Drawer]) -> list[tuple[tuple[int, float], ...]]:
    found: list[tuple[tuple[int, float], ...]] = []
    for row, drawer in enumerate(drawers):
        count = min(drawer.sampling.top_logprobs, logits.shape[-1])
        if not count:
            found.append(())
            continue
        values, ids = logits[row].topk(count)
        found.append(tuple(zip(ids.tolist(), (values - norm[row]).clamp(max=0.0).tolist(), strict=True)))
    return found
