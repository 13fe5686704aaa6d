"""The scheduler: continuous batching with chunked prefill.

Requests join and leave between two passes of the model. Each step runs one pass per version in use: one decode token of
every running reply, and a chunk of the prompts in prefill, cut so that decoding goes on. Memory is bounded by the KV
cache: a request waits until its rows are there, and when running replies outgrow it the youngest is preempted and
computed again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from openclaw_rl.backends.hf.memory import release
from openclaw_rl.backends.local.engine.attention import Layout, Span
from openclaw_rl.backends.local.engine.cuda_graphs import GraphedRunner
from openclaw_rl.backends.local.engine.events import JobEvent, JobFailed, TokenDelta
from openclaw_rl.backends.local.engine.kv_cache import SHORTEST_HIT, common_prefix
from openclaw_rl.backends.local.engine.model_runner import FusedRunner, ModelRunner, kv_cache_for
from openclaw_rl.backends.local.engine.sampler import sample
from openclaw_rl.backends.local.engine.sequences import EngineJob, Generation, Scoring
from openclaw_rl.errors import BackendError, OpenClawError

AHEAD = 128
"""rows reserved beyond the tokens known, so that a reply seldom has to move"""
EVERY = 4
"""while users' replies run, a candidate under examination gets one pass in so many"""


@dataclass(slots=True)
class _Part:
    """The next ``count`` tokens of one job in a pass."""

    job: EngineJob
    count: int

    @property
    def done(self) -> int:
        assert self.job.slot is not None
        return len(self.job.slot)

    @property
    def last(self) -> bool:
        """Whether the job's known tokens are all computed after this pass."""
        return self.done + self.count == self.job.wanted


@dataclass(slots=True)
class PrefillBudget:
    """How many prompt tokens a step may prefill: while replies decode, and while nothing else is to be done."""

    shared: int
    alone: int


@dataclass(slots=True)
class EngineCounts:
    """What happened since the start."""

    steps: int = 0
    computed: int = 0
    prefix_hits: int = 0
    generated: int = 0
    preempted: int = 0


@dataclass(slots=True)
class _Queue:
    waiting: deque[EngineJob] = field(default_factory=deque)
    running: list[EngineJob] = field(default_factory=list)

    def all(self) -> Iterable[EngineJob]:
        return (*self.waiting, *self.running)


