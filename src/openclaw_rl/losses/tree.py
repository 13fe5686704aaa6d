"""Token tree: sequences packed as a tree of shared prefixes, every distinct token once.

Turns of one thread share their beginning, and so do one turn's hinted prompts. Sorting makes sequences with a
shared prefix adjacent; each then adds only the tokens that it does not share with its predecessor. Packed tokens are in
depth-first order, so one number per token defines the attention mask:

    token i sees token j  iff  j <= i < end[j]

    sequences  A B C D            packed    A B C D E F
               A B E F            depth     0 1 2 3 2 3
                                  end       6 6 4 4 6 6
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from openclaw_rl.errors import InvalidValue

_WIDTH = array("I").itemsize  # any order that keeps equal prefixes adjacent works, so native byte order may sort


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPath:
    """One sequence of ids; the last ``reply`` ids are predicted by those before them."""

    tokens: tuple[int, ...]
    reply: int

    def __post_init__(self) -> None:
        if not 1 <= self.reply < len(self.tokens):
            raise InvalidValue(
                "reply", f"{self.reply} of {len(self.tokens)} tokens; at least one must precede the reply"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTree:
    """Packed sequences with `T` distinct tokens, without each path's last token, which predicts nothing.

    ``rows[m]`` [R] holds, for each reply token of path ``members[m]``, the packed index whose logits predict it.
    """

    tokens: Tensor
    """[T] int64"""
    depth: Tensor
    """[T] int64: the position of each token in its sequence"""
    end: Tensor
    """[T] int64: one past the last packed token that descends from this token"""
    members: tuple[int, ...]
    rows: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Return the number of tokens computed."""
        return len(self.tokens)

    def attention_mask(self) -> Tensor:
        """Return the attention mask [T, T], True where token i may attend to token j. For small trees and tests."""
        at = torch.arange(self.size)
        return (at[None, :] <= at[:, None]) & (at[:, None] < self.end[None, :])

    def roots(self) -> list[int]:
        """Return the packed index of each tree's first token."""
        return torch.nonzero(self.depth == 0)[:, 0].tolist()


def pack(paths: Sequence[TokenPath], *, budget: int | None = None, share: bool = True) -> tuple[PackedTree, ...]:
    """Return trees that hold every path once, each of at most ``budget`` tokens (a longer path gets its own tree).

    ``share`` False repeats shared prefixes: one tree for each path, for models without tree attention.
    """
    keys = [_key(path) for path in paths]
    order = sorted(range(len(paths)), key=keys.__getitem__)
    shared = [0] * len(order)
    if share:
        shared[1:] = [_common(keys[a], keys[b]) for a, b in pairwise(order)]
    return tuple(_lay(paths, part, lengths) for part, lengths in _split(paths, order, shared, budget))


def distinct(paths: Sequence[TokenPath]) -> int:
    """Return the token count of one packed tree with all paths."""
    return sum(tree.size for tree in pack(paths))


def divide(paths: Sequence[TokenPath], more: Sequence[int], parts: int) -> list[list[int]]:
    """Divide the paths into at most ``parts`` parts, minimizing the largest part's cost.

    Paths with a shared beginning stay together except at a boundary between parts, where the beginning is computed
    twice. ``more[p]`` is the cost of path p beside its own tokens.
    """
    keys = [_key(path) for path in paths]
    order = sorted(range(len(paths)), key=keys.__getitem__)
    shared = [0, *(_common(keys[a], keys[b]) for a, b in pairwise(order))]
    costs = [len(paths[which].tokens) - 1 + more[which] for which in order]
    low, high = max(costs, default=0), sum(costs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_runs(costs, shared, middle)) <= parts else (middle + 1, high)
    return [[order[at] for at in run] for run in _runs(costs, shared, low)]


def _runs(alone: Sequence[int], shared: Sequence[int], limit: int) -> list[range]:
    """Group neighbours up to a cost of ``limit``; all but a run's first are charged without their shared prefix."""
    starts, used = [0] if alone else [], 0
    for at, cost in enumerate(alone):
        used += cost - shared[at] if at > starts[-1] else cost
        if used > limit and at > starts[-1]:
            starts.append(at)
            used = cost
    return [range(first, last) for first, last in pairwise([*starts, len(alone)])]


def _key(path: TokenPath) -> bytes:
    return array("I", path.tokens[:-1]).tobytes()


def _common(a: bytes, b: bytes) -> int:
    """Return the number of ids in the common prefix, by binary search over slices."""
    low, high = 0, min(len(a), len(b)) // _WIDTH
    if a.startswith(b[: high * _WIDTH]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low * _WIDTH : middle * _WIDTH] == b[low * _WIDTH : middle * _WIDTH]:
            low = middle
        else:
            high = middle
    return low


def _split(
    paths: Sequence[TokenPath], order: list[int], shared: list[int], budget: int | None
) -> Iterator[tuple[list[int], list[int]]]:
    """Cut the sorted paths into runs whose new tokens fit the budget; the first path of a run shares nothing."""
    part: list[int] = []
    lengths: list[int] = []
    used = 0
    for which, common in zip(order, shared, strict=True):
        length = len(paths[which].tokens) - 1
        if part and budget is not None and used + length - common > budget:
            yield part, lengths
            part, lengths, used = [], [], 0
        common = common if part else 0
        part.append(which)
        lengths.append(common)
        used += length - common
    if part:
        yield part, lengths


Run = tuple[int, int, int]
"""A stretch of the current branch: the depth it begins at, its first packed index, its length."""
EndMark = tuple[int, int, int]
"""Packed tokens first .. stop-1 have their end here."""


def _lay(paths: Sequence[TokenPath], part: list[int], shared: list[int]) -> PackedTree:
    """Pack sorted paths, each from the point where it leaves its predecessor."""
    tokens: list[int] = []
    depth: list[Tensor] = []
    runs: list[Run] = []
    marks: list[EndMark] = []
    rows = []
    for which, common in zip(part, shared, strict=True):
        path, length = paths[which], len(paths[which].tokens) - 1
        marks += _prune(runs, common, len(tokens))
        if length > common:
            runs.append((common, len(tokens), length - common))
            tokens.extend(path.tokens[common:length])
            depth.append(torch.arange(common, length))
        rows.append(_indices(runs, length - path.reply, length))
    marks += _prune(runs, 0, len(tokens))
    return PackedTree(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        depth=torch.cat(depth),
        end=_ends(marks, len(tokens)),
        members=tuple(part),
        rows=tuple(rows),
    )


def _prune(runs: list[Run], common: int, now: int) -> list[EndMark]:
    """Remove everything at depth ``common`` and below from the branch: it ends before packed index ``now``."""
    marks = []
    while runs and runs[-1][0] + runs[-1][2] > common:
        begin, start, length = runs.pop()
        keep = max(common - begin, 0)
        marks.append((start + keep, start + length, now))
        if keep:
            runs.append((begin, start, keep))
    return marks


def _ends(marks: list[EndMark], size: int) -> Tensor:
    end = torch.zeros(size, dtype=torch.int64)
    for first, stop, now in marks:
        end[first:stop] = now
    return end


def _indices(runs: list[Run], first: int, last: int) -> Tensor:
    """Return the packed indices of depths first .. last-1 along the branch."""
    pieces = []
    for begin, start, length in runs:
        low, high = max(begin, first), min(begin + length, last)
        if low < high:
            pieces.append(torch.arange(start + low - begin, start + high - begin))
    return torch.cat(pieces)
