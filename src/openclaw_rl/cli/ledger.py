"""Commands for the ledger: copy it between stores, find and delete sessions, import and export conversations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import POLICY, as_json, command, print_json, reader, settings, sources
from openclaw_rl.errors import ConfigError, NotInLedger

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.store import LedgerReader


@click.group()
def ledger() -> None:
    """Copy a run's ledger between SQLite and PostgreSQL."""


@ledger.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@as_json
def copy(source: str, target: str, json_out: bool) -> None:
    """Copy the ledger at FROM to TO, which must have none.

    Each is a run directory, the path of a ledger's file, or postgresql://NAME@HOST:PORT/DATABASE (the password in
    PGPASSWORD or ~/.pgpass). Every row keeps its number; both are read again and compared before the copy is kept.
    Version files are not copied: to move a run, move its folder 'versions' too.
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
    """Return the ledger's place; for a run directory, the ledger in it."""
    from openclaw_rl.store import is_url

    if is_url(name):
        return name
    path = Path(name).expanduser()
    return path / "ledger.db" if path.is_dir() else path


# Session commands: find sessions, or delete one completely; with or without a running server.

ONLY = ("all", "good", "bad", "trained", "dropped")


@command()
@click.argument("words", nargs=-1)
@click.option("--user", help="Only this user's sessions [default: all users'].")
@click.option(
    "--only", type=click.Choice(ONLY), default="all", show_default=True, help="Sessions with turns of this kind."
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most sessions to show.")
@as_json
@sources
def sessions(
    resolved: Resolved, words: tuple[str, ...], user: str | None, only: str, limit: int, json_out: bool
) -> None:
    """Find sessions: the newest, or those with WORDS.

    WORDS are searched literally, in the newest 3,000 turns.
    """
    from openclaw_rl.views import browse

    with reader(resolved) as ledger:
        matches = browse.sessions(
            ledger,
            user,
            limit=limit,
            words=" ".join(words),
            keep=lambda tally: only == "all" or bool(getattr(tally, only)),
        ).lines
    if json_out:
        print_json([browse.session_plain(line) for line in matches])
        return
    for line in matches:
        click.echo(browse.session_text(line))


@command()
@click.argument("session", metavar="SESSION")
@click.option("--user", help="The session's user, if several users have one with this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@sources
def delete(resolved: Resolved, session: str, user: str | None, yes: bool, json_out: bool) -> None:
    """Delete a session and all its data permanently.

    Deletes its turns, tokens, verdicts, feedback, drops and the notes made from it; nothing trains on it from then
    on, in a running process too. Versions already trained on it stay unchanged; the command lists them.
    """
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.app.control import delete_session

    with reader(resolved) as ledger:
        owner = user or _owner(ledger, session)
        turns = ledger.turns_of(session, owner)
        going = ledger.deletable(turns, owner)
    if turns and not yes:
        click.confirm(f"Delete session {session} of {owner}: {going.extent}?", abort=True, err=True)
        click.echo(f"{going.remains[0].upper()}{going.remains[1:]}.", err=True)
        click.confirm("It cannot be undone. Delete it?", abort=True, err=True)
    deletion = delete_session(ledger_place(resolved.config), session, owner, by="the command line")
    if json_out:
        print_json({"session": session, "user": owner, **deletion.plain()})
    elif turns:
        click.echo(f"deleted: {deletion.extent}; {deletion.remains}")
    else:
        click.echo(f"it was deleted before: {deletion.extent}; {deletion.remains}")


def _owner(ledger: LedgerReader, session: str) -> str:
    """Return the only user who has, or had, a session with this name."""
    users = ledger.session_users(session)
    if not users and ledger.has_turn(session):
        users = [ledger.turn(session).user]
    users = users or [user for user in ledger.users() if ledger.deletion(session, user)]
    if len(users) > 1:
        raise ConfigError(f"{', '.join(users)} have a session {session!r} each", remedy="name the user with --user")
    if not users:
        raise NotInLedger(f"there is no session {session!r}", remedy="'openclaw-rl sessions' lists the newest")
    return users[0]


# Commands that import and export conversations.


@command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--user", default="default", show_default=True, help="The conversations' user.")
@click.option("--strict", is_flag=True, help="Refuse an entire file if one record is bad.")
@as_json
@settings(*POLICY)
def import_(resolved: Resolved, files: tuple[Path, ...], user: str, strict: bool, json_out: bool) -> None:
    """Read recorded conversations into the ledger.

    A file contains one object, a list of objects, or one per line (docs/conversations.md).
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
            skipped = f", {report.known} turns known already" if report.known else ""
            click.echo(
                f"{path}: {report.sessions} conversations, {report.turns} turns taken{skipped},"
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
    "--output",
    "-o",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Output path [default: - for conversations; for weights a name with the version in this folder].",
)
@click.option("--training", is_flag=True, help="As a training set: messages, score and hints of each judged turn.")
@click.option("--tokens", is_flag=True, help="With token ids and log-probs.")
@click.option("--version", metavar="N", help="Weights instead: of this version, or live.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["peft", "gguf", "merged", "ollama"]),
    help="Weights instead: a PEFT folder, a GGUF LoRA adapter, a merged GGUF (f16), a folder with it and a Modelfile.",
)
@settings(*POLICY)
def export(
    resolved: Resolved, output: Path | None, training: bool, tokens: bool, version: str | None, form: str | None
) -> None:
    """Write every conversation as JSONL, or a version's weights."""
    if version is not None or form is not None:
        if form is None or training or tokens:
            raise click.UsageError("--version goes with --format alone; --training and --tokens are for conversations")
        _export_weights(resolved, version or "live", form, output)
        return
    from openclaw_rl.views import transcripts

    with reader(resolved) as ledger, click.open_file(str(output or "-"), "w", encoding="utf-8") as file:
        rows = transcripts.training_set(ledger) if training else transcripts.export(ledger, tokens=tokens)
        count = transcripts.write_lines(rows, file)
    click.echo(f"wrote {count} lines", err=True)


def _export_weights(resolved: Resolved, version: str, form: str, output: Path | None) -> None:
    from openclaw_rl.app.exporting import export_version

    if output is not None and str(output) == "-":
        raise click.UsageError("weights are written to a file or folder, not to -")
    place = export_version(resolved.config, version, form, output, progress=lambda line: click.echo(line, err=True))
    click.echo(str(place))
    if form == "ollama":
        click.echo(f"ollama create NAME -f {place / 'Modelfile'}", err=True)
