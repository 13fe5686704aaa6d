"""Commands for standing notes: list, add and change them; with or without a running server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import SettingsCommand, as_json, print_json, reader, sources
from openclaw_rl.errors import ConfigError, NotInLedger

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.notes import AddedNote, NotesBook
    from openclaw_rl.store import AnyPlace

_user = click.option("--user", help="The notes' user; required if several people have a key.")
_number = click.argument("number", type=click.IntRange(min=1), metavar="NUMBER")


class _Listing(click.Group):
    """A group that runs ``list``, with its options, if no subcommand is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if bare else args)


@click.group(cls=_Listing)
def notes() -> None:
    """Show and change standing notes: users' requests.

    A note is in its user's prompts until the weights follow it without the note. Without a
    subcommand: 'list'.
    """


@notes.command(name="list", cls=SettingsCommand)
@_user
@click.option("--all", "every", is_flag=True, help="Include replaced, declined and removed notes.")
@as_json
@sources
def list_(resolved: Resolved, user: str | None, every: bool, json_out: bool) -> None:
    """List notes with their states."""
    from openclaw_rl.views import notes as views

    with reader(resolved) as ledger:
        listed = [note for note in ledger.notes(user) if every or note.state not in ("replaced", "declined", "removed")]
        last = {note.number: ledger.note_changes(note.number)[-1] for note in listed}
        silent = sorted({note.user for note in listed if not ledger.notes_enabled(note.user)})
    if json_out:
        print_json([views.shown(note) for note in listed])
        return
    for line in views.lines(listed, last):
        click.echo(line)
    for name in silent:
        click.echo(f"notes of {name} are switched off: 'openclaw-rl notes on --all --user {name}'")
    if not resolved.config.notes.enabled:
        click.echo("notes are switched off for this run (notes.enabled)")


@notes.command(cls=SettingsCommand)
@_number
@as_json
@sources
def show(resolved: Resolved, number: int, json_out: bool) -> None:
    """Show a note: its origin, each change and the reason."""
    from openclaw_rl.views import notes as views

    with reader(resolved) as ledger:
        view = views.one(ledger, number)
    if json_out:
        print_json(view)
        return
    for line in views.one_lines(view):
        click.echo(line)


@notes.command(cls=SettingsCommand)
@click.argument("text")
@click.option("--fact", is_flag=True, help="A fact about the user or the task, which is never trained.")
@_user
@sources
def add(resolved: Resolved, text: str, fact: bool, user: str | None) -> None:
    """Make a note; it is in the next prompt."""
    from openclaw_rl.notes import NewNote

    note = NewNote(
        user=user or _only_user(resolved),
        text=text,
        kind="fact" if fact else "rule",
        by="user",
        reason="added by hand",
    )
    with _book(resolved) as book:
        _tell(book.add(note))


@notes.command(cls=SettingsCommand)
@_number
@click.argument("text")
@sources
def edit(resolved: Resolved, number: int, text: str) -> None:
    """Reword a note: a new one replaces it."""
    with _book(resolved) as book:
        _tell(book.edit(number, text))


def _switch(name: str, on: bool, help_text: str) -> None:
    @notes.command(name=name, help=help_text, cls=SettingsCommand)
    @click.argument("number", type=click.IntRange(min=1), required=False, metavar="[NUMBER]")
    @click.option("--all", "every", is_flag=True, help="All notes of the user, including future ones.")
    @_user
    @sources
    def command(resolved: Resolved, number: int | None, every: bool, user: str | None) -> None:
        if (number is None) == (not every):
            raise click.UsageError(f"give the NUMBER of a note, or --all: openclaw-rl notes {name} 3")
        with _book(resolved) as book:
            if number is not None:
                note = book.switch(number, on, reason=f"switched {name} by hand")
                click.echo(f"note {note.number} is {note.state}: {note.text}")
                return
            whose = user or _only_user(resolved)
            book.enable(whose, on, reason=f"switched {name} by hand")
            click.echo(f"notes of {whose} are switched {name}")


_switch("off", False, "Keep a note out of prompts, or all notes of a user.")
_switch("on", True, "Put a note into prompts again, or all notes of a user.")


@notes.command(cls=SettingsCommand)
@_number
@sources
def accept(resolved: Resolved, number: int) -> None:
    """Activate a proposed note: it was meant for all replies."""
    with _book(resolved) as book:
        _tell(book.accept(number, reason="accepted by hand"))


@notes.command(cls=SettingsCommand)
@_number
@click.option("--only-here", is_flag=True, help="It was meant for that one reply.")
@sources
def decline(resolved: Resolved, number: int, only_here: bool) -> None:
    """Decline a proposed note: it was not meant for all replies."""
    reason = "meant for one reply" if only_here else "declined by hand"
    with _book(resolved) as book:
        note = book.decline(number, reason=reason)
    click.echo(f"note {note.number} is {note.state}: {note.text}")


@notes.command(cls=SettingsCommand)
@_number
@click.option("--forget", is_flag=True, help="Also delete its text from every row; for a note added by hand.")
@sources
def rm(resolved: Resolved, number: int, forget: bool) -> None:
    """Remove a note permanently.

    A removed note stays in the history that 'show' prints. With --forget its text is deleted, past prompts included.
    """
    if forget:
        prompts = _forget(resolved, number)
        click.echo(f"note {number} is forgotten; it was in {prompts} prompt{'s' * (prompts != 1)}")
        return
    with _book(resolved) as book:
        note = book.remove(number, reason="removed by hand")
    click.echo(f"note {note.number} is removed: {note.text}")


def _forget(resolved: Resolved, number: int) -> int:
    from openclaw_rl.store import DeletionLedger

    with DeletionLedger(_place(resolved)) as ledger:
        return ledger.forget_note(number)


def _tell(added: AddedNote) -> None:
    note = added.note
    if not added.new:
        click.echo(f"note {note.number} has the same text ({note.state}): {note.text}")
        return
    click.echo(f"noted for {note.user}: {note.text}   (note {note.number})")
    for old in added.replaced:
        click.echo(f"  it replaces note {old.number}: {old.text}")


@contextmanager
def _book(resolved: Resolved) -> Iterator[NotesBook]:
    """Open the notes in an existing run."""
    from openclaw_rl.notes import NotesBook
    from openclaw_rl.store import NotesLedger

    with NotesLedger(_place(resolved)) as ledger:
        yield NotesBook(ledger)


def _place(resolved: Resolved) -> AnyPlace:
    """Return an existing run's ledger; raises NotInLedger without one."""
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.store import exists

    place = ledger_place(resolved.config)
    if not exists(place):
        raise NotInLedger(f"there is no ledger at {place}", remedy="start 'openclaw-rl up' first, or set --run-dir")
    return place


def _only_user(resolved: Resolved) -> str:
    """Return the run's only user; raises ConfigError if there are several."""
    from openclaw_rl.app.factories import build_people

    people = sorted(set(build_people(resolved.config)))
    if len(people) > 1:
        raise ConfigError(f"several people have a key: {', '.join(people)}", remedy="name the note's user with --user")
    return people[0] if people else "local"
