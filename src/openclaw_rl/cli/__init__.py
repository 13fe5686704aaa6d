"""The commands a person types.

Exit codes: 0 done · 1 it failed · 2 the command line or a setting is wrong · 3 no such thing · 4 held by another.
Heavy things are imported inside the commands that need them, so that help answers at once.
"""

from __future__ import annotations

import os
import sys

import click

from openclaw_rl.cli import chatting, connecting, looking, moving, proving, reviewing, running, steering
from openclaw_rl.errors import ConfigError, LedgerHeld, NotInLedger, OpenClawError, PluginError

EXIT_CODES: tuple[tuple[type[OpenClawError], int], ...] = (
    (ConfigError, 2),
    (PluginError, 2),
    (NotInLedger, 3),
    (LedgerHeld, 4),
    (OpenClawError, 1),
)


def main() -> None:
    """The command ``openclaw-rl``."""
    os.umask(0o077)  # what it writes, and what its processes write, is for its user alone: runs hold conversations
    try:
        sys.exit(cli(prog_name="openclaw-rl", standalone_mode=False))  # an exit code, or None
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


class InOrder(click.Group):
    """Lists its verbs in the order in which a person meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="openclaw-rl")
def cli() -> None:
    """Train an agent simply by using it.

    Serve a model, watch what comes after each reply, judge it, keep training in the background.
    Begin with:  openclaw-rl up
    """


VERBS: tuple[click.Command, ...] = (
    running.up,
    chatting.chat,
    proving.demo,
    connecting.connect,
    looking.status,
    looking.show,
    steering.rollback,
    steering.pause,
    steering.resume,
    reviewing.versions,
    reviewing.compare,
    reviewing.why,
    reviewing.pin,
    reviewing.unpin,
    reviewing.evaluate,
    moving.import_,
    moving.export,
    running.serve,
    running.collect,
    running.judge,
    running.train,
    proving.bench,
    looking.init,
    looking.config,
    looking.list_plugins,
    looking.doctor,
)
for verb in VERBS:
    cli.add_command(verb)
