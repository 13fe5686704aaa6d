"""The verbs a person types.

Exit codes: 0 done · 1 it failed · 2 the command line or a dial is wrong · 3 no such thing · 4 another process holds it.
Heavy things are imported inside the commands that need them, so that help answers at once.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from openclaw_rl.config.names import FLAGS
from openclaw_rl.errors import ConfigError, LedgerHeld, NotInLedger, OpenClawError, PluginError

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.store import Ledger, Writer

F = TypeVar("F", bound=Callable[..., Any])

EXIT_CODES: tuple[tuple[type[OpenClawError], int], ...] = (
    (ConfigError, 2),
    (PluginError, 2),
    (NotInLedger, 3),
    (LedgerHeld, 4),
    (OpenClawError, 1),
)


def main() -> None:
    """The command ``openclaw-rl``."""
    try:
        sys.exit(cli(prog_name="openclaw-rl", standalone_mode=False))  # an exit code, or None
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OpenClawError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))


class InOrder(click.Group):
    """Lists its verbs in the order in which a person meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="openclaw-rl")
def cli() -> None:
    """Train an agent simply by using it.

    Serve a model, watch what comes after each reply, judge it, keep training in the background.
    Begin with:  openclaw-rl up
    """


# --- options that many verbs share ---


def sources(command: F) -> F:
    """--config, --preset, --set and --rl-buffer-dir; the command gets ``resolved`` in their place."""
    return _resolving(command, {"--rl-buffer-dir"})


def dials(command: F) -> F:
    """Like `sources`, with every flag that turns a dial."""
    return _resolving(command, set(FLAGS))


def _resolving(command: F, names: set[str]) -> F:
    @functools.wraps(command)
    def wrapped(config_file: Path | None, preset: str | None, sets: tuple[str, ...], **given: Any) -> Any:
        from openclaw_rl.config import load

        flags = {name: value for name in names if (value := given.pop(_argument(name))) is not None}
        resolved = load(file=config_file, preset=preset, sets=sets, flags=flags)
        return command(resolved=resolved, **given)

    for name in reversed([name for name in FLAGS if name in names]):
        wrapped = _flag(name)(wrapped)
    wrapped = click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Turn any dial; may be repeated.")(
        wrapped
    )
    wrapped = click.option("--preset", metavar="NAME", help="Begin from a shipped preset, such as cpu-demo.")(wrapped)
    file_type = click.Path(dir_okay=False, path_type=Path)
    help_text = "The TOML file with the dials [default: openclaw-rl.toml here, if there is one]."
    return click.option("--config", "config_file", type=file_type, help=help_text)(wrapped)  # type: ignore[return-value]


def _argument(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _flag(name: str) -> Callable[[F], F]:
    flag = FLAGS[name]
    if flag.negative:
        return click.option(f"{name}/{flag.negative}", _argument(name), default=None, help=flag.help)
    return click.option(name, _argument(name), default=None, metavar=flag.type.__name__.upper(), help=flag.help)


def as_json(command: F) -> F:
    return click.option("--json", "json_out", is_flag=True, help="Print JSON for a script.")(command)


def _print(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _reader(resolved: Resolved) -> Ledger:
    from openclaw_rl.app import ledger_path
    from openclaw_rl.store import Ledger

    return Ledger(ledger_path(resolved.config))


# --- running ---


@cli.command()
@dials
def up(resolved: Resolved) -> None:
    """Run everything: serve, collect, judge and train in one process."""
    _run(resolved, None)


@cli.command()
@dials
def serve(resolved: Resolved) -> None:
    """Run only the API; the other loops may run elsewhere on the same run directory."""
    _run(resolved, "serve")


def _once(command: F) -> F:
    return click.option("--once", is_flag=True, help="Work until nothing is left to do, then end.")(command)


@cli.command()
@_once
@dials
def collect(resolved: Resolved, once: bool) -> None:
    """Run only the loop that finds out what followed each reply."""
    _run(resolved, "collect", once=once)


@cli.command()
@_once
@click.option(
    "--explain", metavar="TURN", help="Show the evidence, the exact prompt and the votes for one turn, and end."
)
@as_json
@dials
def judge(resolved: Resolved, once: bool, explain: str | None, json_out: bool) -> None:
    """Run only the loop that judges replies by what followed them."""
    if explain is None:
        _run(resolved, "judge", once=once)
        return
    from openclaw_rl.app import explain_verdict
    from openclaw_rl.printing import print_view
    from openclaw_rl.review.views import turn_id

    view = asyncio.run(explain_verdict(resolved.config, turn_id(explain)))
    _print(view) if json_out else print_view(view)


@cli.command()
@_once
@dials
def train(resolved: Resolved, once: bool) -> None:
    """Run only the loop that trains new versions."""
    _run(resolved, "train", once=once)


def _run(resolved: Resolved, only: Writer | None, *, once: bool = False) -> None:
    from openclaw_rl.app import LOOPS, App, ledger_path
    from openclaw_rl.runner import stop_on_signals

    _logging(resolved.config.run.log_level)
    for note in resolved.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)

    async def go() -> None:
        build = App.hurried if once else App
        app = build(resolved.config, loops=(only,) if only else LOOPS)
        click.echo(f"run directory  {ledger_path(resolved.config).parent}", err=True)
        if once:
            async with app.started():
                click.echo(f"moved {await app.finish()} items", err=True)
            return
        stop = asyncio.Event()
        with stop_on_signals(stop):
            await app.run(stop, listening=lambda url: click.secho(f"listening on   {url}", fg="green", err=True))
        click.echo("ended cleanly", err=True)

    _event_loop().run(go())


def _event_loop() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:  # Windows has none; the standard loop does
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def _logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr
    )


