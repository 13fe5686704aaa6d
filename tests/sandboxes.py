"""Sandboxes for tests of environments. Where this machine has none they are skipped with the reason, or must run."""

from __future__ import annotations

import asyncio
import os

import pytest

from openclaw_rl.envs.sandbox import SandboxLimits, SandboxSettings, isolation, open_sandbox
from openclaw_rl.errors import NoSandbox

LIMITS = SandboxLimits(seconds=20, cpu=20, memory=128 << 20, processes=32, disk=32 << 20, output=1 << 20)
"""of the tests that try to break out"""
SETTINGS = SandboxSettings(
    limits=SandboxLimits(seconds=20, cpu=20, memory=256 << 20, processes=64, disk=32 << 20, output=1 << 20),
    driver="bubblewrap",
    root=None,
)
"""of the tests of environments, whose programs need more room"""
REQUIRED = os.environ.get("OPENCLAW_RL_TEST_SANDBOX") == "required"
"""set where a skipped test would hide that nothing was tested"""


def _reason() -> str | None:
    """Why there is no sandbox here; None where there is one."""

    async def attempt() -> None:
        await (await open_sandbox(SETTINGS)).close()

    try:
        isolation()
        asyncio.run(attempt())
    except NoSandbox as error:
        return str(error)
    return None


_WHY = _reason()
needs_sandbox = pytest.mark.skipif(_WHY is not None and not REQUIRED, reason=_WHY or "")
