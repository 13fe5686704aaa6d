"""The memory plan: a step's memory, computed before the first step, and the number of tokens at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from openclaw_rl.backends.hf.models import available as available_bytes
from openclaw_rl.backends.hf.models import text_config
from openclaw_rl.backends.local.training.head import ELEMENTS
from openclaw_rl.backends.local.training.model import PolicyModel
from openclaw_rl.backends.local.training.ranks import local
from openclaw_rl.errors import ModelRefused
from openclaw_rl.machine import GIB

_LEAST = 512  # tokens: a plan with fewer is useless
_MOST = 65_536
_SHARE = {"cuda": 0.85}  # of free memory; main memory is shared with serving, so half of it
_ROOMY = 8_192  # with room for this many tokens, recomputing layers only costs time


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes that determine memory: parameter counts, layers, widths, and bytes per number in weights and
    activations."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    weight_bytes: int
    trainable_bytes: int = 4
    copies: int = 0
    """further frozen models in memory: a base for the teacher, another teacher"""
    ema: bool = False
    offload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes by purpose, and the decision: tokens at once, and whether layers are recomputed in the backward pass.

    ``spared``: largest batch in tokens that runs without recomputing, if larger ones are recomputed.
    """

    weights: int
    training: int
    head: int
    per_token: int
    available: int | None
    tokens: int
    recompute: bool
    spared: int = 0

    def __str__(self) -> str:
        free = "unknown" if self.available is None else f"{self.available / GIB:.1f} GiB"
        beyond = f" beyond {self.spared}" if self.recompute and self.spared else ""
        return (
            f"weights {self.weights / GIB:.2f} GiB, gradients and optimizer {self.training / GIB:.2f} GiB, "
            f"head {self.head / GIB:.2f} GiB, {self.per_token / 1024:.0f} KiB a token, {free} free: "
            f"{self.tokens} tokens at once, recompute {'on' if self.recompute else 'off'}{beyond}"
        )


def plan(shape: ModelShape, available: int | None, *, recompute: bool | None, chunk: int = 1 << 24) -> MemoryPlan:
    """Fit a step into ``available`` bytes (None: unknown); ``recompute`` None decides by the available memory.

    Raise `ModelRefused` with the numbers if not even a short turn fits.
    """
    result = _plan(shape, available, bool(recompute), chunk)
    if recompute is None and result.tokens < _ROOMY:
        result = replace(_plan(shape, available, True, chunk), spared=result.tokens)
    if result.tokens < _LEAST:
        raise ModelRefused(
            f"training {shape.parameters / 1e9:.2f} billion parameters does not fit: {result}",
            remedy="use LoRA, switch recompute or offload_optimizer on, take a smaller model, or free memory",
        )
    return result


def _plan(shape: ModelShape, available: int | None, recompute: bool, chunk: int) -> MemoryPlan:
    weights = shape.parameters * shape.weight_bytes * (1 + shape.copies)
    moments = 0 if shape.offload else 2
    training = shape.trainable * shape.trainable_bytes * (1 + moments + shape.ema)
    head = chunk * 4 * 5  # logits, their softmax, the base's, a gradient, one in flight
    per_token = _per_token(shape, recompute)
    tokens = _MOST
    if available is not None:
        # the weights are already loaded, so free memory excludes them
        tokens = int((available - training - head) // per_token)
    return MemoryPlan(
        weights=weights,
        training=training,
        head=head,
        per_token=per_token,
        available=available,
        tokens=min(max(tokens, 0), _MOST),
        recompute=recompute,
    )


def _per_token(shape: ModelShape, recompute: bool) -> int:
    """Return the activations' bytes per token: inputs to norms, projections and gates, and the attention's own."""
    number = max(2, shape.weight_bytes)
    layer = (14 * shape.hidden + 6 * shape.intermediate) * number
    stored = shape.hidden * number
    return shape.layers * stored + 2 * layer if recompute else shape.layers * layer


def plan_for(policy: PolicyModel) -> MemoryPlan:
    """Plan a step with this model, within its device's free memory."""
    s, config, device = policy.settings, text_config(policy.model), policy.device
    trained = list(policy.parameters.values())
    copies = (s.teacher_model is not None) + (not s.lora and s.compares_with_base) + (not s.lora and s.average > 1)
    shape = ModelShape(
        parameters=sum(local(p).numel() for p in policy.model.parameters()),
        trainable=sum(local(p).numel() for p in trained),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
        weight_bytes=policy.compute.itemsize,
        trainable_bytes=trained[0].element_size(),
        copies=copies,
        ema=s.keeps_ema,
        offload=s.offload_optimizer,
    )
    free = int(available_bytes(device) * _SHARE.get(device.type, 0.5)) // policy.beside
    least = policy.ranks.least(free)  # one plan for all ranks
    return plan(shape, least, recompute=s.recompute, chunk=ELEMENTS.get(device.type, 1 << 24))
