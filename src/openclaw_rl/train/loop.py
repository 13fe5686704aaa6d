"""Loop 4: verdicts to steps to versions. Also carries out what a person asks of versions."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.errors import LedgerError, NotInLedger
from openclaw_rl.ports import Trained, Trainer
from openclaw_rl.train.samples import Batch, Rules, assemble, ready, sift
from openclaw_rl.types import Drop, Outcome, Sample, Step, Turn, Verdict, Version, VersionState

log = logging.getLogger(__name__)


class Judged(Protocol):
    """A turn that may train, with what is known of it."""

    @property
    def turn(self) -> Turn: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def verdict(self) -> Verdict: ...


class Asked(Protocol):
    """What a person asked."""

    @property
    def seq(self) -> int: ...
    @property
    def verb(self) -> str: ...
    @property
    def argument(self) -> Mapping[str, Any]: ...


class TrainLedger(Protocol):
    """What this loop needs of the ledger."""

    def untrained(self, limit: int) -> Sequence[Judged]: ...
    def add_drops(self, drops: Sequence[Drop]) -> None: ...
    def add_step(self, step: Step, version: Version | None, drops: Sequence[Drop] = ()) -> None: ...
    def add_version(self, version: Version) -> None: ...
    def set_state(self, version: int, state: VersionState, reason: str) -> None: ...
    def last_step(self) -> Step | None: ...
    def version(self, number: int) -> Version: ...
    def versions(self) -> list[Version]: ...
    def live_version(self) -> Version | None: ...
    def last_turn_at(self) -> float | None: ...
    def newest(self, table: Any) -> int: ...
    def new_requests(self, limit: int) -> Sequence[Asked]: ...
    def done_requests(self, seq: int) -> None: ...
    def pause(self, why: str) -> None: ...
    def paused(self) -> str | None: ...


class TrainLoop:
    """One tick: carry out requests, drop what cannot train, and take one step if a batch is ready."""

    name = "train"

    def __init__(
        self,
        ledger: TrainLedger,
        trainer: Trainer,
        *,
        base: str,
        directory: Path,
        rules: Rules,
        batch_size: int = 16,
        max_wait: float = 600.0,
        idle: float = 120.0,
        pause_after: int = 3,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._trainer = trainer
        self._base = base
        self._directory = directory
        self._rules = rules
        self._batch_size = batch_size
        self._max_wait = max_wait
        self._idle = idle
        self._pause_after = pause_after
        self._clock = clock
        self._alarms = 0
        self._waiting: list[tuple[Sample, float]] = []
        self._seen = -1
        self._begun = False
        self._trainer_up = False

    async def tick(self) -> int:
        if not self._begun:
            await asyncio.to_thread(self._begin)
            self._begun = True
        moved = await asyncio.to_thread(self._carry_out_requests)
        if await asyncio.to_thread(self._ledger.paused):
            return moved
        if not self._trainer_up:  # after the requests: a trainer that cannot start must not hold up a rollback
            await self._trainer.start()
            self._trainer_up = True
        moved += await asyncio.to_thread(self._sift)
        last_turn = await asyncio.to_thread(self._ledger.last_turn_at)
        if ready(
            len(self._waiting),
            oldest=min((at for _, at in self._waiting), default=None),
            last_turn=last_turn,
            now=self._clock(),
            batch_size=self._batch_size,
            max_wait=self._max_wait,
            idle=self._idle,
        ):
            moved += await self._step()
        return moved

    def _begin(self) -> None:
        """Write version 0 into a new ledger; refuse an old one of other weights; finish what a crash left half done."""
        versions = self._ledger.versions()
        if not versions:
            self._ledger.add_version(
                Version(number=0, parent=None, base=self._base, state="live", note="the bare base")
            )
            return
        if versions[-1].base != self._base:
            raise LedgerError(
                f"this run was trained on {versions[-1].base!r}, not on {self._base!r}",
                remedy="set policy.model back, or begin a new run directory (run.dir)",
            )
        if versions[-1].state == "candidate":
            self._promote(versions[-1])

    def _carry_out_requests(self) -> int:
        asked = self._ledger.new_requests(16)
        for request in asked:
            try:
                self._carry_out(request)
            except NotInLedger as error:  # a wish that cannot be met must not block those after it
                log.warning("request %d (%s) refused: %s", request.seq, request.verb, error)
            self._ledger.done_requests(request.seq)
        return len(asked)

    def _carry_out(self, request: Asked) -> None:
        if request.verb == "rollback":
            roll_back(self._ledger, to=request.argument.get("to"), why=str(request.argument.get("why", "asked for")))
        elif request.verb in ("pause", "resume"):  # the word itself is the state: see `paused`
            self._alarms = 0
            log.info("training: %s", request.verb)
        else:
            log.warning("request %d: no such verb %r", request.seq, request.verb)

    def _sift(self) -> int:
        """Read the work list anew only if it has changed; drop at once what will never train."""
        newest = self._ledger.newest("verdicts")
        if newest == self._seen:
            return 0
        live = self._live().number
        samples: list[tuple[Sample, float]] = []
        drops: list[Drop] = []
        for judged in self._ledger.untrained(self._batch_size * 4):
            found = sift(judged.turn, judged.outcome, judged.verdict, live=live, rules=self._rules)
            if isinstance(found, Drop):
                drops.append(found)
            else:
                samples.append((found, judged.verdict.at))
        if drops:
            self._ledger.add_drops(drops)
        else:
            self._seen = newest  # all of the list is in hand; after a drop there may be more behind it
        self._waiting = samples
        return len(drops)

    def _live(self) -> Version:
        live = self._ledger.live_version()
        assert live is not None, "version 0 is written before anything is sifted"
        return live

    async def _step(self) -> int:
        chosen = [sample for sample, _ in self._waiting[: self._batch_size]]
        last = await asyncio.to_thread(self._ledger.last_step)
        batch = assemble(chosen, baselines=last.baselines if last else {}, rules=self._rules)
        number = last.number + 1 if last else 1
        parent = await asyncio.to_thread(self._live)
        target = self._directory / f"{await asyncio.to_thread(self._next_version):06d}"
        trained = await self._train(batch, number=number, parent=parent, target=target)
        await asyncio.to_thread(self._publish, batch, number, parent, trained)
        self._waiting, self._seen = [], -1
        return len(chosen)

    async def _train(self, batch: Batch, *, number: int, parent: Version, target: Path) -> Trained:
        if batch.silent:
            return Trained(
                adapter=None, metrics={}, seconds=0.0, skipped="every advantage is zero and there is no hint"
            )
        await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)  # a step that a crash cut off before its row
        return await self._trainer.step(batch.samples, number=number, parent=parent, target=str(target))

    def _publish(self, batch: Batch, number: int, parent: Version, trained: Trained) -> None:
        step = Step(
            number=number,
            turns=tuple(sample.turn for sample in batch.samples),
            metrics=trained.metrics,
            seconds=trained.seconds,
            skipped=trained.skipped,
            baselines=batch.baselines,
        )
        if trained.adapter is None:
            self._ledger.add_step(step, None)
            log.warning("step %d skipped: %s", number, trained.skipped)
            self._alarmed(batch, trained)
            return
        self._alarms = 0
        version = Version(
            number=self._next_version(),
            parent=parent.number,
            base=self._base,
            adapter=trained.adapter,
            step=number,
            note=f"step {number}",
        )
        self._ledger.add_step(step, version)
        self._promote(version)

    def _alarmed(self, batch: Batch, trained: Trained) -> None:
        """A step that an alarm skipped; so many in a row pause training."""
        self._alarms += not batch.silent
        if self._alarms >= self._pause_after:
            self._ledger.pause(f"{self._alarms} alarms in a row, the last: {trained.skipped}")

    async def status(self) -> Mapping[str, Any]:
        """What `status` shows: how many samples wait, and why training is paused, if it is."""
        why = await asyncio.to_thread(self._ledger.paused)
        remedy = "mend the cause, then 'openclaw-rl resume'"
        alarms = [{"what": f"training is paused: {why}", "remedy": remedy}] if why else []
        return {"waiting": len(self._waiting), "paused": why, "alarms": alarms}

    def _promote(self, version: Version) -> None:
        self._ledger.set_state(version.number, "live", "promoted: newest step")
        log.info("version %d is live (step %s)", version.number, version.step)

    def _next_version(self) -> int:
        return self._ledger.versions()[-1].number + 1


def roll_back(ledger: TrainLedger, *, to: int | None, why: str) -> Version:
    """Make older weights live again, as a new version; ``to`` None is the newest ancestor with other weights."""
    live = ledger.live_version()
    if live is None:
        raise NotInLedger("there is nothing to roll back: no version is live yet")
    old = _before(ledger, live) if to is None else ledger.version(to)
    again = replace(
        old,
        number=ledger.versions()[-1].number + 1,
        parent=old.number,
        state="live",
        note=f"rollback from {live.number} to {old.number}: {why}",
        at=time.time(),
    )
    ledger.set_state(live.number, "rolled back", why)
    ledger.add_version(again)
    return again


def _before(ledger: TrainLedger, version: Version) -> Version:
    older = version
    while older.parent is not None and older.adapter == version.adapter:
        older = ledger.version(older.parent)
    if older.adapter == version.adapter:
        raise NotInLedger("there is nothing to roll back to: the bare base is live")
    return older
