"""The command `demo`: a simulated user corrects the model, and the weights learn the correction."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openclaw_rl.errors import ConfigError

if TYPE_CHECKING:
    from openclaw_rl.config import Config
    from openclaw_rl.experiments.demo import DemoReport, Obeyed
    from openclaw_rl.experiments.demo_server import Progress
    from openclaw_rl.experiments.sessions import SimulatedTurn
    from openclaw_rl.tasks.preferences import Preference


# Terminal output for the demo: the correction, the next reply, prompt distillation as it runs; plain lines in a pipe.

_SHOWN = 3


class Live:
    """A `DemoView` in the terminal: permanent lines, and below them one line that is overwritten."""

    def __init__(self) -> None:
        self._alive = sys.stdout.isatty()
        self._began = time.monotonic()
        self._state, self._step = "in force", -1
        self._status = self._said = ""

    def phase(self, what: str) -> None:
        self._print(f"{self._clock():>5} " + click.style(f"==> {what}", bold=True))

    def answered(self, done: int, total: int) -> None:
        self._show(f"      {done} of {total} answered")

    def turn(self, turn: SimulatedTurn) -> None:
        mark = click.style("preference met", fg="green") if turn.met else click.style("not yet", fg="yellow")
        if turn.message != self._said:  # within a session a turn starts with the feedback on the previous reply
            self._print(f"      {turn.user}: {_cut(turn.message, 12)}")
        self._print(f"      v{turn.version}: {_cut(turn.reply, 38)}  ({_size(turn.reply)}, {mark})")
        self._print(f"      {turn.user}: {_cut(turn.response, 12)}")
        self._said = turn.response

    def noted(self, note: str) -> None:
        self._print(click.style(f"      noted: {_cut(note, 15)}", fg="cyan"))

    def obeyed(self, obeyed: Obeyed) -> None:
        self._print(f"      u1: {_cut(obeyed.prompt, 12)}")
        for what, reply in (("without the note", obeyed.without), ("with it", obeyed.within)):
            self._print(f"      {what:>16}: {_cut(reply, 36)}  ({_size(reply)})")

    def progress(self, progress: Progress) -> None:
        if progress.state != self._state:
            self._state = progress.state
            self._print(click.style(f"      the note is {progress.state}: {progress.reason}", fg="cyan"))
        if progress.step is not None and progress.step != self._step:
            self._step = progress.step
            self._print(f"      {_distilled(progress)}")
        self._show(f"      {_distilled(progress) if progress.step is not None else 'waiting'}  {self._clock()}")

    def _clock(self) -> str:
        spent = int(time.monotonic() - self._began)
        return f"{spent // 60}:{spent % 60:02}"

    def _print(self, line: str) -> None:
        self._wipe()
        click.echo(line)
        self._redraw()

    def _show(self, status: str) -> None:
        if status != self._status:
            self._wipe()
            self._status = status
            self._redraw()

    def _wipe(self) -> None:
        if self._alive and self._status:
            click.echo("\r\x1b[2K", nl=False)

    def _redraw(self) -> None:
        if self._alive and self._status:
            click.echo(self._status[: shutil.get_terminal_size().columns - 1], nl=False)

    def done(self) -> None:
        """Clear the status line."""
        self._wipe()
        self._status = ""


def _distilled(progress: Progress) -> str:
    remaining = "" if progress.seconds_left is None else f", at most about {progress.seconds_left:.0f} s more"
    result = ""
    if progress.met is not None:
        result = f", {progress.met[0]} of {progress.met[1]} replies without the note do it"
    elif progress.kl:
        result = f", {progress.kl[-1]:.2f} nats a token from the policy with the note"
    return f"distillation step {progress.step} of at most {progress.of}{result}{remaining}"


def _size(text: str) -> str:
    from openclaw_rl.text import word_count

    count = word_count(text)
    return "1 word" if count == 1 else f"{count} words"


def _cut(text: str, taken: int) -> str:
    """Return a text on one line of the terminal, with ``taken`` columns for other content."""
    room = max(30, shutil.get_terminal_size((120, 40)).columns - taken)
    flat = " ".join(text.split())
    return flat if len(flat) <= room else f"{flat[: room - 1]}…"


def print_report(report: DemoReport) -> None:
    """Print before and after side by side, and the figures."""
    wide = max(30, (shutil.get_terminal_size((120, 40)).columns - 4) // 2)
    click.secho("\nThe same held-out prompts, before and after; no note is in them\n", bold=True)
    for task, old, _noted, new in report.answers[:_SHOWN]:
        click.secho(task.prompt, bold=True)
        _columns(old, new, wide)
    _print_rates(report)
    _print_road(report)
    parts = ", ".join(f"{what} {seconds:.0f}" for what, seconds in report.seconds.items() if what != "total")
    click.echo(f"{report.seconds['total']:.0f} s in all ({parts})")
    if report.trouble:
        click.secho(f"training stopped: {report.trouble}", fg="red")


def _print_road(report: DemoReport) -> None:
    """Print the correction's history."""
    if report.note is None or report.end is None:
        click.secho(
            f"no correction was read as a rule in {len(report.turns)} turns: nothing was noted, nothing learned."
            " 'openclaw-rl why TURN' shows the reading of each",
            fg="red",
        )
        return
    click.echo(f"note: {report.note}")
    click.secho(f"{report.end.state}: {report.end.reason}", fg="green" if report.learned else "yellow")
    for row in report.distillations:
        spent = ", ".join(f"{what} {seconds:.0f}" for what, seconds in row.get("spent", {}).items())
        click.echo(f"distilled: {row['steps']} steps, {row['replies']} replies, {row['seconds']:.0f} s ({spent})")
    if report.refused:
        click.secho(f"{report.refused} versions refused by the gate", fg="yellow")


