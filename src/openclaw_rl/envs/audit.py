"""The audit of tasks: none trains before its gold solution has scored 1 and doing nothing has scored less.

What was found is kept in a file, one line to a task, under the hash of what the task asks and of its gold solution: a
task that changes is audited anew.
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
"""what a solved task is paid, whether its environment pays from -1 or from 0"""
LONGEST_SOLUTION = 100
"""replies after which a solution that shows as it is played is given up"""
ALIKE = 0.9
"""share of word triples that two instructions have in common, from which on they are near-duplicates"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAudit:
    """What one task was found worth: outcomes of its gold solution (None: it has none) and of doing nothing."""

    env: str
    task: str
    fingerprint: str
    gold: float | None
    nothing: float

    @property
    def fault(self) -> str:
        """Why it is not admitted; "" where it is. What doing nothing scores is compared with what solving it does."""
        if self.gold is not None and self.gold < BEST:
            return f"its gold solution scores {self.gold:g}, not {BEST:g}"
        solved = "its gold solution" if self.gold is not None else "a solution"
        return f"doing nothing scores {self.nothing:g}, as much as {solved}" if self.nothing >= BEST else ""


def fingerprint(env: SupportsTaskSets, task: str) -> str:
    """Equal for tasks that ask the same and are solved the same way."""
    gold = [(reply.content, [(call.name, call.arguments) for call in reply.tool_calls]) for reply in env.gold(task)]
    text = json.dumps([env.instruction(task), gold], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def audit_task(make_env: Callable[[], Env], task: str) -> TaskAudit:
    """Play its gold solution, and nothing at all, each from a fresh start."""
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
    """The outcome of the gold solution: the one that is known, else the one that shows as the task is played."""
    if replies or not isinstance(env, SupportsSolution):
        return await _outcome(env, task, replies) if replies else None
    await env.reset(task, seed=0)
    for _ in range(LONGEST_SOLUTION):
        reply = await env.solution()
        if reply is None:
            break
        seen = await env.step(reply)
        if seen.done and seen.reward is not None:
            return seen.reward
    return await env.outcome() if isinstance(env, SupportsOutcome) else 0.0


async def _outcome(env: Env, task: str, replies: Sequence[Message]) -> float:
    await env.reset(task, seed=0)
    for reply in replies:
        seen = await env.step(reply)
        if seen.done and seen.reward is not None:
            return seen.reward
    return await env.outcome() if isinstance(env, SupportsOutcome) else 0.0


class AuditBook:
    """What was found, kept in a file; several processes may add to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, str, str], TaskAudit] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError):  # a line that was cut off: its task is audited anew
                    self._keep(TaskAudit(**json.loads(line)))

    def _keep(self, audit: TaskAudit) -> None:
        self._found[audit.env, audit.task, audit.fingerprint] = audit

    def add(self, audit: TaskAudit) -> None:
        """Keep it, replacing what was found of the same task before."""
        self._keep(audit)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(audit), ensure_ascii=False) + "\n")

    def find(self, env: Env, task: str) -> TaskAudit | None:
        """What was found of this very task; None where it was not audited yet."""
        if not isinstance(env, SupportsTaskSets):
            return None
        return self._found.get((env.name, task, fingerprint(env, task)))

    async def audited(self, make_env: Callable[[], Env], env: Env, task: str) -> TaskAudit:
        """What was found before, or is found now; once, however many ask at the same time."""
        async with self._locks.setdefault(task, asyncio.Lock()):
            found = self.find(env, task)
            if found is None:
                found = await audit_task(make_env, task)
                self.add(found)
            return found


class AuditedEnv:
    """An environment that begins no task that its audit refuses, and audits those that nobody has."""

    def __init__(self, make_env: Callable[[], Env], book: AuditBook) -> None:
        self._make_env = make_env
        self._book = book
        self._env = make_env()
        self.name = self._env.name

    def tasks(self) -> Sequence[str]:
        return [task for task in self._env.tasks() if not self._refused(task)]

    def _refused(self, task: str) -> bool:
        found = self._book.find(self._env, task)
        return found is not None and bool(found.fault)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        if isinstance(self._env, SupportsTaskSets):
            self._refuse_held_out(self._env, task)
            found = await self._book.audited(self._make_env, self._env, task)
            if found.fault:
                remedy = "'openclaw-rl envs audit' shows all"
                raise TaskRefused(f"task {task} is not admitted: {found.fault}", remedy=remedy)
        return await self._env.reset(task, seed=seed)

    def _refuse_held_out(self, env: SupportsTaskSets, task: str) -> None:
        if task in env.held_out():
            remedy = "use it with 'openclaw-rl envs eval'"
            raise TaskRefused(f"task {task} is held out: it never trains", remedy=remedy)

    async def step(self, reply: Message) -> Observation:
        return await self._env.step(reply)

    async def outcome(self) -> float:
        """What the state is worth; 0 where the environment cannot say."""
        return await self._env.outcome() if isinstance(self._env, SupportsOutcome) else 0.0

    async def close(self) -> None:
        await self._env.close()


def near_duplicates(held_out: Sequence[str], trained: Sequence[str]) -> list[tuple[int, int]]:
    """Places of instructions that are held out and nearly the same as one that trains."""
    others = [_triples(text) for text in trained]
    found = []
    for place, text in enumerate(held_out):
        mine = _triples(text)
        near = (at for at, other in enumerate(others) if len(mine & other) >= ALIKE * len(mine | other))
        found += [(place, at) for at in [next(near, None)] if at is not None]
    return found


def _triples(text: str) -> set[tuple[str, ...]]:
    words = text.casefold().split()
    return {tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))}
