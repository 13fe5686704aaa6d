"""Options and small things that many commands share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from openclaw_rl.config.names import ALIASES, FLAGS

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.store import LedgerReader

F = TypeVar("F", bound=Callable[..., Any])


def sources(command: F) -> F:
    """--config, --preset, --set and --run-dir; the command gets ``resolved`` in their place."""
    return _resolving(command, {"--run-dir"})


def sources_and(*flags: str) -> Callable[[F], F]:
    """Like `sources`, with these flags."""
    return lambda command: _resolving(command, {"--run-dir", *flags})


def settings(command: F) -> F:
    """Like `sources`, with every flag that turns a setting."""
    return _resolving(command, FLAGS.keys() - ALIASES)


def settings_but(*own: str) -> Callable[[F], F]:
    """Like `settings`, for a command that has a meaning of its own for these flags."""
    return lambda command: _resolving(command, FLAGS.keys() - ALIASES, own=own)


def _resolving(command: F, names: set[str], own: Sequence[str] = ()) -> F:
    @functools.wraps(command)
    def wrapped(config_file: Path | None, preset: str | None, sets: tuple[str, ...], **given: Any) -> Any:
        from openclaw_rl.config import load

        flags = {name: value for name in names if (value := given.pop(_argument(name))) is not None}
        resolved = load(file=config_file, preset=preset, sets=sets, flags=flags)
        return command(resolved=resolved, **given)

    for name in reversed([name for name in FLAGS if name in names]):
        wrapped = _flag(name, own)(wrapped)
    wrapped = click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set one setting; may be repeated.")(
        wrapped
    )
    wrapped = click.option(
        "--preset", metavar="NAME", help="Begin from a shipped preset, such as cpu-demo, or several: qwen3-8b,opd,lora."
    )(wrapped)
    file_type = click.Path(dir_okay=False, path_type=Path)
    help_text = "The TOML file with the settings [default: openclaw-rl.toml here, if there is one]."
    return click.option("--config", "config_file", type=file_type, help=help_text)(wrapped)  # type: ignore[return-value]


def _argument(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _flag(name: str, own: Sequence[str]) -> Callable[[F], F]:
    flag = FLAGS[name]
    if flag.negative:
        return click.option(f"{name}/{flag.negative}", _argument(name), default=None, help=flag.help)
    names = [name, *(alias for alias, meant in ALIASES.items() if meant == name and alias not in own)]
    return click.option(*names, _argument(name), default=None, metavar=flag.type.__name__.upper(), help=flag.help)


def as_json(command: F) -> F:
    return click.option("--json", "json_out", is_flag=True, help="Print JSON for a script.")(command)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def reader(resolved: Resolved) -> LedgerReader:
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.store import LedgerReader

    return LedgerReader(ledger_place(resolved.config))
