"""The engine: its loaded versions, and a step that turns scheduled tokens into job events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from openclaw_rl.backends.hf.guidance import HeldCalls, HeldReply
from openclaw_rl.backends.hf.models import release
from openclaw_rl.backends.local.engine.constraint import ConstraintCompiler
from openclaw_rl.backends.local.engine.heartbeat import Heartbeat
from openclaw_rl.backends.local.engine.kv_cache import KVCache, SequenceCache
from openclaw_rl.backends.local.engine.messages import JobEvent, JobFailed, TokenDelta
from openclaw_rl.backends.local.engine.model_runner import (
    FusedRunner,
    GraphedRunner,
    ModelRunner,
    PassOutput,
    kv_cache_for,
    run_pass,
)
from openclaw_rl.backends.local.engine.runner_choice import OwnCacheRunner, StateCache
from openclaw_rl.backends.local.engine.sampler import sample
from openclaw_rl.backends.local.engine.scheduler import (
    EngineCounts,
    EngineJob,
    Generation,
    PrefillBudget,
    Scheduler,
    Scoring,
)
from openclaw_rl.errors import BackendError, OpenClawError


class Engine:
    """Runs jobs on its loaded versions. Not thread-safe: one thread makes all calls."""

    def __init__(
        self,
        base: ModelRunner,
        model: Any,
        *,
        cache_tokens: int,
        max_batch: int,
        prefill: PrefillBudget | None = None,
        request_version: Callable[[int], None] | None = None,
        free_runners: Callable[[list[ModelRunner]], None] | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """``request_version`` is called for a version that is not loaded; ``free_runners`` takes the unused runners."""
        self._heartbeat = heartbeat or Heartbeat([0, 0])
        unshared = isinstance(base, OwnCacheRunner)
        self.kv_cache: SequenceCache = StateCache(cache_tokens) if unshared else kv_cache_for(model, rows=cache_tokens)
        self._device: torch.device = model.device
        self._cuda = self._device.type == "cuda"
        self.runners: dict[int, ModelRunner] = {0: self._graphed(base)}
        self.live = 0
        self.candidates: set[int] = set()
        self.counts = EngineCounts()
        self._request_version = request_version
        self._free_runners = free_runners or _free
        self._requested: set[int] = set()
        self._scheduler = Scheduler(
            self.kv_cache,
            self.counts,
            max_batch=max_batch,
            prefill=_prefill(base, prefill, cuda=self._cuda),
            loaded=self.runners,
            candidates=self.candidates,
        )

    @property
    def idle(self) -> bool:
        """Return True if there is no work until the next call."""
        return self._scheduler.idle

    # --- jobs

    def submit(self, job: EngineJob) -> None:
        """Accept a job. If its version is not loaded, request it; the job waits until `install` or `refuse`."""
        if isinstance(job, Generation) and job.constraint is not None:
            job.constraint.before_each(partial(self._heartbeat.work_on, job.id))
        self._scheduler.waiting.append(job)
        if job.version not in self.runners and job.version not in self._requested and self._request_version is not None:
            self._requested.add(job.version)
            self._request_version(job.version)

    def cancel(self, job_id: int) -> list[JobEvent]:
        """End a job now; a reply finishes as aborted with its tokens so far. Finished jobs' ids are ignored."""
        for job in self._scheduler.jobs:
            if job.id == job_id:
                self._scheduler.leave(job)
                return [job.result("aborted")] if isinstance(job, Generation) else []
        return []

    @torch.inference_mode()
    def step(self) -> list[JobEvent]:
        """Run one pass for each version in use."""
        self._scheduler.admit()
        events: list[JobEvent] = []
        for version in self._scheduler.versions():
            parts = self._scheduler.plan(version)
            if parts:
                # a pass that several requests share has no single cause
                self._heartbeat.work_on(parts[0].job.id if len(parts) == 1 else 0)
                output = run_pass(self.runners[version], self.kv_cache, parts, self._device, self._heartbeat.beat)
                self.counts.computed += output.tokens
                events += [*self._sample(output), *self._score(output)]
                self._heartbeat.work_on(0)
        self.counts.steps += 1
        self._drop_unused()
        return events

    def _sample(self, output: PassOutput) -> list[JobEvent]:
        jobs, logits = output.generations()
        if not jobs:
            return []
        events: list[JobEvent] = []
        for job, sampled in zip(jobs, sample(logits, [job.sampler for job in jobs]), strict=True):
            self._heartbeat.work_on(job.id)
            try:
                delta, finish = job.take(sampled)
            except Exception as error:  # one reply's failure is its own; the others continue
                events.append(self._failed(job, error))
                continue
            self.counts.generated += 1
            events.append(TokenDelta(job.id, delta))
            if finish is not None:
                self._scheduler.leave(job)
                events.append(job.result(finish))
        return events

    def _score(self, output: PassOutput) -> list[JobEvent]:
        events: list[JobEvent] = []
        for job, logits in output.scorings():
            self._heartbeat.work_on(job.id)
            try:
                job.take(logits)
            except Exception as error:  # as above
                events.append(self._failed(job, error))
        for job_done in output.finished:
            if isinstance(job_done, Scoring) and job_done in self._scheduler.running:
                self._scheduler.leave(job_done)
                events.append(job_done.result())
        return events

    def _failed(self, job: EngineJob, error: Exception) -> JobFailed:
        self._scheduler.leave(job)
        if isinstance(error, OpenClawError):
            return JobFailed(job.id, error)
        return JobFailed(job.id, BackendError(f"the request failed: {type(error).__name__}: {error}"))

    # --- versions

    def install(self, version: int, runner: ModelRunner, *, live: bool) -> None:
        """Add a version; with ``live`` it stays loaded while unused."""
        self.runners[version] = self._graphed(runner)
        self._requested.discard(version)
        if live:
            self.live = version
            self.candidates.discard(version)
        self._drop_unused()

    def promote(self, version: int) -> None:
        """Make a loaded version the live version."""
        self.live = version
        self._drop_unused()

    def admit(self, version: int, runner: ModelRunner) -> None:
        """Add a candidate under evaluation: it stays loaded while unused, and its jobs yield to users' jobs."""
        self.candidates.add(version)
        self.install(version, runner, live=False)

    def dismiss(self, version: int) -> list[JobEvent]:
        """End a candidate's evaluation."""
        self.candidates.discard(version)
        self._drop_unused()
        return []

    def refuse(self, version: int, error: OpenClawError) -> list[JobEvent]:
        """Fail the jobs that wait for a version that cannot be loaded."""
        self._requested.discard(version)
        lost = [job for job in self._scheduler.waiting if job.version == version]
        for job in lost:
            self._scheduler.leave(job)
        return [JobFailed(job.id, error) for job in lost]

    def _graphed(self, runner: ModelRunner) -> ModelRunner:
        """Record a fused pass as a graph on a GPU, where a small batch's kernels take less time than their launches."""
        if isinstance(runner, OwnCacheRunner):
            runner.before_each_layer(self._heartbeat.beat)
        if self._cuda and isinstance(runner, FusedRunner) and isinstance(self.kv_cache, KVCache):
            return GraphedRunner(runner, self.kv_cache)
        return runner

    def _drop_unused(self) -> None:
        """Unload unused versions, except the base, the live version and candidates."""
        used = {job.version for job in self._scheduler.jobs} | {0, self.live} | self.candidates
        unused = [version for version in self.runners if version not in used]
        for version in unused:
            self.kv_cache.forget(version)
        if unused:
            self._free_runners([self.runners.pop(version) for version in unused])

    def stats(self) -> dict[str, int]:
        """Figures for `health` and `/metrics`; tokens and steps are counted from the start."""
        cache, counts = self.kv_cache, self.counts
        return {
            "running": len(self._scheduler.running),
            "waiting": len(self._scheduler.waiting),
            "kv_cache_tokens": cache.rows,
            "kv_cache_used": cache.held,
            "kv_cache_idle": cache.rows - cache.free - cache.held,
            "versions": len(self.runners),
            "steps": counts.steps,
            "tokens_computed": counts.computed,
            "prefix_cache_hits": counts.prefix_hits,
            "tokens_generated": counts.generated,
            "preempted": counts.preempted,
        }