def _print_rates(report: DemoReport) -> None:
    measured = (report.before, report.noted, report.after)
    click.secho(f"{report.plan.preference.name}: {report.plan.preference.description}", bold=True)
    click.echo(f"{f'{report.before.count} held-out prompts':24}{'before':>12}{'with the note':>15}{'after':>12}")
    rows = (
        ("preference rate", [f"{score.rate:.0%}" for score in measured]),
        ("relevance", [f"{score.relevance:.0%}" for score in measured]),
        ("mean words", [f"{score.words:.1f}" for score in measured]),
        ("degenerate replies", [f"{score.degenerate}" for score in measured]),
    )
    for name, (before, noted, after) in rows:
        click.echo(f"{name:24}{before:>12}{noted:>15}{after:>12}")
    click.echo("after: the note is in no prompt; relevance: the share of replies that name what was asked about")


def _columns(left: str, right: str, wide: int) -> None:
    rows = [textwrap.wrap(" ".join(text.split()), wide)[:8] or ["(nothing)"] for text in (left, right)]
    for at in range(max(map(len, rows))):
        old_line, new_line = (lines[at] if at < len(lines) else "" for lines in rows)
        click.echo(f"{old_line:<{wide}}  | {new_line}")
    click.echo()


FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
SETS = click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set one setting; may be repeated.")
PRESET = click.option("--preset", default="cpu-demo", show_default=True, metavar="NAME", help="Preset for the run.")
VOICE = click.option(
    "--voice", metavar="FILE", help="Persona of the users: 'unseen', a .toml with phrases, a .jsonl from data/voices."
)


