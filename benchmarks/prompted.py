"""Preferences that the base model meets when prompted: no other can be distilled from it.

python benchmarks/prompted.py --users short,list --json prompted.json
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.learning.cell_run import BenchmarkSetup, parse_user, prompted_baseline
from benchmarks.personal import names_in
from openclaw_rl.cli import main
from openclaw_rl.cli.demo import FILE, PRESET, SETS, demo_config
from openclaw_rl.experiments.results import HeldOutRates, prompted_table, teachable, write
from openclaw_rl.tasks.preferences import PREFERENCES


@click.command()
@click.option("--users", metavar="A,B", help="Users [default: all].")
@click.option("--probes", default=40, show_default=True, type=click.IntRange(1, 150), help="Held-out prompts.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Settles prompts and sampling.")
@click.option("--json", "json_file", type=FILE, help="Write the figures here.")
@PRESET
@SETS
def prompted(
    users: str | None, probes: int, seed: int, json_file: Path | None, preset: str, sets: tuple[str, ...]
) -> None:
    """Preferences the base model meets when prompted.

    No other can be distilled from it.
    """
    names = names_in(users or "") or tuple(PREFERENCES)
    for name in names:
        parse_user(name)

    def done(name: str, plain: HeldOutRates, prompted: HeldOutRates) -> None:
        rates = f"plain {plain.rate:4.0%}  prompted {prompted.rate:4.0%}"
        click.echo(f"{name:<14} {rates}  {teachable(plain, prompted)}", err=True)

    with tempfile.TemporaryDirectory() as folder:
        config = demo_config(preset, sets, Path(folder), seed=seed)
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


if __name__ == "__main__":
    main(prompted, "prompted.py")
