"""Does the embedded model learn to act? Held-out success in an environment before and after training on its outcomes.

    python benchmarks/envs_learn.py                                  # terminal and toolcall, seeds 0 1 2, this machine
    python benchmarks/envs_learn.py --env terminal --seeds 0 --steps 12 --minutes 15
    python benchmarks/envs_learn.py --device cuda --jobs 12 --lr 1e-4 3e-4 1e-3 --reward outcome votes --out learned

Each run is the product itself: `openclaw-rl up --preset cpu-env --env NAME` in a process of its own (server, judge,
trainer, gate, a pool of sandboxes) until so many steps are taken or so many minutes are over. Before and after it the
live version plays tasks that never train, ``--count`` of each level, none of which the gate plays. The named
alternative is the same prompt, untrained. ``--reward votes``: beside the outcome each step gets a vote
(`env.step_votes`). Several values of --lr, --group and --reward are a sweep; each run writes OUT/NAME.json as soon as
it has a figure, and ``--report`` shows what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from openclaw_rl.app.application import App, ledger_place
from openclaw_rl.app.environments import GROUPS, HeldOutTasks, build_env
from openclaw_rl.config import Config, load
from openclaw_rl.envs.schedule import GroupBook, success_line
from openclaw_rl.errors import NotInLedger
from openclaw_rl.evals import models, suites
from openclaw_rl.stats import wilson
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Sampling

ENVS = ("terminal", "toolcall")
PRESETS = {"gui": "cpu-env,cpu-gui"}
"""of environments that are no curriculum by themselves; of the others it is cpu-env"""
REWARDS = ("outcome", "votes")
LOOK_SECONDS = 1.0
Rates = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one run does. ``lr`` and ``group`` None: as the preset says."""

    env: str
    seed: int
    reward: str
    lr: float | None
    group: int | None
    steps: int
    minutes: float
    count: int
    skip: int
    temperatures: Sequence[float]
    parallel: int
    device: str
    sets: Sequence[str]

    @property
    def setting(self) -> str:
        """What is the same for every seed, as a name."""
        lr = "" if self.lr is None else f"-lr{self.lr:g}"
        group = "" if self.group is None else f"-group{self.group}"
        return f"{self.env}-{self.reward}{lr}{group}"

    @property
    def name(self) -> str:
        return f"{self.setting}-seed{self.seed}"


@dataclass(kw_only=True)
class Learned:
    """What one run gave: success by level at each temperature before and after, and each step's figures."""

    plan: Mapping[str, Any]
    setting: str
    before: dict[str, Rates] = field(default_factory=dict)
    after: dict[str, Rates] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)
    minutes: float = 0.0
    gate_seconds: float = 0.0
    episodes: int = 0
    refused: int = 0
    live: int = 0


def settings(plan: Plan, folder: Path) -> Config:
    """The preset on this device, in a run directory of its own."""
    own = [f"run.seed={plan.seed}", f"policy.device={plan.device}", f"train.local.device={plan.device}", "serve.port=0"]
    own += ["policy.cache_tokens=16384"] * plan.device.startswith("cuda")
    own += [f"env.step_votes={str(plan.reward == 'votes').lower()}"]
    own += [] if plan.lr is None else [f"train.optim.lr={plan.lr}"]
    own += [] if plan.group is None else [f"train.num_rollouts_per_prompt={plan.group}"]
    flags = {"--env": plan.env, "--run-dir": str(folder)}
    return load(preset=PRESETS.get(plan.env, "cpu-env"), sets=[*own, *plan.sets], flags=flags, environ={}).config


def measured_tasks(config: Config, count: int, skip: int) -> list[tuple[str, str]]:
    """``count`` held-out tasks of each level after the first ``skip``, none that the gate chooses versions by."""
    gate = set(HeldOutTasks(config).tasks) if config.gate.tasks else set()
    by_level: dict[str, list[str]] = {}
    for task, level in suites.chosen_tasks(build_env(config), split="held-out", count=None):
        if (task, level) not in gate:
            by_level.setdefault(level, []).append(task)
    return [(task, level) for level, tasks in by_level.items() for task in tasks[skip : skip + count]]


async def evaluated(config: Config, name: str, plan: Plan) -> dict[str, Rates]:
    """Success by level on held-out tasks, at each temperature."""
    tasks = measured_tasks(config, plan.count, plan.skip)
    found: dict[str, Rates] = {}
    async with models.open_model(config, name) as model:
        for temperature in plan.temperatures:
            played = await suites.play_tasks(
                model,
                lambda: build_env(config),
                tasks,
                seeds=(1000 + plan.seed,),
                sampling=Sampling(temperature=temperature, max_tokens=config.policy.sampling.max_tokens or 48),
                max_steps=config.env.max_steps,
                parallel=plan.parallel,
                done=lambda _: None,
            )
            found[f"{temperature:g}"] = suites.by_level(played)
    return found


