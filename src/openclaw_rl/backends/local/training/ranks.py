"""Ranks: the processes that take one step together, each on its own share of a batch, and what they say to each other.

Alone there is nobody to ask: every answer is the value that was given, and nothing is sent.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from openclaw_rl import files
from openclaw_rl.backends.local.training.messages import RankPlace
from openclaw_rl.errors import BackendDown

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process is ``number`` of ``count``. ``mesh`` is what weights are sharded over, None where they are whole."""

    number: int = 0
    count: int = 1
    mesh: Any = None
    files_mesh: Any = None
    """the same ranks in main memory, through which checkpoints go to disk"""

    @property
    def first(self) -> bool:
        """Whether this one writes what is written once."""
        return self.number == 0

    def most(self, value: int) -> int:
        """The largest of all ranks' values."""
        return max(self.told(value))

    def least(self, value: int) -> int:
        """The smallest of all ranks' values."""
        return min(self.told(value))

    def told(self, value: T) -> list[T]:
        """Every rank's value, in their order."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def said_by_first(self, value: T) -> T:
        """The first rank's value."""
        if self.count == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0)
        said: T = box[0]
        return said

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def meet(self) -> None:
        """Wait until every rank is here."""
        self.told(None)

    @contextmanager
    def directory(self, target: Path) -> Iterator[Path]:
        """See `files.directory`: one draft that every rank writes into, in place before any of them goes on."""
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
    """Meet the other ranks; from here on weights can be sharded, even over a single one."""
    from torch.distributed.device_mesh import init_device_mesh

    if device.type == "cuda":
        torch.cuda.set_device(device)
    # each kind of memory has its own way between ranks; the same for all of them, whatever a machine could do
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=place.meeting, rank=place.number, world_size=place.count)
    mesh = init_device_mesh(device.type, (place.count,))
    files_mesh = mesh if device.type == "cpu" else init_device_mesh("cpu", (place.count,))
    return Ranks(number=place.number, count=place.count, mesh=mesh, files_mesh=files_mesh)


def leave() -> None:
    """Give the connections to the other ranks back."""
    if dist.is_initialized():
        dist.destroy_process_group()
