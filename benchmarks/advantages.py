"""Does every advantage follow from what the environment paid? Recompute all of a run's from the environment's own log.

    python benchmarks/advantages.py                    # 1,000 groups of 4 at full speed
    python benchmarks/advantages.py --groups 100 --size 8 --parallel 16

A scripted environment pays random outcomes and votes, and fails now and then; the shipped fake policy answers, so that
nothing but the program itself takes time. The product runs as ever: server, episodes, judge, trainer. Afterwards each
advantage in the ledger is compared with the formula of docs/environments.md, written anew here over the environment's
log. The exit code is 1 where one differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.errors import EnvFailed
from openclaw_rl.ports import Observation
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import running_app
from openclaw_rl.types import Message, Prompt, new_id

LOG = "OPENCLAW_BENCHMARK_LOG"
"""the variable that names the environment's log: it runs in a process of its own"""
FAILING = 0.02
"""share of plays that fail for a reason that is not the policy's"""
NEEDED = 1e-6
ENV = f"{Path(__file__).resolve()}:Paying"


class Paying:
    """Pays at random and writes down what; one line to a play that ended."""

    name = "paying"

    def __init__(self) -> None:
        self._random, self._play, self._votes = random.Random(), "", list[float | None]()

    def tasks(self) -> Sequence[str]:
        return [f"task/{number}" for number in range(16)]

    async def reset(self, task: str, *, seed: int) -> Prompt:
        self._play, self._votes = new_id(), []
        return Prompt(messages=(_user(f"Play {self._play} of {task} begins. What do you do?"),))

    async def step(self, reply: Message) -> Observation:
        self._votes.append(self._random.choice((None, None, -1.0, 0.5, 1.0)))
        if self._random.random() < FAILING:
            raise EnvFailed("as it is scripted")
        if len(self._votes) < 4 and self._random.random() < 0.5:
            return Observation(messages=(_user("Go on, please."),), vote=self._votes[-1])
        outcome = self._random.choice((-1.0, 0.0, 0.25, 1.0))
        line = json.dumps({"play": self._play, "outcome": outcome, "votes": self._votes})
        _append(line + "\n")
        return Observation(messages=(_user("Thank you."),), reward=outcome, vote=self._votes[-1], done=True)

    async def close(self) -> None:
        """Nothing to clean up."""


def _append(line: str) -> None:
    with Path(os.environ[LOG]).open("a") as file:
        file.write(line)


def _user(text: str) -> Message:
    return Message(role="user", content=text)


@dataclass(frozen=True, kw_only=True)
class Account:
    """Of the groups that trained: how many were whole in one step, and the advantages that differ."""

    groups: int
    in_parts: int
    advantages: int
    differences: int


def account(ledger: LedgerReader, log: Path) -> Account:
    """Compare every advantage of the ledger with that of the environment's log."""
    paid = {line["play"]: line for line in map(json.loads, log.read_text().splitlines())}
    plays: dict[str, dict[str, str]] = defaultdict(dict)  # by group: its sessions and their plays
    trained: dict[str, dict[tuple[str, int], tuple[int, float]]] = defaultdict(dict)
    last = ledger.last_step()
    for number in range(1, last.number + 1 if last is not None else 1):
        for turn_id, part in ledger.step(number).parts.items():
            turn, outcome = ledger.turn(turn_id), ledger.outcome(turn_id)
            assert turn.group is not None
            assert turn.session is not None
            assert outcome is not None
            trained[turn.group][turn.session, outcome.index] = number, float(part["advantage"])
    for row in ledger.rows("SELECT id FROM turns WHERE grp IS NOT NULL"):
        turn = ledger.turn(row["id"])
        name = re.match(r"Play (\S+) ", turn.prompt.messages[-1].content)
        if name is not None and name[1] in paid:
            plays[str(turn.group)][str(turn.session)] = name[1]
    differences = 0
    for group, found in trained.items():
        expected = _advantages({session: paid[play] for session, play in plays[group].items()})
        differences += sum(abs(advantage - expected[step]) > NEEDED for step, (_, advantage) in found.items())
        differences += len(expected.keys() - found.keys())  # left out of the group's step
    steps = [Counter(number for number, _ in found.values()) for found in trained.values()]
    return Account(
        groups=len(trained),
        in_parts=sum(len(numbers) > 1 for numbers in steps),
        advantages=sum(map(len, trained.values())),
        differences=differences,
    )


def _advantages(played: dict[str, dict[str, Any]]) -> dict[tuple[str, int], float]:
    """By session and step: R less the mean over the standard deviation, as the documentation says."""
    worth = {
        (session, index): line["outcome"] + (vote or 0.0)
        for session, line in played.items()
        for index, vote in enumerate(line["votes"])
    }
    found = {}
    for (session, index), value in worth.items():
        peers = [other for (_, at), other in worth.items() if at == index]
        peers = peers if len(peers) > 1 else list(worth.values())
        spread = statistics.pstdev(peers)
        advantage = (value - statistics.fmean(peers)) / (max(spread, 0.2) + 1e-6) if len(played) > 1 else 0.0
        found[session, index] = max(-5.0, min(5.0, advantage))
    return found


async def played(root: Path, *, groups: int, size: int, parallel: int, batch: int) -> Account:
    """Play until so many groups have trained, then draw up the account."""
    log = root / "environment.jsonl"
    log.touch()
    os.environ[LOG] = str(log)
    sets = (
        f"env.type={ENV}",
        f"env.parallel={parallel}",
        f"train.num_rollouts_per_prompt={size}",
        f"train.batch_size={batch}",
        "train.max_wait=0.2",  # a wait that was once enough to train groups in parts
        "train.max_lag=1000",
        "gate.mode=off",
        "env.curriculum=false",
    )
    async with running_app(root / "run", *sets) as run:

        def done() -> bool:
            row = run.ledger.one("SELECT count(DISTINCT t.grp) AS n FROM trained x JOIN turns t ON t.id = x.turn")
            return bool(row["n"] >= groups)

        while not done():  # noqa: ASYNC110 (the condition is of another process)
            await asyncio.sleep(0.2)
    with LedgerReader(root / "run" / "ledger.db") as ledger:
        return account(ledger, log)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        found = asyncio.run(
            played(Path(root), groups=given.groups, size=given.size, parallel=given.parallel, batch=given.batch)
        )
    print(
        f"{found.groups} groups, {found.in_parts} of them in parts; {found.advantages} advantages,"
        f" {found.differences} differences; {time.monotonic() - began:.0f} s"
    )
    return int(found.differences > 0 or found.in_parts > 0)


if __name__ == "__main__":
    sys.exit(main())
