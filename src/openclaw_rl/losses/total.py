"""Total loss: parts, each averaged over its own tokens, and their metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from openclaw_rl.losses.aggregation import AGGREGATES
from openclaw_rl.losses.arithmetic import ratio
from openclaw_rl.losses.diagnostics import fit, health
from openclaw_rl.losses.inputs import LossInputs
from openclaw_rl.losses.methods import KLS, METHODS, Part
from openclaw_rl.losses.settings import LossSettings


def loss(x: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, float]]:
    """Return the built-in loss: the method's parts and the KL penalty to the base model, averaged over their tokens.

    Metrics: ``loss``, and for each part ``loss_NAME`` (before its weight) and ``tokens_NAME``; ``clipped``,
    ``truncated``; `health`.
    """
    s = settings
    fit_tokens, metrics = fit(x, s.max_mismatch)["kept"], health(x, s.max_mismatch)
    parts = METHODS[s.method].parts(x, fit_tokens, s)
    if s.kl_coef:
        parts += (Part(name="kl", values=KLS[s.kl](x, fit_tokens), mask=fit_tokens, weight=s.kl_coef),)
    total = torch.where(fit_tokens, x.current, 0.0).sum() * 0.0  # a batch without any part still has a gradient: zero
    for part in parts:
        value = AGGREGATES[part.aggregate or s.aggregate](part.values, part.mask, x.sample, len(x.advantage))
        total = total + part.weight * value
        metrics |= {f"loss_{part.name}": float(value.detach()), f"tokens_{part.name}": float(part.mask.sum())}
    return total, metrics | {
        "loss": float(total.detach()),
        "clipped": _clipped_share(parts),
        **_truncated(x, fit_tokens, s),
    }


def _truncated(x: LossInputs, kept: Tensor, s: LossSettings) -> dict[str, float]:
    """Return the share of the fit tokens whose importance weight is cut at its cap."""
    over = (ratio(x.proximal, x.old) > s.importance_cap) & kept
    return {"truncated": float(over.sum()) / max(1.0, float(kept.sum()))}


def _clipped_share(parts: tuple[Part, ...]) -> float:
    """Return clipped tokens over tokens, for the parts that have a surrogate of the sampled token; 0 without any."""
    able = [(part.clipped & part.mask, part.mask) for part in parts if part.clipped is not None]
    return (
        float(sum(hit.sum() for hit, _ in able) / max(1.0, float(sum(mask.sum() for _, mask in able)))) if able else 0.0
    )
