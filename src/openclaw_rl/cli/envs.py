"""Environment commands: serve a pool to other machines, and show pools' states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import ENV, SettingsCommand, as_json, command, print_json, reader, settings, sources

if TYPE_CHECKING:
    from openclaw_rl.config import Config, Resolved
    from openclaw_rl.envs.swe.making import Candidate

PORT = 30100
_DECISIONS = 20
"""newest gate decisions searched for held-out tasks"""


@click.group()
def envs() -> None:
    """Audit, evaluate, play or serve environments."""


@envs.command(cls=SettingsCommand)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; beyond loopback needs a key."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--key-env", metavar="VARIABLE", help="Environment variable that holds the key [env.workers_key_env].")
@settings(*ENV)
def serve(resolved: Resolved, host: str, port: int, key_env: str | None) -> None:
    """Run the environments of --env here, for players elsewhere.

    The players name this address: --set 'env.workers=["http://HOST:PORT"]'. Put a proxy with TLS between networks.
    Lease and task events are logged in the run directory.
    """
    import asyncio

    from openclaw_rl.app.environments import EVENTS, build_pool, workers_key
    from openclaw_rl.app.workers import serve_pool

    config = resolved.config
    if key_env is not None:
        config = config.model_copy(update={"env": config.env.model_copy(update={"workers_key_env": key_env})})
    pool = build_pool(config, events=config.run.dir / EVENTS)
    asyncio.run(serve_pool(pool, host=host, port=port, key=workers_key(config), listening=_say))


def _say(url: str) -> None:
    click.echo(f"environments at {url} (Ctrl-C ends them)")


@envs.command(cls=SettingsCommand)
@click.option("--url", "urls", multiple=True, help="Address of a worker; may be repeated [env.workers].")
@as_json
@sources
def status(resolved: Resolved, urls: Sequence[str], json_out: bool) -> None:
    """Show the leases on the workers, or in this directory's run."""
    import asyncio

    from openclaw_rl.app.environments import workers_key
    from openclaw_rl.app.workers import worker_status

    config = resolved.config
    addresses = urls or config.env.workers
    if addresses:
        key = workers_key(config)
        results = {url: asyncio.run(worker_status(url, key=key)) for url in addresses}
    else:
        results = _of_run(resolved, config)
    if json_out:
        print_json(results)
        return
    for place, worker in results.items():
        click.echo(f"{place}: {_line(worker)}")
        if held_out := worker.get("held_out"):
            solved, of, version = held_out["solved"], held_out["of"], held_out["version"]
            click.echo(f"  greedily {solved / of:.0%} of {of} held-out tasks, version {version}; as sampled:")
        for level, results in worker.get("success", {}).items():
            share = results["solved"] / max(results["of"], 1)
            click.echo(
                f"  {level:<22} {share:>4.0%} of the last {results['of']} solved, {results['groups']} groups in all"
            )


def _of_run(resolved: Resolved, config: Config) -> dict[str, Any]:
    from openclaw_rl.views import environments

    with reader(resolved) as ledger:
        rows = {row.loop: row for row in ledger.health()}
        newest = environments.held_out(ledger, limit=_DECISIONS)
    row = rows.get("episodes")
    if row is None:
        return {str(config.run.dir): {"error": "no environment has run in this run"}}
    detail = row.detail
    reported = {name: detail[name] for name in ("played", "success") if name in detail}
    if newest:
        reported["held_out"] = asdict(newest[-1])
    return {str(config.run.dir): {"state": row.state, **reported, **detail.get("pool", {})}}


def _line(one: Mapping[str, Any]) -> str:
    if "error" in one:
        return str(one["error"])
    if "leased" not in one:
        return ", ".join(f"{name} {value}" for name, value in one.items())
    counts = ", ".join(f"{name} {number}" for name, number in sorted(one.get("counts", {}).items()))
    state = f"{one['state']}, " if "state" in one else ""
    return f"{state}{one['leased']} of {one['capacity']} leased" + (f" ({counts})" if counts else "")


# Instances for the SWE environment, made from a package's releases.

_FOLDER = click.Path(file_okay=False, path_type=Path)


@command(name="make-swe")
@click.option("--package", required=True, metavar="NAME", help="A package on PyPI whose source archives contain tests.")
@click.option("--pairs", is_flag=True, help="Releases with the tests of the next one.")
@click.option("--mutants", is_flag=True, help="A release with one change in its code.")
@click.option("--count", type=click.IntRange(1), default=8, show_default=True, help="Steps back, or mutants.")
@click.option("--version", "release", metavar="VERSION", help="Release to mutate [default: the last].")
@click.option("--with", "packages", multiple=True, metavar="NAME", help="A package its tests need; may be repeated.")
@click.option("--to", "folder", type=_FOLDER, help="Folder for the instances [env.swe_bench_path, else ./swe-bench].")
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
    """Make instances for swe from a package's releases.

    Selects those with 1 to 15 failing tests, 50 or more that pass, and a suite under 20 seconds. SWE_BENCH_PATH names
    the folder; existing instances stay.
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
        maker.pairs(count=count, report=_report_instance)
        if pairs
        else maker.mutants(count=count, version=release, seed=config.run.seed, report=_report_instance)
    )
    instances = asyncio.run(making)
    click.echo(
        f"{len(instances)} instances in {maker.file}" if instances else "no instance was made; nothing was written"
    )
    cached = cache_dir() / "swe"
    if cached.is_dir():
        click.echo(f"virtual environments of their tests in {cached}; 'openclaw-rl envs clear' removes them")


@command()
def clear() -> None:
    """Remove environments' files from this machine.

    These are virtual environments for repositories' tests and copies of pytest, which are made again when they
    are needed, and folders and control groups left by killed processes. Stop all players first.
    """
    from openclaw_rl.config import cache_dir
    from openclaw_rl.envs.leftovers import clear as clear_leftovers

    removed = clear_leftovers(cache_dir())
    for leftover in removed:
        click.echo(f"removed {leftover.folder} ({leftover.size / 1e6:.0f} MB)")
    if not removed:
        click.echo(f"nothing to remove in {cache_dir()}")


def _report_instance(tried: Candidate) -> None:
    if tried.instance is None:
        click.echo(f"  {tried.name}: left out, {tried.why}")
    else:
        failing, passing = len(tried.instance.failing), len(tried.instance.passing)
        click.echo(f"  {tried.name}: {failing} failing, {passing} passing")
