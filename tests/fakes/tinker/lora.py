"""The numerics of the server: LoRA over a frozen model, losses on given targets, AdamW, sampling."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

ALPHA: Final = 32
"""the scale of the service's adapters, whatever their rank"""
Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraShape:
    """What an adapter covers."""

    rank: int
    seed: int = 0
    attention: bool = True
    mlp: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDatum:
    """One sequence: ids `[T]`, and what its loss reads, `[T]` or `[T, C]` each."""

    tokens: tuple[int, ...]
    inputs: Mapping[str, Tensor]


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """What a checkpoint holds: the adapter, and the optimizer where it was saved to go on from."""

    shape: LoraShape
    weights: Weights
    optimizer: dict[str, Any] | None = field(default=None)


class LoraModel:
    """A frozen base with one adapter. ``gradients`` pile up until `step`."""

    def __init__(self, base: Any, shape: LoraShape) -> None:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(shape.seed)
        self.shape = shape
        self.model = copy.deepcopy(base)
        config = LoraConfig(
            r=shape.rank, lora_alpha=ALPHA, target_modules=linear_names(base, shape), task_type="CAUSAL_LM"
        )
        get_peft_model(self.model, config)
        self.config = config
        self.model.eval()
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.parameters.values())
        self.applied: Weights = {}
        """the gradients of the last step"""

    @property
    def gradients(self) -> Weights:
        """What was backpropagated since the last step."""
        return {name: p.grad.clone() for name, p in self.parameters.items() if p.grad is not None}

    def run(
        self, data: Sequence[TrainDatum], loss: str, config: Mapping[str, float], *, backward: bool
    ) -> tuple[list[Tensor], float]:
        """Log-probs at each datum's targets, and the loss of all; ``backward`` adds its gradient."""
        outputs, total = [], 0.0
        for datum in data:
            with torch.set_grad_enabled(backward):
                found = _at(self._logprobs(datum.tokens), datum.inputs["target_tokens"])
                value = LOSSES[loss](found, datum.inputs, config)
            if backward:
                torch.autograd.backward(value)
            outputs.append(found.detach())
            total += float(value.detach())
        return outputs, total

    def step(self, *, lr: float, betas: tuple[float, float], eps: float, decay: float, clip: float) -> float:
        """One step of AdamW with the gradients at hand, which are then forgotten; their norm."""
        self.applied = self.gradients
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None]))
        if clip > 0:
            torch.nn.utils.clip_grads_with_norm_(list(self.parameters.values()), clip, torch.tensor(norm))
        self.optimizer.param_groups[0].update({"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay})
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def save(self, *, optimizer: bool) -> TrainingState:
        """A copy of it all."""
        state = copy.deepcopy(self.optimizer.state_dict()) if optimizer else None
        weights = {name: p.detach().clone() for name, p in self.parameters.items()}
        return TrainingState(shape=self.shape, weights=weights, optimizer=state)

    @torch.no_grad()
    def load(self, state: TrainingState, *, optimizer: bool) -> None:
        """Take over what was saved."""
        for name, value in state.weights.items():
            self.parameters[name].copy_(value)
        if optimizer and state.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state.optimizer))

    @torch.no_grad()
    def score(self, tokens: Sequence[int]) -> Tensor:
        """Log-probs over the vocabulary of what comes after each token `[T, V]`."""
        return self._logprobs(tokens)

    @torch.no_grad()
    def sample(
        self, tokens: Sequence[int], *, limit: int, temperature: float, top_k: int, top_p: float, seed: int | None
    ) -> Any:
        """Tokens one after another, each with its log-prob at temperature 1, until the caller has enough."""
        rng = torch.Generator().manual_seed(seed if seed is not None else int(torch.randint(2**31, (1,))))
        known, cache = torch.tensor([list(tokens)]), None
        for _ in range(limit):
            found = self.model(known, past_key_values=cache, use_cache=True)
            cache = found.past_key_values
            values = found.logits[0, -1].log_softmax(-1)
            token = _draw(values, temperature, top_k, top_p, rng)
            yield token, float(values[token])
            known = torch.tensor([[token]])

    def _logprobs(self, tokens: Sequence[int]) -> Tensor:
        found: Tensor = self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0].log_softmax(-1)
        return found


def linear_names(model: Any, shape: LoraShape) -> list[str]:
    """The last names of the layers that an adapter covers; never the head."""
    head = model.get_output_embeddings()
    names = {
        n.rsplit(".", 1)[-1]: n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head
    }
    wanted = {"attn": shape.attention, "mlp": shape.mlp}
    return sorted(short for short, whole in names.items() if any(on and part in whole for part, on in wanted.items()))


def _at(logprobs: Tensor, targets: Tensor) -> Tensor:
    """[T, V] at [T] or [T, C]."""
    wide = targets if targets.dim() == 2 else targets[:, None]
    found = logprobs.gather(1, wide)
    return found if targets.dim() == 2 else found[:, 0]


def _cross_entropy(found: Tensor, inputs: Mapping[str, Tensor], _: Mapping[str, float]) -> Tensor:
    return -(found * inputs["weights"]).sum()


def _importance_sampling(found: Tensor, inputs: Mapping[str, Tensor], _: Mapping[str, float]) -> Tensor:
    return -((found - inputs["logprobs"]).exp() * inputs["advantages"]).sum()


def _ppo(found: Tensor, inputs: Mapping[str, Tensor], config: Mapping[str, float]) -> Tensor:
    ratio = (found - inputs["logprobs"]).exp()
    held = ratio.clamp(config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2))
    return -torch.minimum(ratio * inputs["advantages"], held * inputs["advantages"]).sum()


LOSSES: Final = {"cross_entropy": _cross_entropy, "importance_sampling": _importance_sampling, "ppo": _ppo}


def _draw(values: Tensor, temperature: float, top_k: int, top_p: float, rng: torch.Generator) -> int:
    if temperature == 0:
        return int(values.argmax())
    chances = (values / temperature).softmax(-1)
    if top_k > 0:
        chances = torch.where(chances >= chances.topk(top_k).values[-1], chances, 0.0)
    if top_p < 1:
        ranked, at = chances.sort(descending=True)
        beyond = ranked.cumsum(-1) - ranked >= top_p
        chances = chances.index_fill(0, at[beyond], 0.0)
    return int(torch.multinomial(chances, 1, generator=rng))
