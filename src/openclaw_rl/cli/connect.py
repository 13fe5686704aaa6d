"""The command that tells clients where the server is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import F, command, sources

if TYPE_CHECKING:
    from openclaw_rl.clients.connect import ServerInfo
    from openclaw_rl.config import Resolved

KEY = "OPENCLAW_API_KEY"


@click.group()
def connect() -> None:
    """Print or write the set-up of another client."""


def _server(command: F) -> F:
    key_help = f"Environment variable with the server's key [default: {KEY}, if it is set]."
    command = click.option("--key-env", metavar="NAME", help=key_help)(command)
    url_help = "The server's address up to /v1 [default: where 'openclaw-rl up' listens]."
    return click.option("--url", metavar="URL", help=url_help)(command)


def _look(url: str | None, key_env: str | None) -> tuple[ServerInfo, str | None]:
    """What is served there, and the name of the variable with the key, None if there is no key."""
    import asyncio

    from openclaw_rl.clients import connect as connecting
    from openclaw_rl.config import environment
    from openclaw_rl.errors import ConfigError

    key = environment(key_env or KEY)
    if key_env and key is None:
        raise ConfigError(f"the environment variable {key_env} is not set", remedy="export it, or name another")
    found = asyncio.run(connecting.read_server(url or _default_url(), key))
    return found, (key_env or KEY) if key else None


def _default_url() -> str:
    from openclaw_rl.app.address import find_url
    from openclaw_rl.config import load

    return find_url(load())


@connect.command()
@click.option("--write", "writes", is_flag=True, help="Merge it into openclaw.json, after a backup.")
@click.option(
    "--config",
    "file",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="OpenClaw's settings [default: OPENCLAW_CONFIG_PATH, else ~/.openclaw/openclaw.json].",
)
@click.option("--lean", is_flag=True, help="Also shrink the prompt to about 3,000 tokens, for small models.")
@click.option("--plugin", is_flag=True, help="Also allow the OpenClaw-RL plugin to see which run a call belongs to.")
@click.option("--max-tokens", metavar="N", type=click.IntRange(min=1), help="Most tokens of one reply.")
@_server
def openclaw(
    url: str | None,
    key_env: str | None,
    *,
    writes: bool,
    file: Path | None,
    lean: bool,
    plugin: bool,
    max_tokens: int | None,
) -> None:
    """The provider entry for OpenClaw.

    Address, model, limits, sessions, work beside the talk.
    """
    from openclaw_rl.clients import connect as connecting

    found, key_name = _look(url, key_env)
    settings = connecting.openclaw(found, key_env=key_name, lean=lean, plugin=plugin, max_tokens=max_tokens)
    if not writes:
        click.echo(connecting.to_json(settings))
        click.secho("merge this into openclaw.json, or run it again with --write", fg="yellow", err=True)
        click.secho(connecting.OUTRIGHT, fg="yellow", err=True)
        return
    path = file or _openclaw_file()
    backup = connecting.write(path, settings)
    click.echo(f"{path} talks to {found.model} at {found.url}" + (f"; as it was: {backup}" if backup else ""))
    click.secho(connecting.OUTRIGHT, fg="yellow", err=True)


def _openclaw_file() -> Path:
    from openclaw_rl.config import environment

    said, state = environment("OPENCLAW_CONFIG_PATH"), environment("OPENCLAW_STATE_DIR")
    if said:
        return Path(said).expanduser()
    return (Path(state).expanduser() if state else Path.home() / ".openclaw") / "openclaw.json"


def _simple(name: str, help_text: str) -> None:
    @connect.command(name=name, help=help_text)
    @_server
    def one(url: str | None, key_env: str | None) -> None:
        from openclaw_rl.clients import connect as connecting

        found, key_name = _look(url, key_env)
        made = connecting.recipe(name, found, key_env=key_name)
        click.secho(f"# {made.where}:", fg="yellow", err=True)
        click.echo(made.text)
        click.secho(f"# {connecting.OUTRIGHT}", fg="yellow", err=True)


_simple("claude-code", "The environment for Claude Code.")
_simple("codex", "The settings for Codex.")
_simple("opencode", "The settings for opencode.")
_simple("openai", "The environment for the OpenAI SDKs and all that read it.")
_simple("ollama", "The environment for clients of Ollama.")


# The command for the page in the browser.


@command()
@click.option("--host", metavar="HOST", help="Address to listen on [default: serve.host].")
@click.option("--port", type=click.IntRange(0, 65535), help="Port [default: page.port, or the one after serve.port].")
@click.option("--url", metavar="URL", help="The server's address up to /v1 [default: where the run listens].")
@sources
def page(resolved: Resolved, host: str | None, port: int | None, url: str | None) -> None:
    """See it learn, and steer it, in a browser.

    'up' starts the page too. It reads the run's ledger and acts by the API, so it may be ended and begun at any time.
    """
    import asyncio

    from openclaw_rl.app.page import serve_page
    from openclaw_rl.app.runner import stop_on_signals

    async def go() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop):
            await serve_page(resolved.config, stop, listening=_tell, host=host, port=port, url=url)

    asyncio.run(go())


def _tell(url: str) -> None:
    click.secho(f"page           {url}", fg="green", err=True)
