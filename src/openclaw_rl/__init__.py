"""OpenClaw-RL trains an agent simply by using it. This module contains the public names only.

Each name is imported on first use, so a command that prints its help imports none of them.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
"""the release, declared here alone: the package, `--version` and the release script read it"""

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiReply
    from openclaw_rl.run import NoteCurve, Run, up
    from openclaw_rl.types import (
        Completion,
        Feedback,
        Hint,
        Message,
        Note,
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
    "ApiReply",
    "Completion",
    "Feedback",
    "Hint",
    "Message",
    "Note",
    "NoteCurve",
    "Outcome",
    "Prompt",
    "Run",
    "Sample",
    "Sampling",
    "Step",
    "Tool",
    "ToolCall",
    "Turn",
    "Verdict",
    "Version",
    "up",
]

_OF_A_RUN = ("ApiReply", "NoteCurve", "Run", "up")


def __getattr__(name: str) -> object:
    """Return a public name, imported from `openclaw_rl.run` or `openclaw_rl.types`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OF_A_RUN:
        from openclaw_rl import run

        return getattr(run, name)
    from openclaw_rl import types

    return getattr(types, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
