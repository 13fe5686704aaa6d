"""A trainer's arguments, as one value that is sent to the worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from openclaw_rl.backends.hf.trainer_settings import ADAM_EPS, TrainerSettings
from openclaw_rl.losses import LossSettings
from openclaw_rl.types import Sample, Version

_NO_RECORD = (
    "cache_dir",
    "chat_template",
    "threads",
    "loader",
    "compile",
    "niceness",
    "devices",
    "nodes",
    "shard_frozen",
)
_LORA = ("rank", "alpha", "dropout", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArgs(TrainerSettings):
    """A training worker's arguments beyond `TrainerSettings`."""

    device: str
    dtype: str
    threads: int | None
    ema_decay: float
    tree: bool
    micro_tokens: int | None
    recompute: bool | None
    compile: bool | None
    offload_optimizer: bool
    shard_frozen: bool | None
    """whether ranks shard frozen weights too; None: if a whole copy would take too much of a rank's memory"""
    distillation_decay: float
    """decay of the served average during prompt distillation"""
    nodes: int
    """nodes of a Ray cluster, with equally many ranks on each, whose devices are numbered by node; 1: this machine
    alone"""
    devices: tuple[str, ...] = ()
    """one device per rank, if several processes share a step; empty: ``device`` alone"""
    niceness: int = 10
    loader: Callable[..., Any] | None = None
    """loader with the signature of `models.load` (None), called in the worker; its result has ``model`` and
    ``tokenizer``"""

    @property
    def keeps_ema(self) -> bool:
        """True if a moving average teaches, so that it must be kept."""
        return "ema" in (self.teacher, self.distillation_teacher)

    def record(self) -> Mapping[str, Any]:
        """Return the settings that determine the numbers, for a manifest; file locations are left out."""
        values = {name: value for name, value in asdict(self).items() if name not in _NO_RECORD}
        loss_config = values.pop("loss_config")  # a user's table may contain values that JSON cannot
        values |= {"loss_config": {name: repr(value) for name, value in loss_config.items()}} if self.loss else {}
        losses = {section.name: values.pop(section.name) for section in fields(LossSettings)}
        lora = {name: values.pop(f"lora_{name}") for name in _LORA}
        return {**values, "adam_eps": ADAM_EPS, "losses": losses, "lora": lora if self.lora else None}


# Messages between the trainer and its worker processes: plain values that can be pickled.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Rank ``number`` of ``count``; ``meeting`` is the address, as a URL, at which they connect."""

    number: int
    count: int
    meeting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """One step: train on ``samples`` from ``parent`` and publish into the directory ``target``."""

    samples: tuple[Sample, ...]
    number: int
    parent: Version
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """The reason that a worker is about to end: the error, its remedy, and whether the model was refused.

    ``outside``: the machine caused it (a full disk, for example), not the batch.
    """

    what: str
    remedy: str | None = None
    refused: bool = False
    outside: bool = False
