"""Select the hint that teaches at each token, and the vocabulary entries compared there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from openclaw_rl.losses.arithmetic import overlap
from openclaw_rl.losses.inputs import LossInputs


def _first_best(score: Tensor, present: Tensor) -> Tensor:
    """Return the argmax over the first axis among those present; ties pick the lowest index, unlike `argmax`."""
    h = len(score)
    order = torch.arange(h - 1, -1, -1, device=score.device)[:, None]
    return torch.where(present, score * h + order, -1).argmax(0)


def sequence_optimal(count: Tensor, present: Tensor, sample: Tensor, samples: int) -> Tensor:
    """Select one hint per sample by the largest sum of O over its tokens. ``count``, ``present`` [H, N] -> [N]."""
    counted = torch.where(present, count, 0)
    total = counted.new_zeros(len(count), samples).index_add_(1, sample, counted)
    present_tokens = counted.new_zeros(len(count), samples).index_add_(1, sample, present.to(counted.dtype))
    return _first_best(total, present_tokens > 0)[sample]


def token_optimal(count: Tensor, present: Tensor, _sample: Tensor, _samples: int) -> Tensor:
    """Select one hint per token by the largest O."""
    return _first_best(count, present)


def shortest(count: Tensor, present: Tensor, sample: Tensor, samples: int) -> Tensor:
    """Select each sample's first hint, regardless of overlap."""
    return sequence_optimal(torch.zeros_like(count), present, sample, samples)


Select: TypeAlias = Callable[[Tensor, Tensor, Tensor, int], Tensor]
HINTS: Mapping[str, Select] = MappingProxyType(
    {"sequence_optimal": sequence_optimal, "token_optimal": token_optimal, "shortest": shortest}
)


def at_hint(values: Tensor, hint: Tensor) -> Tensor:
    """values [H, N, ...] at hint [N] -> [N, ...]."""
    return values[hint, torch.arange(len(hint), device=hint.device)]


def choose(x: LossInputs, mask: Tensor, selection: str) -> tuple[Tensor, Tensor]:
    """Return h* per token [N], and True where that hint has teacher values [N]."""
    present = teacher_present(x) & mask
    count = overlap(x.student_ids, x.teacher_ids).sum(-1)
    hint = HINTS[selection](count, present, x.sample, len(x.advantage))
    return hint, at_hint(present, hint)


def teacher_present(x: LossInputs) -> Tensor:
    """[H, N]: True where teacher values exist and are finite; a broken teacher counts as missing."""
    finite = x.teacher.isfinite() & x.student_teacher.isfinite().all(-1) & x.teacher_top.isfinite().all(-1)
    return x.has_teacher & finite


# --- the vocabulary subsets ------------------------------------------------------------------------

Quad: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""current, old, teacher and membership, each [N, K]"""


def _student_subset(x: LossInputs, hint: Tensor) -> Quad:
    teacher = at_hint(x.student_teacher, hint)
    return x.student_current, x.student_old, teacher, torch.ones_like(teacher, dtype=torch.bool)


def _teacher_subset(x: LossInputs, hint: Tensor) -> Quad:
    teacher = at_hint(x.teacher_top, hint)
    member = torch.ones_like(teacher, dtype=torch.bool)
    return at_hint(x.teacher_current, hint), at_hint(x.teacher_old, hint), teacher, member


def _overlap_subset(x: LossInputs, hint: Tensor) -> Quad:
    current, old, teacher, _ = _student_subset(x, hint)
    return current, old, teacher, at_hint(overlap(x.student_ids, x.teacher_ids), hint)


SUBSETS: Mapping[str, Callable[[LossInputs, Tensor], Quad]] = MappingProxyType(
    {"student": _student_subset, "teacher": _teacher_subset, "overlap": _overlap_subset}
)
