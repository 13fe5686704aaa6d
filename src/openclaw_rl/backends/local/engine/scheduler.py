"""The scheduler: continuous batching with chunked prefill.

Requests join and leave between two model passes. Each step runs one pass per version in use: one decode token per
running reply, and a chunk of the prompts in prefill, cut so that decoding continues. The KV cache bounds memory: a
request waits until its rows are free, and when running replies outgrow the cache the youngest is preempted and computed
again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field

import torch

from openclaw_rl.backends.hf.detokenizer import ReplyText
from openclaw_rl.backends.local.engine.constraint import TokenConstraint
from openclaw_rl.backends.local.engine.kv_cache import SHORTEST_HIT, SequenceCache, SequenceSlot, common_prefix
from openclaw_rl.backends.local.engine.messages import Finished, ScoreFinished
from openclaw_rl.backends.local.engine.sampler import RequestSampler, SampledToken
from openclaw_rl.ports import Alternative, Delta, Piece, Scores
from openclaw_rl.types import Finish, Logprobs, Sampling, Tokens

# The engine's jobs: generate a reply, score a reply.


@dataclass(eq=False, slots=True)
class Generation:
    """A reply in generation. ``tokens`` are the prompt and the sampled tokens."""

    id: int
    version: int
    tokens: list[int]
    prompt: int
    sampler: RequestSampler
    words: ReplyText
    text_of: Callable[[int], str]
    scope: str = ""
    constraint: TokenConstraint | None = None
    slot: SequenceSlot | None = None
    logprobs: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        id: int,
        version: int,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        context: int,
        ends: frozenset[int],
        scope: str = "",
        decode: Callable[[Sequence[int]], str],
    ) -> Generation:
        room = context - len(prompt)

        def text_of(token: int) -> str:
            return decode([token])

        return cls(
            id=id,
            version=version,
            tokens=list(prompt),
            prompt=len(prompt),
            sampler=RequestSampler.of(sampling, prompt, text_of),
            words=ReplyText(decode, stops=sampling.stop, ends=ends, limit=min(sampling.max_tokens or room, room)),
            scope=scope,
            text_of=text_of,
        )

    def hold(self, constraint: TokenConstraint) -> None:
        """Constrain the reply to a format, before its first token."""
        self.constraint = self.sampler.constraint = constraint

    @property
    def num_tokens(self) -> int:
        """Tokens that must be in the cache before the next token can be sampled."""
        return len(self.tokens)

    def take(self, sampled: SampledToken) -> tuple[Delta, Finish | None]:
        """Add a sampled token; return its delta, and the finish reason if the reply ends."""
        self.tokens.append(sampled.token)
        self.logprobs.append(sampled.tempered)
        if self.constraint is not None:
            self._held(self.constraint, sampled)
        text, finish = self.words.take(sampled.token)
        return Delta(text=text, pieces=(self._piece(sampled),)), finish

    def _held(self, constraint: TokenConstraint, sampled: SampledToken) -> None:
        if (refusal := constraint.refusal) is not None:
            raise refusal
        assert sampled.allowed is not None
        self.allowed.append(sampled.allowed)

    def result(self, finish: Finish) -> Finished:
        """Return the finished reply."""
        prompt, reply = tuple(self.tokens[: self.prompt]), tuple(self.tokens[self.prompt :])
        allowed = None if self.constraint is None else tuple(self.allowed)
        return Finished(self.id, self.words.text, prompt, reply, tuple(self.logprobs), finish, self.version, allowed)

    def _piece(self, sampled: SampledToken) -> Piece:
        top = tuple(Alternative(token=t, text=self.text_of(t), logprob=value) for t, value in sampled.top)
        return Piece(token=sampled.token, text=self.text_of(sampled.token), logprob=sampled.raw, top=top)


@dataclass(eq=False, slots=True)
class Scoring:
    """A given reply to be scored. ``tokens`` are the prompt and the reply except its last token, which predicts
    nothing."""

    id: int
    version: int
    tokens: list[int]
    prompt: int
    reply: Tokens
    temperature: float
    top_k: int
    scope: str = ""
    slot: SequenceSlot | None = None
    logprobs: list[float] = field(default_factory=list)
    top_tokens: list[Tokens] = field(default_factory=list)
    top_logprobs: list[Logprobs] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that must be in the cache before the job is done."""
        return len(self.tokens)

    @property
    def reusable(self) -> int:
        """Tokens that the cache may provide: the others must be computed for their logits."""
        return self.prompt - 1 + len(self.logprobs)

    def take(self, logits: torch.Tensor) -> None:
        """Add the log-probs of the reply tokens that ``logits`` `[n, vocabulary]` predict."""
        start = len(self.logprobs)
        values = (logits / self.temperature).log_softmax(-1) if self.temperature != 1.0 else logits.log_softmax(-1)
        targets = torch.tensor(self.reply[start : start + len(values)], device=values.device)
        self.logprobs.extend(values.gather(1, targets[:, None])[:, 0].clamp(max=0.0).tolist())
        if self.top_k:
            best, ids = values.topk(min(self.top_k, values.shape[-1]))
            self.top_tokens.extend(map(tuple, ids.tolist()))
            self.top_logprobs.extend(map(tuple, best.clamp(max=0.0).tolist()))

    def result(self) -> ScoreFinished:
        """Return the finished score."""
        tops, values = tuple(self.top_tokens), tuple(self.top_logprobs)
        return ScoreFinished(self.id, Scores(logprobs=tuple(self.logprobs), top_tokens=tops, top_logprobs=values))


