"""Inputs of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_rl.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """All inputs of a loss. ``current``, ``student_current``, ``teacher_current``, ``kl`` and ``distillation`` carry
    the gradient.

    Values under a False in ``mask`` or ``has_teacher`` are never read and may be arbitrary.
    """

    sample: Tensor
    """[N] int64: the sample of each token, 0 .. S-1"""
    mask: Tensor
    """[N] bool: False keeps a token out of every part"""
    current: Tensor
    """[N] l_cur of the sampled token"""
    old: Tensor
    """[N] l_old of the sampled token, as recorded during sampling"""
    same_weights: Tensor
    """[N] bool: sampled by the same weights as ``served``, so that it should equal ``old``"""
    advantage: Tensor
    """[S] the policy-gradient term's A"""
    has_advantage: Tensor
    """[S] bool: False where the policy-gradient term has no signal"""
    teacher: Tensor
    """[H, N] l_T of the sampled token under each hint, shortest hint first"""
    has_teacher: Tensor
    """[H, N] bool"""
    student_ids: Tensor
    """[N, K] Sq, the top-k of the proximal policy"""
    student_old: Tensor
    """[N, K] l_old at Sq"""
    student_current: Tensor
    """[N, K] l_cur at Sq"""
    student_teacher: Tensor
    """[H, N, K] l_T at Sq"""
    teacher_ids: Tensor
    """[H, N, K] Sp, the teacher's top-k under each hint"""
    teacher_top: Tensor
    """[H, N, K] l_T at Sp"""
    teacher_old: Tensor
    """[H, N, K] l_old at Sp"""
    teacher_current: Tensor
    """[H, N, K] l_cur at Sp"""
    score: Tensor | None = None
    """[S] the score that the advantage was computed from, None if unknown"""
    kl: Tensor | None = None
    """[N] KL(current || base) over the whole vocabulary, None if not computed"""
    reference: Tensor | None = None
    """[N] l_ref of the sampled token under the base, None if not computed"""
    served: Tensor | None = None
    """[N] l of the sampled token under the served version, None if that is ``current``"""
    distilled: Tensor | None = None
    """[N] bool: tokens of replies sampled for prompt distillation, None if there are none"""
    distillation: Tensor | None = None
    """[N] KL between current and the teacher with the note, over the whole vocabulary; read where ``distilled``"""

    @property
    def comparable(self) -> Tensor:
        """[N] the trainer's value that should equal the engine's where ``same_weights``."""
        return self.current.detach() if self.served is None else self.served

    @property
    def proximal(self) -> Tensor:
        """[N] l of the sampled token under the weights that sampled it, computed by the trainer where possible."""
        return torch.where(self.same_weights, self.comparable, self.old)

    @property
    def of_turns(self) -> Tensor:
        """[N] bool: tokens of turns, which train by the method; the others train by prompt distillation."""
        return self.mask if self.distilled is None else self.mask & ~self.distilled

    def __post_init__(self) -> None:
        n, s, h, k = len(self.sample), len(self.advantage), len(self.teacher), self.student_ids.shape[-1]
        if h < 1:
            raise InvalidValue("teacher", "no row", remedy="give one row and let has_teacher be False")
        for names, shape in (
            ("mask current old same_weights kl reference served distilled distillation", (n,)),
            ("has_advantage score", (s,)),
            ("teacher has_teacher", (h, n)),
            ("student_ids student_old student_current", (n, k)),
            ("student_teacher teacher_ids teacher_top teacher_old teacher_current", (h, n, k)),
        ):
            for name in names.split():
                value = getattr(self, name)
                if value is not None and tuple(value.shape) != shape:
                    raise InvalidValue(name, f"shape {tuple(value.shape)}, but the other inputs require {shape}")


LossFunction = Callable[[LossInputs], tuple[Tensor, Mapping[str, float]]]
"""a scalar that carries the gradient, and plain numbers by name"""
