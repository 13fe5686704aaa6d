"""Sessions until a simulated user's preference is met, by method and arm; Markdown, JSON and an SVG.

python benchmarks/personal.py --json personal.json --plot personal.svg
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.learning.benchmark import run
from benchmarks.learning.cell_run import BenchmarkSetup, parse_user
from benchmarks.learning.cells import ARMS, METHODS, NOTES, Cell, cells, chart, table
from openclaw_rl.cli import main
from openclaw_rl.cli.demo import FILE, FOLDER, PRESET, SETS, VOICE, demo_config, new_folder
from openclaw_rl.errors import ConfigError
from openclaw_rl.tasks.preferences import PREFERENCES, read_voice

MODEL = click.option("--model", metavar="NAME", help="The model: embedded, a folder or a Hugging Face id.")
DEVICE = click.option("--device", metavar="NAME", help="Where it answers and trains: cpu, cuda or cuda:N.")
JUDGE = click.option("--judge", metavar="NAME", help="The judge: auto, reader, rules, or a judge of your own.")


@click.command()
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
    help="Other arms: also note, distill, note+distill.",
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
@click.option("--json", "json_file", type=FILE, help="Keep results here; a second start goes on with what is missing.")
@click.option("--plot", "plot_file", type=FILE, help="Draw the result as SVG.")
@click.option("--dir", "directory", type=FOLDER, help="Where runs are kept while they last [default: a new folder].")
@VOICE
@MODEL
@DEVICE
@JUDGE
@PRESET
@SETS
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
    alone, shared = names_in(users), names_in(together)
    for name in (*alone, *shared):
        parse_user(name)
    every = (*_known(arms, (*ARMS, *NOTES), "arm"), *_known(methods, METHODS, "method"))
    folder = directory or new_folder("bench")
    spoken = read_voice(voice) if voice is not None else None
    if spoken is not None:
        for name in (*alone, *shared):
            spoken.of(PREFERENCES[parse_user(name)[0]])
    own = ("train.batch_size=1", *_placed(more))  # a session's complaint is to count in the next one
    config = demo_config(preset, (*own, *sets), folder, seed=0)
    setup = BenchmarkSetup(config=config, directory=folder, voice=spoken, **more)
    wanted = cells(users=alone, together=shared, arms=every, seeds=range(seed, seed + seeds))
    report = asyncio.run(run(setup, wanted, json_file, done=_cell_done, jobs=jobs))
    click.echo(table(report["summary"]))
    if plot_file is not None:
        plot_file.write_text(chart(report["summary"], sessions=setup.sessions), encoding="utf-8")


def names_in(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _known(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    for name in names_in(text):
        if name not in known:
            raise ConfigError(f"no {what} {name!r}", remedy=f"known: {', '.join(known)}")
    return names_in(text)


def _cell_done(cell: Cell, result: Mapping[str, Any]) -> None:
    found = ", ".join(
        f"{name} {one['sessions'] or 'not reached'} ({one['before']['rate']:.0%} -> {one['after']['rate']:.0%})"
        for name, one in result["users"].items()
    )
    click.echo(f"{cell.key:<40} {found}, {result['seconds']:.0f} s", err=True)


def _placed(given: dict[str, Any]) -> tuple[str, ...]:
    """--model, --device and --judge as settings; they are taken out of ``given``."""
    model, device, judge = (given.pop(name) for name in ("model", "device", "judge"))
    own = judge is not None and (":" in judge or judge.endswith(".py"))
    found = {"policy.model": model, "policy.device": device, "train.local.device": device}
    found["judge.custom" if own else "judge.kind"] = judge
    return tuple(f"{name}={value}" for name, value in found.items() if value is not None)


if __name__ == "__main__":
    main(personal, "personal.py")
