"""Commands for environments' tasks: list them, audit them, and measure a model on them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import ENV, POLICY, as_json, command, print_json, settings

if TYPE_CHECKING:
    from openclaw_rl.config import Config, Resolved
    from openclaw_rl.envs.evaluation import PlayedTask
    from openclaw_rl.envs.schedule import Episode
    from openclaw_rl.ports import Env
    from openclaw_rl.types import Sampling

_FILE = click.Path(dir_okay=False, path_type=Path)


@command(name="list")
@click.option("--tasks", is_flag=True, help="List every task, not only the levels.")
@click.option("--task", metavar="ID", help="Show one task: its first prompt and its gold solution.")
@as_json
@settings(*ENV)
def list_tasks(resolved: Resolved, tasks: bool, task: str | None, json_out: bool) -> None:
    """Show the levels and tasks of --env."""
    import asyncio

    config = resolved.config
    view = asyncio.run(_shown(config, task)) if task else _listed(config)
    if json_out:
        print_json(view)
    elif task:
        click.echo(view["prompt"])
        for reply in view["gold"]:
            click.secho(f"\n{reply}", fg="green")
    else:
        for level, row in view["levels"].items():
            train, held_out = len(row["train"]), len(row["held_out"])
            click.echo(f"  {level:<20} {train:>5} train, {held_out:>5} held out, {row['audited']} audited")
            if tasks:
                for name in (*row["train"], *row["held_out"]):
                    click.echo(f"    {name}{'' if name in row['train'] else '  (held out)'}")


def _listed(config: Config) -> dict[str, Any]:
    from openclaw_rl.app.environments import audit_book, build_env
    from openclaw_rl.ports import SupportsTaskSets

    env, book = build_env(config), audit_book(config)
    levels: dict[str, dict[str, Any]] = {}
    sets = env if isinstance(env, SupportsTaskSets) else None
    for split, ids in (("train", env.tasks()), ("held_out", sets.held_out() if sets else ())):
        for task in ids:
            level = levels.setdefault(sets.level(task) if sets else task, {"train": [], "held_out": [], "audited": 0})
            level[split].append(task)
            level["audited"] += book.find(env, task) is not None
    return {"env": config.env.type, "levels": levels}


async def _shown(config: Config, task: str) -> dict[str, Any]:
    from openclaw_rl.app.environments import build_env
    from openclaw_rl.ports import SupportsTaskSets

    env = build_env(config)
    try:
        prompt = await env.reset(task, seed=config.run.seed)
    finally:
        await env.close()
    gold = env.gold(task) if isinstance(env, SupportsTaskSets) else ()
    return {
        "task": task,
        "prompt": "\n\n".join(f"[{message.role}]\n{message.content}" for message in prompt.messages),
        "tools": [tool.name for tool in prompt.tools],
        "gold": [reply.content or " ".join(f"{c.name} {c.arguments}" for c in reply.tool_calls) for reply in gold],
    }


@command()
@click.option("--again", is_flag=True, help="Repeat earlier audits too.")
@click.option("--count", type=click.IntRange(1), help="Tasks of each level [default: all].")
@click.option("--level", "levels", multiple=True, metavar="NAME", help="Only this level; may be repeated.")
@as_json
@settings(*ENV)
def audit(resolved: Resolved, again: bool, count: int | None, levels: tuple[str, ...], json_out: bool) -> None:
    """Check tasks: gold scores 1, no action does not.

    Results are stored in the run directory; a task that fails never trains. Exits with 1 if a task fails.
    """
    import asyncio

    from openclaw_rl.app.environments import audit_all

    _log(resolved)
    began, audited = time.monotonic(), 0

    def done(_: object) -> None:
        nonlocal audited
        audited += 1
        if audited % 20 == 0:
            click.echo(f"\r{audited} tasks, {time.monotonic() - began:.0f} s", nl=False, err=True)

    report = asyncio.run(audit_all(resolved.config, again=again, done=done, count=count, levels=levels))
    click.echo("\r", nl=False, err=True)
    if json_out:
        print_json(report)
    else:
        click.echo(
            f"{report['env']}: {report['admitted']} of {report['tasks'] + report['held_out']} tasks admitted "
            f"({report['tasks']} train, {report['held_out']} held out), {time.monotonic() - began:.0f} s"
        )
        if report["without_gold"]:
            click.echo(f"  {report['without_gold']} have no gold solution: only an episode without actions was tried")
        for why, left_out in _by_reason(report["excluded"]).items():
            click.echo(f"  {len(left_out)} pages give no task: {why} ({', '.join(left_out)})")
        for task, why in report["refused"].items():
            click.secho(f"  {task}: {why}", fg="red")
        for first, second in report["near_duplicates"]:
            click.secho(f"  {first} is held out, and nearly the same as {second}, which trains", fg="yellow")
    if report["refused"]:
        raise click.exceptions.Exit(1)


def _by_reason(excluded: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, why in excluded.items():
        reasons.setdefault(why, []).append(name)
    return reasons


@command(name="eval")
@click.option(
    "--model-path",
    default="live",
    show_default=True,
    help="As for 'openclaw-rl eval': a version's number, 'live', 'embedded', weights, or a server's http://HOST/v1.",
)
@click.option(
    "--split", type=click.Choice(["held-out", "train"]), default="held-out", show_default=True, help="Tasks to play."
)
@click.option("--count", type=click.IntRange(1), help="Tasks of each level [default: all].")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Times each task is played.")
@click.option(
    "--temperature",
    "temperatures",
    multiple=True,
    default=(0.0, 1.0),
    show_default=True,
    type=click.FloatRange(0, 2),
    help="0 is greedy, 1 as in training; may be repeated.",
)
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(1), help="Most tokens of a reply.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the server's key.")
@click.option("--json", "json_file", type=_FILE, help="Also write the figures and every reply to this file.")
@settings("env", *POLICY, but=("--model-path",))
def evaluate(
    resolved: Resolved,
    model_path: str,
    split: str,
    count: int | None,
    seeds: int,
    temperatures: tuple[float, ...],
    tokens: int,
    api_key_env: str | None,
    json_file: Path | None,
) -> None:
    """Measure success by level; nothing is trained.

    Rates are greedy and at temperature 1, side by side, with 95 % intervals. The tasks are held-out ones,
    unless --split selects others.
    """
    import asyncio

    from openclaw_rl.evals import suites
    from openclaw_rl.types import Sampling

    _log(resolved)
    began = time.monotonic()
    samplings = [Sampling(temperature=temperature, max_tokens=tokens) for temperature in dict.fromkeys(temperatures)]
    played = asyncio.run(_evaluated(resolved.config, model_path, split, count, seeds, samplings, api_key_env))
    figures = {temperature: suites.by_level(at) for temperature, at in played.items()}
    click.echo(f"\r{resolved.config.env.type}, {split}, {model_path}, {time.monotonic() - began:.0f} s")
    for line in suites.lines(figures):
        click.echo(line)
    for why in sorted({episode.error for at in played.values() for episode in at if episode.error})[:5]:
        click.secho(f"  failed: {' '.join(why.split())}", fg="red")
    if json_file is not None:
        view: dict[str, Any] = {"env": resolved.config.env.type, "model": model_path, "split": split}
        view["temperatures"] = {f"{temperature:g}": rates for temperature, rates in figures.items()}
        view["episodes"] = [asdict(episode) | {"temperature": at} for at, plays in played.items() for episode in plays]
        json_file.write_text(json.dumps(view, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


async def _evaluated(
    config: Config,
    name: str,
    split: str,
    count: int | None,
    seeds: int,
    samplings: Sequence[Sampling],
    key_env: str | None,
) -> dict[float, list[PlayedTask]]:
    """Play the episodes at each temperature, in this order."""
    from openclaw_rl.app.environments import build_env
    from openclaw_rl.evals import models, suites

    if name == "embedded":
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"model": name})})
    tasks = suites.chosen_tasks(build_env(config), split=split, count=count)
    first, solved, over = config.run.seed, 0, 0

    def done(played: suites.PlayedTask) -> None:
        nonlocal solved, over
        solved, over = solved + played.solved, over + 1
        total = len(tasks) * seeds * len(samplings)
        click.echo(f"\r{over} of {total} episodes, {solved} solved", nl=False, err=True)

    def make_env() -> Env:
        return build_env(config)

    async with models.open_model(config, name, key_env=key_env) as model:
        episodes = {
            sampling.temperature: await suites.play_tasks(
                model,
                make_env,
                tasks,
                seeds=range(first, first + seeds),
                sampling=sampling,
                max_steps=config.env.max_steps,
                parallel=config.env.parallel,
                done=done,
            )
            for sampling in samplings
        }
    click.echo(err=True)
    return episodes


@command(name="run")
@click.option("--url", help="The server's http://HOST/v1 [default: this run directory's].")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with an environment's key (env:NAME).")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Rounds over all tasks.")
@click.option("--task", "tasks", multiple=True, metavar="ID", help="Task to play; may be repeated [default: all].")
@settings("train.rollout", "train.num_rollouts_per_prompt", *ENV)
def run_tasks(
    resolved: Resolved, url: str | None, api_key_env: str | None, rounds: int, tasks: tuple[str, ...]
) -> None:
    """Play tasks through a running server; their rewards train.

    Held-out tasks are refused.
    """
    import asyncio

    from openclaw_rl.app import address
    from openclaw_rl.app.environments import play_rounds
    from openclaw_rl.config import key_in
    from openclaw_rl.envs.schedule import level_of
    from openclaw_rl.errors import ConfigError

    here = address.read(resolved.config.run.dir)
    if url is None and here is None:
        raise ConfigError("no server runs in this run directory", remedy="start 'openclaw-rl up', or give --url")
    place, key = (url or "", None) if url or here is None else (here.url, here.env_key)
    if api_key_env:
        key = key_in(api_key_env)
    _log(resolved)
    over: list[Episode] = []

    def report(episode: Episode) -> None:
        over.append(episode)
        outcome = episode.error or (f"{episode.reward:+.2f}" if episode.reward is not None else "-")
        click.echo(f"{len(over):>5}  {episode.task:<24} {outcome}")

    asyncio.run(play_rounds(resolved.config, url=place, key=key, rounds=rounds, tasks=tasks or None, report=report))
    levels = {level_of(episode.task): None for episode in over}
    for level in levels:
        click.echo(_solved(f"  {level:<22} ", [play for play in over if level_of(play.task) == level]))
    click.echo(_solved("", over))


def _solved(name: str, episodes: Sequence[Episode]) -> str:
    counted = [episode for episode in episodes if episode.error is None]
    failed = len(episodes) - len(counted)
    return f"{name}{sum(play.reward == 1.0 for play in counted)} of {len(counted)} solved" + (
        f", {failed} failed" if failed else ""
    )


def _log(resolved: Resolved) -> None:
    from openclaw_rl.cli.logs import log_to

    log_to(resolved.config.run.dir / "logs" / "envs.log", level="warning")


COMMANDS = (list_tasks, audit, evaluate, run_tasks)
