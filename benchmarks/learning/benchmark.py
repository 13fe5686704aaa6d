"""The personal-agent benchmark: how many sessions until a user's preference is met, for every method, on any config.

Each cell (an arm, its users, a seed) is a run of its own (`cell_run`). Finished cells are kept in the JSON file, and a
second start goes on with those that are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.learning.cell_run import BenchmarkSetup, run_cell
from benchmarks.learning.cells import Cell, summary
from openclaw_rl.errors import BackendError, ConfigError
from openclaw_rl.experiments import results
from openclaw_rl.machine import end_with_parent

Done = Callable[[Cell, Mapping[str, Any]], None]


async def run(
    setup: BenchmarkSetup, wanted: Sequence[Cell], file: Path | None, *, done: Done, jobs: int
) -> dict[str, Any]:
    """Run the cells that ``file`` does not hold yet, ``jobs`` at once; all results, written to it after every cell.

    A cell that fails leaves the others alone; that it did is raised when they are done.
    """
    report = results.read(file, _start(setup))
    found: dict[str, Any] = report["cells"]
    for cell in wanted:
        if cell.key in found:
            done(cell, found[cell.key])
    missing = [cell for cell in wanted if cell.key not in found]
    order = [*found, *(cell.key for cell in missing)]
    failed: list[tuple[Cell, Exception]] = []
    async for cell, result in _results(setup, missing, jobs):
        if isinstance(result, Exception):
            failed.append((cell, result))
            continue
        found[cell.key] = result
        report["cells"] = {key: found[key] for key in order if key in found}
        report["summary"] = summary(report["cells"], sessions=setup.sessions)
        if file is not None:
            await asyncio.to_thread(results.write, file, report)
        done(cell, result)
    if failed:
        cell, error = failed[0]
        again = "the others are in the file: start again with the same --json" if file else "start again with --json"
        told = f"{len(failed)} of {len(missing)} cells failed; {cell.key}: {error}"
        raise BackendError(told, remedy=f"its cause is above; {again}") from error
    return report


def _start(setup: BenchmarkSetup) -> dict[str, Any]:
    """What a file of results begins with: all that its cells have in common."""
    common: dict[str, Any] = {"sessions": setup.sessions, "probes": setup.probes, "rounds": setup.rounds}
    if setup.voice is not None:
        common["voice"] = setup.voice.name
    if setup.turns_train:
        common["turns_train"] = True
    settings = setup.config.model_dump(mode="json", include={"policy", "judge", "train", "gate", "monitor"})
    settings["train"].pop("method")
    return {
        "command": "bench personal",
        "code": results.code_digest(results.PACKAGE, Path(__file__).parent),
        "setup": {**common, "to_the_end": setup.to_the_end},
        "settings": settings,
    }


async def _results(
    setup: BenchmarkSetup, cells: Sequence[Cell], jobs: int
) -> AsyncIterator[tuple[Cell, dict[str, Any] | Exception]]:
    """The cells with their results, as they come; with several ``jobs`` each cell has a process of its own."""
    if jobs == 1:
        for cell in cells:
            yield await _result(cell, run_cell(setup, cell))
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        running = [(cell, asyncio.wrap_future(pool.submit(_run_cell_here, setup, cell))) for cell in cells]
        try:
            for coming in asyncio.as_completed([_result(cell, future) for cell, future in running]):
                yield await coming
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


async def _result(cell: Cell, result: Awaitable[dict[str, Any]]) -> tuple[Cell, dict[str, Any] | Exception]:
    """What came of a cell; wrong settings are wrong for all of them, and raised."""
    try:
        return cell, await result
    except ConfigError:
        raise
    except Exception as error:
        return cell, error


def _run_cell_here(setup: BenchmarkSetup, cell: Cell) -> dict[str, Any]:
    return asyncio.run(run_cell(setup, cell))