# --- dials and plugins ---


@cli.command()
@as_json
@dials
def config(resolved: Resolved, json_out: bool) -> None:
    """Print every dial with its value and where that came from. Secrets are not shown."""
    from openclaw_rl.config import as_json as as_plain
    from openclaw_rl.config import render

    if json_out:
        _print(as_plain(resolved))
        return
    rows = render(resolved)
    width, wide = max(len(row.path) for row in rows), max(min(len(row.value), 50) for row in rows)
    for row in rows:
        line = f"{row.path:<{width}}  {row.value:<{wide}}  {row.source}"
        click.secho(line, dim=row.source == "default")
    for note in resolved.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)


@cli.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("openclaw-rl.toml"))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(file: Path, force: bool) -> None:
    """Write a commented file with every dial at its default."""
    from openclaw_rl.config import template

    if file.exists() and not force:
        raise ConfigError(f"{file} is there already", remedy="give another name, or --force to write over it")
    file.write_text(template(), encoding="utf-8")
    click.echo(f"wrote {file}: take the # away before a dial to set it")


@cli.command(name="plugins")
@as_json
def list_plugins(json_out: bool) -> None:
    """List what can be named as policy, trainer, judge, env, rollout, generate or loss."""
    from openclaw_rl import plugins

    rows = plugins.listed()
    if json_out:
        _print([{"kind": r.kind, "name": r.name, "target": r.target, "origin": r.origin} for r in rows])
        return
    for kind in plugins.KINDS:
        named = [row for row in rows if row.kind == kind]
        click.secho(kind, bold=True)
        for row in named:
            click.echo(f"  {row.name:<10} {row.target}  ({row.origin})")
        click.echo("  " + ("or " if named else "") + "module:attribute, or file.py:attribute")


# --- looking ---


@cli.command()
@as_json
@sources
def status(resolved: Resolved, json_out: bool) -> None:
    """Show how the run stands: loops, turns, drops by reason, the live version, alarms."""
    from openclaw_rl.printing import print_status
    from openclaw_rl.review import views

    with _reader(resolved) as ledger:
        view = views.status(ledger, starve_after=resolved.config.collect.starve_turns)
    _print(view) if json_out else print_status(view)


@cli.group()
def show() -> None:
    """Show one turn, session, step or version."""


def _shower(noun: str, kind: type, help_text: str) -> None:
    @show.command(name=noun, help=help_text)
    @click.argument("name", type=kind, metavar="ID")
    @as_json
    @sources
    def one(resolved: Resolved, name: Any, json_out: bool) -> None:
        from openclaw_rl.printing import print_view
        from openclaw_rl.review import views

        with _reader(resolved) as ledger:
            view = getattr(views, noun)(ledger, name)
        _print(view) if json_out else print_view(view)


