"""Inspect's sandboxes by bubblewrap: no Docker, no image; this machine's programs, and no network.

    inspect eval TASK --sandbox bubblewrap

``OPENCLAW_SANDBOX_ROOT`` names a folder with a system of its own in place of this machine's programs.
"""

from __future__ import annotations

import os
import posixpath
import secrets
from typing import Any

from inspect_ai.util import ExecResult, SandboxEnvironment, sandboxenv
from openclaw_rl.envs.sandbox import HOME, Sandbox, SandboxLimits, SandboxSettings, open_sandbox

LIMITS = SandboxLimits(seconds=600, cpu=600, memory=1 << 30, processes=256, disk=256 << 20, output=8 << 20)
LARGEST = 100 << 20
"""bytes of a file that Inspect may read"""
_APART = 'exec "$@" 2> "$0"'


@sandboxenv(name="bubblewrap")
class BubblewrapEnvironment(SandboxEnvironment):
    """One sandbox for each sample; users other than root are root here."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self._sandbox = sandbox

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        settings = SandboxSettings(
            limits=LIMITS, driver="bubblewrap", root=os.environ.get("OPENCLAW_SANDBOX_ROOT") or None
        )
        return {"default": cls(await open_sandbox(settings))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for one in environments.values():
            await one.as_type(BubblewrapEnvironment)._sandbox.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        errors = f"/tmp/.errors-{secrets.token_hex(6)}"
        given = input.encode() if isinstance(input, str) else input or b""
        folder = posixpath.join(HOME, cwd or "")
        done = await self._sandbox.run(
            ["bash", "-c", _APART, errors, *cmd], seconds=timeout, stdin=given, cwd=folder, env=env
        )
        said = await self._taken(errors)
        if done.code is None and "time" in done.stopped:
            raise TimeoutError(done.stopped)
        code = 1 if done.code is None else done.code
        return ExecResult(success=code == 0, returncode=code, stdout=done.output, stderr=said or done.stopped)

    async def _taken(self, path: str) -> str:
        try:
            found = await self._sandbox.read(path, most=LARGEST)
        except OSError:
            return ""
        await self._sandbox.run(["rm", "-f", path])
        return found.decode(errors="replace")

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        await self._sandbox.write(posixpath.join(HOME, file), data)

    async def read_file(self, file: str, text: bool = True) -> Any:
        found = await self._sandbox.read(posixpath.join(HOME, file), most=LARGEST)
        return found.decode() if text else found
