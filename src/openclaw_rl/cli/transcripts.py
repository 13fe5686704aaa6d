"""Commands that carry conversations in and out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import POLICY, as_json, command, print_json, reader, settings, sources

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved


@command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--user", default="default", show_default=True, help="Whose conversations these are.")
@click.option("--strict", is_flag=True, help="Refuse a file whole if one of its records is bad.")
@as_json
@settings(*POLICY)
def import_(resolved: Resolved, files: tuple[Path, ...], user: str, strict: bool, json_out: bool) -> None:
    """Read recorded conversations into the ledger.

    A file holds one object, a list of them, or one per line (docs/conversations.md).
    """
    import asyncio

    from openclaw_rl.app.operations import import_files

    reports = asyncio.run(import_files(resolved.config, files, user=user, strict=strict, progress=_progress))
    refused = [fault for report in reports.values() for fault in report.refused]
    if json_out:
        print_json(
            {
                str(path): {
                    "sessions": r.sessions,
                    "turns": r.turns,
                    "known": r.known,
                    "main": r.main,
                    "no_verdict": dict(r.unread),
                    "refused": r.refused,
                }
                for path, r in reports.items()
            }
        )
    else:
        for path, report in reports.items():
            known = f", {report.known} turns known already" if report.known else ""
            click.echo(
                f"{path}: {report.sessions} conversations, {report.turns} turns taken{known},"
                f" {len(report.refused)} refused"
            )
            if report.verdicts:
                click.echo(f"  {report.verdicts}")
        for fault in refused:
            click.secho(f"refused {fault}", fg="yellow", err=True)
    if refused:
        raise click.exceptions.Exit(1)


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{line}", nl=False, err=True)


@command()
@click.option(
    "--output", "-o", type=click.File("w", encoding="utf-8"), default="-", help="Where to write [default: -]."
)
@click.option("--training", is_flag=True, help="As a training set: messages, score and hints of each judged turn.")
@click.option("--tokens", is_flag=True, help="With token ids and log-probs.")
@sources
def export(resolved: Resolved, output: Any, training: bool, tokens: bool) -> None:
    """Write every conversation as JSONL."""
    from openclaw_rl.views import transcripts

    with reader(resolved) as ledger:
        rows = transcripts.training_set(ledger) if training else transcripts.export(ledger, tokens=tokens)
        count = transcripts.write_lines(rows, output)
    click.echo(f"wrote {count} lines", err=True)
