"""What a model does to the product of its head before it calls it logits, found by comparing the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.hf.shapes import probe_ids, text_config
from openclaw_rl.errors import ModelRefused

_NEAR = 0.01
"""a measured factor is taken for the configured number that is so near to it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitForm:
    """Logits are the head's product times ``scale``, then held within ± ``cap`` by a tanh, or as they are."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, product: Tensor) -> Tensor:
        scaled = product if self.scale == 1.0 else product * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def back(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """From a gradient of ``logits`` to one of the product that they were made of."""
        if self.cap is not None:
            gradient = gradient * (1 - (logits / self.cap).square())
        return gradient if self.scale == 1.0 else gradient * self.scale


@torch.no_grad()
def logit_form(model: Any) -> LogitForm:
    """How ``model`` makes its logits; raises ModelRefused where that is neither a factor nor a cap."""
    ids = torch.tensor([probe_ids(model)], device=model.device)
    head, config = model.get_output_embeddings(), text_config(model)
    product = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)[0].float()
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    cap = getattr(config, "final_logit_softcapping", None)
    factor = 1.0 if cap is not None else float((product * logits).sum() / product.square().sum())
    form = LogitForm(scale=_configured(factor, config), cap=cap)
    limit = 1e-3 if head.weight.dtype.itemsize >= 4 else 3e-2
    apart = float((form(product) - logits).norm() / logits.norm())
    if not apart <= limit:
        raise ModelRefused(
            f"the logits of {type(model).__name__} are not the product of its head (off by {apart:.1e})",
            remedy="run 'openclaw-rl serve' alone, which does not train, or choose another model",
        )
    return form


def _configured(factor: float, config: Any) -> float:
    """The factor as the config has it: exact, where the measured one is rounded."""
    numbers = [float(v) for v in config.to_dict().values() if isinstance(v, (int, float)) and v > 0]
    known = [1.0, *numbers, *(1 / number for number in numbers)]
    nearest = min(known, key=lambda number: abs(number - factor))
    return nearest if abs(nearest - factor) <= _NEAR * abs(factor) else factor
