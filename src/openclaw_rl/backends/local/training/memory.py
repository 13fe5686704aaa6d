"""The memory plan: what a step will take, computed before the first one, and how many tokens go through at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from openclaw_rl.backends.hf.models import available as available_bytes
from openclaw_rl.backends.hf.models import text_config
from openclaw_rl.backends.local.training.head import ELEMENTS
from openclaw_rl.backends.local.training.model import PolicyModel
from openclaw_rl.backends.local.training.ranks import local
from openclaw_rl.errors import ModelRefused
from openclaw_rl.machine import GIB

_LEAST = 512  # tokens: a plan with less room than this is no plan
_MOST = 65_536
_SHARE = {"cuda": 0.85}  # of what is free; main memory is shared with whoever serves, so half of it
_ROOMY = 8_192  # with room for so many tokens, recomputing layers would only cost time


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes that decide: parameters by count, layers, widths, and bytes of a number in weights and activations."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    weight_bytes: int
    trainable_bytes: int = 4
    copies: int = 0
    """further frozen models that are held: a base for the teacher, another teacher"""
    ema: bool = False
    offload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes by purpose, and the decision: tokens at once, and whether layers are recomputed in the backward pass.

    ``spared``: a batch of so many tokens goes through as it is, though larger ones are recomputed.
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
    """Fit a step into ``available`` bytes (None: not known); ``recompute`` None decides by the room there is.

    Raises ModelRefused with the numbers when not even a short turn fits.
    """
    found = _plan(shape, available, bool(recompute), chunk)
    if recompute is None and found.tokens < _ROOMY:
        found = replace(_plan(shape, available, True, chunk), spared=found.tokens)
    if found.tokens < _LEAST:
        raise ModelRefused(
            f"training {shape.parameters / 1e9:.2f} billion parameters does not fit: {found}",
            remedy="use LoRA, switch recompute or offload_optimizer on, take a smaller model, or free memory",
        )
    return found


def _plan(shape: ModelShape, available: int | None, recompute: bool, chunk: int) -> MemoryPlan:
    weights = shape.parameters * shape.weight_bytes * (1 + shape.copies)
    moments = 0 if shape.offload else 2
    training = shape.trainable * shape.trainable_bytes * (1 + moments + shape.ema)
    head = chunk * 4 * 5  # logits, their softmax, the base's, a gradient, one in flight
    per_token = _per_token(shape, recompute)
    tokens = _MOST
    if available is not None:
        # the weights are loaded when the plan is made: what is free is free beside them
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
    """Activations that a token leaves behind: inputs of norms, projections, gates; and the attention's own."""
    number = max(2, shape.weight_bytes)
    layer = (14 * shape.hidden + 6 * shape.intermediate) * number
    kept = shape.hidden * number
    return shape.layers * kept + 2 * layer if recompute else shape.layers * layer


def plan_for(policy: PolicyModel) -> MemoryPlan:
    """The plan of a step with this model, on its device as it is now."""
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
    least = policy.ranks.least(free)  # one plan for all of them
    return plan(shape, least, recompute=s.recompute, chunk=ELEMENTS.get(device.type, 1 << 24))
