"""What a pool of sandboxed environments costs: leases and steps a second, at 1 to 64 at once, and memory.

    python benchmarks/envs.py                     # 1, 8, 32 and 64 at once
    python benchmarks/envs.py --at-once 8 --http  # through a worker's HTTP, in this process

An episode leases an environment (a fresh sandbox), takes ``--steps`` steps, each one command that writes and reads a
file, and gives it back. ``shell`` keeps one shell at a terminal, ``fresh`` runs each command in processes of its own.
The named alternative is one process per command without any isolation (``bash -c``, in a folder of its own).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from openclaw_rl.envs.pool.leases import EnvPool, EventLog, LeasePool
from openclaw_rl.envs.pool.remote import PooledEnv, RemotePool
from openclaw_rl.envs.pool.server import pool_app
from openclaw_rl.envs.sandbox import Sandbox, SandboxLimits, SandboxSettings, Shell, open_sandbox
from openclaw_rl.ports import Env, Observation
from openclaw_rl.types import Message, Prompt

COMMAND = "echo hello > note; cat note"
LIMITS = SandboxLimits(seconds=120, cpu=60, memory=256 << 20, processes=64, disk=32 << 20, output=1 << 20)
SETTINGS = SandboxSettings(limits=LIMITS, driver="bubblewrap", root=None)
BEGIN = Prompt(messages=(Message(role="user", content="go"),))


class SandboxEnv:
    """Runs the reply as a command, in a shell or by itself."""

    name = "sandbox"

    def __init__(self, *, shell: bool) -> None:
        self._keeps_shell = shell
        self._room: Sandbox | None = None
        self._shell: Shell | None = None

    def tasks(self) -> Sequence[str]:
        return ("only",)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        self._room = await open_sandbox(SETTINGS)
        if self._keeps_shell:
            self._shell = await self._room.shell()
        return BEGIN

    async def step(self, reply: Message) -> Observation:
        assert self._room is not None
        if self._shell is not None:
            done = await self._shell.run(reply.content)
        else:
            done = await self._room.run(["bash", "-c", reply.content])
        return _observed(done.output)

    async def close(self) -> None:
        if self._room is not None:
            await self._room.close()


class BareEnv:
    """The alternative: a process of this machine for each command."""

    name = "bare"

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def tasks(self) -> Sequence[str]:
        return ("only",)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        self._folder = tempfile.TemporaryDirectory()
        return BEGIN

    async def step(self, reply: Message) -> Observation:
        assert self._folder is not None
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", reply.content, cwd=self._folder.name, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        return _observed(said.decode())

    async def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _observed(output: str) -> Observation:
    if output != "hello\n":
        raise RuntimeError(f"the command printed {output!r}")
    return Observation(messages=(Message(role="user", content=output),))


KINDS: dict[str, Callable[[], Env]] = {
    "shell": lambda: SandboxEnv(shell=True),
    "fresh": lambda: SandboxEnv(shell=False),
    "bare process": BareEnv,
}


@dataclass
class Measured:
    """The seconds of each part of each episode, and what failed."""

    begin: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def episodes(pool: LeasePool, count: int, steps: int, found: Measured) -> None:
    """One player: episode after episode."""
    for _ in range(count):
        env = PooledEnv(pool)
        try:
            found.begin.append(await _timed(env.reset("only", seed=0)))
            for _ in range(steps):
                found.step.append(await _timed(env.step(Message(role="assistant", content=COMMAND))))
        except Exception as error:  # it is what is looked for
            found.errors.append(f"{type(error).__name__}: {error}"[:200])
        finally:
            found.end.append(await _timed(env.close()))


async def _timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


@asynccontextmanager
async def opened(kind: str, at_once: int, *, http: bool) -> AsyncIterator[LeasePool]:
    pool = EnvPool(KINDS[kind], capacity=at_once, ttl=60.0, events=EventLog())
    try:
        if http:
            transport = httpx2.ASGITransport(app=pool_app(pool, key="k"))
            async with RemotePool(["http://worker"], key="k", transport=transport) as remote:
                yield remote
        else:
            yield pool
    finally:
        await pool.close()


async def measure(kind: str, at_once: int, *, leases: int, steps: int, http: bool) -> dict[str, Any]:
    found = Measured()
    each = max(1, leases // at_once)
    before = sum(os.times()[:4])
    began = time.perf_counter()
    async with opened(kind, at_once, http=http) as pool:
        await asyncio.gather(*(episodes(pool, each, steps, found) for _ in range(at_once)))
    seconds = time.perf_counter() - began
    return {
        "kind": kind,
        "at_once": at_once,
        "leases": len(found.end),
        "leases_per_second": len(found.end) / seconds,
        "steps_per_second": len(found.step) / seconds,
        "begin_ms": _median(found.begin),
        "step_ms": _median(found.step),
        "end_ms": _median(found.end),
        "cpu_ms_each": 1000 * (sum(os.times()[:4]) - before) / len(found.end),
        "errors": len(found.errors),
        "first_error": found.errors[0] if found.errors else None,
    }


async def memory(kind: str, count: int = 8) -> float:
    """Megabytes that one environment holds: its processes, shared pages divided among those that share them."""
    envs = [KINDS[kind]() for _ in range(count)]
    for env in envs:
        await env.reset("only", seed=0)
        await env.step(Message(role="assistant", content=COMMAND))
    held = sum(map(_proportional, _descendants(os.getpid())))
    for env in envs:
        await env.close()
    return held / count / 2**20


def _descendants(root: int) -> list[int]:
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(place.parent.name)] = int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended while we looked
            continue
    found = [root]
    for one in found:
        found += [pid for pid, parent in parents.items() if parent == one]
    return found[1:]


def _proportional(pid: int) -> int:
    try:
        lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def _median(values: Sequence[float]) -> float:
    return 1000 * statistics.median(values) if values else float("nan")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="1,8,32,64", help="episodes at once, several by commas [1,8,32,64]")
    parser.add_argument("--leases", type=int, default=64, help="episodes of each measurement [64]")
    parser.add_argument("--steps", type=int, default=10, help="commands of each episode [10]")
    parser.add_argument("--http", action="store_true", help="through the worker's HTTP instead of in the process")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args()
    rows = []
    print("kind          at once  leases/s  steps/s  begin ms  step ms  end ms  CPU ms each  errors")
    for kind in KINDS:
        for at_once in map(int, given.at_once.split(",")):
            row = await measure(kind, at_once, leases=max(given.leases, at_once), steps=given.steps, http=given.http)
            rows.append(row)
            times = " ".join(f"{row[name]:8.1f}" for name in ("begin_ms", "step_ms", "end_ms"))
            print(
                f"{kind:<13} {at_once:7d} {row['leases_per_second']:9.1f} {row['steps_per_second']:8.1f} {times}"
                f" {row['cpu_ms_each']:12.1f} {row['errors']:7d} {row['first_error'] or ''}",
                flush=True,
            )
    bare = {row["at_once"]: row for row in rows if row["kind"] == "bare process"}
    for kind in KINDS:
        print(f"memory of one environment, {kind}: {await memory(kind):.1f} MB")
    for kind in ("shell", "fresh"):
        ratios = [
            f"{row['steps_per_second'] / bare[row['at_once']]['steps_per_second']:.2f}"
            for row in rows
            if row["kind"] == kind
        ]
        print(f"steps a second, {kind} against a bare process: {', '.join(ratios)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
