"""Whether this machine can keep programs apart: tests that need it are skipped with the reason, or must run."""

from __future__ import annotations

import asyncio
import os

import pytest

from openclaw_rl.envs import sandbox
from openclaw_rl.envs.sandbox import SandboxLimits, SandboxSettings, open_sandbox
from openclaw_rl.errors import NoSandbox

LIMITS = SandboxLimits(seconds=20, cpu=20, memory=128 << 20, processes=32, disk=32 << 20, output=1 << 20)
REQUIRED = os.environ.get("OPENCLAW_RL_TEST_SANDBOX") == "required"
"""set where a skipped test would hide that nothing was tested"""


def _reason() -> str | None:
    async def attempt() -> None:
        settings = SandboxSettings(limits=LIMITS, driver="bubblewrap", root=None)
        await (await open_sandbox(settings)).close()

    try:
        sandbox.isolation()
        asyncio.run(attempt())
    except NoSandbox as error:
        return str(error)
    return None


_WHY = _reason()
needs_sandbox = pytest.mark.skipif(_WHY is not None and not REQUIRED, reason=_WHY or "")
