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
    """What the gate decided on a candidate, measured against the version that was live.

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
    """Decides whether a candidate may be served in place of the live version."""

    async def decide(self, candidate: Version, live: Version) -> GateDecision: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Served replies got worse since ``version`` was promoted: go back ``to`` the version before it, and why."""

    version: int
    to: int
    reason: str
    evidence: Mapping[str, Any]


class PlaysTasks(Protocol):
    """Plays tasks that never train, for the gate."""

    async def solved(self, policy: Policy, version: Version) -> Mapping[str, bool]:
        """Which of them this version solves, by task; those that failed for other reasons are left out."""
        ...


class LiveMonitor(Protocol):
    """Tests whether users' evidence got worse since a promotion; called from a thread."""

    def check(self) -> Regression | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step gave. ``adapter`` is the finished directory, None when the step was ``skipped`` for a reason.

    ``dropped`` are turns of the batch that can never train, each with the reason: nothing of them is in the weights.
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
        """Make ready; raises ModelRefused with the memory plan when it cannot fit."""
        ...

    async def stop(self) -> None:
        """Give everything back. Safe to call twice."""
        ...

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """One step from ``parent``'s weights and optimiser state into the directory ``target``.

        The directory appears whole or not at all. Called again with the same arguments it gives the same weights.
        """
        ...


class Loss(Protocol):
    """Tensors in, a scalar and plain metrics out. The inputs are documented in `openclaw_rl.losses`.

    One that names a second argument ``config`` is called with a dict beside them: the settings of the loss, and
    whatever the table ``train.loss.config`` holds. `ComputeLoss` is the other contract.
    """

    def __call__(self, inputs: Any, /) -> tuple[torch.Tensor, Mapping[str, float]]: ...


class ComputeLoss(Protocol):
    """A loss by the published contract: four tensors of one shape [1, N] and a dict in, a scalar out.

    `openclaw_rl.losses.published` says what each holds.
    """

    def __call__(
        self,
        policy_logits: torch.Tensor,
        reference_logits: torch.Tensor,
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        config: dict[str, Any],
    ) -> torch.Tensor: ...
