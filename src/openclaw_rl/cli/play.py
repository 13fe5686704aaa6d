"""The command that has agent programs play tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import ENV, as_json, command, print_json, settings

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.envs.play.player import PlayedEpisode

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@command()
@click.option(
    "--agent",
    required=True,
    metavar="NAME|COMMAND",
    help="claude-code, codex, opencode, openclaw, mini-swe-agent, or your own command with {instruction} in it.",
)
@click.option("--tasks", "tasks", metavar="A,B", multiple=True, help="Levels or tasks [default: all that train].")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Tasks of each level [default: all].")
@click.option(
    "--split",
    type=click.Choice(["train", "held-out"]),
    default="train",
    show_default=True,
    help="Tasks to play; held-out ones are scored and never train.",
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=600.0, show_default=True, help="Time limit for an episode."
)
@click.option(
    "--max-calls", type=click.IntRange(1), default=50, show_default=True, help="Most model calls in an episode."
)
@click.option(
    "--retries", type=click.IntRange(0, 10), default=1, show_default=True, help="Retries after a machine failure."
)
@click.option("--temperature", type=click.FloatRange(0, 2), metavar="T", help="For every call [default: the agent's].")
@click.option("--program", metavar="PATH", help="The agent's program, if it is not on the PATH.")
@click.option(
    "--bind", "binds", type=_FOLDER, multiple=True, help="Folder to mount read-only in its sandbox; may be repeated."
)
@click.option("--url", help="The server's http://HOST/v1 [default: this run directory's].")
@click.option("--api-key-env", metavar="NAME", help="Variable with an environment's key there (env:NAME).")
@click.option("--resume", is_flag=True, help="Continue the last play with the same agent and tasks.")
@as_json
@click.argument("more", nargs=-1, metavar="[-- ARGS...]")
@settings("train.num_rollouts_per_prompt", *ENV)
def play(
    resolved: Resolved,
    tasks: tuple[str, ...],
    api_key_env: str | None,
    json_out: bool,
    **given: Any,
) -> None:
    """Have an agent program play tasks; its calls train.

    The program runs in a sandbox whose only network is the server of this run directory ('openclaw-rl up'). Every call
    is recorded token by token, and the task checker's final reward applies to all of them. ARGS are passed to the
    program.
    """
    import asyncio

    from openclaw_rl.app.playing import PlayRequest
    from openclaw_rl.app.playing import play as play_tasks
    from openclaw_rl.config import key_in

    request = PlayRequest(
        tasks=tuple(name for part in tasks for name in part.split(",") if name),
        rollouts=resolved.config.train.num_rollouts_per_prompt,
        key=key_in(api_key_env) if api_key_env else None,
        **given,
    )
    running = play_tasks(resolved, request, report=_line, say=lambda text: click.echo(text, err=True))
    plan, over = asyncio.run(running)
    if json_out:
        print_json(
            {**asdict(plan), "solved": sum(episode.solved for episode in over), "episodes": list(map(asdict, over))}
        )
        return
    for line in _summary(over):
        click.echo(line)


def _line(played: PlayedEpisode) -> None:
    """Print an episode's result to stderr."""
    if played.error:
        how = "left out" if played.refused else "failed"
        click.secho(f"  {played.task:<24} {how}: {played.error}", fg="red", err=True)
        return
    end = played.stopped or f"exit {played.exit}"
    paid = "paid" if played.paid else "not paid"
    click.echo(
        f"  {played.task:<24} {played.outcome:+.2f} {paid}, {played.calls} calls, {played.seconds:.0f} s, {end}",
        err=True,
    )


def _summary(over: Sequence[PlayedEpisode]) -> list[str]:
    """Return the solved episodes by level, and in total."""
    levels = Counter(episode.task.partition("/")[0] for episode in over if not episode.error)
    solved = Counter(episode.task.partition("/")[0] for episode in over if episode.solved)
    lines = [f"  {level:<24} {solved[level]:>4} of {number:<4} solved" for level, number in levels.items()]
    failed = sum(bool(episode.error) and not episode.refused for episode in over)
    calls, paid = sum(episode.calls for episode in over), sum(episode.paid for episode in over)
    total = (
        f"{sum(solved.values())} of {sum(levels.values())} solved, {failed} failed, {calls} calls, {paid} sessions paid"
    )
    return [*lines, total]
