"""A folder to begin from: a method, a judge, an environment or a rollout of one's own, with a test that passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from openclaw_rl.errors import ConfigError

_SCAFFOLDS: Final = Path(__file__).parent / "scaffolds"
KINDS: Final = ("method", "judge", "env", "rollout")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
def new(kind: str, folder: Path) -> None:
    """Begin a method, judge, env or rollout of your own.

    Writes the folder NAME with a README, the file, and a test that passes as it stands; nothing is written over.
    NAME may be a path, whose last part is the name.
    """
    names = write_scaffold(kind, folder)
    for name in names:
        click.echo(f"wrote {folder / name}")
    click.echo(f"try it: cd {folder} && pytest; README.md says how to run it")


def write_scaffold(kind: str, folder: Path) -> list[str]:
    """The files of a new scaffold, in ``folder``; raises ConfigError for a bad name or a folder that is there."""
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
