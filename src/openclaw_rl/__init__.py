"""OpenClaw-RL trains an agent simply by using it. The public names, nothing else."""

from openclaw_rl.types import (
    Completion,
    Feedback,
    Hint,
    Message,
    Outcome,
    Prompt,
    Sample,
    Sampling,
    Step,
    Tool,
    ToolCall,
    Turn,
    Verdict,
    Version,
)

__all__ = [
    "Completion",
    "Feedback",
    "Hint",
    "Message",
    "Outcome",
    "Prompt",
    "Sample",
    "Sampling",
    "Step",
    "Tool",
    "ToolCall",
    "Turn",
    "Verdict",
    "Version",
]