_shower("turn", str, "What was said, what came after, what was thought of it, what became of it.")
_shower("session", str, "The turns of a session, in order.")
_shower("step", int, "The turns a step used, its metrics, the version it made.")
_shower("version", int, "Where a version comes from and what happened to it.")


# --- in and out ---


@cli.command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--user", default="default", show_default=True, help="Whose conversations these are.")
@click.option("--strict", is_flag=True, help="Refuse a file whole if one of its records is bad.")
@as_json
@dials
def import_(resolved: Resolved, files: tuple[Path, ...], user: str, strict: bool, json_out: bool) -> None:
    """Read recorded conversations (one object, a list, or JSONL) into the ledger."""
    from openclaw_rl.app import import_files

    reports = asyncio.run(import_files(resolved.config, files, user=user, strict=strict, said=_progress))
    refused = [fault for report in reports.values() for fault in report.refused]
    if json_out:
        _print(
            {str(path): {"sessions": r.sessions, "turns": r.turns, "refused": r.refused} for path, r in reports.items()}
        )
    else:
        for path, report in reports.items():
            click.echo(
                f"{path}: {report.sessions} conversations, {report.turns} turns taken, {len(report.refused)} refused"
            )
        for fault in refused:
            click.secho(f"refused {fault}", fg="yellow", err=True)
    if refused:
        raise click.exceptions.Exit(1)


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{line}", nl=False, err=True)


@cli.command()
@click.option(
    "--output", "-o", type=click.File("w", encoding="utf-8"), default="-", help="Where to write [default: -]."
)
@click.option("--training", is_flag=True, help="As a training set: messages, score and hints of each judged turn.")
@click.option("--tokens", is_flag=True, help="With token ids and log-probs.")
@sources
def export(resolved: Resolved, output: Any, training: bool, tokens: bool) -> None:
    """Write every conversation as JSONL in the manual format."""
    from openclaw_rl.review import transcripts

    with _reader(resolved) as ledger:
        rows = transcripts.training_set(ledger) if training else transcripts.export(ledger, tokens=tokens)
        count = transcripts.write_lines(rows, output)
    click.echo(f"wrote {count} lines", err=True)


@cli.command()
@click.argument("to", type=int, required=False, metavar="[VERSION]")
@click.option("--why", default="asked for", show_default=True, help="The reason, for the ledger.")
@sources
def rollback(resolved: Resolved, to: int | None, why: str) -> None:
    """Serve older weights again, as a new version [default: those before the live ones]."""
    from openclaw_rl.app import roll_back_now

    done = asyncio.run(roll_back_now(resolved.config, to=to, why=why))
    click.echo(f"version {done.number} is live: {done.note}")


@cli.command()
@click.option("--why", default="asked for", show_default=True, help="The reason, for the ledger.")
@sources
def pause(resolved: Resolved, why: str) -> None:
    """Stop training until 'resume'; serving, collecting and judging go on."""
    _ask(resolved, "pause", {"why": why})


@cli.command()
@sources
def resume(resolved: Resolved) -> None:
    """Go on training after 'pause', or after alarms have paused it."""
    _ask(resolved, "resume", {})


def _ask(resolved: Resolved, verb: str, argument: dict[str, str]) -> None:
    from openclaw_rl.app import ledger_path
    from openclaw_rl.store import ask

    ask(ledger_path(resolved.config), verb, argument)
    click.echo(f"{verb}: written down; a running trainer takes it up at its next tick")


@cli.command()
@as_json
@dials
def doctor(resolved: Resolved, json_out: bool) -> None:
    """Check this machine and this run, and say the remedy for each trouble."""
    from openclaw_rl.doctor import examine

    found = examine(resolved.config)
    if json_out:
        _print([{"check": f.check, "state": f.state, "detail": f.detail, "remedy": f.remedy} for f in found])
    else:
        colours = {"ok": "green", "warning": "yellow", "trouble": "red"}
        for finding in found:
            click.secho(f"{finding.state:>8}", fg=colours[finding.state], nl=False)
            click.echo(f"  {finding.check}: {finding.detail}" + (f"; {finding.remedy}" if finding.remedy else ""))
    if any(finding.state == "trouble" for finding in found):
        raise click.exceptions.Exit(1)
