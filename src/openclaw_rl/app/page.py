"""The page for a run: its ledger, its API, the users with a key; in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from openclaw_rl import config as settings
from openclaw_rl.app import address, workers
from openclaw_rl.app.application import ledger_place
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.serve.auth import OPEN_USER
from openclaw_rl.serve.loop import HttpServer, bind, refuse_open_listener
from openclaw_rl.store import LedgerReader

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette

log = logging.getLogger(__name__)

AGENT = "openclaw-rl-page"
"""the page's agent name in requests to the API"""
_PATIENCE = 330.0
"""seconds of silence after which a reply is abandoned; a restarting server holds requests"""
_FRESH = 2.0
"""seconds for which alarms are shown again without a new check"""
_GRACE = 1.0
_HEAD_SECONDS = 60.0
_HEAD_BYTES = 65536


def page_app(config: Config, *, url: str | None = None) -> Starlette:
    """Return the page for a run. ``url`` is the API's address, up to /v1; None: the address in the run directory."""
    from openclaw_rl.clients.api import ApiClient
    from openclaw_rl.page.door import Door
    from openclaw_rl.page.site import Site, build_site
    from openclaw_rl.types import environment_of

    def api(key: str | None) -> ApiClient:
        return ApiClient(url or _url(config), key=key, key_remedy="log in again", agent=AGENT, timeout=_PATIENCE)

    keys = {key: user for key, user in settings.api_keys(config).items() if environment_of(user) is None}
    return build_site(
        Site(
            ledger=lambda: LedgerReader(ledger_place(config)),
            api=api,
            door=Door(keys, admins=config.serve.admins, nobody=OPEN_USER),
            alarms=_Alarms(config.collect.starve_turns),
        )
    )


def _url(config: Config) -> str:
    server = address.read(config.run.dir)
    return server.url if server is not None else address.url_of(config.serve.host, config.serve.port)


class _Alarms:
    """The alarms in `status`, computed every few seconds at most, since the check counts rows."""

    def __init__(self, starve_after: int) -> None:
        self._starve_after = starve_after
        self._found: list[str] = []
        self._at = float("-inf")

    def __call__(self, ledger: LedgerReader) -> list[str]:
        from openclaw_rl.views.status import status

        if time.monotonic() - self._at >= _FRESH:
            self._found, self._at = status(ledger, starve_after=self._starve_after)["alarms"], time.monotonic()
        return self._found


# --- listening ---


async def serve_page(
    config: Config,
    stop: asyncio.Event,
    *,
    listening: Callable[[str], None],
    host: str | None = None,
    port: int | None = None,
    url: str | None = None,
) -> None:
    """Serve the page until ``stop``; ``host`` and ``port`` default to the settings."""
    host = host or config.serve.host
    refuse_open_listener(host, settings.api_keys(config))
    server = HttpServer(
        page_app(config, url=url),
        _bind(config, host, port),
        grace=_GRACE,
        head_seconds=_HEAD_SECONDS,
        head_bytes=_HEAD_BYTES,
    )
    await server.begin()
    listening(f"{server.url.removesuffix('/v1')}/")
    await stop.wait()
    await server.end()


def _bind(config: Config, host: str, port: int | None) -> socket.socket:
    """Bind the requested port; else the one after the API's, or any port if that one is taken."""
    requested = config.page.port if port is None else port
    if requested is not None:
        return bind(host, requested)
    beside_api = config.serve.port and min(config.serve.port + 1, 65535)
    with contextlib.suppress(ConfigError):
        return bind(host, beside_api)
    return bind(host, 0)


class PageBeside:
    """The page for a server, in a child process. Its failures are reported and do not affect the server."""

    def __init__(self, config: Config, *, said: Callable[[str | None, str], None]) -> None:
        """``said`` receives the page's address, or None and the reason why there is no page."""
        self._config = config
        self._said = said
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the process without waiting for it."""
        self._task = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        self._process, message = await workers.begin("openclaw_rl.app.page:serve_beside", self._config)
        self._said(
            message.get("url"), f"{message.get('error')}; {message.get('remedy') or 'the server runs without it'}"
        )

    async def end(self) -> None:
        """Stop the process. Safe to call twice."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await workers.end(self._process)


def serve_beside() -> None:
    """Run the process for `PageBeside`."""
    [config] = workers.taken()
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(_serve_beside(config))
    except OpenClawError as error:
        workers.say(error=error.what, remedy=error.remedy)


async def _serve_beside(config: Config) -> None:
    await serve_page(config, workers.parent_ended(), listening=lambda url: workers.say(url=url))
