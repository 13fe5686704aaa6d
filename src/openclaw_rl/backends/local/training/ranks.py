"""Ranks: the processes that take one step together, each on its share of a batch, and their communication.

A single process is its own group: every call returns its own value, and nothing is sent.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from openclaw_rl import files
from openclaw_rl.backends.hf.batches import TrainBatch, Views
from openclaw_rl.backends.hf.models import text_config
from openclaw_rl.backends.local.training.settings import RankPlace
from openclaw_rl.errors import BackendDown, ModelRefused
from openclaw_rl.losses.tree import divide
from openclaw_rl.types import Sample

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process is ``number`` of ``count``. Weights are sharded over ``mesh``; None if they are whole."""

    number: int = 0
    count: int = 1
    mesh: Any = None
    files_mesh: Any = None
    """the same ranks in main memory, for checkpoints"""

    @property
    def first(self) -> bool:
        """True if this rank writes shared files."""
        return self.number == 0

    def most(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        return max(self.told(value))

    def least(self, value: int) -> int:
        """Return the smallest of all ranks' values."""
        return min(self.told(value))

    def told(self, value: T) -> list[T]:
        """Return every rank's value, in rank order."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def said_by_first(self, value: T) -> T:
        """Return the first rank's value."""
        if self.count == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0)
        first: T = box[0]
        return first

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def meet(self) -> None:
        """Wait until every rank arrives."""
        self.told(None)

    @contextmanager
    def directory(self, target: Path) -> Iterator[Path]:
        """Write one draft from every rank (see `files.directory`); it is in place before any rank continues."""
        if self.first:
            with files.directory(target) as draft:
                self.said_by_first(draft)
                yield draft
                self.meet()
        else:
            draft = self.said_by_first(target)
            if not draft.is_dir():
                raise BackendDown(
                    f"rank {self.number} on {socket.gethostname()} does not see {draft}, which rank 0 has made",
                    remedy="the nodes that train need the same run directory: name one that they share, with --run-dir",
                )
            yield draft
            self.meet()
        self.meet()


ALONE = Ranks()


def join(place: RankPlace, device: torch.device) -> Ranks:
    """Join the other ranks; from here on weights can be sharded, even over a single rank."""
    from torch.distributed.device_mesh import init_device_mesh

    if device.type == "cuda":
        torch.cuda.set_device(device)
    # each kind of memory has its own backend, the same on every machine, whatever it could do
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=place.meeting, rank=place.number, world_size=place.count)
    mesh = init_device_mesh(device.type, (place.count,))
    files_mesh = mesh if device.type == "cpu" else init_device_mesh("cpu", (place.count,))
    return Ranks(number=place.number, count=place.count, mesh=mesh, files_mesh=files_mesh)


def leave() -> None:
    """Close the connections to the other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


# A batch divided among ranks: by tokens, turns with a common prefix on the same rank.

_PASSES = 4
"""passes over a turn's own tokens: forward, back (twice the work), forward through the base; a teacher's view is one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch:
    """One rank's work: its samples as a batch, and the positions of its tokens [n] in the whole batch."""

    batch: TrainBatch
    at: Tensor
    heard: bool


def rank_batch(
    batch: TrainBatch,
    samples: Sequence[Sample],
    views: Views,
    ranks: Ranks,
    flatten: Callable[[Sequence[Sample], Views], TrainBatch],
) -> RankBatch | None:
    """Return this rank's part of ``batch``, which ``flatten`` builds; None for a single process."""
    if ranks.count == 1:
        return None
    dealt = divide(batch.plain, _beside(batch), ranks.count)
    heard = ranks.number < len(dealt)
    places = sorted(dealt[ranks.number]) if heard else dealt[0][:1]
    part = flatten([samples[at] for at in places], [views[at] for at in places])
    spans = [batch.spans[at] for at in places]
    at = torch.cat([torch.arange(span.start, span.stop) for span in spans]).to(batch.tokens.device)
    return RankBatch(batch=replace(part, hints=batch.hints), at=at, heard=heard)


