"""Commands that control a run: roll back, pause, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import command, sources

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.types import Command


@command()
@click.argument("to", type=int, required=False, metavar="[VERSION]")
@click.option("--why", default="on request", show_default=True, help="The reason, for the ledger.")
@sources
def rollback(resolved: Resolved, to: int | None, why: str) -> None:
    """Serve older weights again, as a new version.

    Without VERSION: those that were live before the present ones.
    """
    import asyncio

    from openclaw_rl.app.operations import roll_back_now

    done = asyncio.run(roll_back_now(resolved.config, to=to, why=why))
    click.echo(f"version {done.number} is live: {done.note}")


@command()
@click.option("--why", default="on request", show_default=True, help="The reason, for the ledger.")
@sources
def pause(resolved: Resolved, why: str) -> None:
    """Pause training; serving, collecting and judging go on."""
    _submit(resolved, "pause", reason=why)


@command()
@sources
def resume(resolved: Resolved) -> None:
    """Resume training after 'pause' or an alarm."""
    _submit(resolved, "resume", reason="")


def _submit(resolved: Resolved, command: Command, *, reason: str) -> None:
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.store import submit_request

    submit_request(ledger_place(resolved.config), command, reason=reason)
    click.echo(f"{command}: written down; a running trainer takes it up at its next tick")
