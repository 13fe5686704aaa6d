"""Options and small functions shared by several commands."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved
    from openclaw_rl.config.names import Flag
    from openclaw_rl.store import LedgerReader

F = TypeVar("F", bound=Callable[..., Any])

LOOPS: Final = ("serve", "policy", "train", "judge", "env", "gate")
"""the sections read by commands that run every loop"""
POLICY: Final = ("policy", "train.lora.enabled", "train.lora.rank")
"""settings for a policy: an engine is started with the rank of its adapters"""
ENV: Final = ("env", "policy.model")
"""settings for an environment: its prompts have another form for the embedded model"""


class SettingsCommand(click.Command):
    """A command with its settings' flags, which are loaded with its options: importing the config is slow."""

    _whole: bool
    _at: int

    @property
    def params(self) -> list[click.Parameter]:
        if (flags := getattr(self.callback, "setting_flags", None)) is not None and not self._whole:
            self._whole = True
            self._params[self._at : self._at] = flags()
        return self._params

    @params.setter
    def params(self, value: list[click.Parameter]) -> None:
        self._params, self._whole = value, False
        self._at = next((at + 1 for at, parameter in enumerate(value) if parameter.name == "sets"), 0)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from openclaw_rl.config.names import FLAGS

            if (flag := FLAGS.get(error.option_name)) is None:
                raise
            raise click.UsageError(f"{flag.name} ({flag.path}) changes nothing in '{ctx.command_path}'", ctx) from error


class SettingsGroup(SettingsCommand, click.Group):
    """A group that is also a command with settings."""


command = functools.partial(click.command, cls=SettingsCommand)


def sources(callback: F) -> F:
    """Add --config, --preset, --set and --run-dir; the command receives ``resolved`` in their place."""
    return _resolving(callback, ("run",))


def settings(*sections: str, but: Sequence[str] = ()) -> Callable[[F], F]:
    """Add the options of `sources` and the flags for settings in these sections.

    ``but`` names flags that have another meaning for the command.
    """
    return lambda callback: _resolving(callback, ("run", *sections), but)


def _resolving(callback: F, sections: Sequence[str], but: Sequence[str] = ()) -> F:
    @functools.wraps(callback)
    def wrapped(config_file: Path | None, preset: str | None, sets: tuple[str, ...], **given: Any) -> Any:
        from openclaw_rl.config import load

        named = {flag.name: given.pop(_argument(flag.name)) for flag in _flags(sections)}
        flags = {name: value for name, value in named.items() if value is not None}
        resolved = load(file=config_file, preset=preset, sets=sets, flags=flags)
        return callback(resolved=resolved, **given)

    wrapped.setting_flags = lambda: [_option(flag, but) for flag in _flags(sections)]  # type: ignore[attr-defined]
    for option in reversed(_sources()):
        option(wrapped)
    return wrapped  # type: ignore[return-value]


def _sources() -> Sequence[Callable[[Any], Any]]:
    return (
        click.option(
            "--config",
            "config_file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="The TOML file with the settings [default: openclaw-rl.toml here, if there is one].",
        ),
        click.option(
            "--preset",
            metavar="NAME",
            help="Start from a shipped preset, such as cpu-demo, or several: qwen3-8b,opd,lora.",
        ),
        click.option("--set", "sets", multiple=True, metavar="A.B=C", help="Set one setting; may be repeated."),
    )


def _flags(sections: Sequence[str]) -> Iterable[Flag]:
    """Yield the flags for settings in these sections, a flag with two names once."""
    from openclaw_rl.config.names import ALIASES, FLAGS

    for name, flag in FLAGS.items():
        if name not in ALIASES and any(
            flag.path == section or flag.path.startswith(f"{section}.") for section in sections
        ):
            yield flag


def _option(flag: Flag, but: Sequence[str]) -> click.Option:
    from openclaw_rl.config.names import ALIASES

    argument = _argument(flag.name)
    if flag.negative:
        return click.Option([f"{flag.name}/{flag.negative}", argument], default=None, help=flag.help)
    names = [flag.name, *(alias for alias, target in ALIASES.items() if target == flag.name and alias not in but)]
    return click.Option([*names, argument], default=None, metavar=flag.type.__name__.upper(), help=flag.help)


def _argument(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def as_json(callback: F) -> F:
    return click.option("--json", "json_out", is_flag=True, help="Print JSON for a script.")(callback)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def reader(resolved: Resolved) -> LedgerReader:
    from openclaw_rl.app.application import ledger_place
    from openclaw_rl.store import LedgerReader

    return LedgerReader(ledger_place(resolved.config))
