"""A loss of your own: plain REINFORCE, no ratio, no clipping.

    openclaw-rl up --custom-loss-function-path examples/custom_loss.py:loss

A loss is arithmetic: it gets `openclaw_rl.losses.LossInputs` (every tensor's shape is documented there) and
returns a scalar and plain numbers to record. Tokens without signal belong in no denominator.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from openclaw_rl.losses import LossInputs


def loss(inputs: LossInputs, /) -> tuple[Tensor, Mapping[str, float]]:
    """Minus the mean of advantage times log-prob over the tokens that have an advantage."""
    used = inputs.mask & inputs.has_advantage[inputs.sample]
    advantage = inputs.advantage[inputs.sample]
    count = int(used.sum())
    total = -(advantage * inputs.current)[used].sum() / max(count, 1)
    return total, {"reinforce_tokens": float(count)}
