"""Plants faults into a run of the embedded model: the gate refuses each, or the live monitor rolls it back.

python benchmarks/faults.py                    every fault, one after another (about three minutes each on two cores)
python benchmarks/faults.py rate monitor       some of them
python benchmarks/faults.py --json FILE        also write what the ledger says

flipped   every score has the wrong sign          praise    the judge likes everything
rate      the learning rate is 100 times too high corrupt   the adapter's file is cut short
monitor   the rate again, with the gate off: what users say of it rolls the version back
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import httpx2

from openclaw_rl.app.application import App, ledger_place
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.backends.local.training.trainer import LocalTrainer
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.config import load
from openclaw_rl.experiments.sessions import SimulatedUser, run_sessions
from openclaw_rl.judge.custom import RulesJudge
from openclaw_rl.ports import Case, StepResult
from openclaw_rl.store import LedgerReader, Place, submit_request
from openclaw_rl.tasks.everyday import Task, is_relevant, training
from openclaw_rl.tasks.preferences import PREFERENCES
from openclaw_rl.text import degenerate, word_count
from openclaw_rl.types import Message, Prompt, Sample, Verdict, Version
from openclaw_rl.views import lineage as why


class Flipped(RulesJudge):
    """A judge whose every score has the wrong sign."""

    async def judge(self, case: Case) -> Verdict:
        said = await super().judge(case)
        return replace(said, score=None if said.score is None else -said.score, votes=())


class Praising(RulesJudge):
    """A judge that likes everything."""

    async def judge(self, case: Case) -> Verdict:
        return replace(await super().judge(case), score=1.0, votes=())


class Corrupting(LocalTrainer):
    """A disk that loses the end of every adapter."""

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        done = await super().step(samples, number=number, parent=parent, target=target)
        if done.adapter is not None:
            file = Path(done.adapter) / "adapter_model.safetensors"
            file.write_bytes(file.read_bytes()[: -(1 << 12)])
        return done


@wraps(TrainerArgs, assigned=(), updated=())
def corrupting(**settings: Any) -> Corrupting:
    return Corrupting(TrainerArgs(**settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is planted, as settings."""

    name: str
    sets: tuple[str, ...]


HERE = Path(__file__).resolve()
PRESET = "cpu-demo"
TOO_HIGH = f"train.optim.lr={100 * load(environ={}, preset=PRESET).config.train.learning_rate}"
FAULTS = (
    Fault(name="flipped", sets=(f"judge.custom={HERE}:Flipped", "train.method=topk")),
    Fault(name="rate", sets=(TOO_HIGH,)),
    Fault(name="corrupt", sets=(f"train.backend={HERE}:corrupting",)),
    Fault(name="praise", sets=(f"judge.custom={HERE}:Praising", "train.method=topk")),
)


@dataclass
class Run:
    """One app on the embedded model, and a client of it."""

    app: App
    client: ApiClient

    async def settle(self) -> None:
        """Work until nothing moves."""
        await self.app.finish()

    def evidence(self) -> dict[str, Any]:
        """What the ledger says: the table, the story of version 1, the alarms."""
        with LedgerReader(ledger_place(self.app.config)) as ledger:
            rows = why.versions(ledger)
            story = why.version(ledger, 1) if len(rows) > 1 else None
            return {"versions": rows, "story": story, "paused": ledger.paused()}


