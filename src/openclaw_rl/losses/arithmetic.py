"""Formulas of METHODS, elementwise: ratios, the clipped surrogate, both KLs, overlap, the top-k surrogate."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def ratio(current: Tensor, old: Tensor) -> Tensor:
    """exp(current - old), the log-ratio clamped to +-20 first. Any shape."""
    return (current - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def importance(proximal: Tensor, old: Tensor, cap: float) -> Tensor:
    """min(exp(l_prox - l_old), cap), without a gradient: the weight of a token that an engine sampled. Any shape."""
    return ratio(proximal, old).detach().clamp_max(cap)


def pg(log_ratio: Tensor, advantage: Tensor, *, eps_low: float, eps_high: float) -> Tensor:
    """PG(rho, A) = max(-A rho, -A clip(rho, 1-eps_low, 1+eps_high)), elementwise over any shape."""
    rho = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return torch.maximum(-advantage * rho, -advantage * rho.clamp(1 - eps_low, 1 + eps_high))


def is_clipped(log_ratio: Tensor, advantage: Tensor, *, eps_low: float, eps_high: float) -> Tensor:
    """Return a bool of the same shape, True where the clip makes `pg` flat."""
    rho = log_ratio.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return ((advantage > 0) & (rho > 1 + eps_high)) | ((advantage < 0) & (rho < 1 - eps_low))


def bounded(difference: Tensor, clip: float) -> Tensor:
    """clamp(difference, +-clip); ``clip`` 0 or less leaves it as it is."""
    return difference.clamp(-clip, clip) if clip > 0 else difference


def k3(current: Tensor, old: Tensor, reference: Tensor) -> Tensor:
    """ratio * (exp(d) - 1 - d) with d = l_ref - l_cur, elementwise; the gradient runs through both factors."""
    d = (reference - current).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return ratio(current, old) * (d.exp() - 1 - d)


def full_kl(current: Tensor, reference: Tensor) -> Tensor:
    """KL(current || reference) over the last axis of two log-softmax tensors [..., V] -> [...]."""
    return (current.exp() * (current - reference)).sum(-1)


def with_tail(logprobs: Tensor) -> Tensor:
    """[..., K] log-probs of some ids -> [..., K+1]: an additional bin for the remaining ids, log(1 - sum exp)."""
    tail = 1 - logprobs.exp().sum(-1, keepdim=True)
    return torch.cat([logprobs, tail.clamp_min(torch.finfo(logprobs.dtype).eps).log()], -1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """sum_j exp(q_j)(q_j - p_j) over the teacher's ids [..., K] and a tail bin -> [...]; gradient through q alone."""
    q, p = with_tail(student), with_tail(teacher.detach())
    return (q.exp() * (q - p)).sum(-1)


def overlap(student_ids: Tensor, teacher_ids: Tensor) -> Tensor:
    """Membership of Sq [N, K] in Sp [H, N, K]: a bool [H, N, K] over Sq's positions."""
    return (student_ids[None, :, :, None] == teacher_ids[:, :, None, :]).any(-1)


def topk_opd(
    current: Tensor, old: Tensor, teacher: Tensor, member: Tensor, *, clip: float, eps: tuple[float, float]
) -> Tensor:
    """L^OPD_t over the ids of S_t: all [N, K], ``member`` False where an id is not in S_t -> [N].

    An empty S_t gives 0 and no gradient.
    """
    weight, advantage = _opd_advantage(old, teacher, member, clip)
    log_ratio = torch.where(member, current - old.detach(), 0.0)
    values = pg(log_ratio, advantage * weight, eps_low=eps[0], eps_high=eps[1])
    return torch.where(member, values, 0.0).sum(-1)


def _opd_advantage(old: Tensor, teacher: Tensor, member: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    old, teacher = old.detach(), teacher.detach()
    weight = torch.where(member, old, -torch.inf).softmax(-1)
    weight = torch.where(member, weight, 0.0)  # a row without members is NaN up to here
    return weight, bounded(torch.where(member, teacher - old, 0.0), clip)