@click.command()
@click.option("--user", "name", default="short", show_default=True, metavar="PREFERENCE", help="The simulated user.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed for prompts and sampling.")
@click.option("--probes", default=60, show_default=True, type=click.IntRange(1, 150), help="Held-out prompts.")
@click.option(
    "--sessions",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Most sessions before a note is made.",
)
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 8), help="Most complaints in a session.")
@VOICE
@click.option("--json", "json_file", type=FILE, help="Also write the figures to this file.")
@click.option("--dir", "directory", type=FOLDER, help="Run directory [default: a new folder].")
@click.option("--yes", is_flag=True, help="Continue the run in --dir.")
@PRESET
@SETS
def demo(
    name: str,
    seed: int,
    probes: int,
    sessions: int,
    rounds: int,
    voice: str | None,
    json_file: Path | None,
    directory: Path | None,
    yes: bool,
    preset: str,
    sets: tuple[str, ...],
) -> None:
    """Show one correction followed at once, then learned without its note.

    A simulated user with a preference chats with the real server over HTTP. A complaint becomes a standing note; in
    idle time prompt distillation trains it until the weights follow it without the note, which leaves the prompt.

    Users: short, list, one_sentence, student, long, praise, metric, closing.
    """
    import asyncio

    from openclaw_rl.experiments.demo import DemoPlan, run
    from openclaw_rl.tasks.preferences import read_voice

    preference = _preference(name)
    if voice is not None:
        preference = read_voice(voice).of(preference)
    config = demo_config(preset, sets, directory or new_folder("demo"), seed=seed)
    _may_go_on(Path(config.run.dir), yes=yes)
    plan = DemoPlan(preference=preference, seed=seed, probes=probes, sessions=sessions, rounds=rounds)
    view = Live()
    try:
        report = asyncio.run(run(config, plan, view))
    finally:
        view.done()
    print_report(report)
    _keep(report, json_file)


@click.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def bench(words: tuple[str, ...]) -> None:
    """Refuse the former command, with the path of the benchmark."""
    script = "prompted" if words[:1] in (("prompted",), ("told",)) else "personal"
    raise ConfigError(
        "the benchmark is no command of the package any more",
        remedy=f"in the project's source: python benchmarks/{script}.py, with the same options",
    )


def _preference(name: str) -> Preference:
    from openclaw_rl.tasks.preferences import PREFERENCES

    if name not in PREFERENCES:
        raise ConfigError(f"no simulated user {name!r}", remedy=f"known: {', '.join(PREFERENCES)}")
    return PREFERENCES[name]


def demo_config(preset: str, sets: tuple[str, ...], directory: Path, *, seed: int) -> Config:
    from openclaw_rl.config import load

    base = (f"run.dir={directory}", f"run.seed={seed}", "serve.port=0", "run.log_level=warning")
    resolved = load(preset=preset, sets=(*base, *sets))
    for note in resolved.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)
    return resolved.config


def new_folder(what: str) -> Path:
    import platformdirs

    return platformdirs.user_data_path("openclaw-rl", appauthor=False) / f"{what}-{time.strftime('%Y%m%d-%H%M%S')}"


def _may_go_on(directory: Path, *, yes: bool) -> None:
    if (directory / "ledger.db").exists() and not yes:
        raise ConfigError(
            f"there is a run in {directory} already, whose weights have learned something",
            remedy="give another --dir, or --yes to continue from there",
        )


def _keep(report: DemoReport, json_file: Path | None) -> None:
    """Write the chart and the figures, and print their paths and the command that undoes the training."""
    from openclaw_rl.experiments.demo import FORMER
    from openclaw_rl.experiments.results import write

    chart = report.run_dir / "curve.svg"
    chart.write_text(report.chart(), encoding="utf-8")
    if json_file is not None:
        plain = {"command": "demo", "users": {report.plan.preference.name: report.plain()}}
        write(json_file, plain, former=FORMER)
        click.echo(f"figures        {json_file}")
    click.echo(f"chart          {chart}")
    click.echo(f"run directory  {report.run_dir}")
    click.echo(f"look into it   openclaw-rl status --rl-buffer-dir {report.run_dir}")
    click.echo(f"undo it        openclaw-rl rollback 0 --rl-buffer-dir {report.run_dir}")