EngineJob = Generation | Scoring

LOOKAHEAD = 128
"""rows reserved beyond the known tokens, so that a reply seldom moves"""
CANDIDATE_EVERY = 4
"""steps per pass of a candidate under evaluation while users' replies run"""


@dataclass(slots=True)
class ScheduledTokens:
    """A job's next ``count`` tokens in a pass."""

    job: EngineJob
    count: int

    @property
    def done(self) -> int:
        """The job's computed tokens."""
        assert self.job.slot is not None
        return len(self.job.slot)

    @property
    def last(self) -> bool:
        """True if this pass computes the job's last known token."""
        return self.done + self.count == self.job.num_tokens


@dataclass(slots=True)
class PrefillBudget:
    """Prompt tokens that a step may prefill: while replies decode, and while there is no other work."""

    shared: int
    alone: int


@dataclass(slots=True)
class EngineCounts:
    """Totals since the start, in tokens except the first and the last."""

    steps: int = 0
    computed: int = 0
    prefix_hits: int = 0
    generated: int = 0
    preempted: int = 0


class Scheduler:
    """Chooses the tokens of the next pass. Jobs of ``loaded`` versions run; jobs of ``candidates`` yield to users'
    jobs."""

    def __init__(
        self,
        kv_cache: SequenceCache,
        counts: EngineCounts,
        *,
        max_batch: int,
        prefill: PrefillBudget,
        loaded: Container[int],
        candidates: Collection[int],
    ) -> None:
        self.waiting: deque[EngineJob] = deque()
        self.running: list[EngineJob] = []
        self._kv_cache = kv_cache
        self._counts = counts
        self._max_batch = max_batch
        self._prefill = prefill
        self._loaded = loaded
        self._candidates = candidates

    @property
    def idle(self) -> bool:
        """True if no job runs and no waiting job can run."""
        return not self.running and not any(job.version in self._loaded for job in self.waiting)

    @property
    def jobs(self) -> tuple[EngineJob, ...]:
        """All waiting and running jobs."""
        return (*self.waiting, *self.running)

    def leave(self, job: EngineJob) -> None:
        """Remove a finished job; its computed tokens stay in the prefix cache."""
        if job in self.waiting:
            self.waiting.remove(job)
            return
        self.running.remove(job)
        if job.slot is not None:
            self._kv_cache.close(job.slot)
            job.slot = None

    def admit(self) -> None:
        """Admit waiting jobs, oldest first; a job that waits for a shared prompt lets others pass."""
        for job in list(self.waiting):
            if len(self.running) >= self._max_batch:
                return
            if job.version not in self._loaded or self._waits_for_prefix(job):
                continue
            if not self._open(job):
                return
            self.waiting.remove(job)
            self.running.append(job)

    def versions(self) -> list[int]:
        """Return the versions that get a pass now."""
        return sorted({job.version for job in self.running} - self._yielding())

    def plan(self, version: int) -> list[ScheduledTokens]:
        """Return the tokens of the next pass: one per running reply, then prompts, oldest first, within the budget."""
        jobs = [job for job in self.running if job.version == version]
        parts = [ScheduledTokens(job, 1) for job in jobs if _remaining(job) == 1]
        replies = any(isinstance(job, Generation) and _remaining(job) == 1 for job in self.running)
        budget = self._prefill.shared if replies else self._prefill.alone
        # a reply, which a user may wait for, is prefilled before a score
        prefill = sorted((job for job in jobs if _remaining(job) > 1), key=lambda job: isinstance(job, Scoring))
        for job in prefill:
            if budget <= 0:
                break
            count = min(budget, _remaining(job))
            parts.append(ScheduledTokens(job, count))
            budget -= count
        placed = [part for part in parts if self._make_room(part)]
        return [part for part in placed if part.job.slot is not None]  # a later part may have preempted it

    def _yielding(self) -> set[int]:
        """Return the candidates that yield now: while a user's reply runs they get one pass in `CANDIDATE_EVERY`."""
        users = any(isinstance(job, Generation) and job.version not in self._candidates for job in self.running)
        return set(self._candidates) if users and self._counts.steps % CANDIDATE_EVERY else set()

    def _open(self, job: EngineJob) -> bool:
        reusable = job.reusable if isinstance(job, Scoring) else job.num_tokens - 1
        job.slot = self._kv_cache.open(job.version, job.tokens[:reusable], _room(job), scope=job.scope)
        if job.slot is None:
            return False
        self._counts.prefix_hits += len(job.slot)
        return True

    def _waits_for_prefix(self, job: EngineJob) -> bool:
        """Return True if a running job is computing a prefix shared with ``job``, longer than any cached prefix."""
        if not self._kv_cache.reuses:
            return False
        _, cached = self._kv_cache.match(job.version, job.tokens, scope=job.scope)
        for running in self.running:
            alike = (running.version, running.scope) == (job.version, job.scope)
            if alike and running.slot is not None and len(running.slot) < running.num_tokens - 1:
                ahead = common_prefix(running.tokens, job.tokens)
                if ahead >= SHORTEST_HIT and min(ahead, running.num_tokens - 1) > cached:
                    return True
        return False

    def _make_room(self, part: ScheduledTokens) -> bool:
        """Reserve rows for a part, if necessary those of the youngest running job; return False if that is this job."""
        while part.job.slot is not None and not self._kv_cache.grow(part.job.slot, part.done + part.count):
            self._preempt(self.running[-1])
        if part.job.slot is None:
            return False
        if part.done + part.count > part.job.slot.room - 1 and isinstance(part.job, Generation):
            self._kv_cache.grow(part.job.slot, _room(part.job))
        return True

    def _preempt(self, job: EngineJob) -> None:
        assert job.slot is not None
        self._kv_cache.drop(job.slot)
        job.slot = None
        self.running.remove(job)
        self.waiting.appendleft(job)
        self._counts.preempted += 1


def _remaining(job: EngineJob) -> int:
    assert job.slot is not None
    return job.num_tokens - len(job.slot)


def _room(job: EngineJob) -> int:
    if isinstance(job, Scoring):
        return job.num_tokens
    return min(job.num_tokens + LOOKAHEAD, job.prompt + job.words.limit)
