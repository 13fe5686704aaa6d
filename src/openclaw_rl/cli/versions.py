"""Commands for versions: their results and their causes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import POLICY, as_json, command, print_json, reader, settings, sources

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.types import Command

_FILE = click.Path(dir_okay=False, path_type=Path)


@command()
@as_json
@sources
def versions(resolved: Resolved, json_out: bool) -> None:
    """List all versions, with the gate's decisions.

    Shows each version's parent, its step, and the feedback on its replies.
    """
    from openclaw_rl.views import lineage as reasons

    with reader(resolved) as ledger:
        rows = reasons.versions(ledger)
    if json_out:
        print_json(rows)
        return
    for line in reasons.versions_lines(rows):
        click.echo(line)


@command()
@click.argument("first")
@click.argument("second")
@click.option("--prompt", "prompts", multiple=True, help="Prompt to ask; may be repeated [default: held-out prompts].")
@click.option("--count", default=12, show_default=True, type=click.IntRange(1, 150), help="Held-out prompts to ask.")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(1, 4096), help="Most tokens in a reply.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Settles prompts and sampling.")
@as_json
@settings(*POLICY)
def compare(
    resolved: Resolved,
    first: str,
    second: str,
    prompts: tuple[str, ...],
    count: int,
    tokens: int,
    seed: int,
    json_out: bool,
) -> None:
    """Show two versions' replies side by side.

    Both answer the same prompts; a program computes the rates.
    """
    import asyncio

    from openclaw_rl.evals import models
    from openclaw_rl.evals.suites import FORMER
    from openclaw_rl.views.lineage import with_aliases

    names = (first, second)
    comparison = asyncio.run(
        models.compare(resolved.config, names, prompts=prompts, count=count, tokens=tokens, seed=seed)
    )
    if json_out:
        print_json(with_aliases(comparison, FORMER))
        return
    for line in models.lines(comparison):
        click.echo(line)


@command()
@click.argument("name", required=False, metavar="[TURN|VERSION]")
@click.option("--list", "listing", is_flag=True, help="List pinned turns and versions.")
@as_json
@sources
def pin(resolved: Resolved, name: str | None, listing: bool, json_out: bool) -> None:
    """Keep a reply or a version.

    The gate refuses versions that lose the reply of a pinned turn; the weights of a pinned version are kept.
    """
    if listing or name is None:
        _list_pins(resolved, json_out)
    else:
        _pin(resolved, name, on=True)


@command()
@click.argument("name", metavar="TURN|VERSION")
@sources
def unpin(resolved: Resolved, name: str) -> None:
    """Unpin a turn or version."""
    _pin(resolved, name, on=False)


def _pin(resolved: Resolved, name: str, *, on: bool) -> None:
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.app.control import submit_control
    from openclaw_rl.views.status import turn_id

    numbered = name.isdecimal() and len(name) < 19
    submit_control(
        ledger_place(resolved.config),
        "pin" if on else "unpin",
        version=int(name) if numbered else None,
        turn=None if numbered else turn_id(name),
        reason="",
    )
    click.echo(f"{'pin' if on else 'unpin'}: recorded; a running trainer applies it at its next tick")


def _list_pins(resolved: Resolved, json_out: bool) -> None:
    with reader(resolved) as ledger:
        turns = [(turn, ledger.turn(turn)) for turn in ledger.pinned_turns()]
        numbers = sorted(ledger.pinned())
    if json_out:
        print_json({"turns": [turn for turn, _ in turns], "versions": numbers})
        return
    for name, turn in turns:
        click.echo(f"turn     {name}  {' '.join(turn.completion.reply.content.split())[:80]}")
    for number in numbers:
        click.echo(f"version  {number}")
    if not turns and not numbers:
        click.echo("nothing is pinned")


@command()
@click.argument("name", metavar="VERSION|TURN")
@click.option("--answer", is_flag=True, help="For a turn: have the live version answer its prompt now.")
@click.option("--steps", default=3, show_default=True, type=click.IntRange(1), help="For a version: steps to show.")
@as_json
@settings(*POLICY)
def why(resolved: Resolved, name: str, answer: bool, steps: int, json_out: bool) -> None:
    """Show a version's causes, or a correction's effects."""
    import asyncio

    from openclaw_rl.views import lineage as reasons
    from openclaw_rl.views.status import turn_id

    with reader(resolved) as ledger:
        view = reasons.either(ledger, turn_id(name))
    if answer and "turn" in view:
        from openclaw_rl.evals.models import answer_again

        view["after"].append(asyncio.run(answer_again(resolved.config, view["turn"])))
    if json_out:
        print_json(view)
        return
    lines = reasons.turn_lines(view) if "turn" in view else reasons.version_lines(view, steps=steps)
    for line in lines:
        click.echo(line)


@command(name="eval")
@click.option(
    "--model-path",
    default="live",
    show_default=True,
    help="A version's number or folder (SAVE_DIR/checkpoint-N), a folder of weights, a Hugging Face id, a GGUF file,"
    " 'embedded', or a server's http://HOST/v1.",
)
@click.option("--against", help="Second model to run on the same tasks and compare.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Settles prompts and sampling.")
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0, 2), help="0 is greedy.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the server's key.")
@click.option("--json", "json_file", type=_FILE, help="Also write the figures and every reply to this file.")
@click.option(
    "--unsafe-no-sandbox", is_flag=True, help="Run the model's programs as this user if bubblewrap is missing."
)
@settings("eval", *POLICY, but=("--model-path",))
def evaluate(
    resolved: Resolved,
    model_path: str,
    against: str | None,
    seed: int,
    temperature: float,
    api_key_env: str | None,
    json_file: Path | None,
    unsafe_no_sandbox: bool,
) -> None:
    """Run evaluation suites on weights or a server."""
    import asyncio

    from openclaw_rl.evals import models
    from openclaw_rl.evals.suites import FORMER
    from openclaw_rl.views.lineage import with_aliases

    running = models.evaluate(
        resolved.config,
        model_path,
        against=against,
        seed=seed,
        temperature=temperature,
        key_env=api_key_env,
        unsafe=unsafe_no_sandbox,
        done=lambda _: click.echo(".", nl=False, err=True),
    )
    report = asyncio.run(running)
    click.echo(err=True)
    for line in _report_lines(report):
        click.echo(line)
    if json_file is not None:
        view = with_aliases(report, FORMER)
        json_file.write_text(json.dumps(view, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _report_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['model']}, seed {found['seed']}, {found['seconds']:.0f} s"]
    if found["isolation"]:
        lines[0] += f"; programs were kept apart by: {found['isolation']}"
    for name, suite in found["suites"].items():
        lines.append(f"  {name:<28} {_rate(suite)}")
        lines += [f"    {mark:<26} {_rate(rate)}" for mark, rate in suite["rates"].items()]
    for name, gap in found.get("compared", {}).items():
        ends = f"{gap['difference']:+.2f} ({gap['low']:+.2f} to {gap['high']:+.2f})"
        lines.append(f"  {name:<28} against {found['against']['model']}: {ends}, {gap['conclusion']}")
    return lines


def _rate(one: dict[str, Any]) -> str:
    share = one["passed"] / max(one["of"], 1)
    return f"{one['passed']:>3} of {one['of']:<3}  {share:>4.0%}  ({one['low']:.0%} to {one['high']:.0%})"


# Commands that control a run: roll back, pause, resume.


@command()
@click.argument("to", type=int, required=False, metavar="[VERSION]")
@click.option("--why", default="on request", show_default=True, help="The reason, for the ledger.")
@sources
def rollback(resolved: Resolved, to: int | None, why: str) -> None:
    """Serve older weights again, as a new version.

    Without VERSION: the previous live weights.
    """
    import asyncio

    from openclaw_rl.app.operations import roll_back_now

    version = asyncio.run(roll_back_now(resolved.config, to=to, why=why))
    click.echo(f"version {version.number} is live: {version.note}")


@command()
@click.option("--why", default="on request", show_default=True, help="The reason, for the ledger.")
@sources
def pause(resolved: Resolved, why: str) -> None:
    """Pause training; serving, collecting and judging continue."""
    _submit(resolved, "pause", reason=why)


@command()
@sources
def resume(resolved: Resolved) -> None:
    """Resume training after 'pause' or an alarm."""
    _submit(resolved, "resume", reason="")


def _submit(resolved: Resolved, command: Command, *, reason: str) -> None:
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.store import submit_request

    submit_request(ledger_place(resolved.config), command, reason=reason)
    click.echo(f"{command}: recorded; a running trainer applies it at its next tick")
