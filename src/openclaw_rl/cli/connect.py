"""Commands that connect other clients to the server, and the page command."""

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
    """Print or write another client's set-up."""


def _server(command: F) -> F:
    key_help = f"Environment variable with the server's key [default: {KEY}, if it is set]."
    command = click.option("--key-env", metavar="NAME", help=key_help)(command)
    url_help = "The server's address up to /v1 [default: the address of 'openclaw-rl up']."
    return click.option("--url", metavar="URL", help=url_help)(command)


def _look(url: str | None, key_env: str | None) -> tuple[ServerInfo, str | None]:
    """Return the server's model, and the name of the variable with its key, None without a key."""
    import asyncio

    from openclaw_rl.clients import connect as connecting
    from openclaw_rl.config import environment
    from openclaw_rl.errors import ConfigError

    key = environment(key_env or KEY)
    if key_env and key is None:
        raise ConfigError(f"the environment variable {key_env} is not set", remedy="export it, or name another")
    server = asyncio.run(connecting.read_server(url or _default_url(), key))
    return server, (key_env or KEY) if key else None


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
@click.option("--plugin", is_flag=True, help="Also allow the OpenClaw-RL plugin to read the run id of each call.")
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
    """Print or write the provider entry for OpenClaw.

    It sets the address, model, limits, sessions, and calls beside the conversation.
    """
    from openclaw_rl.clients import connect as connecting

    server, key_name = _look(url, key_env)
    settings = connecting.openclaw(server, key_env=key_name, lean=lean, plugin=plugin, max_tokens=max_tokens)
    if not writes:
        click.echo(connecting.to_json(settings))
        click.secho("merge this into openclaw.json, or run it again with --write", fg="yellow", err=True)
        click.secho(connecting.OUTRIGHT, fg="yellow", err=True)
        return
    path = file or _openclaw_file()
    backup = connecting.write(path, settings)
    click.echo(f"{path} talks to {server.model} at {server.url}" + (f"; as it was: {backup}" if backup else ""))
    click.secho(connecting.OUTRIGHT, fg="yellow", err=True)


def _openclaw_file() -> Path:
    from openclaw_rl.config import environment

    config_file, state = environment("OPENCLAW_CONFIG_PATH"), environment("OPENCLAW_STATE_DIR")
    if config_file:
        return Path(config_file).expanduser()
    return (Path(state).expanduser() if state else Path.home() / ".openclaw") / "openclaw.json"


def _simple(name: str, help_text: str) -> None:
    @connect.command(name=name, help=help_text)
    @_server
    def one(url: str | None, key_env: str | None) -> None:
        from openclaw_rl.clients import connect as connecting

        server, key_name = _look(url, key_env)
        recipe = connecting.recipe(name, server, key_env=key_name)
        click.secho(f"# {recipe.where}:", fg="yellow", err=True)
        click.echo(recipe.text)
        click.secho(f"# {connecting.OUTRIGHT}", fg="yellow", err=True)


_simple("claude-code", "The environment for Claude Code.")
_simple("codex", "The settings for Codex.")
_simple("opencode", "The settings for opencode.")
_simple("openai", "The environment for the OpenAI SDKs and all that read it.")
_simple("ollama", "The environment for clients of Ollama.")


# The page command.


@command()
@click.option("--host", metavar="HOST", help="Address to listen on [default: serve.host].")
@click.option("--port", type=click.IntRange(0, 65535), help="Port [default: page.port, or the one after serve.port].")
@click.option("--url", metavar="URL", help="The server's address up to /v1 [default: the run's].")
@sources
def page(resolved: Resolved, host: str | None, port: int | None, url: str | None) -> None:
    """Watch and control training in a browser.

    'up' starts the page too. It reads the run's ledger and acts through the API; stop and start it at any time.
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
