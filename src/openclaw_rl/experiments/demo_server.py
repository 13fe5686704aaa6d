"""The server of a demo: the whole app on its port, and how far its loops are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw_rl.app.application import App, full_batches_only, ledger_path
from openclaw_rl.config import Config, api_keys
from openclaw_rl.errors import BackendError
from openclaw_rl.ports import Policy
from openclaw_rl.store import LedgerReader
from openclaw_rl.versions import LiveVersions

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the loops are: the version that answers, versions promoted and refused, turns that wait."""

    live: int
    promoted: int
    refused: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServer:
    """A running server: its settings, the policy that answers, a client, and the ledger to look into."""

    config: Config
    policy: Policy
    client: ApiClient
    reader: LedgerReader

    def progress(self, read: int) -> Progress:
        """How far the loops are with the ``read`` turns. A version waits until it is decided on and taken up.

        Read in the order in which things move on, so that what moves meanwhile is seen twice rather than not at all.
        """
        used = self._used()
        known = LiveVersions(self.reader)
        versions, live, refused = known.versions(), known.live(), len(known.ever("refused"))
        undecided = sum(version.state == "candidate" for version in versions)
        untaken = live is not None and live.number != self.policy.live
        return Progress(
            live=self.policy.live,
            promoted=max(0, len(versions) - 1) - refused - undecided,
            refused=refused,
            waiting=read - used + (undecided + untaken) * self.config.train.batch_size,
        )

    def _used(self) -> int:
        """Read turns that were trained or dropped; the replies that nobody reads are not among them."""
        drops = self.reader.drop_counts()
        return self.reader.counts()["trained"] + sum(drops.values()) - drops.get("opted out", 0)

    def trouble(self) -> str | None:
        """Why nobody trains, so that there is nothing to wait for; None while somebody does."""
        rows = self.reader.health()
        failing = next((row for row in rows if row.loop == "train" and row.state == "failing"), None)
        return self.reader.paused() or (f"the trainer fails: {failing.error}" if failing else None)


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[DemoServer]:
    """The whole app on its port, as `up` runs it but for a step that waits for a full batch; ended properly."""
    from openclaw_rl.clients.api import ApiClient

    shared = config.train.model_copy(update={"share": "all"})  # its users are simulated and have one preference
    silent = config.notes.model_copy(update={"enabled": False})  # what is shown is what the weights learn
    app, stop = App(full_batches_only(config.model_copy(update={"train": shared, "notes": silent}))), asyncio.Event()
    assert app.policy is not None, "an app with all loops answers"
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(app.run(stop, listening=address.set_result))
    try:
        url = await _unless_ended(running, address)
        await _unless_ended(running, asyncio.ensure_future(app.ready.wait()))
        key = next(iter(api_keys(config)), None)
        async with ApiClient(url, key=key, agent="simulated-user") as client:
            with LedgerReader(ledger_path(config)) as reader:
                yield DemoServer(config=config, policy=app.policy, client=client, reader=reader)
    finally:
        stop.set()
        await running


async def _unless_ended(running: asyncio.Task[None], awaited: asyncio.Future[T]) -> T:
    """What is waited for; raises what ended the app where that comes first."""
    both: set[asyncio.Future[Any]] = {running, awaited}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not awaited.done():
        awaited.cancel()
        await running
        raise BackendError("the server ended before it was ready", remedy="its log says why")
    return awaited.result()
