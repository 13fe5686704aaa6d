"""Loop 4: verdicts to steps to versions. Also carries out what a person asks of versions."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from openclaw_rl.errors import BackendDown, LedgerError, ModelRefused, NotInLedger
from openclaw_rl.ports import Gate, GateDecision, LiveMonitor, Regression, StepResult, Trainer
from openclaw_rl.train.queue import Work, WorkLedger
from openclaw_rl.train.records import Recorder
from openclaw_rl.train.samples import Batch, Rules, assemble
from openclaw_rl.train.trial import UNFIT, Trial
from openclaw_rl.types import ControlRequest, Drop, Sample, Step, Version
from openclaw_rl.versions import checkpoints, retention
from openclaw_rl.versions.checkpoints import Checkpoint, Memory
from openclaw_rl.versions.rollback import VersionLedger, roll_back

log = logging.getLogger(__name__)
T = TypeVar("T")

ATTEND = 0.25
"""seconds between two looks at what people ask while a step or an examination is under way"""

__all__ = ["StepLedger", "TrainLoop", "roll_back"]


class StepLedger(WorkLedger, VersionLedger, Protocol):
    """What this loop needs of the ledger."""

    def add_ruling(self, ruling: GateDecision) -> None: ...
    def add_step(self, step: Step, version: Version | None, drops: Sequence[Drop] = ()) -> None: ...
    def last_step(self) -> Step | None: ...
    def live_history(self) -> Sequence[tuple[int, float]]: ...
    def pinned(self) -> set[int]: ...
    def new_requests(self, limit: int) -> Sequence[ControlRequest]: ...
    def done_requests(self, seq: int) -> None: ...
    def pause(self, why: str) -> None: ...
    def paused(self) -> str | None: ...


class TrainLoop:
    """One tick: carry out requests, drop what cannot train, and take one step if a batch is ready."""

    name = "train"

    def __init__(
        self,
        ledger: StepLedger,
        trainer: Trainer,
        *,
        base: str,
        directory: Path,
        rules: Rules,
        batch_size: int = 16,
        max_wait: float = 600.0,
        idle: float = 120.0,
        pause_after: int = 3,
        group_size: int = 1,
        people: Collection[str] = (),
        retain: retention.Policy | None = None,
        recorder: Recorder | None = None,
        resume: Path | None = None,
        gate: Gate | None = None,
        watch: LiveMonitor | None = None,
        gate_retry: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``group_size`` plays make a group; ``people`` are the users who have a key.

        ``retain`` None deletes no version; ``resume`` is a version's directory.

        Without a ``gate`` every version is served; a candidate that it holds is ruled on again after ``gate_retry``.

        Raises ConfigError for a ``resume`` that cannot be gone on from in this run.
        """
        self._ledger = ledger
        self._trainer = trainer
        self._base = base
        self._directory = directory
        self._rules = rules
        self._pause_after = pause_after
        self._retain = retain
        self._recorder = recorder
        self._resume = self._to_adopt(resume)
        self._clock = clock
        self._work = Work(
            ledger,
            rules,
            batch_size=batch_size,
            max_wait=max_wait,
            idle=idle,
            group_size=group_size,
            people=people,
            clock=clock,
        )
        self._trial = Trial()
        self._alarms = 0
        self._begun = False
        self._trainer_up = False
        self._gate = gate
        self._watch = watch
        self._gate_retry = gate_retry
        self._candidate: Version | None = None
        self._held: GateDecision | None = None
        self._rule_at = 0.0

    async def tick(self) -> int:
        if not self._begun:
            await asyncio.to_thread(self._begin)
            self._begun = True
        moved = await asyncio.to_thread(self._carry_out_requests)
        moved += await asyncio.to_thread(self._look_back)
        if await asyncio.to_thread(self._ledger.paused):
            return moved
        if not await self._rule():  # no step is taken before the one before it is decided
            return moved
        if not self._trainer_up:  # after the requests: a trainer that cannot start must not hold up a rollback
            await self._attending(self._trainer.start())
            self._trainer_up = True
            await asyncio.to_thread(self._tidy)  # what a crash left undone
        moved += await asyncio.to_thread(self._work.read)
        chosen = await asyncio.to_thread(self._work.due)
        if chosen:
            moved += await self._step(chosen)
            await asyncio.to_thread(self._tidy)
        return moved

    def hurry(self) -> None:
        """From now on train what is there instead of waiting for a batch to fill."""
        self._work.max_wait = 0.0

    def _to_adopt(self, resume: Path | None) -> Checkpoint | None:
        if resume is None:
            return None
        found = checkpoints.examine(resume, base=self._base)
        return found if checkpoints.fresh(found, self._ledger.versions()) else None

    def _begin(self) -> None:
        """Write the first versions of a new run; refuse a run of other weights; finish what a crash left half done."""
        versions = self._ledger.versions()
        if not versions:
            self._ledger.add_version(
                Version(number=0, parent=None, base=self._base, state="live", note="the base model")
            )
        if self._resume is not None:
            self._adopt(self._resume)
            return
        if not versions:
            return
        if versions[-1].base != self._base:
            raise LedgerError(
                f"this run was trained on {versions[-1].base!r}, not on {self._base!r}",
                remedy="set policy.model back, or begin a new run directory (run.dir)",
            )
        if versions[-1].state == "candidate":
            self._candidate = versions[-1]

    def _adopt(self, checkpoint: Checkpoint) -> None:
        """Version 1 of this run is a copy of another run's."""
        number = self._next_version()
        target = self._directory / f"{number:06d}"
        self._directory.mkdir(parents=True, exist_ok=True)
        checkpoints.adopt(checkpoint, target)
        self._ledger.add_version(
            Version(number=number, parent=0, base=self._base, adapter=str(target), state="live", note=checkpoint.note)
        )
        log.info("version %d is live (%s)", number, checkpoint.note)

    def _tidy(self) -> None:
        """Bring the records up to the newest step and delete versions that no rule keeps."""
        if self._recorder is not None:
            while self._recorder.catch_up():
                pass
        if self._retain is not None:
            retention.tidy(self._ledger, self._directory, policy=self._retain, now=self._clock())

    def _carry_out_requests(self) -> int:
        asked = self._ledger.new_requests(16)
        for request in asked:
            try:
                self._carry_out(request)
            except NotInLedger as error:  # a wish that cannot be met must not block those after it
                log.warning("request %d (%s) refused: %s", request.seq, request.command, error)
            self._ledger.done_requests(request.seq)
        return len(asked)

    def _carry_out(self, request: ControlRequest) -> None:
        if request.command == "rollback":
            roll_back(self._ledger, to=request.argument.get("to"), why=str(request.argument.get("why", "asked for")))
        elif request.command in ("pause", "resume"):  # the word itself is the state: see `paused`
            self._alarms = 0
            log.info("training: %s", request.command)
        elif request.command in ("pin turn", "unpin turn"):  # likewise: see `examples`
            log.info("turn %s: %s", request.argument.get("turn"), request.command)
        elif request.command in ("pin", "unpin"):  # likewise: see `pinned`
            log.info("version %s: %s", request.argument.get("version"), request.command)
        else:
            log.warning("request %d: no such command %r", request.seq, request.command)

    def _memory(self) -> Memory:
        """The newest step and the baselines after it; before the first step of this run, those of the live version."""
        last = self._ledger.last_step()
        if last is not None:
            return Memory(step=last.number, baselines=last.baselines)
        adapter = self._live().adapter
        return checkpoints.recall(Path(adapter)) if adapter else Memory()

    def _live(self) -> Version:
        live = self._ledger.live_version()
        assert live is not None, "version 0 is written before anything is sifted"
        return live

    async def _step(self, chosen: Sequence[Sample]) -> int:
        memory = await asyncio.to_thread(self._memory)
        batch = self._batch(chosen, memory)
        number = memory.step + 1
        parent = await asyncio.to_thread(self._live)
        target = self._directory / f"{await asyncio.to_thread(self._next_version):06d}"
        try:
            trained = await self._attending(self._train(batch, number=number, parent=parent, target=target))
        except (BackendDown, ModelRefused):  # of no batch's doing
            raise
        except Exception as error:  # whatever a batch does to a trainer, it may not do it for ever
            hopeless = self._trial.failed(batch, error)
            if hopeless is None:
                raise
            await asyncio.to_thread(self._give_up, hopeless)
            return 1
        self._trial.passed()
        await asyncio.to_thread(self._publish, batch, number, parent, trained)
        self._work.forget()
        await self._rule()
        return len(batch.samples)

    def _batch(self, chosen: Sequence[Sample], memory: Memory) -> Batch:
        """The samples with their advantages; after a failure a part of them, with those that they have in the whole."""
        whole = assemble(chosen, baselines=memory.baselines, rules=self._rules)
        size = self._trial.size(len(chosen))
        if size == len(chosen):
            return whole
        part = assemble(chosen[:size], baselines=memory.baselines, rules=self._rules)
        return Batch(samples=whole.samples[:size], baselines=part.baselines)

    def _give_up(self, hopeless: Drop) -> None:
        """A turn that fails the trainer is dropped; so many in a row pause training, for it may be the trainer."""
        self._ledger.add_drops([hopeless])
        self._work.forget()
        log.error("turn %s is dropped: %s", hopeless.turn, hopeless.detail)
        self._alarm(f"turn {hopeless.turn} was dropped: {hopeless.detail}")

    async def _train(self, batch: Batch, *, number: int, parent: Version, target: Path) -> StepResult:
        if batch.silent:
            return StepResult(
                adapter=None, metrics={}, seconds=0.0, skipped="every advantage is zero and there is no hint"
            )
        await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)  # a step that a crash cut off before its row
        return await self._trainer.step(batch.samples, number=number, parent=parent, target=str(target))

    def _publish(self, batch: Batch, number: int, parent: Version, trained: StepResult) -> None:
        drops = [Drop(turn=turn, stage="train", reason=UNFIT, detail=why) for turn, why in trained.dropped.items()]
        samples = [sample for sample in batch.samples if sample.turn not in trained.dropped]
        if not samples:
            self._ledger.add_drops(drops)
            return
        step = Step(
            number=number,
            turns=tuple(sample.turn for sample in samples),
            metrics=trained.metrics,
            seconds=trained.seconds,
            skipped=trained.skipped,
            baselines=batch.baselines,
            parts={sample.turn: _part(sample, parent) for sample in samples},
        )
        if trained.adapter is None:
            self._ledger.add_step(step, None, drops)
            log.warning("step %d skipped: %s", number, trained.skipped)
            self._alarmed(batch, trained)
            return
        checkpoints.remember(trained.adapter, Memory(step=number, baselines=batch.baselines))
        version = Version(
            number=self._next_version(),
            parent=parent.number,
            base=self._base,
            adapter=trained.adapter,
            step=number,
            note=f"step {number}",
        )
        self._ledger.add_step(step, version, drops)
        self._candidate = version

    def _alarmed(self, batch: Batch, trained: StepResult) -> None:
        """A step that an alarm skipped; so many in a row pause training."""
        if not batch.silent:
            self._alarm(str(trained.skipped))

    def _alarm(self, what: str) -> None:
        self._alarms += 1
        if self._alarms >= self._pause_after:
            self._ledger.pause(f"{self._alarms} alarms in a row, the last: {what}")

    async def _rule(self) -> bool:
        """Have the gate decide on the candidate, if there is one; False while it waits for its ruling."""
        candidate = self._candidate
        if candidate is None:
            return True
        live, taken_back = await asyncio.to_thread(lambda: (self._live(), self._ledger.ever("rolled back")))
        if candidate.parent in taken_back:
            await asyncio.to_thread(self._refuse, candidate, "what it was trained from was rolled back", alarm=False)
        elif self._gate is None:
            await asyncio.to_thread(self._promote, candidate, "promoted: newest step")
        elif self._clock() < self._rule_at:
            return False
        else:
            ruling = await self._attending(self._gate.decide(candidate, live))
            if (await asyncio.to_thread(self._live)).number != live.number:
                return False  # a rollback came meanwhile: what was ruled was ruled against another version
            await asyncio.to_thread(self._carry_out_ruling, candidate, ruling)
        return self._candidate is None

    async def _attending(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives. Meanwhile requests are carried out: nobody waits for a step in order to undo one."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=ATTEND))[0]:
                await asyncio.to_thread(self._carry_out_requests)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        return task.result()

    def _carry_out_ruling(self, candidate: Version, ruling: GateDecision) -> None:
        if self._held is None or (ruling.decision, ruling.reason) != (self._held.decision, self._held.reason):
            self._ledger.add_ruling(ruling)
        if ruling.decision == "hold":
            self._held, self._rule_at = ruling, self._clock() + self._gate_retry
            log.warning("version %d is held: %s", candidate.number, ruling.reason)
        elif ruling.decision == "refuse":
            self._refuse(candidate, ruling.reason)
        else:
            self._promote(candidate, ruling.reason)

    def _refuse(self, candidate: Version, why: str, *, alarm: bool = True) -> None:
        """The live version goes on, and the next step begins from it; the candidate's turns stay used."""
        self._ledger.set_state(candidate.number, "refused", why)
        log.warning("version %d is refused: %s", candidate.number, why)
        self._candidate = self._held = None
        self._rule_at = 0.0
        if alarm:
            self._alarm(f"version {candidate.number} was refused: {why}")

    def _look_back(self) -> int:
        """Go back by itself when what is served became worse; training then waits for a person."""
        relapse = self._watch.check() if self._watch is not None else None
        if relapse is None:
            return 0
        again = self._take_back(relapse)
        self._ledger.pause(f"version {again.number} went back to {relapse.to} by itself: {relapse.reason}")
        self._work.forget()
        log.error("version %d is rolled back by itself: %s", relapse.version, relapse.reason)
        return 1

    def _take_back(self, relapse: Regression) -> Version:
        """Every version built on the one that made it worse goes with it."""
        why = f"by itself: {relapse.reason}"
        at = self._live()
        while at.parent is not None and at.parent != relapse.to and at.number > relapse.version:
            at = self._ledger.version(at.parent)
            self._ledger.set_state(at.number, "rolled back", why)
        return roll_back(self._ledger, to=relapse.to, why=why)

    async def status(self) -> Mapping[str, Any]:
        """What `status` shows: how many samples wait, and why training is paused, if it is."""
        why = await asyncio.to_thread(self._ledger.paused)
        remedy = "mend the cause, then 'openclaw-rl resume'"
        alarms = [{"what": f"training is paused: {why}", "remedy": remedy}] if why else []
        if self._recorder is not None:
            alarms += [{"what": what, "remedy": "see the log, then restart"} for what in self._recorder.troubles]
        if self._held is not None:
            what = f"version {self._held.version} waits for the gate: {self._held.reason}"
            alarms.append({"what": what, "remedy": "the live version goes on; it is tried again by itself"})
        return {"waiting": self._work.waiting, "paused": why, "alarms": alarms}

    def _promote(self, version: Version, why: str) -> None:
        self._ledger.set_state(version.number, "live", why)
        log.info("version %d is live (step %s)", version.number, version.step)
        self._candidate = self._held = None
        self._alarms, self._rule_at = 0, 0.0

    def _next_version(self) -> int:
        return self._ledger.versions()[-1].number + 1


def _part(sample: Sample, parent: Version) -> dict[str, float | str]:
    """With what a turn took part in a step."""
    known: dict[str, float | str] = {"hints": float(len(sample.teachers)), "lag": float(parent.number - sample.version)}
    if sample.recalled is not None:
        known["recalled"] = sample.recalled
    return known if sample.advantage is None else {"advantage": sample.advantage, **known}
