"""What a trainer is built from, as one value that is sent to the worker process."""

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
    """All that a training worker must know beside what every trainer does."""

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
    """whether ranks divide what is not trained too; None: where a whole copy would take too much of a rank's memory"""
    rehearse_decay: float
    """of the average over the steps of a rehearsal that is served"""
    nodes: int
    """of a Ray cluster, with as many ranks on each, whose devices are numbered by node; 1: all are on this machine"""
    devices: tuple[str, ...] = ()
    """one for each rank, where several processes share a step; empty: ``device`` alone"""
    niceness: int = 10
    loader: Callable[..., Any] | None = None
    """with the signature of `models.load`, which None is, called in the worker; gives ``model`` and ``tokenizer``"""

    @property
    def keeps_ema(self) -> bool:
        """Whether a moving average teaches, so that it must be kept."""
        return "ema" in (self.teacher, self.rehearse_teacher)

    def record(self) -> Mapping[str, Any]:
        """What decides the numbers, for a manifest; where things lie is left out."""
        found = {name: value for name, value in asdict(self).items() if name not in _NO_RECORD}
        own = found.pop("loss_config")  # a user's table may hold what JSON cannot
        found |= {"loss_config": {name: repr(value) for name, value in own.items()}} if self.loss else {}
        losses = {each.name: found.pop(each.name) for each in fields(LossSettings)}
        lora = {name: found.pop(f"lora_{name}") for name in _LORA}
        return {**found, "adam_eps": ADAM_EPS, "losses": losses, "lora": lora if self.lora else None}


# Messages between the trainer and its worker processes. Plain values, so that they can be pickled.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Rank ``number`` of ``count``; ``meeting`` is the address, as a URL, at which they find each other."""

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
    """Why the worker is about to end: what went wrong, the remedy, and whether the model was refused.

    ``outside``: the machine failed it (no room on the disk, say), whatever the batch is.
    """

    what: str
    remedy: str | None = None
    refused: bool = False
    outside: bool = False
