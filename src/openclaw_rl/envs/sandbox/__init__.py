"""Isolation of untrusted programs from the machine.

programs     one Python program, with only the interpreter available to it
bubblewrap   a sandbox with its own files, for commands and shells; environments lease these
container    the same contract through Podman or Docker
"""

from __future__ import annotations

from openclaw_rl.envs.sandbox.contract import (
    HOME,
    CommandResult,
    Driver,
    Sandbox,
    SandboxLimits,
    SandboxSettings,
    Shell,
    Users,
)
from openclaw_rl.envs.sandbox.programs import Isolation, ProgramResult, isolation, run

__all__ = [
    "HOME",
    "CommandResult",
    "Driver",
    "Isolation",
    "ProgramResult",
    "Sandbox",
    "SandboxLimits",
    "SandboxSettings",
    "Shell",
    "Users",
    "isolation",
    "open_sandbox",
    "run",
]


async def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """Open a sandbox with the configured driver; raise NoSandbox, with the remedy, if the machine cannot provide it."""
    if settings.driver != "bubblewrap":
        from openclaw_rl.envs.sandbox.container import ContainerSandbox

        return await ContainerSandbox.open(settings)
    from openclaw_rl.envs.sandbox.bubblewrap import BubblewrapSandbox

    return await BubblewrapSandbox.open(settings)
