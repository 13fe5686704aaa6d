"""Commands about settings: what they are, a file of them, and what can be plugged in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import LOOPS, as_json, command, print_json, settings
from openclaw_rl.errors import ConfigError

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved


@command()
@click.option("--names", is_flag=True, help="Print every flag and environment name of the field, and what it is here.")
@as_json
@settings("eval", *LOOPS)
def config(resolved: Resolved, json_out: bool, names: bool) -> None:
    """Print settings, their values and sources.

    The ten to begin with come first. Secrets are not shown.
    """
    if names:
        _print_names(json_out)
        return
    from openclaw_rl.config import as_json as as_plain
    from openclaw_rl.config import render

    if json_out:
        print_json(as_plain(resolved))
        return
    groups = render(resolved)
    every = [row for rows in groups.values() for row in rows]
    width, wide = max(len(row.path) for row in every), max(min(len(row.value), 50) for row in every)
    for heading, rows in groups.items():
        click.secho(f"# {heading}", bold=True)
        for row in rows:
            line = f"{row.path:<{width}}  {row.value:<{wide}}  {row.source}"
            click.secho(line, dim=row.source == "default")
    for note in resolved.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)


def _print_names(json_out: bool) -> None:
    from openclaw_rl.cli.names import known_names, names_table

    print_json([each._asdict() for each in known_names()]) if json_out else click.echo(names_table())


@command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("openclaw-rl.toml"))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(file: Path, force: bool) -> None:
    """Write a commented file of all settings."""
    from openclaw_rl.config import template

    if file.exists() and not force:
        raise ConfigError(f"{file} is there already", remedy="give another name, or --force to write over it")
    file.write_text(template(), encoding="utf-8")
    click.echo(f"wrote {file}: take the # away before a setting to set it")


@command(name="plugins")
@as_json
def list_plugins(json_out: bool) -> None:
    """List built-in and installed plugins by kind."""
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
