"""Methods: each maps inputs to parts, without a branch on its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

import torch
from torch import Tensor

from openclaw_rl.errors import InvalidValue
from openclaw_rl.losses.arithmetic import bounded, importance, is_clipped, k3, pg, ratio, reverse_kl, topk_opd
from openclaw_rl.losses.inputs import LossInputs
from openclaw_rl.losses.selection import SUBSETS, at_hint, choose


class MethodSettings(Protocol):
    """Part of `LossSettings` that the methods read."""

    @property
    def w_rl(self) -> float: ...
    @property
    def w_opd(self) -> float: ...
    @property
    def clip(self) -> float: ...
    @property
    def eps_low(self) -> float: ...
    @property
    def eps_high(self) -> float: ...
    @property
    def importance_cap(self) -> float: ...
    @property
    def hint_selection(self) -> str: ...
    @property
    def subset(self) -> str: ...


GSPO_EPS: Final = {"eps_low": 3e-4, "eps_high": 4e-4}
"""clip of GSPO's ratio: a whole reply's ratio, taken to the power of 1 / its length, stays far closer to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One term of a loss: a value per token [N], the mask of its tokens [N], and its weight.

    ``aggregate`` reduces its values to one number if the method fixes that; None: as set in the settings.
    """

    name: str
    values: Tensor
    mask: Tensor
    weight: float = 1.0
    clipped: Tensor | None = None
    aggregate: str | None = None


def _eps(s: MethodSettings) -> dict[str, float]:
    return {"eps_low": s.eps_low, "eps_high": s.eps_high}


def _log_ratio(x: LossInputs, mask: Tensor) -> Tensor:
    """Return the policy's change since it sampled a token, without the engine's rounding."""
    return torch.where(mask, x.current - x.proximal, 0.0)


def _surrogate(name: str, x: LossInputs, advantage: Tensor, mask: Tensor, s: MethodSettings, weight: float) -> Part:
    weight_of_token = importance(x.proximal, x.old, s.importance_cap)
    log_ratio, advantage = _log_ratio(x, mask), torch.where(mask, advantage * weight_of_token, 0.0)
    values, clipped = pg(log_ratio, advantage, **_eps(s)), is_clipped(log_ratio, advantage, **_eps(s))
    return Part(name=name, values=values, mask=mask, weight=weight, clipped=clipped)


def _scalar(x: LossInputs, mask: Tensor, s: MethodSettings, weight: float) -> Part:
    return _surrogate("rl", x, x.advantage[x.sample], mask & x.has_advantage[x.sample], s, weight)


def _token_gap(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Tensor, Tensor]:
    """clamp(l_T - l_old, +-C) of the sampled token under the first hint [N], and True where there is a hint [N]."""
    hint, present = choose(x, mask, "shortest")
    gap = at_hint(x.teacher, hint).detach() - x.proximal
    return bounded(torch.where(present, gap, 0.0), s.clip), present


def binary(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """L_t = PG(exp(l_cur - l_old), A)."""
    return (_scalar(x, mask, s, 1.0),)


def opd(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """L_t = PG(rho_t, clamp(l_T - l_old, +-C)), under the first hint."""
    advantage, present = _token_gap(x, mask, s)
    return (_surrogate("opd", x, advantage, present, s, 1.0),)


def distill(x: LossInputs, mask: Tensor, _s: MethodSettings) -> tuple[Part, ...]:
    """Reverse KL over the first hint's teacher top-k and a tail bin."""
    hint, present = choose(x, mask, "shortest")
    current, top = at_hint(x.teacher_current, hint), at_hint(x.teacher_top, hint)
    safe = torch.full_like(top, -1.0 - top.shape[-1])  # without a teacher any finite value works
    values = reverse_kl(torch.where(present[:, None], current, safe), torch.where(present[:, None], top, safe))
    return (Part(name="opd", values=values, mask=present),)


