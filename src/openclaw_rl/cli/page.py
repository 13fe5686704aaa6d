"""The command for the page in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from openclaw_rl.cli.options import command, sources

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved


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
