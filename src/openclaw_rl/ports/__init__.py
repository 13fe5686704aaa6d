"""The ports: the interfaces through which a loop calls a policy, a trainer, a judge, an environment.

`plugins` loads seven kinds: Policy, Trainer, Judge, Env, Rollout, Generate, Loss.
A ``Loop`` is run by `app`. Loops receive these ports and never import the implementations.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from openclaw_rl.ports.judging import (
    Case,
    Classifier,
    ClassifierOpinion,
    ConversationReader,
    HostedModel,
    Judge,
    LabelledText,
    Placement,
    RatesWords,
    RewardModel,
    Score,
)
from openclaw_rl.ports.playing import (
    AGENT_HOME,
    AgentCommand,
    ChatClient,
    Env,
    Observation,
    Rollout,
    SupportsExclusions,
    SupportsOutcome,
    SupportsSolution,
    SupportsTaskSets,
    TurnReply,
)
from openclaw_rl.ports.policy import (
    Ability,
    Alternative,
    Delta,
    EngineFinding,
    Generate,
    Piece,
    Policy,
    ReportsHealth,
    ReportsOutage,
    ReportsRunner,
    Scores,
    Stream,
    SupportsCandidates,
    SupportsConstraints,
    SupportsExamination,
    SupportsScopes,
    SupportsSleep,
    SupportsVersions,
    whole_reply,
)
from openclaw_rl.ports.training import (
    ComputeLoss,
    Decision,
    Gate,
    GateDecision,
    LiveMonitor,
    Loss,
    PlaysTasks,
    Regression,
    StepResult,
    Trainer,
)

__all__ = [
    "AGENT_HOME",
    "Ability",
    "AgentCommand",
    "Alternative",
    "Case",
    "ChatClient",
    "Classifier",
    "ClassifierOpinion",
    "ComputeLoss",
    "ConversationReader",
    "Decision",
    "Delta",
    "EngineFinding",
    "Env",
    "Gate",
    "GateDecision",
    "Generate",
    "HostedModel",
    "Judge",
    "LabelledText",
    "LiveMonitor",
    "Loop",
    "Loss",
    "Observation",
    "Piece",
    "Placement",
    "PlaysTasks",
    "Policy",
    "RatesWords",
    "Regression",
    "ReportsHealth",
    "ReportsOutage",
    "ReportsRunner",
    "RewardModel",
    "Rollout",
    "Score",
    "Scores",
    "StepResult",
    "Stream",
    "SupportsCandidates",
    "SupportsConstraints",
    "SupportsExamination",
    "SupportsExclusions",
    "SupportsOutcome",
    "SupportsScopes",
    "SupportsSleep",
    "SupportsSolution",
    "SupportsTaskSets",
    "SupportsVersions",
    "Trainer",
    "TurnReply",
    "whole_reply",
]


@runtime_checkable
class Loop(Protocol):
    """A bounded amount of work per ``tick``, which returns the number of processed items, 0 when idle."""

    name: str

    async def tick(self) -> int: ...
