"""Verbs that look and change nothing but a settings file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import as_json, print_json, reader, settings, sources
from openclaw_rl.errors import ConfigError

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved


@click.command()
@as_json
@sources
def status(resolved: Resolved, json_out: bool) -> None:
    """Show how the run stands: loops, turns, drops by reason, the live version, alarms."""
    from openclaw_rl.cli.printing import print_status
    from openclaw_rl.views import status as views

    with reader(resolved) as ledger:
        view = views.status(ledger, starve_after=resolved.config.collect.starve_turns)
    print_json(view) if json_out else print_status(view)


@click.group()
def show() -> None:
    """Show one turn, session, step or version."""


def _shower(noun: str, kind: type, help_text: str) -> None:
    @show.command(name=noun, help=help_text)
    @click.argument("name", type=kind, metavar="ID")
    @as_json
    @sources
    def one(resolved: Resolved, name: Any, json_out: bool) -> None:
        from openclaw_rl.cli.printing import print_view
        from openclaw_rl.views import status as views

        with reader(resolved) as ledger:
            view = getattr(views, noun)(ledger, name)
        print_json(view) if json_out else print_view(view)


_shower("turn", str, "What was said, what came after, what was thought of it, what became of it.")
_shower("step", int, "The turns a step used, its metrics, the version it made.")
_shower("version", int, "Where a version comes from and what happened to it.")


@show.command(name="session")
@click.argument("name", metavar="ID")
@click.option("--user", help="Whose session, where several users have one of this name.")
@as_json
@sources
def show_session(resolved: Resolved, name: str, user: str | None, json_out: bool) -> None:
    """The turns of a session, in order."""
    from openclaw_rl.cli.printing import print_view
    from openclaw_rl.views import status as views

    with reader(resolved) as ledger:
        view = views.session(ledger, name, user)
    print_json(view) if json_out else print_view(view)


@click.command()
@as_json
@settings
def doctor(resolved: Resolved, json_out: bool) -> None:
    """Check this machine and this run, and say the remedy for each trouble."""
    from openclaw_rl.app.doctor import examine

    found = examine(resolved.config)
    if json_out:
        print_json([{"check": f.check, "state": f.state, "detail": f.detail, "remedy": f.remedy} for f in found])
    else:
        colours = {"ok": "green", "warning": "yellow", "trouble": "red"}
        for finding in found:
            click.secho(f"{finding.state:>8}", fg=colours[finding.state], nl=False)
            click.echo(f"  {finding.check}: {finding.detail}" + (f"; {finding.remedy}" if finding.remedy else ""))
    if any(finding.state == "trouble" for finding in found):
        raise click.exceptions.Exit(1)


@click.command()
@as_json
@settings
def config(resolved: Resolved, json_out: bool) -> None:
    """Print every setting with its value and where that came from. Secrets are not shown."""
    from openclaw_rl.config import as_json as as_plain
    from openclaw_rl.config import render

    if json_out:
        print_json(as_plain(resolved))
        return
    rows = render(resolved)
    width, wide = max(len(row.path) for row in rows), max(min(len(row.value), 50) for row in rows)
    for row in rows:
        line = f"{row.path:<{width}}  {row.value:<{wide}}  {row.source}"
        click.secho(line, dim=row.source == "default")
    for note in resolved.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("openclaw-rl.toml"))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(file: Path, force: bool) -> None:
    """Write a commented file with every setting at its default."""
    from openclaw_rl.config import template

    if file.exists() and not force:
        raise ConfigError(f"{file} is there already", remedy="give another name, or --force to write over it")
    file.write_text(template(), encoding="utf-8")
    click.echo(f"wrote {file}: take the # away before a setting to set it")


@click.command(name="plugins")
@as_json
def list_plugins(json_out: bool) -> None:
    """List what can be named as policy, trainer, judge, env, rollout, generate or loss."""
    from openclaw_rl import plugins

    rows = plugins.listed()
    if json_out:
        print_json([{"kind": r.kind, "name": r.name, "target": r.target, "origin": r.origin} for r in rows])
        return
    for kind in plugins.KINDS:
        named = [row for row in rows if row.kind == kind]
        click.secho(kind, bold=True)
        for row in named:
            click.echo(f"  {row.name:<10} {row.target}  ({row.origin})")
        click.echo("  " + ("or " if named else "") + "module:attribute, or file.py:attribute")
