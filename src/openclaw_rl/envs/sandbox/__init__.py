"""Runs what nobody has read, apart from the machine.

programs     one Python program, with nothing but the interpreter around it
bubblewrap   a room with files of its own, for commands and shells: what environments lease
container    the same contract through Podman or Docker, for who prefers them
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
    """A new sandbox of the driver that is wanted. Raises NoSandbox, with the remedy, where it cannot be had."""
    if settings.driver != "bubblewrap":
        from openclaw_rl.envs.sandbox.container import ContainerSandbox

        return await ContainerSandbox.open(settings)
    from openclaw_rl.envs.sandbox.bubblewrap import BubblewrapSandbox

    return await BubblewrapSandbox.open(settings)
