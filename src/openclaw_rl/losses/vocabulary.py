"""Inputs from whole vocabularies, for interactive use, tests and small models."""

from __future__ import annotations

import torch
from torch import Tensor

from openclaw_rl.losses.arithmetic import full_kl
from openclaw_rl.losses.inputs import LossInputs
from openclaw_rl.losses.settings import FORWARD


def from_vocabulary(
    *,
    tokens: Tensor,
    current: Tensor,
    old: Tensor,
    teacher: Tensor,
    sample: Tensor,
    advantage: Tensor,
    k: int = 4,
    score: Tensor | None = None,
    reference: Tensor | None = None,
    mask: Tensor | None = None,
    has_advantage: Tensor | None = None,
    has_teacher: Tensor | None = None,
    same_weights: Tensor | None = None,
    distilled: Tensor | None = None,
    distillation: str = "reverse",
) -> LossInputs:
    """Return inputs from log-softmax tensors: tokens [N], current, old, reference [N, V], teacher [H, N, V], advantage
    and score [S].

    Defaults: every token trains, every sample has its advantage and teachers, and equal weights are not assumed.
    ``distilled`` [N] tokens are compared with the first hint's teacher by the ``distillation`` loss of that name.
    """
    k, truth = min(k, current.shape[-1]), torch.ones_like(tokens, dtype=torch.bool)
    ids, their = old.topk(k, -1).indices, teacher.topk(k, -1).indices
    apart = (teacher[0].detach(), current) if FORWARD[distillation] else (current, teacher[0].detach())
    wide = their.shape[:1] + old.shape
    return LossInputs(
        sample=sample,
        mask=truth if mask is None else mask,
        current=current.gather(-1, tokens[:, None])[:, 0],
        old=old.gather(-1, tokens[:, None])[:, 0],
        same_weights=~truth if same_weights is None else same_weights,
        advantage=advantage,
        has_advantage=torch.ones_like(advantage, dtype=torch.bool) if has_advantage is None else has_advantage,
        teacher=teacher.gather(-1, tokens[None, :, None].expand(len(teacher), -1, 1))[..., 0],
        has_teacher=truth.expand(len(teacher), -1) if has_teacher is None else has_teacher,
        student_ids=ids,
        student_old=old.gather(-1, ids),
        student_current=current.gather(-1, ids),
        student_teacher=teacher.gather(-1, ids.expand(len(teacher), -1, -1)),
        teacher_ids=their,
        teacher_top=teacher.gather(-1, their),
        teacher_old=old.expand(wide).gather(-1, their),
        teacher_current=current.expand(wide).gather(-1, their),
        score=score,
        kl=None if reference is None else full_kl(current, reference),
        reference=None if reference is None else reference.gather(-1, tokens[:, None])[:, 0],
        distilled=distilled,
        distillation=None if distilled is None else full_kl(*apart),
    )
