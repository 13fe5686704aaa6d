"""Terminal output for views."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from openclaw_rl.types import distilling


def print_status(view: Mapping[str, Any]) -> None:
    """Print a run's state on one screen."""
    turns = view["turns"]
    click.echo(f"ledger    {view['ledger']}  ({view['bytes'] / 1e6:.1f} MB)")
    if cluster := view.get("cluster"):
        click.echo(
            f"cluster   {cluster['address']}, {cluster['nodes']} nodes, dashboard {cluster['dashboard'] or 'none'}"
        )
        for loop in cluster["away"]:
            click.secho(f"          {loop} is away: {cluster['places'][loop]} does not answer", fg="red")
    live = "none yet" if view["live"] is None else view["live"]
    click.echo(f"version   {live} live, {view['versions']} in all, {view['steps']} steps")
    flow = ("answered", "open", "settled", "judged", "trained")
    click.echo("turns     " + ", ".join(f"{turns[name]} {name}" for name in flow))
    if view["notes"]:
        click.echo("notes     " + ", ".join(f"{count} {state}" for state, count in view["notes"].items()))
    for reason, count in turns["dropped"].items():
        click.echo(f"dropped   {count:>6}  {reason}")
    if view["last_step"]:
        click.echo(f"step      {_step(view['last_step'])}")
    for loop in view["loops"]:
        colour = {"running": "green", "failing": "red"}.get(loop["state"], "yellow")
        click.echo(f"loop      {loop['loop']:<9}", nl=False)
        click.secho(f"{loop['state']:<9}", fg=colour, nl=False)
        click.echo(
            f"process {loop['pid']}, {loop['moved']} items, {loop['seconds_ago']:.0f} s ago" + _more(loop["detail"])
        )
        if url := loop["detail"].get("url"):
            click.echo(f"          answers at {url}")
        if runner := loop["detail"].get("runner"):
            click.echo(f"          runs by {runner}")
    for line in _judges(view["loops"]):
        click.echo(line)
    for alarm in view["alarms"]:
        click.secho(f"alarm     {alarm}", fg="red")


def _step(step: Mapping[str, Any]) -> str:
    """Return the newest step's key metrics: agreement between engine and trainer, and the effective batch."""
    columns = (
        ("loss", "loss", ".4f"),
        ("gap_mean", "gap to the engine", ".4f"),
        ("ess", "effective sample size", ".2f"),
    )
    metrics = step["metrics"]
    figures = [
        f"{words} {metrics[name]:{form}}" for name, words, form in columns if math.isfinite(metrics.get(name, math.nan))
    ]
    return ", ".join([f"{step['number']}: {len(step['turns'])} samples", *figures])


def _judges(loops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines on the judge and its hosted models."""
    lines: list[str] = []
    for detail in (loop["detail"] for loop in loops):
        if who := detail.get("at_work"):
            lines.append(f"judge     {who}")
        lines += [f"          {_model(model)}" for model in detail.get("models", ())]
    return lines


def _model(model: Mapping[str, Any]) -> str:
    memory = f", {model['memory'] / 2**30:.2f} GiB" if model.get("memory") else ""
    place = f" on {model['device']}" if model.get("device") else ""
    process = f", process {model['pid']}" if model.get("pid") else ""
    return f"{model['duty']}: {model['model']} {model['state']}{place}{memory}{process}"


def _more(detail: Mapping[str, Any]) -> str:
    """Return a loop's details for its status line."""
    text = f", {detail['waiting']} waiting" if detail.get("waiting") else ""
    if (now := detail.get("distillation")) is not None:
        remaining = f", about {now['seconds_left']:.0f} s of idle time left" if now["seconds_left"] is not None else ""
        doing = distilling(now["note"], in_prompt=now.get("in_prompt", False))
        text += f", {doing}: step {now['step']} of at most {now['of']}{remaining}"
    return text + (f", paused: {detail.get('reason') or detail['paused']}" if detail.get("paused") else "")


def print_view(view: Mapping[str, Any]) -> None:
    """Print any other view as indented lines, without absent values."""
    for line in _lines(view, ""):
        click.echo(line)


def _lines(value: Any, indent: str) -> list[str]:
    lines: list[str] = []
    for name, part in value.items():
        if part is None or part in ([], {}, ()):
            continue
        if isinstance(part, Mapping):
            lines += [f"{indent}{name}:", *_lines(part, indent + "  ")]
        elif isinstance(part, list) and isinstance(part[0], Mapping):
            lines.append(f"{indent}{name}:")
            for item in part:
                first, *following = _lines(item, indent + "    ")
                lines += [f"{indent}  - {first.strip()}", *following]
        else:
            lines.append(f"{indent}{name}: {_scalar(name, part)}")
    return lines


def _scalar(name: str, value: Any) -> str:
    if name == "at" and isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value)
