"""Does the embedded model learn to act? Held-out success in an environment before and after training on its outcomes.

    python benchmarks/envs_learn.py                                  # terminal and toolcall, seeds 0 1 2, this machine
    python benchmarks/envs_learn.py --env terminal --seeds 0 --steps 12 --minutes 15
    python benchmarks/envs_learn.py --device cuda --steps 40 --json learned.json

Each run is the product itself: `openclaw-rl up --preset cpu-env --env NAME` in this process (server, judge, trainer,
gate, a pool of sandboxes) until so many steps are taken or so many minutes are over. Before and after it the live
version plays tasks that never train, ``--count`` of each rung, greedily and sampled. The named alternative is the same
prompt, untrained. ``--set train.credit=outcome`` and the like change what is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.app.application import App, ledger_place
from openclaw_rl.app.environments import build_env
from openclaw_rl.config import Config, load
from openclaw_rl.evals import environments, models
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Sampling

ENVS = ("terminal", "toolcall")
LOOK_SECONDS = 1.0
Rates = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one run does."""

    env: str
    seed: int
    steps: int
    minutes: float
    count: int
    temperatures: Sequence[float]
    parallel: int


@dataclass(kw_only=True)
class Learned:
    """What one run gave: success by rung at each temperature before and after, and each step's figures."""

    env: str
    seed: int
    before: dict[str, Rates]
    after: dict[str, Rates] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)
    minutes: float = 0.0
    episodes: int = 0
    refused: int = 0


def settings(plan: Plan, folder: Path, device: str, sets: Sequence[str]) -> Config:
    """The preset on this device, in a run directory of its own."""
    own = [f"run.seed={plan.seed}", f"policy.device={device}", f"train.local.device={device}", "serve.port=0"]
    flags = {"--env": plan.env, "--run-dir": str(folder)}
    return load(preset="cpu-env", sets=[*own, *sets], flags=flags, environ={}).config


async def evaluated(config: Config, name: str, plan: Plan) -> dict[str, Rates]:
    """Success by rung on held-out tasks, at each temperature."""
    tasks = environments.chosen_tasks(build_env(config), split="held-out", count=plan.count)
    found: dict[str, Rates] = {}
    async with models.open_model(config, name) as model:
        for temperature in plan.temperatures:
            played = await environments.play_tasks(
                model,
                lambda: build_env(config),
                tasks,
                seeds=(1000 + plan.seed,),
                sampling=Sampling(temperature=temperature, max_tokens=config.policy.sampling.max_tokens or 48),
                max_steps=config.env.max_steps,
                parallel=plan.parallel,
                done=lambda _: None,
            )
            found[f"{temperature:g}"] = environments.by_rung(played)
    return found


async def train(config: Config, plan: Plan) -> float:
    """The whole system until the steps are taken or the time is over; minutes it took."""
    app, stop, began = App(config), asyncio.Event(), time.monotonic()
    running = asyncio.create_task(app.run(stop))
    with LedgerReader(ledger_place(config)) as ledger:
        while not running.done():
            minutes = (time.monotonic() - began) / 60
            if ledger.counts()["steps"] >= plan.steps or minutes >= plan.minutes or ledger.paused():
                break
            await asyncio.sleep(LOOK_SECONDS)
    stop.set()
    await running
    return (time.monotonic() - began) / 60


def figures(config: Config, learned: Learned) -> None:
    """What the ledger holds of the run."""
    with LedgerReader(ledger_place(config)) as ledger:
        for number in range(1, ledger.counts()["steps"] + 1):
            step = ledger.step(number)
            learned.steps.append({"seconds": round(step.seconds, 1), "turns": len(step.turns), **step.metrics})
        learned.episodes = int(ledger.one("SELECT count(DISTINCT session) AS n FROM session_rewards")["n"])
        learned.refused = sum(version.state == "refused" for version in ledger.versions())


async def learn(plan: Plan, device: str, sets: Sequence[str]) -> Learned:
    """One run from its base rate to its last version."""
    with tempfile.TemporaryDirectory(prefix="envs-learn-") as folder:
        config = settings(plan, Path(folder) / "run", device, sets)
        base = await evaluated(config, "embedded", plan)
        learned = Learned(env=plan.env, seed=plan.seed, before=base)
        show(learned, "before", base)
        learned.minutes = round(await train(config, plan), 1)
        figures(config, learned)
        learned.after = await evaluated(config, "live", plan)
        show(learned, "after", learned.after)
        return learned


def show(learned: Learned, when: str, found: Mapping[str, Rates]) -> None:
    """Success in all, and how far the run got."""
    rates = ", ".join(f"{share(one['all']):.0%} at temperature {name}" for name, one in found.items())
    took = f" after {len(learned.steps)} steps, {learned.episodes} episodes, {learned.minutes} min" * (when == "after")
    print(f"{learned.env} seed {learned.seed} {when}: {rates}{took}", flush=True)


def share(one: Mapping[str, Any]) -> float:
    """Of the episodes that count."""
    return float(one["solved"]) / max(int(one["of"]), 1)


def table(runs: Sequence[Learned], temperature: str) -> list[str]:
    """By rung: success before and after over all seeds, with intervals."""
    lines = [f"| {runs[0].env}, temperature {temperature} | before | after |", "|---|---|---|"]
    for rung in runs[0].before[temperature]:
        cells = [_pooled([getattr(run, when)[temperature][rung] for run in runs]) for when in ("before", "after")]
        lines.append(f"| {rung} | {cells[0]} | {cells[1]} |")
    return lines


def _pooled(found: Sequence[Mapping[str, Any]]) -> str:
    from openclaw_rl.stats import wilson

    solved, of = (sum(int(one[key]) for one in found) for key in ("solved", "of"))
    low, high = wilson(solved, of)
    return f"{solved / max(of, 1):.0%} ({low:.0%} to {high:.0%})"


def report(runs: Sequence[Learned]) -> None:
    """The tables, the ratio against the untrained model, and the seeds' spread."""
    for env in dict.fromkeys(run.env for run in runs):
        mine = [run for run in runs if run.env == env]
        for temperature in mine[0].before:
            print("\n" + "\n".join(table(mine, temperature)))
            before = [share(run.before[temperature]["all"]) for run in mine]
            after = [share(run.after[temperature]["all"]) for run in mine]
            ratio = statistics.fmean(after) / max(statistics.fmean(before), 1e-9)
            seeds = ", ".join(f"{a:.0%} -> {b:.0%}" for a, b in zip(before, after, strict=True))
            print(f"\n{env}, temperature {temperature}: {ratio:.1f} times the untrained model ({seeds})")


async def main() -> None:
    """Every environment and seed, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=15, help="optimiser steps of a run")
    parser.add_argument("--minutes", type=float, default=15.0, help="longest a run may take")
    parser.add_argument("--count", type=int, default=8, help="held-out tasks of each rung")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--parallel", type=int, default=16, help="episodes of an evaluation at once")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--verbose", action="store_true", help="show the log of the run")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO if given.verbose else logging.WARNING)
    runs: list[Learned] = []
    for env in given.env:
        for seed in given.seeds:
            names = ("steps", "minutes", "count", "temperatures", "parallel")
            plan = Plan(env=env, seed=seed, **{name: getattr(given, name) for name in names})
            runs.append(await learn(plan, given.device, given.sets))
            if given.json:
                given.json.write_text(json.dumps([vars(run) for run in runs], indent=1) + "\n")
    report(runs)


if __name__ == "__main__":
    asyncio.run(main())