def _prefill(base: ModelRunner, given: PrefillBudget | None, *, cuda: bool) -> PrefillBudget:
    """Return the prompt tokens that a step prefills, by default for the device; a runner that cannot split prompts has
    no limit."""
    if isinstance(base, OwnCacheRunner) and base.reading == "whole":
        return PrefillBudget(sys.maxsize, sys.maxsize)
    return given or (PrefillBudget(1024, 4096) if cuda else PrefillBudget(64, 256))


def _free(runners: list[ModelRunner]) -> None:
    runners.clear()
    release()


# Constrained requests: their grammars are compiled while later requests run.


class FormatQueue:
    """Compiles new formats one at a time in its own thread. A format that is already compiled is used at once."""

    def __init__(
        self,
        compiler: ConstraintCompiler,
        *,
        submit: Callable[[Generation], None],
        refuse: Callable[[int, Exception], None],
    ) -> None:
        """``submit`` takes a constrained request, ``refuse`` a request whose format cannot be used."""
        self._compiler = compiler
        self._submit = submit
        self._refuse = refuse
        self._waiting: SimpleQueue[tuple[Generation, HeldReply | HeldCalls]] = SimpleQueue()
        self._open: set[int] = set()
        self._lock = threading.Lock()

    def put(self, job: Generation, held: HeldReply | HeldCalls) -> None:
        """Accept a request; raise `RequestError` at once if its format was refused before."""
        constraint = self._compiler.known(held)
        if constraint is not None:
            job.hold(constraint)
            self._submit(job)
            return
        self._open.add(job.id)
        self._waiting.put((job, held))

    def cancel(self, job_id: int, cancel: Callable[[], None]) -> None:
        """Drop a request that waits here; ``cancel`` ends it if it was already submitted."""
        with self._lock:
            self._open.discard(job_id)
            cancel()

    def run(self) -> None:
        """Compile queued formats forever."""
        while True:
            self.next()

    def next(self) -> None:
        """Wait for a request, compile its format, then submit or refuse it."""
        job, form = self._waiting.get()
        if job.id not in self._open:
            return
        try:
            job.hold(self._compiler.constraint(form))
        except Exception as error:  # an unusable format fails its own request alone
            self._leave(job.id, partial(self._refuse, job.id, error))
        else:
            self._leave(job.id, partial(self._submit, job))

    def _leave(self, job_id: int, then: Callable[[], None]) -> None:
        with self._lock:
            if job_id in self._open:
                self._open.discard(job_id)
                then()
