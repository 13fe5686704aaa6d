"""The chat command: talk to the server, correct it, and see the effects."""

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
"""seconds after a reply in which a new note is still reported; it usually takes 0.2"""


@command()
@click.option("--url", metavar="URL", help="The server's address up to /v1 [default: the run's].")
@click.option("--key", metavar="KEY", help="The server's key [default: OPENCLAW_API_KEY, if it is set].")
@click.option("--model", metavar="NAME", help="Model to request, such as NAME@17 for a past version.")
@sources
def chat(resolved: Resolved, url: str | None, key: str | None, model: str | None) -> None:
    """Talk to the running server in this terminal.

    /good, /bad and /fix TEXT give feedback, /why shows its effects, /help lists all commands.
    With judge.ask_in_doubt it asks about a message that may be a correction; /yes and /no answer.
    """
    import asyncio

    from openclaw_rl.app.address import find_url
    from openclaw_rl.app.judges import build_asker
    from openclaw_rl.clients.api import ApiClient
    from openclaw_rl.clients.chat import PATIENCE, TerminalChat

    config = resolved.config
    configured = config.serve.api_key.get_secret_value() if config.serve.api_key else None
    remedy = "give the server's key with --key or OPENCLAW_API_KEY"
    client = ApiClient(
        url or find_url(resolved), key=key or configured, key_remedy=remedy, model=model or "", timeout=PATIENCE
    )
    notice = _NOTICE if sys.stdin.isatty() else 0.0
    talk = TerminalChat(client, say=_say, note=_note, look=_looker(config), asker=build_asker(config), notice=notice)
    with asyncio.Runner() as runner:  # one loop for all lines, idle while a person types
        try:
            runner.run(talk.greet())
            well = _converse(talk, _typed(), runner)
        finally:
            runner.run(client.close())
    if not (well or sys.stdin.isatty()):
        raise click.exceptions.Exit(1)


def _converse(talk: TerminalChat, typed: Iterator[str], runner: asyncio.Runner) -> bool:
    """Handle each typed line; return True if all succeeded."""
    failures = 0
    for line in typed:
        try:
            if not runner.run(talk.handle(line)):
                break
        except KeyboardInterrupt:
            _note("stopped")
        except OpenClawError as error:  # a person continues; a script reads the exit code
            failures += 1
            click.secho(f"error: {error}", fg="red", err=True)
    if not failures:
        runner.run(talk.end())
    return not failures


def _typed() -> Iterator[str]:
    """Yield lines from a person or from a pipe until its end."""
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
    """Enable arrow keys and history, if the system supports them."""
    try:
        import readline  # noqa: F401 (its import changes `input`)
    except ImportError:  # not on every system; `input` works without
        return


def _say(text: str) -> None:
    click.echo(text, nl=False)
    sys.stdout.flush()


def _note(text: str) -> None:
    click.secho(text, dim=True, err=True)


def _looker(config: Config) -> Callable[[str], Sequence[str]]:
    """Return a function that reads a turn's state from the run's ledger, opened for each call."""

    def look(turn: str) -> Sequence[str]:
        from openclaw_rl.app.application import ledger_place
        from openclaw_rl.clients.chat import describe_turn
        from openclaw_rl.store import LedgerReader
        from openclaw_rl.views import status as views

        place = ledger_place(config)
        try:
            with LedgerReader(place) as ledger:
                view = views.turn(ledger, turn)
                numbers = [version.number for version in ledger.versions() if version.step is not None]
                return describe_turn(view, [views.version(ledger, number) for number in numbers])
        except LedgerError as error:
            return [f"its state cannot be read from here: {error.what}", "name the run with --run-dir"]

    return look
