"""Does the browser leak, and do both drivers see the same? Scripted solutions on MiniWoB++'s pages, many at once.

    python benchmarks/gui.py                                  # 500 episodes, 16 contexts at once, one browser
    python benchmarks/gui.py --episodes 64 --at-once 4
    python benchmarks/gui.py --drivers 20                     # 20 pages by playwright and by selenium, told apart

The memory is that of the browser's processes (PSS), looked at after each tenth of the episodes, when no episode runs;
tabs that wait for another are among it, so that a tenth must be as many as run at once. What is left of processes is
counted at the end. The named alternative is the first tenth. Needs the extra gui and chromium, and chromedriver for
``--drivers``. Ends with 1 where memory grows by more than a quarter, a process is left, an episode is not solved, or
the drivers differ.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.envs.gui.browsers import IDLE_SECONDS
from openclaw_rl.envs.gui.chromium import BrowserDriver
from openclaw_rl.envs.gui.env import GuiEnv, gui
from openclaw_rl.envs.gui.solutions import SOLUTIONS

PAGES = tuple(page for page in SOLUTIONS if page.startswith(("click-", "enter-", "focus-", "login-")))
GROWTH = 1.25
TENTHS = 10


def make_env(driver: BrowserDriver, folder: Path | None) -> GuiEnv:
    """An environment without examples: a page is opened once an episode."""
    return gui(
        screenshot_backend=driver,
        form="text",
        examples=0,
        levels=(),
        per_level=1,
        output_chars=3000,
        pages=None,
        folder=folder,
        screenshots="off",
        screens=Path(tempfile.gettempdir()),
    )


async def played(env: GuiEnv, task: str) -> list[str]:
    """What an episode shows and pays, step by step, when its solution is played."""
    try:
        told = [(await env.reset(task, seed=0)).messages[-1].content]
        while (reply := await env.solution()) is not None:
            seen = await env.step(reply)
            told += [*(message.content for message in seen.messages), str(seen.reward)]
            if seen.done:
                break
        return told
    finally:
        await env.close()


def browser_processes() -> dict[int, float]:
    """The processes that this one has begun, and those that they have, with their memory in MiB."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while it was looked at
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    ours, found = {os.getpid()}, dict[int, float]()
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    for pid in ours - {os.getpid()}:
        with contextlib.suppress(OSError, StopIteration):
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            found[pid] = next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024
    return found


async def soak(episodes: int, at_once: int, folder: Path | None) -> list[str]:
    """Play them; the faults. A page is kept open beside them, so that one browser plays all."""
    keep = make_env("playwright", folder)
    await keep.reset(f"{PAGES[0]}/0", seed=0)
    room, faults, memory, began = asyncio.Semaphore(at_once), list[str](), list[float](), time.monotonic()

    async def one(number: int) -> None:
        async with room:
            task = f"{PAGES[number % len(PAGES)]}/{number // len(PAGES)}"
            told = await played(make_env("playwright", folder), task)
            if told[-1] != "1.0":
                faults.append(f"{task} paid {told[-1][:80]}")

    for tenth in range(TENTHS):
        numbers = range(tenth * episodes // TENTHS, (tenth + 1) * episodes // TENTHS)
        await asyncio.gather(*map(one, numbers))
        found = browser_processes()
        memory.append(sum(found.values()))
        seconds = time.monotonic() - began
        print(
            f"{numbers.stop:>5} episodes, {seconds:6.0f} s, {memory[-1]:6.0f} MiB, {len(found)} processes", flush=True
        )
    await keep.close()
    await asyncio.sleep(2 * IDLE_SECONDS)
    left = browser_processes()
    if memory[-1] > GROWTH * memory[0]:
        faults.append(f"memory grew from {memory[0]:.0f} to {memory[-1]:.0f} MiB")
    return faults + ([f"{len(left)} processes are left"] if left else [])


async def compare(pages: int, folder: Path | None) -> list[str]:
    """The pages on which the drivers show or pay something else."""
    faults = []
    for page in PAGES[:pages]:
        told = [await played(make_env(driver, folder), f"{page}/1") for driver in ("playwright", "selenium")]
        same = told[0] == told[1]
        print(f"{page:<32} {'the same' if same else 'NOT THE SAME'}, {len(told[0]) // 2} steps, paid {told[0][-1]}")
        faults += [] if same else [f"{page}: the drivers differ"]
    return faults


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--drivers", type=int, metavar="PAGES", help="compare the drivers on so many pages instead")
    parser.add_argument("--folder", type=Path, help="where miniwob was installed, if Python does not find it")
    given = parser.parse_args(words)
    if given.drivers:
        faults = asyncio.run(compare(given.drivers, given.folder))
    else:
        faults = asyncio.run(soak(given.episodes, given.at_once, given.folder))
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
