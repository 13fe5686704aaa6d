"""One loop of a run in a process that Ray has placed."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import dataclass

from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError, ModelRefused, PluginError
from openclaw_rl.store import Writer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlace:
    """Where a loop runs; ``url`` is the gateway's. ``begun`` False: it waits to be begun, as it does on a new node.

    ``refused`` says why it cannot run anywhere, with the remedy.
    """

    node: str
    process: int
    begun: bool
    url: str | None
    refused: tuple[str, str | None] | None


class ClusterPart:
    """An actor that runs one loop until it is told to stop; when it dies, Ray makes another, which is begun anew."""

    def __init__(self, config: Config, loop: Writer) -> None:
        self._config = config
        self._loop = loop
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._url: str | None = None
        self._refused: tuple[str, str | None] | None = None

    async def place(self) -> LoopPlace:
        import ray

        node = f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"
        begun = self._task is not None
        return LoopPlace(node=node, process=os.getpid(), begun=begun, url=self._url, refused=self._refused)

    async def begin(self) -> None:
        """Run the loop from now on. Safe to call twice."""
        if self._task is None:
            logging.basicConfig(level=self._config.run.log_level.upper())
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Let the loop end, and wait for it."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        from openclaw_rl.app.application import App

        try:
            app = App(self._config, loops=(self._loop,))
            await app.run(self._stop, listening=self._listening)
        except (ConfigError, ModelRefused, PluginError) as error:
            self._refused = error.what, error.remedy
        except Exception:  # whatever it is, what is left of it must not hold the loop's place in the ledger
            log.exception("loop %s failed; it is begun anew", self._loop)
            os._exit(1)

    def _listening(self, url: str) -> None:
        self._url = url
