"""The whole application on fakes: ticked by hand, or running on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from openclaw_rl.app.application import App, ledger_place
from openclaw_rl.config import Config, load
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing.clocks import PATIENCE
from openclaw_rl.views import status as views

FAKES = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules", "store.sync=normal")
"""settings that need no weights and no endpoint"""


def fake_config(root: Path, *settings: str) -> Config:
    """The configuration of a run in ``root`` on fakes, changed by ``settings`` as ``--set`` takes them.

    >>> fake_config(Path("run"), "train.batch_size=2").train.batch_size
    2
    """
    return load(environ={}, sets=[f"run.dir={root}", *FAKES, *settings]).config


class RunningApp:
    """The application, a client of its API, and its ledger to look into."""

    def __init__(self, app: App, client: httpx2.AsyncClient, ledger: LedgerReader) -> None:
        self.app, self.client, self.ledger = app, client, ledger

    async def ask(self, *contents: str, headers: Mapping[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """A chat completion of messages that alternate user, assistant, user ...; ``fields`` are the request's own."""
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
        body = {"model": "fake", "messages": messages, **fields}
        done = await self.client.post("/v1/chat/completions", json=body, headers=dict(headers or {}))
        assert done.status_code == 200, done.text
        answer: dict[str, Any] = done.json()
        return answer

    def show(self, turn: str) -> dict[str, Any]:
        """All that the ledger knows of a turn, as ``openclaw-rl turn`` shows it."""
        return views.turn(self.ledger, turn)


@asynccontextmanager
async def ticking_app(root: Path, *settings: str) -> AsyncIterator[RunningApp]:
    """The application without a port: nothing moves until `App.tick` or `App.finish`, so nothing has to be waited for.

    >>> import tempfile
    >>> from openclaw_rl.versions import LiveVersions
    >>> async def correct(root):
    ...     async with ticking_app(Path(root), "train.batch_size=1") as run:
    ...         first = await run.ask("Tell me about tea")
    ...         reply = first["choices"][0]["message"]["content"]
    ...         await run.ask("Tell me about tea", reply, "Too long. Please keep it under 30 words.")
    ...         await run.app.finish()
    ...         return run.show(first["id"])["verdict"]["score"], LiveVersions(run.ledger).live().number
    >>> with tempfile.TemporaryDirectory() as root:
    ...     asyncio.run(correct(root))
    (-1.0, 1)
    """
    app = App(fake_config(root, *settings))
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app.api), base_url="http://localhost", verify=False)
    async with app.started(), client:
        with LedgerReader(ledger_place(app.config)) as ledger:
            yield RunningApp(app, client, ledger)


@asynccontextmanager
async def running_app(root: Path, *settings: str) -> AsyncIterator[RunningApp]:
    """The application on a free port with all its loops, as ``openclaw-rl up`` runs it; ended after the block.

    >>> import tempfile
    >>> async def live(root):
    ...     async with running_app(Path(root)) as run:
    ...         return (await run.client.get("/healthz")).status_code
    >>> with tempfile.TemporaryDirectory() as root:
    ...     asyncio.run(live(root))
    200
    """
    app, stop = App(fake_config(root, "serve.port=0", "run.poll=0.01", *settings)), asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(app.run(stop, listening=address.set_result))
    async with httpx2.AsyncClient(base_url=(await address).removesuffix("/v1"), timeout=30, verify=False) as client:
        with LedgerReader(ledger_place(app.config)) as ledger:
            try:
                yield RunningApp(app, client, ledger)
            finally:
                stop.set()
                async with asyncio.timeout(PATIENCE):
                    await running
