"""Commands for settings: their values, a file with them, and the plugins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from openclaw_rl.cli.options import LOOPS, as_json, command, print_json, settings
from openclaw_rl.errors import ConfigError

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved


@command()
@click.option(
    "--names", is_flag=True, help="Print every flag and environment name from other launchers, with its setting here."
)
@as_json
@settings("eval", *LOOPS)
def config(resolved: Resolved, json_out: bool, names: bool) -> None:
    """Print settings, their values and sources.

    The first ten to set are at the top. Secrets are not shown.
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

    print_json([entry._asdict() for entry in known_names()]) if json_out else click.echo(names_table())


@command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("openclaw-rl.toml"))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(file: Path, force: bool) -> None:
    """Write a commented file with all settings."""
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


# A folder to start from: the user's own method, judge, environment or rollout, with a test that passes.

_SCAFFOLDS: Final = Path(__file__).parent / "scaffolds"
KINDS: Final = ("method", "judge", "env", "rollout")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
def new(kind: str, folder: Path) -> None:
    """Create your own method, judge, env or rollout.

    Writes the folder NAME with a README, the file, and a passing test; nothing is overwritten.
    NAME may be a path; its last part is the name.
    """
    names = write_scaffold(kind, folder)
    for name in names:
        click.echo(f"wrote {folder / name}")
    click.echo(f"try it: cd {folder} && pytest; README.md says how to run it")


def write_scaffold(kind: str, folder: Path) -> list[str]:
    """Write a new scaffold's files to ``folder``; raises ConfigError for a bad name or an existing folder."""
    words = re.findall(r"[A-Za-z0-9]+", folder.name)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", folder.name):
        raise ConfigError(
            f"{folder.name!r} is no name for a {kind}",
            remedy="begin with a letter, go on with letters, digits, - and _",
        )
    if folder.exists():
        raise ConfigError(f"{folder} is there already", remedy="give another name; nothing is written over")
    filled = {
        "@name@": folder.name,
        "@module@": "_".join(words).lower(),
        "@Class@": "".join(word[0].upper() + word[1:] for word in words),
    }
    folder.mkdir(parents=True)
    return [_write(source, folder, filled) for source in sorted((_SCAFFOLDS / kind).iterdir())]


def _write(source: Path, folder: Path, filled: dict[str, str]) -> str:
    name, text = source.name.removesuffix(".txt"), source.read_text("utf-8")
    for mark, value in filled.items():
        name, text = name.replace(mark, value), text.replace(mark, value)
    file = folder / name
    file.write_text(text, encoding="utf-8")
    if file.suffix == ".sh":
        file.chmod(file.stat().st_mode | 0o100)
    return name
