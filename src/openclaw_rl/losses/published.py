"""Adapt a user's loss function, above all one by the published contract.

    compute_loss(policy_logits, reference_logits, rewards, advantages, config) -> scalar tensor

Its four tensors have one shape, [1, N]: the batch's N reply tokens in one packed row, sample after sample, without
padding, so that elementwise arithmetic is right unchanged and ``.mean()`` is the mean over tokens.

    policy_logits      log-prob of each sampled token under the current policy; it carries the gradient
    reference_logits   the same under the base model
    rewards            its sample's score, -1 .. 1
    advantages         its advantage, computed as set in ``train.advantage``
    config             the loss settings and ``train.loss.config``, with ``old_logits`` [1, N], the log-probs recorded
                       during sampling, and ``sample`` [1, N], each token's sample number

Masked tokens and samples without a score are left out; hints have no place in this contract. A batch without any score
is not passed to the loss: its loss is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.errors import InvalidValue, PluginError
from openclaw_rl.losses.diagnostics import fit
from openclaw_rl.losses.inputs import LossFunction, LossInputs


def as_loss(
    given: Callable[..., Any], contract: str | None, config: Mapping[str, Any], *, max_mismatch: float
) -> LossFunction:
    """Wrap a user's loss, by the contract that `plugins.loss_contract` names, as a function of `LossInputs`."""
    if contract == "published":
        return published(given, config, max_mismatch=max_mismatch)
    return given if contract == "inputs" else lambda inputs: given(inputs, dict(config))


def published(compute_loss: Callable[..., Any], config: Mapping[str, Any], *, max_mismatch: float) -> LossFunction:
    """Wrap ``compute_loss`` as a loss of `LossInputs`; it may also return metrics: ``(scalar, {"name": number})``."""

    def loss(x: LossInputs) -> tuple[Tensor, dict[str, float]]:
        where = fit(x, max_mismatch)["kept"] & x.has_advantage[x.sample]
        if not bool(where.any()):
            return torch.where(where, x.current, 0.0).sum() * 0.0, {"loss": 0.0, "tokens_rl": 0.0}
        result = compute_loss(*_tensors(x, where), {**config, **_further(x, where)})
        total, metrics = scalar(result)
        return total, {"loss": float(total.detach()), "tokens_rl": float(where.sum()), **metrics}

    return loss


def _tensors(x: LossInputs, kept: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.reference is None or x.score is None:
        raise InvalidValue("reference", "a published loss needs it, and the scores")
    tensors = (x.current, x.reference, x.score[x.sample], x.advantage[x.sample])
    policy, reference, rewards, advantages = (tensor[kept][None] for tensor in tensors)
    return policy, reference, rewards, advantages


def _further(x: LossInputs, kept: Tensor) -> dict[str, Tensor]:
    return {"old_logits": x.old[kept][None], "sample": x.sample[kept][None]}


def scalar(given: Any) -> tuple[Tensor, dict[str, float]]:
    """Return a loss's result as a scalar with a gradient and its metrics; raise PluginError for anything else."""
    total, metrics = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if not isinstance(total, Tensor):
        raise PluginError(f"it returned {type(total).__name__}, not a tensor", remedy="return a scalar tensor")
    if total.numel() != 1:
        raise PluginError(f"it returned a tensor of shape {list(total.shape)}, not a scalar", remedy="return its mean")
    if not total.requires_grad:
        raise PluginError(
            "it returned a tensor without a gradient",
            remedy="compute it from policy_logits, without detach() or .item()",
        )
    return total.reshape(()), {str(name): float(value) for name, value in dict(metrics).items()}
