"""Instances for the SWE environment, made of a package's releases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import command, sources

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.envs.swe.making import Candidate

_FOLDER = click.Path(file_okay=False, path_type=Path)


@command(name="make-swe")
@click.option("--package", required=True, metavar="NAME", help="A package of PyPI whose source archives hold tests.")
@click.option("--pairs", is_flag=True, help="Releases with the tests of the next one.")
@click.option("--mutants", is_flag=True, help="A release with one place of its code changed.")
@click.option("--count", type=click.IntRange(1), default=8, show_default=True, help="Steps back, or mutants.")
@click.option("--version", "release", metavar="VERSION", help="Release that is mutated [default: the last].")
@click.option("--with", "packages", multiple=True, metavar="NAME", help="A package its tests need; may be repeated.")
@click.option("--to", "folder", type=_FOLDER, help="Folder of the instances [env.swe_bench_path, else ./swe-bench].")
@sources
def make_swe(
    resolved: Resolved,
    package: str,
    pairs: bool,
    mutants: bool,
    count: int,
    release: str | None,
    packages: tuple[str, ...],
    folder: Path | None,
) -> None:
    """Make instances for swe of a package's releases.

    Kept are those with 1 to 15 failing tests, 50 or more that pass, and a suite under 20 seconds. The folder is what
    SWE_BENCH_PATH names; instances that are there already stay.
    """
    import asyncio

    from openclaw_rl.app.environments import build_sandbox_settings
    from openclaw_rl.config import cache_dir
    from openclaw_rl.envs.swe.making import SweMaker
    from openclaw_rl.errors import ConfigError

    if pairs == mutants:
        raise ConfigError("make-swe makes pairs or mutants", remedy="give one of --pairs and --mutants")
    config = resolved.config
    place = folder or config.env.swe_bench_path or Path("swe-bench")
    sandbox = build_sandbox_settings(config)
    maker = SweMaker(place.absolute(), package, packages=packages, sandbox=sandbox, cache=cache_dir() / "swe")
    making = (
        maker.pairs(count=count, report=_say)
        if pairs
        else maker.mutants(count=count, version=release, seed=config.run.seed, report=_say)
    )
    found = asyncio.run(making)
    click.echo(f"{len(found)} instances in {maker.file}" if found else "no instance was made; nothing was written")
    kept = cache_dir() / "swe"
    if kept.is_dir():
        click.echo(f"virtual environments of their tests in {kept}; 'openclaw-rl envs clear' removes them")


@command()
def clear() -> None:
    """Remove what environments keep on this machine.

    These are the virtual environments of repositories' tests and the copies of pytest, which are made again when they
    are needed, and folders and control groups that killed processes left. Stop what plays in environments first.
    """
    from openclaw_rl.config import cache_dir
    from openclaw_rl.envs.leftovers import clear as clear_leftovers

    removed = clear_leftovers(cache_dir())
    for each in removed:
        click.echo(f"removed {each.folder} ({each.size / 1e6:.0f} MB)")
    if not removed:
        click.echo(f"nothing to remove in {cache_dir()}")


def _say(tried: Candidate) -> None:
    if tried.instance is None:
        click.echo(f"  {tried.name}: left out, {tried.why}")
    else:
        failing, passing = len(tried.instance.failing), len(tried.instance.passing)
        click.echo(f"  {tried.name}: {failing} failing, {passing} passing")
