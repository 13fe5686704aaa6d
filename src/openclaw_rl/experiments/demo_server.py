"""The server of a demo: the whole app on its port, what became of its user's note, and how far a rehearsal is."""

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
"""seconds between two looks at how far the loops are"""
QUIET = 1.0
"""seconds without a request after which a demo's user counts as away"""
SECONDS = 150.0
"""of a rehearsal, within the five minutes that a demo may last"""
_NEVER = 65536
"""turns in a batch that no demo has: what is shown is what the note teaches"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a note is on its road: its state and the reason, and the rehearsal under way, ``step`` None for none.

    ``change`` counts the changes of its state, from 1. ``live`` is the version that answers, ``served`` False while a
    newer one is promoted and not yet taken up; ``kl`` are the distances measured so far, ``met`` how many of the
    newest replies did what the note asks, and of how many, ``seconds_left`` what the steps to come would cost.
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
    """A running server: its settings, the policy that answers, a client, and the ledger to look into."""

    config: Config
    policy: Policy
    client: ApiClient
    reader: LedgerReader

    def note(self) -> Note | None:
        """The newest note, None before there is one."""
        return next(reversed(self.reader.notes()), None)

    async def noted(self, patience: float) -> Note | None:
        """The note that a correction makes, once it is heard; None where none comes within so many seconds."""
        until = time.monotonic() + patience
        while True:
            found = self.note()
            if found is not None or time.monotonic() >= until:
                return found
            await asyncio.sleep(POLL)

    def progress(self, note: int, *, after: int = 0) -> list[Progress]:
        """Each change of a note's state behind the first ``after``, and at the end how far it is now."""
        changes = self.reader.note_changes(note)
        live, now = LiveVersions(self.reader).live(), self._rehearsal()
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

    def _rehearsal(self) -> Mapping[str, Any]:
        rows = (row.detail for row in self.reader.health() if row.loop == "train")
        return next(rows, {}).get("rehearsal") or {}

    def evidence(self, note: int) -> list[dict[str, Any]]:
        """What each rehearsal of a note measured and took."""
        return [dict(row.evidence) for row in self.reader.rehearsals(note)]

    def refused(self) -> int:
        """Versions that the gate refused."""
        return len(LiveVersions(self.reader).ever("refused"))

    def trouble(self) -> str | None:
        """Why nobody trains, so that there is nothing to wait for; None while somebody does."""
        rows = self.reader.health()
        failing = next((row for row in rows if row.loop == "train" and row.state == "failing"), None)
        return self.reader.paused() or (f"the trainer fails: {failing.error}" if failing else None)


def demo_settings(config: Config, *, tokens: int) -> Config:
    """Those of a demo: notes are made and rehearsed as soon as its user is quiet, turns take no steps.

    Replies are rehearsed at the length at which its user reads them, and in as many steps as five minutes allow.
    """
    rehearse = config.train.rehearse
    most = {"idle": QUIET, "tokens": tokens, "seconds": SECONDS}
    given = ((name, value, getattr(rehearse, name)) for name, value in most.items())
    update = {name: value if own is None else min(value, own) for name, value, own in given}
    sooner = rehearse.model_copy(update=update)
    train = config.train.model_copy(update={"rehearse": sooner, "batch_size": _NEVER})
    return full_batches_only(config.model_copy(update={"train": train}))


@asynccontextmanager
async def serving(config: Config, *, agent: str = "simulated-user") -> AsyncIterator[DemoServer]:
    """The whole app on its port, as `up` runs it; ended properly. ``agent`` names its client."""
    from openclaw_rl.clients.api import ApiClient

    app, stop = App(config), asyncio.Event()
    assert app.policy is not None, "an app with all loops answers"
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
    """What is waited for; raises what ended the app where that comes first."""
    both: set[asyncio.Future[Any]] = {running, awaited}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not awaited.done():
        awaited.cancel()
        await running
        raise BackendError("the server ended before it was ready", remedy="its log says why")
    return awaited.result()
