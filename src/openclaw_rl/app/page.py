"""The page wired to a run: its ledger, its API, the people who have a key; in a process of its own."""

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
"""what the page calls itself to the API"""
_PATIENCE = 330.0
"""seconds without a sign of life after which a reply is given up; a server that restarts holds requests"""
_FRESH = 2.0
"""seconds for which alarms that were found are shown again"""
_GRACE = 1.0
_HEAD_SECONDS = 60.0
_HEAD_BYTES = 65536


def page_app(config: Config, *, url: str | None = None) -> Starlette:
    """The page of a run. ``url`` is where its API is, up to /v1; None: wherever the run says it listens."""
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
    found = address.read(config.run.dir)
    return found.url if found is not None else address.url_of(config.serve.host, config.serve.port)


class _Alarms:
    """What `status` warns of; looked for every few seconds at most, since it counts rows."""

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
    """Serve the page until ``stop``; ``host`` and ``port`` are the settings' unless they are given."""
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
    """The port that was asked for; else the one after the API's, or any where that one is taken."""
    wanted = config.page.port if port is None else port
    if wanted is not None:
        return bind(host, wanted)
    beside_api = config.serve.port and min(config.serve.port + 1, 65535)
    with contextlib.suppress(ConfigError):
        return bind(host, beside_api)
    return bind(host, 0)


class PageBeside:
    """The page of a server, in a process beside it. Whatever happens to it is said and harms nothing."""

    def __init__(self, config: Config, *, said: Callable[[str | None, str], None]) -> None:
        """``said`` gets the page's address, or None and why there is no page."""
        self._config = config
        self._said = said
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start it, without waiting for it."""
        self._task = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        self._process, told = await workers.begin("openclaw_rl.app.page:serve_beside", self._config)
        self._said(told.get("url"), f"{told.get('error')}; {told.get('remedy') or 'the server goes on without it'}")

    async def end(self) -> None:
        """End it. Safe to call twice."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await workers.end(self._process)


def serve_beside() -> None:
    """The process of `PageBeside`."""
    [config] = workers.taken()
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(_serve_beside(config))
    except OpenClawError as error:
        workers.say(error=error.what, remedy=error.remedy)


async def _serve_beside(config: Config) -> None:
    await serve_page(config, workers.parent_ended(), listening=lambda url: workers.say(url=url))
