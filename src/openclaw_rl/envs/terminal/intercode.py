"""InterCode's bash tasks, from the package `intercode-bench`; none of it is copied here.

A task is solved when the folder is as the author's command leaves it, and the last command printed the same lines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.packages import package_folder
from openclaw_rl.envs.sandbox import Sandbox, SandboxSettings
from openclaw_rl.envs.terminal.checks import FinalState
from openclaw_rl.envs.terminal.env import TerminalEnv
from openclaw_rl.envs.terminal.published import STEPS, GoldRun, PublishedTasks
from openclaw_rl.envs.terminal.tasks import Scorer, TerminalTask
from openclaw_rl.errors import EnvFailed

DIGEST = (
    "cd /testbed && find . -mindepth 1 -printf '%y %p %l\\n' | sort"
    " && find . -type f -print0 | sort -z | xargs -0 -r md5sum; ls / | sort"
)
"""what is in the folder, and what lies beside it"""


def intercode_bash(
    *,
    sandbox: SandboxSettings,
    form: ActionForm,
    examples: int | None,
    rungs: Sequence[str],
    output_chars: int,
    step_votes: bool,
    folder: Path | None,
) -> TerminalEnv:
    """The environment. ``folder``: where the package was installed, if Python does not find it."""
    assets = package_folder("intercode", "intercode-bench", folder) / "assets"
    return TerminalEnv(
        name="intercode-bash",
        source=PublishedTasks("intercode-bash", read_tasks(assets, sandbox), rungs=rungs),
        sandbox=sandbox,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


def read_tasks(assets: Path, settings: SandboxSettings) -> dict[str, TerminalTask]:
    """The tasks, each on a machine that the package's script sets up."""
    setup = (assets / "docker" / "setup_fs.sh").read_text(encoding="utf-8")
    rows = json.loads((assets / "datasets" / "bash_queries.json").read_text(encoding="utf-8"))
    return {f"bash/{number}": _task(row["query"], row["gold"], setup, settings) for number, row in enumerate(rows)}


def _task(query: str, gold: str, setup: str, settings: SandboxSettings) -> TerminalTask:
    plain = TerminalTask(instruction=query, gold=(gold,), steps=STEPS, setup=(setup,), folder="/")
    return replace(plain, scorer=_scorer(plain, settings), by_output=True)


def _scorer(task: TerminalTask, settings: SandboxSettings) -> Scorer:
    async def scored(state: FinalState) -> float:
        gold = await GoldRun.of(settings, task)
        try:
            wanted = await _digest(gold.sandbox)
            if wanted is None:
                raise EnvFailed("the folder that the gold commands leave could not be read in time")
            return float(await _digest(state.sandbox) == wanted and _lines(gold.printed) == _lines(state.printed))
        finally:
            await gold.close()

    return scored


async def _digest(sandbox: Sandbox) -> str | None:
    """What the folder holds; None where it cannot be read in time."""
    done = await sandbox.run(["bash", "-c", DIGEST])
    return done.output if done.code is not None else None


def _lines(printed: str) -> list[str]:
    """In whatever order: a folder is listed in none."""
    return sorted(line.rstrip() for line in printed.strip().splitlines())
