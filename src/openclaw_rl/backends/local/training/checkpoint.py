"""Checkpoints: a version's directory holds its weights, optimizer and random state, and a manifest of how it was made.

A step begins from its parent's directory and ends in a new one, so that it can be interrupted anywhere and requested
again: the same request gives the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.backends.hf.manifest import STATE, read_manifest, write_manifest
from openclaw_rl.backends.local.training.messages import StepRequest
from openclaw_rl.backends.local.training.model import PolicyModel, Weights
from openclaw_rl.backends.local.training.sharded_state import read_sharded, to_cpu, write_sharded
from openclaw_rl.errors import BackendError
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Version


@dataclass(slots=True)
class TrainerState:
    """All of a version beside its weights: what a resumed run must find again."""

    optimizer: dict[str, Any] | None = None
    random: dict[str, torch.Tensor] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    ema: Weights | None = None
    master: Weights | None = None
    """trained weights as they are, where the published ones are rounded or averaged"""
    average: Weights | None = None
    """what is published, where that is an average"""
    averaged: int = 0
    """how many weights are in it"""


class Checkpoints:
    """Loads a parent into ``policy`` and ``state``, and publishes what a step made of them."""

    def __init__(self, policy: PolicyModel) -> None:
        self.state = _initial(policy)
        self._policy = policy
        self._settings = policy.settings
        self._at: str | None = None
        self.frozen: Weights | None = None
        """the live version as it was when a rehearsal began, where that teaches"""

    def load(self, parent: Version, *, averaging: bool) -> None:
        """Put policy and state where ``parent`` left them. What is in memory already is not read again.

        Where the weights are no longer averaged, training goes on from what is served.
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
            kept = self._settings.rehearse_teacher == "live"
            self.frozen = (served or self._policy.weights()) if kept else None
        torch.set_rng_state(self.state.random["cpu"])
        if "cuda" in self.state.random and self._policy.device.type == "cuda":
            torch.cuda.set_rng_state(self.state.random["cuda"], self._policy.device)

    def updated(self, state: TrainerState) -> None:
        """Policy and state have moved on in memory; they are on disk only when published."""
        self.state = state
        self._at = None

    def publish(self, request: StepRequest, metrics: Mapping[str, float], dropped: Mapping[str, str]) -> None:
        """Write the new version, whole or not at all."""
        policy, average = self._policy, self.state.average
        rounded = not self._settings.lora and policy.compute != next(iter(policy.parameters.values())).dtype
        state = {name: getattr(self.state, name) for name in ("optimizer", "random", "norms", "ema", "averaged")}
        state["master"] = policy.weights() if rounded or average is not None else None
        state["average"] = average if rounded else None  # else it is the very file that is published
        with policy.ranks.directory(Path(request.target)) as directory:
            with policy.lent(average or {}):
                policy.write(directory)
            kept = to_cpu(state) if policy.ranks.mesh is None else write_sharded(directory, state, policy)
            if policy.ranks.first:
                torch.save(kept, directory / STATE)
                write_manifest(directory, {**self._identity(request), "metrics": metrics, "dropped": dropped})
        self._at = request.target

    def published(self, request: StepRequest) -> StepResult | None:
        """What this very request gave earlier, when the caller did not live to take the result."""
        target = Path(request.target)
        manifest = read_manifest(target) if target.is_dir() else None
        if manifest is None or any(manifest[name] != value for name, value in self._identity(request).items()):
            return None
        dropped = manifest.get("dropped", {})
        return StepResult(adapter=request.target, metrics=manifest["metrics"], seconds=0.0, dropped=dropped)

    def _read(self, directory: Path, base: str) -> TrainerState:
        manifest = read_manifest(directory)
        if manifest is not None and manifest["base"] != base:
            raise BackendError(f"{directory} was trained on {manifest['base']!r}, its version says {base!r}")
        weights = self._policy.read(directory)
        if not (directory / STATE).exists():
            self._policy.put(weights)
            return _initial(self._policy)
        kept = torch.load(directory / STATE, map_location="cpu", weights_only=True)
        state = TrainerState(**read_sharded(directory, kept, self._policy))
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
    """The state of the random numbers that training on ``device`` uses."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def _plain(value: Any) -> Any:
    """As JSON will give it back: tuples are lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
