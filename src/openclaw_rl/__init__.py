"""OpenClaw-RL trains an agent simply by using it. The public names, nothing else.

They are imported when they are first used: a command that shows its help needs none of them.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
"""the release, declared here alone: the package, `--version` and the release script read it"""

if TYPE_CHECKING:
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


def __getattr__(name: str) -> object:
    """A public name, from `openclaw_rl.types`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from openclaw_rl import types

    return getattr(types, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
