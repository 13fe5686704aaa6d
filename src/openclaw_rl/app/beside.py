"""A process beside this one: it gets its settings through stdin, says one line, and ends when this one does."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from typing import Any

_GRACE = 30.0
"""seconds that a process has to end by itself"""
_NICE = 5
"""how far it stands back from what serves"""


async def begin(function: str, *given: Any) -> tuple[asyncio.subprocess.Process, dict[str, str | None]]:
    """Run ``module:function`` in a process of its own, which takes ``given`` with `taken`; it, and what it said first.

    What cannot begin says ``{"error": …, "remedy": …}``.
    """
    module, _, name = function.partition(":")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; from {module} import {name}; {name}()"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    packed = pickle.dumps(given)
    process.stdin.write(len(packed).to_bytes(8, "big") + packed)
    said = json.loads(await process.stdout.readline() or b'{"error": "it ended before it began"}')
    if "error" in said:
        await process.wait()
    return process, said


async def end(process: asyncio.subprocess.Process | None) -> None:
    """Let it end, and see to it. Safe to call twice."""
    if process is None or process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()  # its sign to end
    try:
        await asyncio.wait_for(process.wait(), _GRACE)
    except TimeoutError:
        process.kill()
        await process.wait()


def taken() -> Any:
    """What the process beside gave to this one; from now on this one stands back, and Ctrl-C is not its affair."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    given = pickle.loads(sys.stdin.buffer.read(size))
    os.setsid()
    os.nice(_NICE)
    return given


def say(**found: str | None) -> None:
    """The one line that this process says."""
    print(json.dumps(found), flush=True)


def parent_ended() -> asyncio.Event:
    """Set when the process that began this one closes our stdin, or is no more."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    return ended