def combine(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """One surrogate with A_t = w_opd clamp(l_T - l_old, +-C) + w_rl A; a branch without signal adds nothing."""
    gap, present = _token_gap(x, mask, s)
    scored = x.has_advantage[x.sample] & mask
    advantage = s.w_opd * gap + s.w_rl * torch.where(scored, x.advantage[x.sample], 0.0)
    return (_surrogate("combine", x, advantage, present | scored, s, 1.0),)


def topk(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """w_rl PG(rho_t, A) + w_opd L^OPD_t over the chosen hint and subset."""
    scalar = _scalar(x, mask, s, s.w_rl)
    hint, present = choose(x, mask, s.hint_selection)
    current, old, teacher, member = SUBSETS[s.subset](x, hint)
    member = member & present[:, None]
    values = topk_opd(current, old, teacher, member, clip=s.clip, eps=(s.eps_low, s.eps_high))
    return (scalar, Part(name="opd", values=values, mask=present, weight=s.w_opd))


# --- published methods by name; their advantages are in `losses.settings.ADVANTAGES` ---


def _of_replies(values: Tensor, x: LossInputs, mask: Tensor) -> Tensor:
    """Return for each token the mean of its reply's values over the tokens in ``mask``."""
    total = values.new_zeros(len(x.advantage)).index_add(0, x.sample, torch.where(mask, values, 0.0))
    count = values.new_zeros(len(x.advantage)).index_add(0, x.sample, mask.to(values.dtype))
    return (total / count.clamp_min(1))[x.sample]


def gspo(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """L = PG(s, A) per reply, s = exp(mean_t(l_cur - l_old)): one ratio and one clip for all its tokens."""
    scored = mask & x.has_advantage[x.sample]
    log_ratio = _of_replies(_log_ratio(x, scored), x, scored)
    engine = _of_replies(torch.where(scored, x.proximal - x.old, 0.0), x, scored).detach().exp()
    advantage = torch.where(scored, x.advantage[x.sample] * engine.clamp_max(s.importance_cap), 0.0)
    values, clipped = pg(log_ratio, advantage, **GSPO_EPS), is_clipped(log_ratio, advantage, **GSPO_EPS)
    return (Part(name="rl", values=values, mask=scored, clipped=clipped, aggregate="sample"),)


def cispo(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """L_t = -A min(rho_t, 1 + eps_high) l_cur: the weight is clipped and detached; every token keeps its gradient."""
    scored = mask & x.has_advantage[x.sample]
    rho = ratio(torch.where(scored, x.current, 0.0), torch.where(scored, x.proximal, 0.0)).detach()
    weight = rho.clamp_max(1 + s.eps_high) * importance(x.proximal, x.old, s.importance_cap)
    values = -torch.where(scored, weight * x.advantage[x.sample], 0.0) * torch.where(scored, x.current, 0.0)
    return (Part(name="rl", values=values, mask=scored, clipped=rho > 1 + s.eps_high, aggregate="token"),)


def dr_grpo(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """L_t = PG(rho_t, A), summed over a reply and divided by a constant: a long reply counts for its length."""
    return (replace(_scalar(x, mask, s, 1.0), aggregate="constant"),)


def dapo(x: LossInputs, mask: Tensor, s: MethodSettings) -> tuple[Part, ...]:
    """L_t = PG(rho_t, A) with eps_high above eps_low; every token of the batch has equal weight."""
    return (replace(_scalar(x, mask, s, 1.0), aggregate="token"),)


@dataclass(frozen=True, slots=True)
class Method:
    """A method with its inputs: the most hints (None: all), scores, and whether the two weights apply to it."""

    parts: Callable[[LossInputs, Tensor, MethodSettings], tuple[Part, ...]]
    hints: int | None
    scores: bool
    weighted: bool = False


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "binary": Method(binary, 0, True),
        "opd": Method(opd, 1, False),
        "distill": Method(distill, 1, False),
        "combine": Method(combine, 1, True, True),
        "topk": Method(topk, None, True, True),
        "gspo": Method(gspo, 0, True),
        "cispo": Method(cispo, 0, True),
        "dr_grpo": Method(dr_grpo, 0, True),
        "dapo": Method(dapo, 0, True),
        "reinforce++": Method(binary, 0, True),
        "rloo": Method(binary, 0, True),
    }
)


# --- the KL penalty to the base model --------------------------------------------------------------------------


def _kl_full(x: LossInputs, _mask: Tensor) -> Tensor:
    return _given(x.kl, "kl")


def _kl_k3(x: LossInputs, mask: Tensor) -> Tensor:
    current = torch.where(mask, x.current, 0.0)
    old, reference = torch.where(mask, x.old, 0.0), torch.where(mask, _given(x.reference, "reference"), 0.0)
    return k3(current, old, reference)


def _given(value: Tensor | None, name: str) -> Tensor:
    if value is None:
        raise InvalidValue(name, "this kl needs it", remedy="fill it in, or set kl_coef to 0")
    return value


KLS: Mapping[str, Callable[[LossInputs, Tensor], Tensor]] = MappingProxyType({"full": _kl_full, "k3": _kl_k3})
