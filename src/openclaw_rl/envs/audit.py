"""The task audit: a task trains only after its gold solution has scored 1 and doing nothing has scored less.

Results are stored in a file, one line per task, under a hash of the instruction and the gold solution: a changed task
is audited again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from openclaw_rl.errors import EnvFailed, TaskRefused
from openclaw_rl.ports import Env, Observation, SupportsOutcome, SupportsSolution, SupportsTaskSets
from openclaw_rl.types import Message, Prompt

BEST = 1.0
"""reward of a solved task, in environments with rewards from -1 as well as from 0"""
LONGEST_SOLUTION = 100
"""most replies of a gold solution that is only revealed during play"""
ALIKE = 0.9
"""share of common word triples from which two instructions are near-duplicates"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAudit:
    """The audit of one task: the outcomes of its gold solution (None if it has none) and of doing nothing."""

    env: str
    task: str
    fingerprint: str
    gold: float | None
    nothing: float

    @property
    def fault(self) -> str:
        """The reason for a refusal, or "": the gold solution scores too little, or doing nothing scores as much."""
        if self.gold is not None and self.gold < BEST:
            return f"its gold solution scores {self.gold:g}, not {BEST:g}"
        solved = "its gold solution" if self.gold is not None else "a solution"
        return f"doing nothing scores {self.nothing:g}, as much as {solved}" if self.nothing >= BEST else ""


def fingerprint(env: SupportsTaskSets, task: str) -> str:
    """Return a hash that is equal for tasks with equal instructions and solutions."""
    gold = [(reply.content, [(call.name, call.arguments) for call in reply.tool_calls]) for reply in env.gold(task)]
    text = json.dumps([env.instruction(task), gold], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def audit_task(make_env: Callable[[], Env], task: str) -> TaskAudit:
    """Play the gold solution, and an empty reply, each from a fresh start."""
    env = make_env()
    try:
        if not isinstance(env, SupportsTaskSets):
            raise EnvFailed(f"environment {env.name} has no gold solutions to audit")
        replies = list(env.gold(task))
        nothing = await _outcome(env, task, [Message(role="assistant")])
        gold = await _solved(env, task, replies)
        return TaskAudit(env=env.name, task=task, fingerprint=fingerprint(env, task), gold=gold, nothing=nothing)
    finally:
        await env.close()


async def _solved(env: Env, task: str, replies: Sequence[Message]) -> float | None:
    """Return the outcome of the gold solution: a known one, else one that is revealed step by step."""
    if replies or not isinstance(env, SupportsSolution):
        return await _outcome(env, task, replies) if replies else None
    await env.reset(task, seed=0)
    for _ in range(LONGEST_SOLUTION):
        reply = await env.solution()
        if reply is None:
            break
        observation = await env.step(reply)
        if observation.done and observation.reward is not None:
            return observation.reward
    return await env.outcome() if isinstance(env, SupportsOutcome) else 0.0


async def _outcome(env: Env, task: str, replies: Sequence[Message]) -> float:
    await env.reset(task, seed=0)
    for reply in replies:
        observation = await env.step(reply)
        if observation.done and observation.reward is not None:
            return observation.reward
    return await env.outcome() if isinstance(env, SupportsOutcome) else 0.0


class AuditBook:
    """Stored audits; several processes may append to the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, str, str], TaskAudit] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError):  # a truncated line: its task is audited again
                    self._keep(TaskAudit(**json.loads(line)))

    def _keep(self, audit: TaskAudit) -> None:
        self._found[audit.env, audit.task, audit.fingerprint] = audit

    def add(self, audit: TaskAudit) -> None:
        """Store an audit; it replaces an earlier one of the same task."""
        self._keep(audit)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(audit), ensure_ascii=False) + "\n")

    def find(self, env: Env, task: str) -> TaskAudit | None:
        """Return the audit of this exact task, or None if there is none."""
        if not isinstance(env, SupportsTaskSets):
            return None
        return self._found.get((env.name, task, fingerprint(env, task)))

    async def audited(self, make_env: Callable[[], Env], env: Env, task: str) -> TaskAudit:
        """Return the stored audit or run it now, once for all concurrent callers."""
        async with self._locks.setdefault(task, asyncio.Lock()):
            audit = self.find(env, task)
            if audit is None:
                audit = await audit_task(make_env, task)
                self.add(audit)
            return audit


class AuditedEnv:
    """An environment that refuses tasks by their audit, and audits those that have none."""

    def __init__(self, make_env: Callable[[], Env], book: AuditBook) -> None:
        self._make_env = make_env
        self._book = book
        self._env = make_env()
        self.name = self._env.name

    def tasks(self) -> Sequence[str]:
        return [task for task in self._env.tasks() if not self._refused(task)]

    def _refused(self, task: str) -> bool:
        audit = self._book.find(self._env, task)
        return audit is not None and bool(audit.fault)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        if isinstance(self._env, SupportsTaskSets):
            self._refuse_held_out(self._env, task)
            audit = await self._book.audited(self._make_env, self._env, task)
            if audit.fault:
                remedy = "'openclaw-rl envs audit' shows all"
                raise TaskRefused(f"task {task} is not admitted: {audit.fault}", remedy=remedy)
        return await self._env.reset(task, seed=seed)

    def _refuse_held_out(self, env: SupportsTaskSets, task: str) -> None:
        if task in env.held_out():
            remedy = "use it with 'openclaw-rl envs eval'"
            raise TaskRefused(f"task {task} is held out: it never trains", remedy=remedy)

    async def step(self, reply: Message) -> Observation:
        return await self._env.step(reply)

    async def outcome(self) -> float:
        """Return the outcome of the current state; 0 if the environment has no outcomes."""
        return await self._env.outcome() if isinstance(self._env, SupportsOutcome) else 0.0

    async def close(self) -> None:
        await self._env.close()


def near_duplicates(held_out: Sequence[str], trained: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of indices: a held-out instruction, and the first trained one that nearly equals it."""
    trained_triples = [_triples(text) for text in trained]
    pairs = []
    for place, text in enumerate(held_out):
        triples = _triples(text)
        near = (
            at
            for at, candidate in enumerate(trained_triples)
            if len(triples & candidate) >= ALIKE * len(triples | candidate)
        )
        pairs += [(place, at) for at in [next(near, None)] if at is not None]
    return pairs


def _triples(text: str) -> set[tuple[str, ...]]:
    words = text.casefold().split()
    return {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))}
