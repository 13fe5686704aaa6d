"""Read-only commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import LOOPS, SettingsCommand, as_json, command, print_json, reader, settings, sources

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved


@command()
@as_json
@sources
def status(resolved: Resolved, json_out: bool) -> None:
    """Show loops, turns, drops, the live version, alarms."""
    from openclaw_rl.app.cluster import cluster_state
    from openclaw_rl.cli.output import print_status
    from openclaw_rl.views import status as views

    with reader(resolved) as ledger:
        view = views.status(ledger, starve_after=resolved.config.collect.starve_turns)
    view = {**view, "cluster": cluster_state(resolved.config.run.dir)}
    print_json(view) if json_out else print_status(view)


@click.group()
def show() -> None:
    """Show one turn, session, step or version."""


def _shower(noun: str, kind: type, help_text: str) -> None:
    @show.command(name=noun, help=help_text, cls=SettingsCommand)
    @click.argument("name", type=kind, metavar="ID")
    @as_json
    @sources
    def one(resolved: Resolved, name: Any, json_out: bool) -> None:
        from openclaw_rl.cli.output import print_view
        from openclaw_rl.views import status as views

        with reader(resolved) as ledger:
            view = getattr(views, noun)(ledger, name)
        print_json(view) if json_out else print_view(view)


_shower("turn", str, "A turn: its reply, next state, verdict and training.")
_shower("step", int, "The turns a step used, its metrics, the version it made.")
_shower("version", int, "A version's origin and its history.")


@show.command(name="session", cls=SettingsCommand)
@click.argument("name", metavar="ID")
@click.option("--user", help="The session's user, if several users have one with this name.")
@as_json
@sources
def show_session(resolved: Resolved, name: str, user: str | None, json_out: bool) -> None:
    """Show a session's turns in order."""
    from openclaw_rl.cli.output import print_view
    from openclaw_rl.views import status as views

    with reader(resolved) as ledger:
        view = views.session(ledger, name, user)
    print_json(view) if json_out else print_view(view)


@command()
@as_json
@settings(*LOOPS)
def doctor(resolved: Resolved, json_out: bool) -> None:
    """Check this machine and this run; suggest remedies."""
    from openclaw_rl.app.doctor import examine

    findings = examine(resolved.config)
    if json_out:
        print_json([{"check": f.check, "state": f.state, "detail": f.detail, "remedy": f.remedy} for f in findings])
    else:
        colours = {"ok": "green", "warning": "yellow", "trouble": "red"}
        for finding in findings:
            click.secho(f"{finding.state:>8}", fg=colours[finding.state], nl=False)
            click.echo(f"  {finding.check}: {finding.detail}" + (f"; {finding.remedy}" if finding.remedy else ""))
    if any(finding.state == "trouble" for finding in findings):
        raise click.exceptions.Exit(1)
