"""The command that copies a ledger from one store to another."""

from __future__ import annotations

from pathlib import Path

import click

from openclaw_rl.cli.options import as_json, print_json


@click.group()
def ledger() -> None:
    """Copy a run's ledger between SQLite and PostgreSQL."""


@ledger.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@as_json
def copy(source: str, target: str, json_out: bool) -> None:
    """Copy the ledger at FROM to TO, which has none yet.

    Each is a run directory, the path of a ledger's file, or postgresql://NAME@HOST:PORT/DATABASE (the password in
    PGPASSWORD or ~/.pgpass). Every row keeps its number; both are read again and compared before anything is kept.
    Versions stay where they lie: a run that moves takes its folder 'versions' along.
    """
    from openclaw_rl.store.copying import copy_ledger

    counts = copy_ledger(_place(source), _place(target))
    if json_out:
        print_json({"rows": counts})
        return
    for table, count in counts.items():
        if count:
            click.echo(f"{count:>9}  {table}")
    click.echo(f"copied and compared: {sum(counts.values())} rows")


def _place(name: str) -> str | Path:
    """A run directory means the ledger in it."""
    from openclaw_rl.store import is_url

    if is_url(name):
        return name
    path = Path(name).expanduser()
    return path / "ledger.db" if path.is_dir() else path
