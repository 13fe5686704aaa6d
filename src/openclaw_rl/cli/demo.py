"""The command `demo`: a simulated user corrects the model, and the weights learn the correction."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openclaw_rl.errors import ConfigError

if TYPE_CHECKING:
    from openclaw_rl.config import Config
    from openclaw_rl.experiments.demo_report import DemoReport
    from openclaw_rl.tasks.preferences import Preference

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
SETS = click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set one setting; may be repeated.")
PRESET = click.option("--preset", default="cpu-demo", show_default=True, metavar="NAME", help="Settings to begin with.")
VOICE = click.option(
    "--voice", metavar="FILE", help="Users talk so: 'unseen', a .toml of phrases, a .jsonl of data/voices."
)


@click.command()
@click.option("--user", "name", default="short", show_default=True, metavar="PREFERENCE", help="Who talks.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Settles prompts and sampling.")
@click.option("--probes", default=60, show_default=True, type=click.IntRange(1, 150), help="Held-out prompts.")
@click.option(
    "--sessions", default=8, show_default=True, type=click.IntRange(1, 1000), help="Most talks until a note is made."
)
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 8), help="Complaints a session at most.")
@VOICE
@click.option("--json", "json_file", type=FILE, help="Also write the figures to this file.")
@click.option("--dir", "directory", type=FOLDER, help="Where the run is kept [default: a new folder].")
@click.option("--yes", is_flag=True, help="Go on with a run that is in --dir already.")
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
    """See one correction obeyed at once, learned, and forgotten by the prompt.

    A simulated user with a preference talks to the real server over HTTP. What they say of a reply becomes a standing
    note; while they are away it is rehearsed until the weights do it by themselves, and the note leaves the prompt.

    Users: short, list, one_sentence, student, long, praise, metric, closing.
    """
    import asyncio

    from openclaw_rl.cli.demo_view import Live, print_report
    from openclaw_rl.experiments.demo import run
    from openclaw_rl.experiments.demo_report import DemoPlan
    from openclaw_rl.tasks.voices import read_voice

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
    """Refuse the former command, with the place of the benchmark."""
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

    own = (f"run.dir={directory}", f"run.seed={seed}", "serve.port=0", "run.log_level=warning")
    resolved = load(preset=preset, sets=(*own, *sets))
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
            remedy="give another --dir, or --yes to go on from there",
        )


def _keep(report: DemoReport, json_file: Path | None) -> None:
    """Write the chart and the figures, and print where they are and how to undo what was learned."""
    from openclaw_rl.experiments.demo_report import FORMER
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
