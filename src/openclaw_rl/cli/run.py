"""Commands that run loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import LOOPS, POLICY, F, SettingsGroup, as_json, command, print_json, settings, sources

if TYPE_CHECKING:
    import asyncio

    from openclaw_rl.config import Resolved
    from openclaw_rl.store import Writer

DEFAULT_USER = "default"


@command()
@click.option("--no-page", is_flag=True, help="Do not start the browser page (page.enabled).")
@click.option("--cluster", metavar="ADDRESS", help="Run the loops on a Ray cluster: its address, or auto.")
@settings(*LOOPS)
def up(resolved: Resolved, no_page: bool, cluster: str | None) -> None:
    """Serve, collect, judge and train in one process.

    Recorded conversations (train.data, DATA_PATH) are also read and trained on, once. With --cluster each loop
    is a separate process, on the node that Ray selects.
    """
    _begin(resolved)
    if cluster is not None:
        from openclaw_rl.app.cluster import run_on_cluster

        run_on_cluster(resolved.config, cluster, say=lambda line: click.echo(line, err=True))
        return
    _run(resolved, None, with_page=resolved.config.page.enabled and not no_page)


@command()
@settings("serve", "env", *POLICY)
def serve(resolved: Resolved) -> None:
    """Run the API alone.

    The other loops may run in other processes on the same run directory.
    """
    _begin(resolved, "serve.log")
    if resolved.config.train.data:
        click.secho("note: train.data is read by 'up' and by 'train', not by 'serve'", fg="yellow", err=True)
    _run(resolved, "serve")


def _once(command: F) -> F:
    return click.option("--once", is_flag=True, help="Run until no work is left, then end.")(command)


@command()
@_once
@sources
def collect(resolved: Resolved, once: bool) -> None:
    """Run only the loop that finds the message after each reply."""
    _begin(resolved, "collect.log")
    _run(resolved, "collect", once=once)


@click.group(cls=SettingsGroup, invoke_without_command=True, subcommand_metavar="[eval FILE]")
@_once
@click.option(
    "--explain", metavar="TURN", help="Show the evidence, the exact prompt and the votes for one turn, then end."
)
@click.option("--fit", is_flag=True, help="Fit the feedback classifier to this base model, store it, then end.")
@click.option(
    "--voices",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Labelled lines for --fit [default: data/voices in the source].",
)
@click.option("--epochs", type=click.FloatRange(0.001, 20), default=3.0, help="Passes over these lines in --fit.")
@as_json
@settings("judge", *POLICY)
@click.pass_context
def judge(
    ctx: click.Context,
    resolved: Resolved,
    once: bool,
    explain: str | None,
    fit: bool,
    voices: Path | None,
    epochs: float,
    json_out: bool,
) -> None:
    """Run only the loop that judges replies, or measure or fit a judge."""
    import asyncio

    if ctx.invoked_subcommand is not None:
        _nothing_before(ctx)
        return
    if fit:
        from openclaw_rl.cli.judging import fit_feedback_classifier

        fit_feedback_classifier(resolved, voices=voices, epochs=epochs, json_out=json_out)
        return
    if voices is not None:
        raise click.UsageError("--voices is for --fit")
    if explain is None:
        _begin(resolved, "judge.log")
        _run(resolved, "judge", once=once)
        return
    from openclaw_rl.app.operations import explain_verdict
    from openclaw_rl.cli.output import print_view
    from openclaw_rl.views.status import turn_id

    view = asyncio.run(explain_verdict(resolved.config, turn_id(explain)))
    print_json(view) if json_out else print_view(view)


def _nothing_before(ctx: click.Context) -> None:
    """Refuse options between a command and its subcommand, where they would have no effect."""
    for name in ctx.params:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"give options after {ctx.invoked_subcommand!r}, not before it")


@command()
@_once
@click.option(
    "--data",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Train on recorded conversations, then end; may be repeated (train.data).",
)
@click.option("--user", default=DEFAULT_USER, show_default=True, help="The user of the conversations in --data.")
@settings(*LOOPS)
def train(resolved: Resolved, once: bool, data: tuple[Path, ...], user: str) -> None:
    """Run only the loop that trains, or train on files.

    With --data it trains on recorded conversations and ends. With --env it runs all loops, like 'up'.
    """
    if resolved.sources["env.type"] == "--env":
        _begin(resolved)
        _run(resolved, None)
        return
    files = data or resolved.config.train.data
    _begin(resolved)
    if files:
        _train_from(resolved, files, user)
    else:
        _run(resolved, "train", once=once)


def _train_from(resolved: Resolved, files: Sequence[Path], user: str) -> None:
    from openclaw_rl.app.operations import train_from

    with _event_loop() as loop:
        summary = loop.run(train_from(resolved.config, files, user=user, progress=click.echo))
    dropped = "".join(f", {count} {why}" for why, count in summary.dropped.items())
    click.echo(
        f"{summary.trained} turns trained in {summary.steps} steps; version {summary.live} is live; dropped: "
        + (dropped.removeprefix(", ") or "none")
    )
    if summary.paused:
        click.secho(
            f"training is paused: {summary.paused}; fix the cause, then 'openclaw-rl resume'", fg="red", err=True
        )
    if summary.waiting:
        click.secho(
            f"{summary.waiting} turns still wait to be judged or trained: run this again", fg="yellow", err=True
        )
    if summary.undecided:
        click.secho(f"the gate has not ruled on version {summary.undecided} yet: run this again", fg="yellow", err=True)
    if not summary.whole:
        raise click.exceptions.Exit(1)


def _run(resolved: Resolved, only: Writer | None, *, once: bool = False, with_page: bool = False) -> None:
    import asyncio

    from openclaw_rl.app.application import LOOPS, App, ledger_place
    from openclaw_rl.app.page import PageBeside
    from openclaw_rl.app.runner import stop_on_signals

    page = PageBeside(resolved.config, said=_tell_page)

    def listening(url: str) -> None:
        click.secho(f"listening on   {url}", fg="green", err=True)
        if with_page:
            page.begin()

    async def go() -> None:
        build = App.without_waiting if once else App
        app = build(resolved.config, loops=(only,) if only else LOOPS)
        click.echo(f"run directory  {resolved.config.run.dir}", err=True)
        if resolved.config.store.url is not None:
            click.echo(f"ledger         {ledger_place(resolved.config)}", err=True)
        if app.judging:
            click.echo(f"judge          {app.judging}", err=True)
        for note in app.notes:
            click.secho(f"note: {note}", fg="yellow", err=True)
        if once:
            async with app.started():
                click.echo(f"moved {await app.finish()} items", err=True)
            return
        stop = asyncio.Event()
        try:
            with stop_on_signals(stop):
                await app.run(stop, listening=listening)
        finally:
            await page.end()
        click.echo("ended cleanly", err=True)

    _event_loop().run(go())


def _tell_page(url: str | None, why: str) -> None:
    if url is not None:
        click.secho(f"page           {url}", fg="green", err=True)
    else:
        click.secho(f"note: there is no page: {why}", fg="yellow", err=True)


def _begin(resolved: Resolved, log_file: str = "training.log") -> None:
    from openclaw_rl.cli.logs import log_to

    run = resolved.config.run
    log_to(run.dir / "logs" / log_file, level=run.log_level)
    for note in resolved.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)


def _event_loop() -> asyncio.Runner:
    import asyncio

    try:
        import uvloop
    except ImportError:  # not available on Windows; the standard loop suffices
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
