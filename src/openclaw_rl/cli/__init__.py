"""The command line.

Exit codes: 0 done · 1 it failed · 2 the command line or a setting is wrong · 3 no such thing · 4 held by another.
Large packages are imported inside the commands that need them, so that help prints at once.
"""

from __future__ import annotations

import os
import sys

import click

from openclaw_rl.cli import (
    chat,
    connect,
    demo,
    env_tasks,
    envs,
    inspect,
    judging,
    ledger,
    notes,
    play,
    run,
    settings,
    versions,
)
from openclaw_rl.errors import ConfigError, LedgerHeld, NotInLedger, OpenClawError, PluginError

EXIT_CODES: tuple[tuple[type[OpenClawError], int], ...] = (
    (ConfigError, 2),
    (PluginError, 2),
    (NotInLedger, 3),
    (LedgerHeld, 4),
    (OpenClawError, 1),
)


def main(command: click.Command | None = None, name: str = "openclaw-rl") -> None:
    """Run a command, ``openclaw-rl`` by default, and exit with its code; an error prints one line."""
    os.umask(0o077)  # files from this process and its children are for its user alone: runs contain conversations
    try:
        sys.exit((command or cli)(prog_name=name, standalone_mode=False))  # an exit code, or None
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OpenClawError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))


class Grouped(click.Group):
    """Lists its commands in groups, in the order of first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.commands)
        for title, commands in GROUPS.items():
            with formatter.section(title):
                rows = [(str(entry.name).ljust(width), entry.get_short_help_str(limit=80)) for entry in commands]
                formatter.write_dl(rows)


@click.group(cls=Grouped, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="openclaw-rl")
def cli() -> None:
    """Train an agent simply by using it.

    Serve a model, read the message after each reply, judge it, keep training in the background.
    Start with:  openclaw-rl up
    """


GROUPS: dict[str, tuple[click.Command, ...]] = {
    "Use it": (run.up, connect.page, chat.chat, notes.notes, connect.connect, demo.demo),
    "See what it does": (
        *(inspect.status, inspect.show, ledger.sessions),
        *(versions.versions, versions.why, versions.compare),
    ),
    "Control it": (versions.rollback, versions.pause, versions.resume, versions.pin, versions.unpin),
    "Measure it": (versions.evaluate,),
    "Move conversations": (ledger.import_, ledger.export, ledger.delete, ledger.ledger),
    "Run one loop alone": (run.serve, run.collect, run.judge, run.train, envs.envs, play.play),
    "Set it up": (settings.init, settings.config, settings.list_plugins, settings.new, inspect.doctor),
}
cli.add_command(demo.bench)
run.judge.add_command(judging.evaluate)
for each in (*env_tasks.COMMANDS, envs.make_swe, envs.clear):
    envs.envs.add_command(each)
for group in GROUPS.values():
    for command in group:
        cli.add_command(command)
