"""Commands that show whether it learns: demo, bench."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.errors import ConfigError

if TYPE_CHECKING:
    from openclaw_rl.config import Config
    from openclaw_rl.experiments.cells import Cell
    from openclaw_rl.experiments.demo_report import DemoReport
    from openclaw_rl.tasks.preferences import Preference

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_SETS = click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set one setting; may be repeated.")
_PRESET = click.option(
    "--preset", default="cpu-demo", show_default=True, metavar="NAME", help="Settings to begin with."
)
_MODEL = click.option("--model", metavar="NAME", help="The model: embedded, a folder or a Hugging Face id.")
_DEVICE = click.option("--device", metavar="NAME", help="Where it answers and trains: cpu, cuda or cuda:N.")
_VOICE = click.option(
    "--voice", metavar="FILE", help="Users talk so: 'unseen', a .toml of phrases, a .jsonl of data/voices."
)
_JUDGE = click.option("--judge", metavar="NAME", help="Who judges: auto, reader, rules, or a judge of your own.")


@click.command()
@click.option("--user", "name", default="short", show_default=True, metavar="PREFERENCE", help="Who talks.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Settles prompts and sampling.")
@click.option("--probes", default=60, show_default=True, type=click.IntRange(1, 150), help="Held-out prompts.")
@click.option(
    "--sessions", default=8, show_default=True, type=click.IntRange(1, 1000), help="Most talks until a note is made."
)
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1, 8), help="Complaints a session at most.")
@_VOICE
@click.option("--json", "json_file", type=_FILE, help="Also write the figures to this file.")
@click.option("--dir", "directory", type=_FOLDER, help="Where the run is kept [default: a new folder].")
@click.option("--yes", is_flag=True, help="Go on with a run that is in --dir already.")
@_PRESET
@_SETS
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
    from openclaw_rl.cli.demo_view import Live, print_report
    from openclaw_rl.experiments.demo import run
    from openclaw_rl.experiments.demo_report import DemoPlan
    from openclaw_rl.tasks.voices import read_voice

    preference = _preference(name)
    if voice is not None:
        preference = read_voice(voice).of(preference)
    config = _config(preset, sets, directory or _new_folder("demo"), seed=seed)
    _may_go_on(Path(config.run.dir), yes=yes)
    plan = DemoPlan(preference=preference, seed=seed, probes=probes, sessions=sessions, rounds=rounds)
    view = Live()
    try:
        report = asyncio.run(run(config, plan, view))
    finally:
        view.done()
    print_report(report)
    _keep(report, json_file)


@click.group()
def bench() -> None:
    """Measure how fast it learns."""


@bench.command()
@click.option(
    "--users",
    default="short,list,one_sentence",
    show_default=True,
    metavar="A,B",
    help="Users, each on a policy alone.",
)
@click.option(
    "--together",
    default="short:facts,list:advice,one_sentence:measures",
    show_default=True,
    metavar="A,B,C",
    help="Users who share one policy; PREFERENCE:KIND asks only that kind. Empty: none.",
)
@click.option("--methods", default="binary,opd,combine,topk", show_default=True, metavar="A,B", help="Arms that train.")
@click.option(
    "--arms",
    default="none,memory",
    show_default=True,
    metavar="A,B",
    help="Other arms: also note, rehearse, note+rehearse.",
)
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1, 100), help="Runs of each cell.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The first run's seed.")
@click.option(
    "--sessions", default=32, show_default=True, type=click.IntRange(3, 1000), help="Sessions a user has at most."
)
@click.option("--probes", default=20, show_default=True, type=click.IntRange(1, 150), help="Held-out prompts.")
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1, 8), help="Complaints a session at most.")
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(1, 256), help="Runs at once, where there is room."
)
@click.option("--to-the-end", is_flag=True, help="Run all sessions, also once the preference is met.")
@click.option("--turns-train", is_flag=True, help="In arms of notes, turns take steps of their own too, as in use.")
@click.option("--json", "json_file", type=_FILE, help="Keep results here; a second start goes on with what is missing.")
@click.option("--plot", "plot_file", type=_FILE, help="Draw the result as SVG.")
@click.option("--dir", "directory", type=_FOLDER, help="Where runs are kept while they last [default: a new folder].")
@_VOICE
@_MODEL
@_DEVICE
@_JUDGE
@_PRESET
@_SETS
def personal(
    users: str,
    together: str,
    methods: str,
    arms: str,
    seeds: int,
    seed: int,
    jobs: int,
    json_file: Path | None,
    plot_file: Path | None,
    directory: Path | None,
    voice: str | None,
    preset: str,
    sets: tuple[str, ...],
    **more: Any,
) -> None:
    """Sessions until a user's preference is met.

    Three times in a row, for every method, two arms without training, and arms of standing notes.
    """
    from openclaw_rl.experiments.benchmark import run
    from openclaw_rl.experiments.cell_run import BenchmarkSetup, parse_user
    from openclaw_rl.experiments.cells import ARMS, METHODS, NOTES, cells, chart, table
    from openclaw_rl.tasks.preferences import PREFERENCES
    from openclaw_rl.tasks.voices import read_voice

    alone, shared = _names(users), _names(together)
    for name in (*alone, *shared):
        parse_user(name)
    every = (*_known(arms, (*ARMS, *NOTES), "arm"), *_known(methods, METHODS, "method"))
    folder = directory or _new_folder("bench")
    spoken = read_voice(voice) if voice is not None else None
    if spoken is not None:
        for name in (*alone, *shared):
            spoken.of(PREFERENCES[parse_user(name)[0]])
    own = ("train.batch_size=1", *_placed(more))  # a session's complaint is to count in the next one
    config = _config(preset, (*own, *sets), folder, seed=0)
    setup = BenchmarkSetup(config=config, directory=folder, voice=spoken, **more)
    wanted = cells(users=alone, together=shared, arms=every, seeds=range(seed, seed + seeds))
    report = asyncio.run(run(setup, wanted, json_file, done=_cell_done, jobs=jobs))
    click.echo(table(report["summary"]))
    if plot_file is not None:
        plot_file.write_text(chart(report["summary"], sessions=setup.sessions), encoding="utf-8")


@bench.command()
@click.option("--users", metavar="A,B", help="Users [default: all].")
@click.option("--probes", default=40, show_default=True, type=click.IntRange(1, 150), help="Held-out prompts.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Settles prompts and sampling.")
@click.option("--json", "json_file", type=_FILE, help="Write the figures here.")
@_PRESET
@_SETS
def prompted(
    users: str | None, probes: int, seed: int, json_file: Path | None, preset: str, sets: tuple[str, ...]
) -> None:
    """Preferences the base model meets when prompted.

    No other can be distilled from it.
    """
    from openclaw_rl.experiments.cell_run import BenchmarkSetup, parse_user, prompted_baseline
    from openclaw_rl.experiments.metrics import HeldOutRates, prompted_table, teachable
    from openclaw_rl.experiments.results import write
    from openclaw_rl.tasks.preferences import PREFERENCES

    names = _names(users or "") or tuple(PREFERENCES)
    for name in names:
        parse_user(name)

    def done(name: str, plain: HeldOutRates, prompted: HeldOutRates) -> None:
        rates = f"plain {plain.rate:4.0%}  prompted {prompted.rate:4.0%}"
        click.echo(f"{name:<14} {rates}  {teachable(plain, prompted)}", err=True)

    with tempfile.TemporaryDirectory() as folder:
        config = _config(preset, sets, Path(folder), seed=seed)
        setup = BenchmarkSetup(
            config=config, directory=Path(folder), sessions=0, probes=probes, rounds=1, to_the_end=False
        )
        found = asyncio.run(prompted_baseline(setup, names, done=done))
    click.echo(prompted_table(found))
    if json_file is not None:
        figures = {
            name: {"plain": plain.plain(), "prompted": prompted.plain(), "teachable": teachable(plain, prompted)}
            for name, (plain, prompted) in found.items()
        }
        write(json_file, {"command": "bench prompted", "seed": seed, "users": figures})


bench.add_command(click.Command("told", callback=prompted.callback, params=prompted.params, hidden=True))
"""the former name of `bench prompted`"""


def _placed(given: dict[str, Any]) -> tuple[str, ...]:
    """--model, --device and --judge as settings; they are taken out of ``given``."""
    model, device, judge = (given.pop(name) for name in ("model", "device", "judge"))
    own = judge is not None and (":" in judge or judge.endswith(".py"))
    found = {"policy.model": model, "policy.device": device, "train.local.device": device}
    found["judge.custom" if own else "judge.kind"] = judge
    return tuple(f"{name}={value}" for name, value in found.items() if value is not None)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _known(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    for name in _names(text):
        if name not in known:
            raise ConfigError(f"no {what} {name!r}", remedy=f"known: {', '.join(known)}")
    return _names(text)


def _cell_done(cell: Cell, result: Mapping[str, Any]) -> None:
    found = ", ".join(
        f"{name} {one['sessions'] or 'not reached'} ({one['before']['rate']:.0%} -> {one['after']['rate']:.0%})"
        for name, one in result["users"].items()
    )
    click.echo(f"{cell.key:<40} {found}, {result['seconds']:.0f} s", err=True)


def _preference(name: str) -> Preference:
    from openclaw_rl.tasks.preferences import PREFERENCES

    if name not in PREFERENCES:
        raise ConfigError(f"no simulated user {name!r}", remedy=f"known: {', '.join(PREFERENCES)}")
    return PREFERENCES[name]


def _config(preset: str, sets: tuple[str, ...], directory: Path, *, seed: int) -> Config:
    from openclaw_rl.config import load

    own = (f"run.dir={directory}", f"run.seed={seed}", "serve.port=0", "run.log_level=warning")
    resolved = load(preset=preset, sets=(*own, *sets))
    for note in resolved.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)
    return resolved.config


def _new_folder(what: str) -> Path:
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
