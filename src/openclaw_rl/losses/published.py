"""A user's own loss, called as this program calls losses; above all one by the published contract.

    compute_loss(policy_logits, reference_logits, rewards, advantages, config) -> scalar tensor

Its four tensors have one shape, [1, N]: the N reply tokens of the batch in one packed row, sample after sample, without
padding, so that elementwise arithmetic is right as it stands and ``.mean()`` is the mean over tokens.

    policy_logits      log-prob of each sampled token under the policy as it stands; it carries the gradient
    reference_logits   the same under the base model
    rewards            the score of the token's sample, -1 .. 1
    advantages         its advantage, as ``train.advantage`` says
    config             the settings of the loss and ``train.loss.config``; beside them ``old_logits`` [1, N], the
                       log-probs as they were sampled, and ``sample`` [1, N], the number of each token's sample

Tokens that may not train and samples without a score are left out; hints have no place in this contract. A batch
without any score is not handed on: its loss is zero.
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
    """A user's loss by its contract, as `plugins.loss_contract` names it, as a function of `LossInputs`."""
    if contract == "published":
        return published(given, config, max_mismatch=max_mismatch)
    return given if contract == "inputs" else lambda inputs: given(inputs, dict(config))


def published(compute_loss: Callable[..., Any], config: Mapping[str, Any], *, max_mismatch: float) -> LossFunction:
    """``compute_loss`` as a loss of `LossInputs`. It may give metrics too: ``(scalar, {"name": number})``."""

    def loss(x: LossInputs) -> tuple[Tensor, dict[str, float]]:
        kept = fit(x, max_mismatch)["kept"] & x.has_advantage[x.sample]
        if not bool(kept.any()):
            return torch.where(kept, x.current, 0.0).sum() * 0.0, {"loss": 0.0, "tokens_rl": 0.0}
        given = compute_loss(*_tensors(x, kept), {**config, **_further(x, kept)})
        total, metrics = scalar(given)
        return total, {"loss": float(total.detach()), "tokens_rl": float(kept.sum()), **metrics}

    return loss


def _tensors(x: LossInputs, kept: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.reference is None or x.score is None:
        raise InvalidValue("reference", "a published loss needs it, and the scores")
    found = (x.current, x.reference, x.score[x.sample], x.advantage[x.sample])
    policy, reference, rewards, advantages = (each[kept][None] for each in found)
    return policy, reference, rewards, advantages


def _further(x: LossInputs, kept: Tensor) -> dict[str, Tensor]:
    return {"old_logits": x.old[kept][None], "sample": x.sample[kept][None]}


def scalar(given: Any) -> tuple[Tensor, dict[str, float]]:
    """What a loss gave, as a scalar with a gradient and its metrics; raises PluginError for anything else."""
    total, metrics = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if not isinstance(total, Tensor):
        raise PluginError(f"it gave {type(total).__name__}, not a tensor", remedy="return a scalar tensor")
    if total.numel() != 1:
        raise PluginError(f"it gave a tensor of shape {list(total.shape)}, not a scalar", remedy="return its mean")
    if not total.requires_grad:
        raise PluginError(
            "it gave a tensor without a gradient", remedy="compute it from policy_logits, without detach() or .item()"
        )
    return total.reshape(()), {str(name): float(value) for name, value in dict(metrics).items()}
