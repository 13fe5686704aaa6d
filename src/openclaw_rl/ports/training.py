"""The trainer, its losses, the gate before a version is served and the monitor after."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from openclaw_rl.ports.policy import Policy
from openclaw_rl.types import Sample, Version

if TYPE_CHECKING:
    import torch


Decision: TypeAlias = Literal["promote", "refuse", "hold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """The gate's decision on a candidate, measured against the version that was live.

    ``evidence`` is plain JSON: each check with its numbers, and examples. A held candidate is examined again later.
    """

    version: int
    against: int
    decision: Decision
    reason: str
    evidence: Mapping[str, Any]
    seconds: float = 0.0
    at: float = field(default_factory=time.time)


@runtime_checkable
class Gate(Protocol):
    """Decides if a candidate may be served in place of the live version."""

    async def decide(self, candidate: Version, live: Version) -> GateDecision: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A drop in served quality since ``version`` was promoted, with the version to go back ``to`` and the reason."""

    version: int
    to: int
    reason: str
    evidence: Mapping[str, Any]


class PlaysTasks(Protocol):
    """Plays tasks that never train, for the gate."""

    async def solved(self, policy: Policy, version: Version) -> Mapping[str, bool]:
        """Return True for each task that this version solves, else False; failures for other reasons are left out."""
        ...


class LiveMonitor(Protocol):
    """Tests if users' evidence got worse since a promotion; called from a thread."""

    def check(self) -> Regression | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A step's result. ``adapter`` is the finished directory, None if the step was ``skipped`` for a reason.

    ``dropped`` are turns in the batch that can never train, each with the reason: they have no effect on the weights.
    """

    adapter: str | None
    metrics: Mapping[str, float]
    seconds: float
    skipped: str | None = None
    dropped: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Trainer(Protocol):
    """Turns a batch into the next version's weights. Runs where it does not slow the policy down."""

    async def start(self) -> None:
        """Get ready; raise ModelRefused with the memory plan if the model cannot fit."""
        ...

    async def stop(self) -> None:
        """Release everything. Safe to call twice."""
        ...

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """Take one step from ``parent``'s weights and optimiser state; write the result into the directory ``target``.

        The directory appears complete or not at all. A repeated call with the same arguments gives the same weights.
        """
        ...


class Loss(Protocol):
    """Tensors in, a scalar and plain metrics out. The inputs are documented in `openclaw_rl.losses`.

    A loss with a second parameter ``config`` is called with a dict beside them: the loss settings, and the contents of
    the table ``train.loss.config``. `ComputeLoss` is the other contract.
    """

    def __call__(self, inputs: Any, /) -> tuple[torch.Tensor, Mapping[str, float]]: ...


class ComputeLoss(Protocol):
    """A loss by the published contract: four tensors with one shape [1, N] and a dict in, a scalar out.

    `openclaw_rl.losses.published` documents their contents.
    """

    def __call__(
        self,
        policy_logits: torch.Tensor,
        reference_logits: torch.Tensor,
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        config: dict[str, Any],
    ) -> torch.Tensor: ...
