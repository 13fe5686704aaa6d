"""Checkpoints: a version's directory contains its weights, optimizer and random state, and a manifest of its origin.

A step starts from its parent's directory and ends in a new one, so that it can be interrupted anywhere and requested
again: the same request gives the same weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.hf.adapters import STATE, read_manifest, write_manifest
from openclaw_rl.backends.local.training.model import PolicyModel, Weights
from openclaw_rl.backends.local.training.ranks import Ranks, local, on_all_ranks, rows_of
from openclaw_rl.backends.local.training.settings import StepRequest
from openclaw_rl.errors import BackendError
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Version

# The trainer's sharded state on disk: each rank writes its rows, and any number of ranks can read them again.
#
# State as large as the weights (moments, averages, master copy) is written by torch.distributed.checkpoint into a
# folder beside ``trainer.pt``, which contains everything else. An unsharded trainer writes all to ``trainer.pt``, and
# reads both.

FOLDER = "trainer"
_WEIGHTS = ("ema", "master", "average")

Row = tuple[str, str, Tensor]
"""state kind, its parameter's name, and this rank's rows"""


def to_cpu(value: Any) -> Any:
    """Copy a value with every tensor in it moved to main memory."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: to_cpu(item) for key, item in value.items()}
    return [to_cpu(item) for item in value] if isinstance(value, list) else value


def write_sharded(directory: Path, state: Mapping[str, Any], policy: PolicyModel) -> dict[str, Any]:
    """Write this rank's rows of ``state`` into ``directory``; return everything else, for the first rank to write."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = {
        f"{what}/{name}": on_all_ranks(policy.parameters[name], rows.detach(), policy.ranks)
        for what, name, rows in _rows(state, policy)
    }
    save(tensors, storage_writer=FileSystemWriter(directory / FOLDER), no_dist=policy.ranks.mesh is None)
    optimizer = dict(state["optimizer"] or {"state": {}})
    optimizer["state"] = {
        at: {key: value for key, value in entry.items() if not _large(value)}
        for at, entry in optimizer["state"].items()
    }
    small = {name: value for name, value in state.items() if name not in _WEIGHTS}
    return dict(to_cpu({**small, "optimizer": optimizer if state["optimizer"] else None}))


def _rows(state: Mapping[str, Any], policy: PolicyModel) -> Iterator[Row]:
    names = list(policy.parameters)
    for what in _WEIGHTS:
        for name, rows in (state[what] or {}).items():
            yield what, name, rows
    for at, entry in (state["optimizer"] or {"state": {}})["state"].items():
        for key, value in entry.items():
            if _large(value):
                yield f"optimizer.{key}", names[at], value


def _large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def read_sharded(directory: Path, kept: dict[str, Any], policy: PolicyModel) -> dict[str, Any]:
    """Add this rank's rows of large state to ``kept``, the contents of ``trainer.pt``."""
    if not (directory / FOLDER).is_dir():
        return _own_rows(kept, policy)
    names = {name: at for at, name in enumerate(policy.parameters)}
    state: dict[str, Any] = {**dict.fromkeys(_WEIGHTS), **kept}
    for key, rows in _load(directory / FOLDER, policy).items():
        what, _, name = key.partition("/")
        if what in _WEIGHTS:
            state[what] = {**(state[what] or {}), name: rows}
        else:
            state["optimizer"]["state"].setdefault(names[name], {})[what.removeprefix("optimizer.")] = rows
    return state


