"""Sharded weights: each rank keeps its rows of every layer, and a layer is whole only while it is computed (FSDP2).

Embeddings, the last norm and the head stay whole on each rank: the head is read in chunks, many times in a step. So do
adapters: they are small, and a frozen layer then has no gradient to send.
In memory, weights and what is kept for them are this rank's rows, plain tensors: arithmetic by element needs no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from openclaw_rl.backends.hf.shapes import text_config
from openclaw_rl.backends.local.training.ranks import Ranks
from openclaw_rl.errors import ModelRefused

_MESSAGE = 16_000_000
"""numbers of several gradients that are sent at once"""


def shard_layers(model: Any, ranks: Ranks, *, compute: torch.dtype | None = None) -> None:
    """Divide every layer of ``model`` among the ranks; ``compute``: gather them in this type, though kept in another.

    Where some weights are frozen, only those are divided. Gradients of all ranks are added up, not averaged: the loss
    has seen the whole batch.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
    how = {"mesh": ranks.mesh, "mp_policy": policy if compute is not None else MixedPrecisionPolicy()}
    body, layers = model.base_model, find_layers(model)
    adapted = not all(p.requires_grad for p in body.parameters())
    divided = {p for layer in layers for p in layer.parameters() if not (adapted and p.requires_grad)}
    for layer in layers:
        sharded: Any = fully_shard(layer, ignored_params={*layer.parameters()} - divided, **how)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    # the body has no shards of its own: as their common root it lets one layer be gathered while another is computed
    fully_shard(body, ignored_params={p for p in body.parameters() if p not in divided}, **how)
    model.to(torch.device(ranks.mesh.device_type))


def find_layers(model: Any) -> list[nn.Module]:
    """The blocks that a model is a stack of; raises ModelRefused where it is none."""
    count = text_config(model).num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise ModelRefused(
        f"{type(model).__name__} is no stack of {count} layers, so it cannot be sharded",
        remedy="set train.local.ranks = 1",
    )


def is_sharded(parameter: Tensor) -> bool:
    """Whether each rank has rows of it."""
    return hasattr(parameter, "placements")  # a DTensor: importing that takes a while, which whole weights never need


def local(parameter: Tensor) -> Tensor:
    """This rank's rows, the very memory; of what is not sharded all of it."""
    sharded: Any = parameter
    return torch.as_tensor(sharded.to_local()) if is_sharded(parameter) else parameter


def whole(parameter: Tensor) -> Tensor:
    """All rows, on each rank; every rank must ask."""
    sharded: Any = parameter.detach()
    return torch.as_tensor(sharded.full_tensor() if is_sharded(parameter) else sharded)


def rows_of(parameter: Tensor, value: Tensor, ranks: Ranks) -> Tensor:
    """This rank's rows of ``value``, which is all of a parameter or of what is kept for one."""
    if not is_sharded(parameter):
        return value
    parts = value.chunk(ranks.count)
    rows = parts[ranks.number] if ranks.number < len(parts) else value[:0]
    return rows.clone()  # or all of it would stay in memory


def on_all_ranks(parameter: Tensor, rows: Tensor, ranks: Ranks) -> Tensor:
    """``rows`` as a part of what all ranks hold, in main memory: what a distributed checkpoint reads and writes."""
    from torch.distributed.tensor import DTensor

    if not is_sharded(parameter):
        return rows.cpu()
    like: Any = parameter
    return DTensor.from_local(
        rows.cpu(), ranks.files_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def add_up_whole(parameters: Iterable[Tensor], ranks: Ranks) -> None:
    """Add up the gradients of what is not sharded; those of layers were added up while they were computed."""
    if ranks.count == 1:
        return
    for some in _together([parameter for parameter in parameters if not is_sharded(parameter)]):
        for parameter in some:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [parameter.grad for parameter in some if parameter.grad is not None]
        if len(grads) == 1:
            ranks.add_up(grads[0])
            continue
        sums = ranks.add_up(torch.cat([grad.flatten() for grad in grads]))
        for grad, rows in zip(grads, torch.split(sums, [grad.numel() for grad in grads]), strict=True):
            grad.copy_(rows.view_as(grad))


def _together(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one kind whose gradients are sent at once: each message costs more than a small gradient in it."""
    for _, kind in groupby(parameters, key=lambda parameter: parameter.dtype):
        some: list[Tensor] = []
        room = _MESSAGE
        for parameter in kind:
            if some and parameter.numel() > room:
                yield some
                some, room = [], _MESSAGE
            some.append(parameter)
            room -= parameter.numel()
        yield some


def with_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """This rank's rows of each parameter, the very memory, with their gradient, which it hands over."""
    found: list[Tensor] = []
    for parameter in parameters:
        rows: Tensor = parameter
        if is_sharded(parameter):
            rows = local(parameter.detach()).requires_grad_()
            rows.grad, parameter.grad = None if parameter.grad is None else local(parameter.grad), None
        found.append(rows)
    return found


def gradient_norm(parameters: Mapping[str, Tensor], ranks: Ranks) -> float:
    """Of all rows of all parameters."""
    grads = [(is_sharded(p), local(p.grad)) for p in parameters.values() if p.grad is not None]
    if not any(sharded for sharded, _ in grads):
        return float(torch.nn.utils.get_total_norm([grad for _, grad in grads]))
    here = torch.nn.utils.get_total_norm([grad for sharded, grad in grads if sharded]).square()
    same = torch.nn.utils.get_total_norm([grad for sharded, grad in grads if not sharded]).square()
    return float((ranks.add_up(here.to(torch.float64)) + same).sqrt())