class Engine:
    """Runs jobs on the versions it holds. Not for several threads: one thread calls everything."""

    def __init__(
        self,
        base: ModelRunner,
        model: Any,
        *,
        cache_tokens: int,
        max_batch: int,
        prefill: PrefillBudget | None = None,
        wanted: Callable[[int], None] | None = None,
        let_go: Callable[[list[ModelRunner]], None] | None = None,
    ) -> None:
        """``wanted`` is asked for a version that is not held; ``let_go`` takes those that nobody uses any more."""
        self.device: torch.device = model.device
        self.kv_cache = kv_cache_for(model, rows=cache_tokens)
        self.max_batch = max_batch
        cuda = self.device.type == "cuda"
        self.prefill = prefill or (PrefillBudget(1024, 4096) if cuda else PrefillBudget(64, 256))
        self.runners: dict[int, ModelRunner] = {0: self._quick(base)}
        self.live = 0
        self.candidates: set[int] = set()
        self.counts = EngineCounts()
        self._wanted = wanted
        self._let_go = let_go or _free
        self._asked: set[int] = set()
        self._queue = _Queue()

    @property
    def idle(self) -> bool:
        """Nothing can be done until somebody calls."""
        return not self._queue.running and not any(job.version in self.runners for job in self._queue.waiting)

    def submit(self, job: EngineJob) -> None:
        """Take a job. If its version is not held it is asked for, and the job waits until `install` or `refuse`."""
        self._queue.waiting.append(job)
        if job.version not in self.runners and job.version not in self._asked and self._wanted is not None:
            self._asked.add(job.version)
            self._wanted(job.version)

    def cancel(self, job_id: int) -> list[JobEvent]:
        """End a job now; a reply ends as aborted with what it has. Unknown ids are over already."""
        for job in self._queue.all():
            if job.id == job_id:
                self._leave(job)
                return [job.result("aborted")] if isinstance(job, Generation) else []
        return []

    def install(self, version: int, runner: ModelRunner, *, live: bool) -> None:
        """Hold a version; with ``live`` it is kept while nobody uses it."""
        self.runners[version] = self._quick(runner)
        self._asked.discard(version)
        if live:
            self.live = version
            self.candidates.discard(version)
        self._drop_unused()

    def _quick(self, runner: ModelRunner) -> ModelRunner:
        """On a GPU a lean pass is recorded; the kernels of a small batch take less time than their launches."""
        if self.device.type == "cuda" and isinstance(runner, FusedRunner):
            return GraphedRunner(runner, self.kv_cache)
        return runner

    def promote(self, version: int) -> None:
        """Make a held version the live one."""
        self.live = version
        self._drop_unused()

    def host(self, version: int, runner: ModelRunner) -> None:
        """Hold a version that is being examined: it is kept while nobody uses it, and gives way to users."""
        self.candidates.add(version)
        self.install(version, runner, live=False)

    def dismiss(self, version: int) -> list[JobEvent]:
        """A guest is no longer examined."""
        self.candidates.discard(version)
        self._drop_unused()
        return []

    def refuse(self, version: int, error: OpenClawError) -> list[JobEvent]:
        """A version that was asked for cannot be had: its jobs fail."""
        self._asked.discard(version)
        lost = [job for job in self._queue.waiting if job.version == version]
        for job in lost:
            self._leave(job)
        return [JobFailed(job.id, error) for job in lost]

    def stats(self) -> dict[str, int]:
        """Figures for `health`."""
        running = self._queue.running
        return {
            "running": len(running),
            "waiting": len(self._queue.waiting),
            "cache_rows": self.kv_cache.rows,
            "cache_held": self.kv_cache.held,
            "cache_kept": self.kv_cache.rows - self.kv_cache.free - self.kv_cache.held,
            "versions": len(self.runners),
            "steps": self.counts.steps,
            "tokens_read": self.counts.computed,
            "tokens_reused": self.counts.prefix_hits,
            "tokens_written": self.counts.generated,
            "preempted": self.counts.preempted,
        }

    @torch.inference_mode()
    def step(self) -> list[JobEvent]:
        """One pass for every version in use."""
        self._admit()
        events: list[JobEvent] = []
        for version in sorted({job.version for job in self._queue.running} - self._yielding()):
            parts = self._plan(version)
            if parts:
                events.extend(self._pass(version, parts))
        self.counts.steps += 1
        self._drop_unused()
        return events

    def _yielding(self) -> set[int]:
        """Guests that let users go first: while a user's reply is being written they get one pass in `EVERY`."""
        users = any(isinstance(job, Generation) and job.version not in self.candidates for job in self._queue.running)
        return self.candidates if users and self.counts.steps % EVERY else set()

    def _admit(self) -> None:
        """Let waiting jobs in, oldest first; one that must wait for a shared prompt lets others pass."""
        for job in list(self._queue.waiting):
            if len(self._queue.running) >= self.max_batch:
                return
            if job.version not in self.runners or self._waits_for_prefix(job):
                continue
            if not self._open(job):
                return
            self._queue.waiting.remove(job)
            self._queue.running.append(job)

    def _open(self, job: EngineJob) -> bool:
        reusable = job.reusable if isinstance(job, Scoring) else job.wanted - 1
        job.slot = self.kv_cache.open(job.version, job.tokens[:reusable], self._room(job), scope=job.scope)
        if job.slot is None:
            return False
        self.counts.prefix_hits += len(job.slot)
        return True

    def _room(self, job: EngineJob) -> int:
        if isinstance(job, Scoring):
            return job.wanted
        return min(job.wanted + AHEAD, job.prompt + job.limit)

    def _waits_for_prefix(self, job: EngineJob) -> bool:
        """Whether a running job is just reading a beginning that this one shares, longer than any that is known."""
        _, known = self.kv_cache.match(job.version, job.tokens, scope=job.scope)
        for other in self._queue.running:
            alike = (other.version, other.scope) == (job.version, job.scope)
            if alike and other.slot is not None and len(other.slot) < other.wanted - 1:
                ahead = common_prefix(other.tokens, job.tokens)
                if ahead >= SHORTEST_HIT and min(ahead, other.wanted - 1) > known:
                    return True
        return False

    def _plan(self, version: int) -> list[_Part]:
        """The tokens of the next pass: every running reply's one, then prompts, oldest first, within the chunk."""
        jobs = [job for job in self._queue.running if job.version == version]
        parts = [_Part(job, 1) for job in jobs if self._left(job) == 1]
        replies = any(isinstance(job, Generation) and self._left(job) == 1 for job in self._queue.running)
        budget = self.prefill.shared if replies else self.prefill.alone
        # a reply that somebody waits for is read before a score
        reading = sorted((job for job in jobs if self._left(job) > 1), key=lambda job: isinstance(job, Scoring))
        for job in reading:
            if budget <= 0:
                break
            count = min(budget, self._left(job))
            parts.append(_Part(job, count))
            budget -= count
        return [part for part in parts if self._make_room(part)]

    def _left(self, job: EngineJob) -> int:
        assert job.slot is not None
        return job.wanted - len(job.slot)

    def _make_room(self, part: _Part) -> bool:
        """Rows for a part, if need be those of the youngest running job; False when it was this one."""
        while part.job.slot is not None and not self.kv_cache.grow(part.job.slot, part.done + part.count):
            self._preempt(self._queue.running[-1])
        if part.job.slot is None:
            return False
        if part.done + part.count > part.job.slot.room - 1 and isinstance(part.job, Generation):
            self.kv_cache.grow(part.job.slot, self._room(part.job))
        return True

    def _preempt(self, job: EngineJob) -> None:
        assert job.slot is not None
        self.kv_cache.drop(job.slot)
        job.slot = None
        self._queue.running.remove(job)
        self._queue.waiting.appendleft(job)
        self.counts.preempted += 1

    def _pass(self, version: int, parts: list[_Part]) -> list[JobEvent]:
        parts = [part for part in parts if part.job.slot is not None]
        if not parts:
            return []
        spans = [Span(part.job.slot, part.count) for part in parts if part.job.slot is not None]
        tokens = [token for part in parts for token in part.job.tokens[part.done : part.done + part.count]]
        kept, owners = self._kept(parts)
        keep = torch.tensor(kept, dtype=torch.long, device=self.device)
        logits = self.runners[version](torch.tensor(tokens, device=self.device), Layout(self.kv_cache, spans), keep)
        finished = [part for part in parts if part.last]
        for part, span in zip(parts, spans, strict=True):
            span.slot.tokens.extend(part.job.tokens[part.done : part.done + part.count])
        self.counts.computed += len(tokens)
        events = self._write(logits, owners)
        return events + self._score(logits, owners, [part.job for part in finished])

    def _kept(self, parts: list[_Part]) -> tuple[list[int], list[EngineJob]]:
        """Which tokens of the pass need logits, and whose each is."""
        kept: list[int] = []
        owners: list[EngineJob] = []
        at = 0
        for part in parts:
            if isinstance(part.job, Scoring):
                first = max(part.job.reusable - part.done, 0)
                rows = range(at + first, at + part.count)
            else:
                rows = range(at + part.count - 1, at + part.count) if part.last else range(0)
            kept.extend(rows)
            owners.extend(part.job for _ in rows)
            at += part.count
        return kept, owners

    def _write(self, logits: torch.Tensor, owners: list[EngineJob]) -> list[JobEvent]:
        rows = [(row, job) for row, job in enumerate(owners) if isinstance(job, Generation)]
        if not rows:
            return []
        mine = logits if len(rows) == len(owners) else logits[[row for row, _ in rows]]
        events: list[JobEvent] = []
        drawn = sample(mine, [job.sampler for _, job in rows])
        for (_, job), result in zip(rows, drawn, strict=True):
            try:
                delta, finish = job.take(result)
            except Exception as error:  # what one reply fails with is its own; the others go on
                events.append(self._failed(job, error))
                continue
            self.counts.generated += 1
            events.append(TokenDelta(job.id, delta))
            if finish is not None:
                self._leave(job)
                events.append(job.result(finish))
        return events

    def _score(self, logits: torch.Tensor, owners: list[EngineJob], finished: list[EngineJob]) -> list[JobEvent]:
        events: list[JobEvent] = []
        for job in dict.fromkeys(job for job in owners if isinstance(job, Scoring)):
            rows = [row for row, owner in enumerate(owners) if owner is job]
            try:
                _note(job, logits[rows[0] : rows[-1] + 1])
            except Exception as error:  # as above
                events.append(self._failed(job, error))
        for done in finished:
            if isinstance(done, Scoring) and done in self._queue.running:
                self._leave(done)
                events.append(done.result())
        return events

    def _failed(self, job: EngineJob, error: Exception) -> JobFailed:
        self._leave(job)
        return JobFailed(job.id, BackendError(f"the request failed: {type(error).__name__}: {error}"))

    def _leave(self, job: EngineJob) -> None:
        if job in self._queue.waiting:
            self._queue.waiting.remove(job)
            return
        self._queue.running.remove(job)
        if job.slot is not None:
            self.kv_cache.close(job.slot)
            job.slot = None

    def _drop_unused(self) -> None:
        """Versions that nobody uses leave memory, except the base and the live one."""
        used = {job.version for job in self._queue.all()} | {0, self.live} | self.candidates
        left = [version for version in self.runners if version not in used]
        for version in left:
            self.kv_cache.forget(version)
        if left:
            self._let_go([self.runners.pop(version) for version in left])


def _free(runners: list[ModelRunner]) -> None:
    runners.clear()
    release()


def _note(job: Scoring, logits: torch.Tensor) -> None:
    """Add the log-probs of the reply tokens that ``logits`` `[n, vocabulary]` predict."""
    done = len(job.logprobs)
    values = (logits / job.temperature).log_softmax(-1) if job.temperature != 1.0 else logits.log_softmax(-1)
    targets = torch.tensor(job.reply[done : done + len(values)], device=values.device)
    job.logprobs.extend(values.gather(1, targets[:, None])[:, 0].clamp(max=0.0).tolist())
    if job.top_k:
        best, ids = values.topk(min(job.top_k, values.shape[-1]))
        job.top_tokens.extend(map(tuple, ids.tolist()))
        job.top_logprobs.extend(map(tuple, best.clamp(max=0.0).tolist()))
