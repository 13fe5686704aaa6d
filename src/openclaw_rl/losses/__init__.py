"""Losses: tensors in, a scalar and plain metrics out.

Letters: `N` reply tokens in the batch, concatenated; `S` samples; `K` top-k ids; `H` hints, at least 1 (a batch
without any hint has one row that ``has_teacher`` nowhere).
Every log-prob is a log-softmax over the whole vocabulary of logits divided by that sample's own temperature.

    inputs       inputs of a loss: `LossInputs`, each field with its shape
    arithmetic   formulas, elementwise: `pg`, `k3`, `full_kl`, `reverse_kl`, `overlap`, `topk_opd`
    selection    the hint that teaches (h*) and the vocabulary entries compared (S_t)
    methods      methods by name, from inputs to parts; the KL penalty to the base model
    aggregation  means over tokens, or over samples first
    diagnostics  tokens fit for training, and batch health
    settings     `LossSettings`
    prompt_distillation    towards a teacher with the note: `with_distillation` adds it to any loss
    total        `loss`: `LossInputs` to a scalar and metrics
    vocabulary   `from_vocabulary`: inputs from whole log-softmax tensors, for experiments
    published    `published`: a loss by the published contract, four tensors [1, N] and a dict
    trial        `try_out`: runs a loss on five tokens

    >>> import torch
    >>> from openclaw_rl import losses
    >>> round(float(losses.pg(torch.tensor([0.5]).log(), torch.tensor([-1.0]), eps_low=0.2, eps_high=0.28)), 3)
    0.8

A whole loss by hand: one token of one sample, V = 2, l_old = log 1/4, one hint under which the teacher gives it 1/2.
OPD's advantage is log(1/2) - log(1/4) = 0.693, the ratio is 0.3 / 0.25 = 1.2, so the loss is -0.693 * 1.2:

    >>> def log(*rows): return torch.tensor(rows, dtype=torch.float64).log()
    >>> x = losses.from_vocabulary(
    ...     tokens=torch.tensor([0]), sample=torch.tensor([0]), advantage=torch.zeros(1, dtype=torch.float64),
    ...     current=log([0.3, 0.7]), old=log([0.25, 0.75]), teacher=log([0.5, 0.5])[None], k=1)
    >>> settings = losses.LossSettings(
    ...     method="opd", w_rl=1.0, w_opd=1.0, clip=1.0, eps_low=0.2, eps_high=0.28, hint_selection="shortest",
    ...     subset="student", kl="full", kl_coef=0.0, max_mismatch=2.0, importance_cap=2.0,
    ...     aggregate="token")
    >>> total, metrics = losses.loss(x, settings)
    >>> round(float(total), 4), metrics["tokens_opd"]
    (-0.8318, 1.0)

A custom loss is a function of the same `LossInputs`: ``my_loss(inputs) -> (scalar, {"name": number})``, with a second
argument ``config`` for its settings; or a loss by the published contract.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openclaw_rl.losses.aggregation import AGGREGATES, Aggregate, mean_constant, mean_sample, mean_token
    from openclaw_rl.losses.arithmetic import (
        LOG_RATIO_LIMIT,
        bounded,
        full_kl,
        is_clipped,
        k3,
        overlap,
        pg,
        ratio,
        reverse_kl,
        topk_opd,
        with_tail,
    )
    from openclaw_rl.losses.diagnostics import fit, health
    from openclaw_rl.losses.inputs import LossFunction, LossInputs
    from openclaw_rl.losses.methods import KLS, METHODS, Method, Part, binary, combine, distill, opd, topk
    from openclaw_rl.losses.prompt_distillation import distillation_loss, with_distillation
    from openclaw_rl.losses.published import as_loss
    from openclaw_rl.losses.selection import (
        HINTS,
        SUBSETS,
        Quad,
        Select,
        choose,
        sequence_optimal,
        shortest,
        teacher_present,
        token_optimal,
    )
    from openclaw_rl.losses.settings import ADVANTAGES, FORWARD, AdvantageRule, LossSettings, look_up, needs, weight_of
    from openclaw_rl.losses.total import loss
    from openclaw_rl.losses.trial import small_batch, try_out
    from openclaw_rl.losses.vocabulary import from_vocabulary

__all__ = [
    "ADVANTAGES",
    "AGGREGATES",
    "FORWARD",
    "HINTS",
    "KLS",
    "LOG_RATIO_LIMIT",
    "METHODS",
    "SUBSETS",
    "AdvantageRule",
    "Aggregate",
    "LossFunction",
    "LossInputs",
    "LossSettings",
    "Method",
    "Part",
    "Quad",
    "Select",
    "as_loss",
    "binary",
    "bounded",
    "choose",
    "combine",
    "distill",
    "distillation_loss",
    "fit",
    "from_vocabulary",
    "full_kl",
    "health",
    "is_clipped",
    "k3",
    "look_up",
    "loss",
    "mean_constant",
    "mean_sample",
    "mean_token",
    "needs",
    "opd",
    "overlap",
    "pg",
    "ratio",
    "reverse_kl",
    "sequence_optimal",
    "shortest",
    "small_batch",
    "teacher_present",
    "token_optimal",
    "topk",
    "topk_opd",
    "try_out",
    "weight_of",
    "with_distillation",
    "with_tail",
]

_PARTS = (
    "settings",
    "inputs",
    "arithmetic",
    "selection",
    "methods",
    "aggregation",
    "diagnostics",
    "total",
    "vocabulary",
    "published",
    "prompt_distillation",
    "trial",
)


def __getattr__(name: str) -> Any:
    """Import parts on first use: all but the settings need torch, which takes seconds to load."""
    if name in __all__:
        for part in _PARTS:
            module = import_module(f"{__name__}.{part}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
