"""Run a loss on a tiny batch: five tokens in two samples, with seven vocabulary entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openclaw_rl.errors import PluginError
from openclaw_rl.losses.inputs import LossFunction, LossInputs
from openclaw_rl.losses.published import scalar
from openclaw_rl.losses.vocabulary import from_vocabulary


def small_batch(
    *, advantage: bool = True, teacher: bool = True, mask: Tensor | None = None, seed: int = 7
) -> tuple[Tensor, LossInputs]:
    """Return the logits that receive the gradient, and the inputs; with or without each signal."""
    rng = torch.Generator().manual_seed(seed)
    yes, no = torch.ones(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)
    logits, old, teacher_logits = (torch.randn(5, 7, generator=rng, dtype=torch.float64) for _ in range(3))
    logits.requires_grad_()
    inputs = from_vocabulary(
        tokens=torch.tensor([0, 1, 2, 3, 4]),
        current=logits.log_softmax(-1),
        old=old.log_softmax(-1),
        teacher=teacher_logits.log_softmax(-1)[None],
        sample=torch.tensor([0, 0, 0, 1, 1]),
        advantage=torch.tensor([1.0, -0.5], dtype=torch.float64),
        score=torch.tensor([1.0, -1.0], dtype=torch.float64),
        reference=old.log_softmax(-1),
        mask=yes if mask is None else mask,
        has_advantage=torch.full((2,), advantage),
        has_teacher=((yes if mask is None else mask) if teacher else no)[None],
    )
    return logits, inputs


def try_out(name: str, loss: LossFunction) -> None:
    """Call a loss once; raise PluginError that describes its failure, before any model is loaded for it."""
    _, inputs = small_batch()
    try:
        result: Any = loss(inputs)
        if not isinstance(result, tuple):
            why = f"it returned {type(result).__name__}, not a scalar and its metrics"
            raise PluginError(why, remedy='return (scalar, {"name": number})')
        scalar(result)
    except PluginError as error:
        raise PluginError(f"loss {name!r}: {error.what}", remedy=error.remedy) from error
    except Exception as error:  # user code may raise anything; its author gets the error
        remedy = "try it with openclaw_rl.testing.check_loss"
        if isinstance(error, KeyError):
            remedy = f"set train.loss.config.{error.args[0]}, if that is a setting of this loss"
        why = f"loss {name!r} fails on a batch of five tokens: {type(error).__name__}: {error}"
        raise PluginError(why, remedy=remedy) from error