async def train(config: Config, plan: Plan) -> float:
    """The whole system until the steps are taken or the time is over; minutes it took."""
    app, stop, began, told = App(config), asyncio.Event(), time.monotonic(), 0
    running = asyncio.create_task(app.run(stop))
    with LedgerReader(ledger_place(config)) as ledger:
        while not running.done():
            minutes, steps = (time.monotonic() - began) / 60, ledger.counts()["steps"]
            if steps > told:
                told = steps
                say(plan, f"step {steps} after {minutes:.1f} min: {success_line(GroupBook(_groups(config)).success())}")
            if steps >= plan.steps or minutes >= plan.minutes or ledger.paused():
                break
            await asyncio.sleep(LOOK_SECONDS)
    stop.set()
    await running
    return (time.monotonic() - began) / 60


def _groups(config: Config) -> Path:
    return config.run.dir / GROUPS


def figures(config: Config, learned: Learned) -> None:
    """What the ledger holds of the run."""
    with LedgerReader(ledger_place(config)) as ledger:
        for number in range(1, ledger.counts()["steps"] + 1):
            step = ledger.step(number)
            learned.steps.append({"seconds": round(step.seconds, 1), "turns": len(step.turns), **step.metrics})
        learned.episodes = int(ledger.one("SELECT count(DISTINCT session) AS n FROM session_rewards")["n"])
        learned.gate_seconds = round(ledger.one("SELECT sum(seconds) AS s FROM gate_decisions")["s"] or 0.0, 1)
        versions = ledger.versions()
        learned.refused = sum(version.state == "refused" for version in versions)
        learned.live = sum(version.state == "live" for version in versions)


async def learn(plan: Plan, out: Path) -> None:
    """One run from its base rate to its last version; what is known is kept as soon as it is."""
    learned = Learned(plan=asdict(plan), setting=plan.setting)
    with tempfile.TemporaryDirectory(prefix="envs-learn-") as folder:
        config = settings(plan, Path(folder) / "run")
        learned.before = await evaluated(config, "embedded", plan)
        keep(plan, learned, out)
        say(plan, f"before: {in_all(learned.before)}")
        learned.minutes = round(await train(config, plan), 1)
        figures(config, learned)
        keep(plan, learned, out)
        with contextlib.suppress(NotInLedger):  # no step was taken: there is nothing to measure
            learned.after = await evaluated(config, "live", plan)
        keep(plan, learned, out)
        training = sum(step["seconds"] for step in learned.steps)
        spent = f"{training:.0f} s of training, {learned.gate_seconds:.0f} s of the gate"
        took = f"{len(learned.steps)} steps ({spent}), {learned.refused} refused, {learned.episodes} episodes"
        say(plan, f"after {took}, {learned.minutes} min: {in_all(learned.after)}")


