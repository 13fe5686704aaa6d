"""A demo's server: the whole app on its port, the state of its user's note, and a distillation's progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw_rl.app.application import App, full_batches_only, ledger_place
from openclaw_rl.config import Config, api_keys
from openclaw_rl.errors import BackendError
from openclaw_rl.ports import Policy
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Note, NoteState
from openclaw_rl.versions import LiveVersions

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiClient

T = TypeVar("T")

POLL = 0.25
"""seconds between two polls of the loops' progress"""
QUIET = 1.0
"""seconds without a request until a demo's user counts as away"""
SECONDS = 150.0
"""time limit of a prompt distillation, within the five minutes of a demo"""
_NEVER = 65536
"""batch size that no demo reaches, so that only the note trains"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a note: its state with the reason, and the running distillation; ``step`` is None without one.

    ``change`` counts its state changes, from 1. ``live`` is the version that answers, ``served`` False while a
    newer one is promoted and not yet loaded; ``kl`` are the distances measured so far, ``met`` the number of newest
    replies that follow the note and their total, ``seconds_left`` the expected cost of the remaining steps.
    """

    change: int
    state: NoteState
    reason: str
    live: int
    served: bool
    step: int | None = None
    of: int = 0
    kl: tuple[float, ...] = ()
    met: tuple[int, int] | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServer:
    """A running server: its settings, policy, client and ledger reader."""

    config: Config
    policy: Policy
    client: ApiClient
    reader: LedgerReader

    def note(self) -> Note | None:
        """Return the newest note, None if there is none."""
        return next(reversed(self.reader.notes()), None)

    async def noted(self, patience: float) -> Note | None:
        """Wait for the note that a correction makes; return None if there is none within ``patience`` seconds."""
        until = time.monotonic() + patience
        while True:
            note = self.note()
            if note is not None or time.monotonic() >= until:
                return note
            await asyncio.sleep(POLL)

    def progress(self, note: int, *, after: int = 0) -> list[Progress]:
        """Return a note's state changes after the first ``after``; the last entry includes the current progress."""
        changes = self.reader.note_changes(note)
        live, now = LiveVersions(self.reader).live(), self._distillation()
        road = [
            Progress(
                change=number,
                state=change.state,
                reason=change.reason,
                live=self.policy.live,
                served=live is None or live.number == self.policy.live,
            )
            for number, change in enumerate(changes, 1)
        ]
        road[-1] = replace(
            road[-1],
            step=now.get("step"),
            of=now.get("of", 0),
            kl=tuple(now.get("kl", ())),
            met=tuple(now["met"]) if now.get("met") else None,
            seconds_left=now.get("seconds_left"),
        )
        return road[after:] or road[-1:]

    def _distillation(self) -> Mapping[str, Any]:
        rows = (row.detail for row in self.reader.health() if row.loop == "train")
        return next(rows, {}).get("distillation") or {}

    def evidence(self, note: int) -> list[dict[str, Any]]:
        """Return measurements and cost of a note's distillations."""
        return [dict(row.evidence) for row in self.reader.distillations(note)]

    def refused(self) -> int:
        """Return the number of versions that the gate refused."""
        return len(LiveVersions(self.reader).ever("refused"))

    def trouble(self) -> str | None:
        """Return the reason why training is paused or fails, None while it runs."""
        rows = self.reader.health()
        failing = next((row for row in rows if row.loop == "train" and row.state == "failing"), None)
        return self.reader.paused() or (f"the trainer fails: {failing.error}" if failing else None)


def demo_settings(config: Config, *, tokens: int) -> Config:
    """Return a demo's settings: notes are distilled as soon as the user is quiet, turns take no steps.

    Replies train at the length that the user reads, in as many steps as five minutes allow.
    """
    distillation = config.train.prompt_distillation
    most = {"idle": QUIET, "tokens": tokens, "seconds": SECONDS}
    limits = ((name, value, getattr(distillation, name)) for name, value in most.items())
    update = {name: value if current is None else min(value, current) for name, value, current in limits}
    sooner = distillation.model_copy(update=update)
    train = config.train.model_copy(update={"prompt_distillation": sooner, "batch_size": _NEVER})
    return full_batches_only(config.model_copy(update={"train": train}))


@asynccontextmanager
async def serving(config: Config, *, agent: str = "simulated-user") -> AsyncIterator[DemoServer]:
    """Run the whole app on its port, as `up` does, and stop it cleanly; ``agent`` names its client."""
    from openclaw_rl.clients.api import ApiClient

    app, stop = App(config), asyncio.Event()
    assert app.policy is not None, "an app with all loops has a policy"
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(app.run(stop, listening=address.set_result))
    try:
        url = await _unless_ended(running, address)
        await _unless_ended(running, asyncio.ensure_future(app.ready.wait()))
        key = next(iter(api_keys(config)), None)
        async with ApiClient(url, key=key, agent=agent) as client:
            with LedgerReader(ledger_place(config)) as reader:
                yield DemoServer(config=config, policy=app.policy, client=client, reader=reader)
    finally:
        stop.set()
        await running


async def _unless_ended(running: asyncio.Task[None], awaited: asyncio.Future[T]) -> T:
    """Return the awaited result; raise the app's error if the app ends first."""
    futures: set[asyncio.Future[Any]] = {running, awaited}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    if not awaited.done():
        awaited.cancel()
        await running
        raise BackendError("the server ended before it was ready", remedy="its log says why")
    return awaited.result()
