"""The command for a person at a terminal: talk, correct, and see what becomes of it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import command, sources
from openclaw_rl.errors import LedgerError, OpenClawError

if TYPE_CHECKING:
    import asyncio

    from openclaw_rl.clients.chat import TerminalChat
    from openclaw_rl.config import Config, Resolved


_NOTICE = 0.8
"""seconds after a reply in which a person is still told of a note that it led to; it takes 0.2 as a rule"""


@command()
@click.option("--url", metavar="URL", help="The server's address up to /v1 [default: where the run listens].")
@click.option("--key", metavar="KEY", help="The server's key [default: OPENCLAW_API_KEY, if it is set].")
@click.option("--model", metavar="NAME", help="Model to ask for, such as NAME@17 for a past version.")
@sources
def chat(resolved: Resolved, url: str | None, key: str | None, model: str | None) -> None:
    """Talk to the running server in this terminal.

    /good, /bad and /fix TEXT give feedback, /why says what became of it, /help lists the rest.
    With judge.ask_in_doubt it asks about a message that may be a correction; /yes and /no answer.
    """
    import asyncio

    from openclaw_rl.app.address import find_url
    from openclaw_rl.app.judges import build_asker
    from openclaw_rl.clients.api import ApiClient
    from openclaw_rl.clients.chat import PATIENCE, TerminalChat

    config = resolved.config
    given = config.serve.api_key.get_secret_value() if config.serve.api_key else None
    remedy = "give the server's key with --key or OPENCLAW_API_KEY"
    client = ApiClient(
        url or find_url(resolved), key=key or given, key_remedy=remedy, model=model or "", timeout=PATIENCE
    )
    notice = _NOTICE if sys.stdin.isatty() else 0.0
    talk = TerminalChat(client, say=_say, note=_note, look=_looker(config), asker=build_asker(config), notice=notice)
    with asyncio.Runner() as runner:  # one loop for all lines, not running while a person types
        try:
            runner.run(talk.greet())
            well = _converse(talk, _typed(), runner)
        finally:
            runner.run(client.close())
    if not (well or sys.stdin.isatty()):
        raise click.exceptions.Exit(1)


def _converse(talk: TerminalChat, typed: Iterator[str], runner: asyncio.Runner) -> bool:
    """Go through what is typed; whether all went well."""
    failures = 0
    for line in typed:
        try:
            if not runner.run(talk.handle(line)):
                break
        except KeyboardInterrupt:
            _note("stopped")
        except OpenClawError as error:  # a person goes on; a script learns of it by the exit code
            failures += 1
            click.secho(f"error: {error}", fg="red", err=True)
    if not failures:
        runner.run(talk.end())
    return not failures


def _typed() -> Iterator[str]:
    """Lines from a person, or from a pipe, until there are no more."""
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    _edit_lines()
    while True:
        try:
            yield input("\n> ")
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return


def _edit_lines() -> None:
    """Arrow keys and history, where the system has them."""
    try:
        import readline  # noqa: F401 (its import is what changes `input`)
    except ImportError:  # not on every system; `input` works without
        return


def _say(text: str) -> None:
    click.echo(text, nl=False)
    sys.stdout.flush()


def _note(text: str) -> None:
    click.secho(text, dim=True, err=True)


def _looker(config: Config) -> Callable[[str], Sequence[str]]:
    """Reads a turn's way from the run's ledger, which is opened for reading each time and let go."""

    def look(turn: str) -> Sequence[str]:
        from openclaw_rl.app.application import ledger_place
        from openclaw_rl.clients.chat import describe_turn
        from openclaw_rl.store import LedgerReader
        from openclaw_rl.views import status as views

        place = ledger_place(config)
        try:
            with LedgerReader(place) as ledger:
                shown = views.turn(ledger, turn)
                made = [version.number for version in ledger.versions() if version.step is not None]
                return describe_turn(shown, [views.version(ledger, number) for number in made])
        except LedgerError as error:
            return [f"what became of it cannot be seen from here: {error.what}", "name the run with --run-dir"]

    return look
