"""Sandboxes for tests of environments, and why there may be none here."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest

from openclaw_rl.envs.sandbox import SandboxLimits, SandboxSettings, open_sandbox
from openclaw_rl.errors import NoSandbox

SETTINGS = SandboxSettings(
    limits=SandboxLimits(seconds=20, cpu=20, memory=256 << 20, processes=64, disk=32 << 20, output=1 << 20),
    driver="bubblewrap",
    root=None,
)


@cache
def no_sandbox() -> str:
    """Why there is none; "" where there is one."""

    async def attempt() -> None:
        await (await open_sandbox(SETTINGS)).close()

    try:
        asyncio.run(attempt())
    except NoSandbox as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.skipif(bool(no_sandbox()), reason=no_sandbox() or "there is a sandbox")