async def with_run(sets: Sequence[str], act: Callable[[Run], Any]) -> dict[str, Any]:
    """Start the app in a folder of its own, act, and say how long it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        settings = [f"run.dir={root}", "run.log_level=error", "train.max_wait=0", *sets]
        app = App(load(environ={}, preset=PRESET, sets=settings).config)
        assert app.api is not None
        transport = httpx2.ASGITransport(app=app.api)
        async with (
            app.started(),
            ApiClient("http://localhost/v1", timeout=300, transport=transport) as client,
        ):
            found: dict[str, Any] = await act(Run(app, client))
    return {**found, "seconds": round(time.monotonic() - began, 1)}


async def plant(fault: Fault) -> dict[str, Any]:
    """A user who wants short replies talks for two batches; what was served, and what the gate said.

    Replies have room to end by themselves, so that it is the judge who speaks of them.
    """

    async def act(run: Run) -> dict[str, Any]:
        user, turns = SimulatedUser(replace(PREFERENCES["short"], max_tokens=400), seed=1), []
        for first in (0, 4):
            turns += await run_sessions(run.client, user, range(first, first + 4), concurrency=4)
            await run.settle()
        turns += await run_sessions(run.client, user, range(8, 12), concurrency=4)
        served = [turn.reply for turn in turns]
        return {"fault": fault.name, **run.evidence(), "served": sound(served)}

    return await with_run(fault.sets, act)


def sound(replies: Sequence[str]) -> dict[str, Any]:
    """How what users were given holds up."""
    broken = [why_not for reply in replies if (why_not := degenerate(reply))]
    return {
        "replies": len(replies),
        "degenerate": len(broken),
        "why": broken,
        "words": round(sum(map(word_count, replies)) / len(replies), 1),
    }


async def monitored() -> dict[str, Any]:
    """With the gate off a version that talks nonsense is served, until what users say of it rolls it back."""

    async def act(run: Run) -> dict[str, Any]:
        place = ledger_place(run.app.config)
        tasks = iter(training("facts"))
        await run.settle()
        submit_request(place, "pause", reason="a clean record first")
        clean = [await _relevant(run, next(tasks)) for _ in range(12)]
        await run.settle()
        submit_request(place, "resume")
        await run.settle()
        spoiled = 0
        while not _rolled_back(place) and spoiled < 40:
            await _relevant(run, next(tasks))
            await run.settle()
            spoiled += 1
        after = [await _relevant(run, next(tasks)) for _ in range(4)]
        served = {"before": sum(clean), "of": len(clean), "bad_turns_served": spoiled, "after": sum(after)}
        return {"fault": "monitor", **run.evidence(), "served": served}

    wait = (
        "train.batch_size=12",
        "train.max_wait=3600",
        "train.idle_wait=3600",
        "train.method=topk",
        TOO_HIGH,
        "train.loss.w_opd=0",
        "gate.mode=off",
    )
    return await with_run(wait, act)


async def _relevant(run: Run, task: Task) -> bool:
    """One session of a user who only wants relevant replies; whether they got one."""
    first = (Message(role="user", content=f"{task.prompt} Answer in one short sentence."),)
    options = {"max_tokens": 96, "seed": 7}
    reply = await run.client.complete(Prompt(messages=first), session=task.prompt, options=options)
    fine = degenerate(reply.text) is None and is_relevant(task, reply.text)
    said = "Thanks, that helped a lot!" if fine else "That makes no sense at all."
    last = Prompt(messages=(*first, reply.message, Message(role="user", content=said)))
    options = {"max_tokens": 4, "seed": 7}
    await run.client.complete(last, session=task.prompt, done=True, train=False, options=options)
    return fine


def _rolled_back(place: Place) -> bool:
    with LedgerReader(place) as ledger:
        return bool(ledger.ever("rolled back"))


def show(found: Mapping[str, Any]) -> None:
    """The ledger's story of one fault."""
    print(f"\n=== {found['fault']} ({found['seconds']} s) ===")
    print("served:", json.dumps(found["served"]))
    print(*why.versions_lines(list(found["versions"])), sep="\n")
    if found["story"]:
        print(*why.version_lines(dict(found["story"]), steps=1), sep="\n")
    if found["paused"]:
        print("paused:", found["paused"])


def main(arguments: Sequence[str]) -> None:
    """Plant what is named, or everything."""
    words_given = list(arguments)
    file = None
    if "--json" in words_given:
        at = words_given.index("--json")
        file = Path(words_given[at + 1])
        del words_given[at : at + 2]
    found = []
    for fault in FAULTS:
        if not words_given or fault.name in words_given:
            found.append(asyncio.run(plant(fault)))
            show(found[-1])
    if not words_given or "monitor" in words_given:
        found.append(asyncio.run(monitored()))
        show(found[-1])
    if file is not None:
        file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