def _beside(batch: TrainBatch) -> list[int]:
    """Return each sample's cost of teacher views, in its own tokens; they share its prefix, not its reply."""
    costs = [0] * len(batch.plain)
    for sample, path in [*((s, path) for _, s, path in batch.hinted), *batch.noted]:
        costs[sample] += len(path.tokens) - _same(path.tokens, batch.plain[sample].tokens)
    return [-(-cost // _PASSES) for cost in costs]


def _same(a: Sequence[int], b: Sequence[int]) -> int:
    """Return two sequences' common prefix length."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# Sharded weights: each rank stores its rows of every layer, and a layer is whole only during its computation (FSDP2).
#
# Embeddings, the last norm and the head stay whole on each rank: the head is read in chunks, many times per step. So do
# adapters: they are small, and a frozen layer then has no gradient to send. In memory, weights and their state are this
# rank's rows as plain tensors: arithmetic by element needs no more.

_MESSAGE = 16_000_000
"""numbers per message with several gradients"""


def shard_layers(model: Any, ranks: Ranks, *, compute: torch.dtype | None = None) -> None:
    """Shard every layer of ``model`` over the ranks; ``compute``: gather them in this type, though stored in another.

    If some weights are frozen, only those are sharded. The ranks' gradients are summed, not averaged: the loss has seen
    the whole batch.
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
    # the body has no shards: as the layers' common root it gathers a layer while another one is computed
    fully_shard(body, ignored_params={p for p in body.parameters() if p not in divided}, **how)
    model.to(torch.device(ranks.mesh.device_type))


def find_layers(model: Any) -> list[nn.Module]:
    """Return the model's blocks in order; raise `ModelRefused` if it has none."""
    count = text_config(model).num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise ModelRefused(
        f"{type(model).__name__} is no stack of {count} layers, so it cannot be sharded",
        remedy="set train.local.ranks = 1",
    )


def is_sharded(parameter: Tensor) -> bool:
    """Return True if its rows are divided among the ranks."""
    return hasattr(parameter, "placements")  # a DTensor: importing that takes a while, which whole weights never need


def local(parameter: Tensor) -> Tensor:
    """Return this rank's rows without a copy; all rows if not sharded."""
    sharded: Any = parameter
    return torch.as_tensor(sharded.to_local()) if is_sharded(parameter) else parameter


def whole(parameter: Tensor) -> Tensor:
    """Gather all rows on each rank; every rank must call it."""
    sharded: Any = parameter.detach()
    return torch.as_tensor(sharded.full_tensor() if is_sharded(parameter) else sharded)


def rows_of(parameter: Tensor, value: Tensor, ranks: Ranks) -> Tensor:
    """Return this rank's rows of ``value``, a whole parameter or its state."""
    if not is_sharded(parameter):
        return value
    parts = value.chunk(ranks.count)
    rows = parts[ranks.number] if ranks.number < len(parts) else value[:0]
    return rows.clone()  # a view would keep all of it in memory


def on_all_ranks(parameter: Tensor, rows: Tensor, ranks: Ranks) -> Tensor:
    """Convert ``rows`` to a tensor sharded over all ranks in main memory, for distributed checkpoints."""
    from torch.distributed.tensor import DTensor

    if not is_sharded(parameter):
        return rows.cpu()
    like: Any = parameter
    return DTensor.from_local(
        rows.cpu(), ranks.files_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def add_up_whole(parameters: Iterable[Tensor], ranks: Ranks) -> None:
    """Sum unsharded parameters' gradients; layers' gradients were summed during their computation."""
    if ranks.count == 1:
        return
    for group in _together([parameter for parameter in parameters if not is_sharded(parameter)]):
        for parameter in group:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [parameter.grad for parameter in group if parameter.grad is not None]
        if len(grads) == 1:
            ranks.add_up(grads[0])
            continue
        sums = ranks.add_up(torch.cat([grad.flatten() for grad in grads]))
        for grad, rows in zip(grads, torch.split(sums, [grad.numel() for grad in grads]), strict=True):
            grad.copy_(rows.view_as(grad))


def _together(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Group parameters of one type into joint messages: each message costs more than a small gradient in it."""
    for _, kind in groupby(parameters, key=lambda parameter: parameter.dtype):
        group: list[Tensor] = []
        room = _MESSAGE
        for parameter in kind:
            if group and parameter.numel() > room:
                yield group
                group, room = [], _MESSAGE
            group.append(parameter)
            room -= parameter.numel()
        yield group


def with_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return this rank's rows of each parameter, without a copy, and move their gradients to them."""
    parts: list[Tensor] = []
    for parameter in parameters:
        rows: Tensor = parameter
        if is_sharded(parameter):
            rows = local(parameter.detach()).requires_grad_()
            rows.grad, parameter.grad = None if parameter.grad is None else local(parameter.grad), None
        parts.append(rows)
    return parts


def gradient_norm(parameters: Mapping[str, Tensor], ranks: Ranks) -> float:
    """Return the norm over all rows of all parameters."""
    grads = [(is_sharded(p), local(p.grad)) for p in parameters.values() if p.grad is not None]
    if not any(sharded for sharded, _ in grads):
        return float(torch.nn.utils.get_total_norm([grad for _, grad in grads]))
    here = torch.nn.utils.get_total_norm([grad for sharded, grad in grads if sharded]).square()
    same = torch.nn.utils.get_total_norm([grad for sharded, grad in grads if not sharded]).square()
    return float((ranks.add_up(here.to(torch.float64)) + same).sqrt())