def _load(folder: Path, policy: PolicyModel) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader, ranks = FileSystemReader(folder), policy.ranks
    tensors = {
        key: _room(policy.parameters[key.partition("/")[2]], metadata, ranks)
        for key, metadata in reader.read_metadata().state_dict_metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns a single process that it is one, although ``no_dist`` is set
        load(tensors, storage_reader=reader, no_dist=ranks.mesh is None)
    return {key: local(value) for key, value in tensors.items()}


def _room(parameter: Tensor, found: Any, ranks: Ranks) -> Tensor:
    rows = torch.empty(local(parameter).shape, dtype=found.properties.dtype)
    return on_all_ranks(parameter, rows, ranks)


def _own_rows(kept: dict[str, Any], policy: PolicyModel) -> dict[str, Any]:
    """Select this rank's rows from whole tensors, as an unsharded trainer writes them."""
    if policy.ranks.mesh is None:
        return kept
    parameters = list(policy.parameters.values())
    weights = {what: policy.rows(kept[what]) if kept[what] else kept[what] for what in _WEIGHTS}
    optimizer = kept["optimizer"]
    if optimizer is not None:
        state = {
            at: {key: rows_of(parameters[at], v, policy.ranks) if _large(v) else v for key, v in entry.items()}
            for at, entry in optimizer["state"].items()
        }
        optimizer = {**optimizer, "state": state}
    return {**kept, **weights, "optimizer": optimizer}


@dataclass(slots=True)
class TrainerState:
    """All of a version except its weights: the state that a resumed run must restore."""

    optimizer: dict[str, Any] | None = None
    random: dict[str, torch.Tensor] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    ema: Weights | None = None
    master: Weights | None = None
    """exact trained weights, if the published ones are rounded or averaged"""
    average: Weights | None = None
    """published weights, if these are an average"""
    averaged: int = 0
    """weights in the average"""


class Checkpoints:
    """Loads a parent into ``policy`` and ``state``, and publishes a step's results."""

    def __init__(self, policy: PolicyModel) -> None:
        self.state = _initial(policy)
        self._policy = policy
        self._settings = policy.settings
        self._at: str | None = None
        self.frozen: Weights | None = None
        """the live version at the start of prompt distillation, if it is the teacher"""

    def load(self, parent: Version, *, averaging: bool) -> None:
        """Restore policy and state from ``parent``, unless they are in memory already.

        If weights are no longer averaged, training continues from the served weights.
        """
        where = parent.adapter or ""
        if self._at != where:
            if parent.adapter is None:
                self._policy.put(self._policy.begin())
                self.state = _initial(self._policy)
            else:
                self.state = self._read(Path(parent.adapter), parent.base)
            self._at = where
        served = self.state.average
        if served is not None and not averaging:
            self._policy.put(served)
            self.state.master, self.state.average, self.state.averaged = None, None, 0
        if not parent.draft:
            frozen_teacher = self._settings.distillation_teacher == "live"
            self.frozen = (served or self._policy.weights()) if frozen_teacher else None
        torch.set_rng_state(self.state.random["cpu"])
        if "cuda" in self.state.random and self._policy.device.type == "cuda":
            torch.cuda.set_rng_state(self.state.random["cuda"], self._policy.device)

    def updated(self, state: TrainerState) -> None:
        """Set the state after an update; policy and state reach the disk only with `publish`."""
        self.state = state
        self._at = None

    def publish(self, request: StepRequest, metrics: Mapping[str, float], dropped: Mapping[str, str]) -> None:
        """Write the new version atomically."""
        policy, average = self._policy, self.state.average
        rounded = not self._settings.lora and policy.compute != next(iter(policy.parameters.values())).dtype
        state = {name: getattr(self.state, name) for name in ("optimizer", "random", "norms", "ema", "averaged")}
        state["master"] = policy.weights() if rounded or average is not None else None
        state["average"] = average if rounded else None  # otherwise it equals the published file
        with policy.ranks.directory(Path(request.target)) as directory:
            with policy.lent(average or {}):
                policy.write(directory)
            contents = to_cpu(state) if policy.ranks.mesh is None else write_sharded(directory, state, policy)
            if policy.ranks.first:
                torch.save(contents, directory / STATE)
                write_manifest(directory, {**self._identity(request), "metrics": metrics, "dropped": dropped})
        self._at = request.target

    def published(self, request: StepRequest) -> StepResult | None:
        """Return the earlier result of this same request, if its caller ended before receiving it."""
        target = Path(request.target)
        manifest = read_manifest(target) if target.is_dir() else None
        if manifest is None or any(manifest[name] != value for name, value in self._identity(request).items()):
            return None
        dropped = manifest.get("dropped", {})
        return StepResult(adapter=request.target, metrics=manifest["metrics"], seconds=0.0, dropped=dropped)

    def _read(self, directory: Path, base: str) -> TrainerState:
        manifest = read_manifest(directory)
        if manifest is not None and manifest["base"] != base:
            raise BackendError(f"{directory} was trained on {manifest['base']!r}, but its version names {base!r}")
        weights = self._policy.read(directory)
        if not (directory / STATE).exists():
            self._policy.put(weights)
            return _initial(self._policy)
        contents = torch.load(directory / STATE, map_location="cpu", weights_only=True)
        state = TrainerState(**read_sharded(directory, contents, self._policy))
        if state.averaged and state.average is None:
            state.average = {name: value.to(self._policy.device) for name, value in weights.items()}
        self._policy.put(state.master or weights)
        if state.ema is None and self._settings.keeps_ema:
            state.ema = self._policy.weights()
        return state

    def _identity(self, request: StepRequest) -> dict[str, Any]:
        return {
            "kind": "lora" if self._settings.lora else "full",
            "base": request.parent.base,
            "parent": request.parent.number,
            "parent_adapter": request.parent.adapter,
            "step": request.number,
            "turns": [sample.turn for sample in request.samples],
            "config": _plain(self._settings.record()),
        }


def _initial(policy: PolicyModel) -> TrainerState:
    torch.manual_seed(policy.settings.seed)
    ema = policy.weights() if policy.settings.keeps_ema else None
    return TrainerState(random=random_state(policy.device), ema=ema)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the random generators' state for training on ``device``."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _plain(value: Any) -> Any:
    """Convert a value as JSON returns it: tuples become lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
