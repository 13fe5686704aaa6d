"""Every advantage follows from the environment's own log, while plays, verdicts and steps overtake each other."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from training import sample_settings, train_loop

from benchmarks.advantages import account
from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.judge.loop import JudgeLoop, JudgeLoopSettings
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import FakeJudge, TemporaryLedger, make_outcome, make_turn
from openclaw_rl.types import Feedback, SessionReward

SIZE = 4
PENDING = 256
"""turns that wait to be judged or trained, at which the player waits, as environments do"""
USER = "env:scripted"


class ScriptedEnv:
    """Plays groups as fast as the ledger takes them, and logs each play that it paid.

    The plays of a group are mixed with those of the next, steps are judged while their episode runs, and one play in
    fifty fails.
    """

    def __init__(self, ledger: TemporaryLedger, log: Path, *, groups: int) -> None:
        self._ledger, self._log, self._random = ledger, log, random.Random(7)
        self._groups = groups

    def steps(self) -> Iterator[None]:
        with self._log.open("w") as log:
            for first in range(0, self._groups, 2):
                both = (first, first + 1)
                plays = [self._play(f"g{group}", f"p{group}.{play}") for group in both for play in range(SIZE)]
                while plays:
                    play = self._random.choice(plays)
                    if (line := next(play)) is not None:
                        plays.remove(play)
                        log.write(line)
                    yield

    def _play(self, group: str, name: str) -> Iterator[str | None]:
        """None after each step, at last the line of the log."""
        votes: list[float | None] = []
        steps = self._random.randint(1, 2)
        for index in range(steps):
            turn = make_turn(f"Play {name} of {group}: step {index}", session=name, group=group, user=USER)
            votes.append(self._random.choice((None, None, -1.0, 0.5, 1.0)))
            self._ledger.serve.add_turn(turn)
            if votes[-1] is not None:
                self._ledger.serve.add_feedback(Feedback(turn=turn.id, score=votes[-1], source="environment"))
            settled = make_outcome(turn, session=name, index=index)
            self._ledger.collect.settle([settled], [], turns_read=self._ledger.serve.newest("turns"))
            yield None
        outcome, failed = self._random.choice((-1.0, 0.0, 0.25, 1.0)), self._random.random() < 0.02
        paid: dict[str, Any] = {"failed": "as scripted"} if failed else {"score": outcome}
        self._ledger.serve.add_reward(SessionReward(session=name, user=USER, **paid))
        self._ledger.serve.add_ending(name, USER)
        yield "" if failed else json.dumps({"play": name, "outcome": outcome, "votes": votes}) + "\n"


def judging(ledger: TemporaryLedger) -> JudgeLoop:
    settings = JudgeLoopSettings(
        workers=2,
        trusted=frozenset(),
        hints=HintLimits(most=3, shortest=1, longest=600),
        behaviour=False,
        step_votes=False,
        calibrate=False,
        window=10,
        longest_pause=1.0,
    )
    return JudgeLoop(ledger.judge, FakeJudge(), settings)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """A thread that has ended when the block ends; its error is the block's."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if errors:
        raise errors[0]


class Scene:
    """A player, a judge and a trainer, each in a thread of its own."""

    def __init__(self, root: Path, ledger: TemporaryLedger, env: ScriptedEnv) -> None:
        self._ledger, self._env = ledger, env
        self._judge = judging(ledger)
        self._trainer = train_loop(
            ledger.train,
            FakeTrainer(),
            root,
            samples=sample_settings(grouped=True, max_lag=10**6),
            batch_size=16,
            max_wait=0.0,  # no wait of any turn may train a group in parts
            group_size=SIZE,
            patience=1e9,
        )
        self._played, self._judged, self._over = threading.Event(), threading.Event(), threading.Event()
        self._moved = {stage: threading.Event() for stage in ("play", "judge", "train")}

    def run(self) -> None:
        with beside(self._play), beside(lambda: asyncio.run(self._judge_all())):
            asyncio.run(self._train_all())

    def _play(self) -> None:
        try:
            for number, _ in enumerate(self._env.steps()):
                self._moved["judge"].set()
                while number % 64 == 0 and self._ledger.serve.backlog() > PENDING:
                    self._wait("play")
        finally:
            self._played.set()

    async def _judge_all(self) -> None:
        try:
            last = False
            while not last:
                last = self._played.is_set()
                self._wait("judge")
                while await self._judge.tick():
                    self._moved["train"].set()
        finally:
            self._judged.set()

    async def _train_all(self) -> None:
        last = False
        while not last:
            last = self._judged.is_set()
            self._wait("train")
            while await self._trainer.tick():
                self._moved["play"].set()

    def _wait(self, stage: str) -> None:
        """Until the stage before has done something, which it may have finished doing."""
        self._moved[stage].wait(0.02)
        self._moved[stage].clear()


@pytest.mark.parametrize("groups", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_advantage_at_full_speed_is_that_of_the_environments_own_log(tmp_path: Path, groups: int) -> None:
    log = tmp_path / "environment.jsonl"
    with TemporaryLedger(tmp_path) as ledger:
        Scene(tmp_path, ledger, ScriptedEnv(ledger, log, groups=groups)).run()
    with LedgerReader(tmp_path / "ledger.db") as reader:
        checked = account(reader, log)
        drops = Counter(reader.drop_counts())
        turns = reader.counts()["turns"]
    assert (checked.differences, checked.in_parts) == (0, 0)
    assert set(drops) <= {"alike", "environment failed"}
    assert checked.advantages + drops.total() == turns, "every turn has trained or has its reason"
    assert checked.groups > 0.9 * groups
