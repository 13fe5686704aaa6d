"""``kill -9`` of a player, of a pool and of a server while sandboxed episodes run: leases are freed, and nothing trains
twice or unpaid."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxes import needs_sandbox
from system import System

from openclaw_rl.backends.fake import read_turns
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import wait_until
from openclaw_rl.versions import LiveVersions
from tests.test_kill import trained

KILLS = 4
LEASE_SECONDS = 2
MARK = f"5{os.getpid()}"
DOOR = f"""
from openclaw_rl.envs.sandbox import open_sandbox
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt
class Door:
    name = "door"
    def __init__(self, sandbox):
        self.settings, self.room, self.knocks = sandbox, None, 0
    def tasks(self):
        return ("front", "back")
    async def reset(self, task, *, seed):
        self.room = await open_sandbox(self.settings)
        self.shell = await self.room.shell()
        await self.shell.run("sleep {MARK} &")
        return Prompt(messages=(Message(role="user", content="knock"),))
    async def step(self, reply):
        self.knocks += 1
        seen = await self.shell.run(f"echo {{self.knocks}} >> knocks; wc -l < knocks")
        assert int(seen.output) == self.knocks, "a step ran twice"
        over = self.knocks == 3
        return Observation(messages=(Message(role="user", content=seen.output),), reward=1.0 if over else None, done=over)
    async def close(self):
        if self.room is not None:
            await self.room.close()
"""


class Worker:
    """The real command that serves environments."""

    def __init__(self, door: Path) -> None:
        self.port = "0"
        self._door = door

    def start(self) -> None:
        words = ["--set", f"env.lease_seconds={LEASE_SECONDS}", "--set", "env.parallel=4"]
        words += ["--env", f"{self._door}:Door", "--run-dir", str(self._door.parent / "worker")]
        command = [sys.executable, "-m", "openclaw_rl", "envs", "serve", "--port", self.port, *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.port = said.split()[2].rpartition(":")[2]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def leased(self) -> int:
        with urllib.request.urlopen(f"{self.url}/v1/status", timeout=10) as answer:
            return int(json.load(answer)["leased"])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def events(self) -> set[str]:
        """What has happened to its leases, as its run directory tells."""
        lines = (self._door.parent / "worker" / "envs.jsonl").read_text().splitlines()
        return {json.loads(line)["event"] for line in lines}

    def wait_until_free(self) -> None:
        """Until nothing is leased and no process of a sandbox is left, which the time of a lease is enough for."""
        wait_until(lambda: self.leased() == 0 and sleepers() == 0)


class Player:
    """The real command that plays against a server, with the environments of a worker."""

    def __init__(self, run: Path, door: Path, worker: Worker) -> None:
        sets = [f'env.workers=["{worker.url}"]', "env.parallel=4", "run.log_level=error"]
        words = [part for one in sets for part in ("--set", one)]
        command = [sys.executable, "-m", "openclaw_rl", "envs", "run", "--run-dir", str(run), "--env", f"{door}:Door"]
        self.process = subprocess.Popen(
            [*command, "--rounds", "100000", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def last_words(self) -> str:
        """What it said, once it has ended by itself."""
        _, said = self.process.communicate(timeout=60)
        return said


def sleepers() -> int:
    """Processes of the sandboxes, which all have one that sleeps."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += place.read_bytes() == f"sleep\0{MARK}\0".encode()
        except OSError:  # it ended while we looked
            continue
    return found


def assert_trained_once_and_paid(run: Path) -> None:
    with LedgerReader(run / "ledger.db") as ledger:
        assert ledger.check() == []
        live = LiveVersions(ledger).live()
        assert live is not None
        inside = read_turns(live.adapter or "")
        assert len(inside) == len(set(inside)), "a turn went into the weights twice"
        assert sorted(inside) == sorted(trained(ledger, live))
        unpaid = ledger.rows(
            "SELECT t.id FROM turns t JOIN trained x ON x.turn = t.id WHERE NOT EXISTS"
            " (SELECT 1 FROM session_rewards r WHERE r.session = t.session AND r.user = t.user AND r.score IS NOT NULL)"
        )
        assert unpaid == [], "only episodes that came to their end have trained"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    door = tmp_path / "door.py"
    door.write_text(DOOR)
    one = Worker(door)
    one.start()
    yield one
    one.kill()


@pytest.mark.slow
@needs_sandbox
def test_kills_of_player_and_pool_free_every_lease_and_train_nothing_twice(tmp_path: Path, worker: Worker) -> None:
    run = tmp_path / "run"
    system, rng = System(run), random.Random(5)
    sets = [f"env.type={tmp_path}/door.py:Door", f'env.workers=["{worker.url}"]', "env.parallel=4"]
    system.words += [part for one in sets for part in ("--set", one)]
    for kill in range(KILLS):
        url = system.start(forked=True)
        wait_until(lambda: worker.leased() > 0)
        time.sleep(rng.uniform(0.0, 0.5))
        if kill % 2:  # the pool, then
            worker.kill()
            wait_until(lambda: sleepers() == 0)
            worker.start()
            with urllib.request.urlopen(f"{url.removesuffix('/v1')}/readyz", timeout=30) as answer:
                assert answer.status == 200, "users do not notice"
            wait_until(lambda: worker.leased() > 0)
        system.kill()
        worker.wait_until_free()
    system.start()
    with LedgerReader(run / "ledger.db") as ledger:
        before = ledger.counts()["steps"]
        wait_until(lambda: ledger.counts()["steps"] > before + 3)
    assert system.end() == 0
    assert worker.leased() == 0, "an orderly end gives everything back"

    assert_trained_once_and_paid(run)


@pytest.mark.slow
@needs_sandbox
def test_player_pool_and_server_are_killed_each_alone_and_the_next_player_goes_on(
    tmp_path: Path, worker: Worker
) -> None:
    """Three programs that share nothing but addresses, as on three machines."""
    run, door = tmp_path / "run", tmp_path / "door.py"
    system = System(run, f"env.lease_seconds={LEASE_SECONDS}", "env.sandbox.command_seconds=1")

    system.start()
    player = Player(run, door, worker)
    wait_until(lambda: _paid(run) > 0 and worker.leased() > 0)
    player.kill()
    worker.wait_until_free()
    assert {"leased", "step", "reaped"} <= worker.events()

    player = Player(run, door, worker)
    wait_until(lambda: worker.leased() > 0)
    worker.kill()
    wait_until(lambda: sleepers() == 0)
    assert "no pool of environments answers" in player.last_words()
    worker.start()

    player = Player(run, door, worker)
    wait_until(lambda: worker.leased() > 0)
    system.kill()
    assert "episodes all failed" in player.last_words()
    worker.wait_until_free()

    system.start()
    player = Player(run, door, worker)
    with LedgerReader(run / "ledger.db") as ledger:
        steps = ledger.counts()["steps"]
        wait_until(lambda: ledger.counts()["steps"] > steps + 3)
        player.process.send_signal(signal.SIGINT)
        player.process.communicate(timeout=60)
        assert worker.leased() == 0, "an orderly end gives everything back"
        wait_until(lambda: ledger.backlog() == 0)  # episodes that were killed are given up: nothing waits for them
    assert system.end() == 0
    assert_trained_once_and_paid(run)


def _paid(run: Path) -> int:
    with LedgerReader(run / "ledger.db") as ledger:
        return len(ledger.rows("SELECT 1 FROM session_rewards WHERE score IS NOT NULL"))
