"""The command for sessions: find them, and delete one with everything of it; with the server running or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import as_json, command, print_json, reader, sources
from openclaw_rl.errors import ConfigError, NotInLedger

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.store import LedgerReader

ONLY = ("all", "good", "bad", "trained", "dropped")


@command()
@click.argument("words", nargs=-1)
@click.option("--user", help="Only this user's [default: everybody's].")
@click.option("--only", type=click.Choice(ONLY), default="all", show_default=True, help="Sessions with such turns.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@as_json
@sources
def sessions(
    resolved: Resolved, words: tuple[str, ...], user: str | None, only: str, limit: int, json_out: bool
) -> None:
    """Find sessions: the newest, or those that say WORDS.

    Words are looked for as they are given, in the newest 3,000 turns.
    """
    from openclaw_rl.views import browse

    with reader(resolved) as ledger:
        found = browse.sessions(
            ledger,
            user,
            limit=limit,
            words=" ".join(words),
            keep=lambda tally: only == "all" or bool(getattr(tally, only)),
        ).lines
    if json_out:
        print_json([browse.session_plain(line) for line in found])
        return
    for line in found:
        click.echo(browse.session_text(line))


@command()
@click.argument("session", metavar="SESSION")
@click.option("--user", help="Whose session, where several users have one of this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@sources
def delete(resolved: Resolved, session: str, user: str | None, yes: bool, json_out: bool) -> None:
    """Delete a session with everything of it, for good.

    Its turns, tokens, verdicts, feedback and drops go, and the notes that came of it; nothing trains on it from then
    on, a run that is under way included. Weights that were trained on it stay as they are: which ones is told.
    """
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.app.deletion import delete_session

    with reader(resolved) as ledger:
        owner = user or _owner(ledger, session)
        turns = ledger.turns_of(session, owner)
        going = ledger.deletable(turns, owner)
    if turns and not yes:
        click.confirm(f"Delete session {session} of {owner}: {going.extent}?", abort=True, err=True)
        click.echo(f"{going.remains[0].upper()}{going.remains[1:]}.", err=True)
        click.confirm("It cannot be undone. Delete it?", abort=True, err=True)
    done = delete_session(ledger_place(resolved.config), session, owner, by="the command line")
    if json_out:
        print_json({"session": session, "user": owner, **done.plain()})
    elif turns:
        click.echo(f"deleted: {done.extent}; {done.remains}")
    else:
        click.echo(f"it was deleted before: {done.extent}; {done.remains}")


def _owner(ledger: LedgerReader, session: str) -> str:
    """The one user who has, or had, a session of this name."""
    users = ledger.session_users(session)
    if not users and ledger.has_turn(session):
        users = [ledger.turn(session).user]
    users = users or [user for user in ledger.users() if ledger.deletion(session, user)]
    if len(users) > 1:
        raise ConfigError(f"{', '.join(users)} have a session {session!r} each", remedy="say whose with --user")
    if not users:
        raise NotInLedger(f"there is no session {session!r}", remedy="'openclaw-rl sessions' lists the newest")
    return users[0]