def keep(plan: Plan, learned: Learned, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{plan.name}.json").write_text(json.dumps(asdict(learned), indent=1) + "\n")


def say(plan: Plan, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {plan.name} {text}", flush=True)


def in_all(found: Mapping[str, Rates]) -> str:
    """Success in all, at each temperature."""
    return ", ".join(f"{share(one['all']):.0%} at temperature {name}" for name, one in found.items()) or "nothing"


def share(one: Mapping[str, Any]) -> float:
    """Of the episodes that count."""
    return float(one["solved"]) / max(int(one["of"]), 1)


# --- several runs ---


async def run_all(plans: Sequence[Plan], out: Path, jobs: int, cores: int | None) -> None:
    """Each run in a process of its own, ``jobs`` at once; one that fails leaves the others alone."""
    free: asyncio.Queue[set[int]] = asyncio.Queue()
    for places in places_of(sorted(os.sched_getaffinity(0)), jobs, cores):
        free.put_nowait(places)

    async def one(plan: Plan) -> None:
        place = await free.get()
        try:
            words = [sys.executable, __file__, "--one", json.dumps(asdict(plan)), "--out", str(out)]
            if code := await ended(words, place):
                say(plan, f"failed with exit code {code}")
        finally:
            free.put_nowait(place)

    await asyncio.gather(*(one(plan) for plan in plans))


def places_of(all_cores: Sequence[int], jobs: int, cores: int | None) -> list[set[int]]:
    """The processor cores of each run at once: ``cores`` of its own, None: all of them."""
    if cores is None:
        return [set(all_cores)] * jobs
    return [set(all_cores[first : first + cores]) for first in range(0, min(jobs * cores, len(all_cores)), cores)]


async def ended(words: Sequence[str], place: set[int]) -> int:
    """Run a program on these cores; its exit code."""
    child = await asyncio.create_subprocess_exec(*words, preexec_fn=lambda: os.sched_setaffinity(0, place))
    try:
        return await child.wait()
    except asyncio.CancelledError:
        child.send_signal(signal.SIGINT)
        await child.wait()
        raise


def report(out: Path) -> None:
    """By setting: success by level before and after over all seeds, and the ratio to the untrained model."""
    runs = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    done = [run for run in runs if run.get("after")]
    for setting in dict.fromkeys(run["setting"] for run in done):
        mine = [run for run in done if run["setting"] == setting]
        for temperature in mine[0]["before"]:
            print("\n" + "\n".join(table(mine, setting, temperature)))
            print("\n" + ratio(mine, setting, temperature))


def table(runs: Sequence[Mapping[str, Any]], setting: str, temperature: str) -> list[str]:
    """By level: success before and after over all seeds, with intervals."""
    lines = [f"| {setting}, temperature {temperature} | before | after |", "|---|---|---|"]
    for level in runs[0]["before"][temperature]:
        cells = [_pooled([run[when][temperature][level] for run in runs]) for when in ("before", "after")]
        lines.append(f"| {level} | {cells[0]} | {cells[1]} |")
    return lines


def _pooled(found: Sequence[Mapping[str, Any]]) -> str:
    solved, of = (sum(int(one[key]) for one in found) for key in ("solved", "of"))
    low, high = wilson(solved, of)
    return f"{solved / max(of, 1):.0%} ({low:.0%} to {high:.0%})"


def ratio(runs: Sequence[Mapping[str, Any]], setting: str, temperature: str) -> str:
    """The mean after against the mean before, seed by seed, and how long a run took."""
    before, after = ([share(run[when][temperature]["all"]) for run in runs] for when in ("before", "after"))
    times = statistics.fmean(after) / max(statistics.fmean(before), 1e-9)
    seeds = ", ".join(f"{a:.0%} -> {b:.0%}" for a, b in zip(before, after, strict=True))
    took = ", ".join(f"{len(run['steps'])} steps in {run['minutes']} min" for run in runs)
    return f"{setting}, temperature {temperature}: {times:.1f} times the untrained model ({seeds}; {took})"


def plans_of(given: argparse.Namespace) -> list[Plan]:
    """Every combination of what was given several times, seed by seed."""
    same = {
        name: getattr(given, name)
        for name in ("steps", "minutes", "count", "skip", "temperatures", "parallel", "device")
    }
    chosen = product(given.seeds, given.env, given.reward, given.lr or [None], given.group or [None])
    return [
        Plan(env=env, seed=seed, reward=reward, lr=lr, group=group, sets=given.sets, **same)
        for seed, env, reward, lr, group in chosen
    ]


def main() -> None:
    """Every combination of environment, setting and seed; then the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=[*ENVS, *PRESETS], default=list(ENVS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--reward", nargs="+", choices=REWARDS, default=["outcome"], help="what a step is paid")
    parser.add_argument("--lr", nargs="+", type=float, help="learning rates to compare")
    parser.add_argument("--group", nargs="+", type=int, help="episodes of a task to compare")
    parser.add_argument("--steps", type=int, default=15, help="optimiser steps of a run")
    parser.add_argument("--minutes", type=float, default=15.0, help="longest that a run may train")
    parser.add_argument("--count", type=int, default=8, help="held-out tasks of each level")
    parser.add_argument(
        "--skip", type=int, default=0, help="held-out tasks of each level left out: settings were tuned on them"
    )
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--parallel", type=int, default=16, help="episodes of an evaluation at once")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--cores", type=int, help="processor cores of each run, its own; not set: all for all")
    parser.add_argument("--out", type=Path, default=Path("learned"), help="folder of the runs' figures")
    parser.add_argument("--report", action="store_true", help="only show what the folder holds")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if given.one:
        asyncio.run(learn(Plan(**json.loads(given.one)), given.out))
        return
    if not given.report:
        asyncio.run(run_all(plans_of(given), given.out, given.jobs, given.cores))
    report(given.out)


if __name__ == "__main__":
    main()
