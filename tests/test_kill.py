"""``kill -9`` of the whole system, fifty times, under load: nothing answered is lost and nothing trains twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.backends.fake import read_turns
from openclaw_rl.store import Ledger

KILLS = 50
WISHES = ("Too long. Please keep it under 30 words.", "Please don't use bullet points.", "Thanks, that's perfect!")


class System:
    """The real command in a real process group."""

    def __init__(self, root: Path) -> None:
        self.root = root
        sets = [
            "policy.backend=fake",
            "policy.model=fake",
            "train.backend=fake",
            "train.batch_size=2",
            "run.poll=0.005",
        ]
        sets += ["judge.kind=rules", "train.idle_wait=0.2", "train.options.seconds=0.01", "run.log_level=error"]
        sets += ["watch.mode=off"]  # who complains by chance gives it a false alarm now and then, and it goes back
        self.command = [sys.executable, "-m", "openclaw_rl", "up", "--port", "0", "--rl-buffer-dir", str(root)]
        for one in sets:
            self.command += ["--set", one]

    def start(self) -> str:
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("listening on"):
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return line.split()[-1]
        raise AssertionError("it ended before it listened: " + "".join(said))

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


class Talker(threading.Thread):
    """A client that talks in sessions, half of them streamed, and notes each answer that reached it whole."""

    def __init__(self, name: str, answered: set[str]) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(name)
        self.label = name
        self.answered = answered
        self.url: str | None = None
        self.over = False

    def run(self) -> None:
        count = 0
        while not self.over:
            messages = [{"role": "user", "content": f"{self.label} asks about topic {count}"}]
            count += 1
            for _ in range(3):
                reply = self.ask(messages)
                if reply is None:
                    break
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": self.rng.choice(WISHES)},
                ]

    def ask(self, messages: list[dict[str, str]]) -> str | None:
        while self.url is None and not self.over:
            time.sleep(0.005)
        stream = self.rng.random() < 0.5
        body = json.dumps({"model": "fake", "messages": messages, "stream": stream}).encode()
        request = urllib.request.Request(f"{self.url}/chat/completions", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                raw = answer.read().decode()
        except (OSError, urllib.error.URLError, ValueError, EOFError):
            return None
        except Exception as error:  # http.client's many ways to say that the other side is gone
            if type(error).__module__ != "http.client":
                raise
            return None
        return self.note(raw, stream=stream)

    def note(self, raw: str, *, stream: bool) -> str | None:
        if not stream:
            answer = json.loads(raw)
            self.answered.add(answer["id"])
            return str(answer["choices"][0]["message"]["content"])
        if "data: [DONE]" not in raw:
            return None
        events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
        self.answered.add(events[0]["id"])
        return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    if system.process.poll() is None:
        system.kill()


@pytest.mark.slow
def test_fifty_kills_under_load_lose_no_answered_turn_and_train_none_twice(tmp_path: Path, system: System) -> None:
    answered, rng = set[str](), random.Random(11)
    talkers = [Talker(name, answered) for name in ("u1", "u2", "u3")]
    for talker in talkers:
        talker.start()
    for _ in range(KILLS):
        url = system.start()
        for talker in talkers:
            talker.url = url
        time.sleep(rng.uniform(0.0, 0.5))
        system.kill()
        for talker in talkers:
            talker.url = None
    before = len(answered)
    url = system.start()
    for talker in talkers:
        talker.url = url
    deadline = time.monotonic() + 60
    while len(answered) < before + 30 and time.monotonic() < deadline:
        time.sleep(0.05)
    for talker in talkers:
        talker.over = True
    for talker in talkers:
        talker.join(timeout=30)
    assert len(answered) >= before + 30, "the system goes on"
    assert settled(tmp_path), "the loops behind the API go on"
    assert system.end() == 0

    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.check() == []
        kept = [row[0] for row in ledger.rows("SELECT id FROM turns")]
        assert len(kept) == len(set(kept))
        assert answered <= set(kept), f"{len(answered - set(kept))} answered turns are lost"
        assert before >= KILLS, "the load was too thin to prove anything"
        live = ledger.live_version()
        assert live is not None
        assert live.number >= 5
        inside = read_turns(live.adapter or "")
        assert len(inside) == len(set(inside)), "a turn went into the weights twice"
        trained = [row[0] for row in ledger.rows("SELECT x.turn FROM trained x JOIN versions v ON v.step = x.step")]
        assert sorted(inside) == sorted(trained), "what the ledger says was trained is what the weights saw"


def settled(root: Path) -> bool:
    """Wait until everything that has a next state is judged, and everything judged is trained or dropped."""
    deadline = time.monotonic() + 60
    with Ledger(root / "ledger.db") as ledger:
        while time.monotonic() < deadline:
            (unread,) = ledger.row(
                "SELECT count(*) FROM turns t WHERE t.seq > coalesce((SELECT seq FROM cursors WHERE name = 'turns'), 0)"
            )
            (unjudged,) = ledger.row("SELECT count(*) FROM outcomes WHERE turn NOT IN (SELECT turn FROM verdicts)")
            (unused,) = ledger.row(
                "SELECT count(*) FROM verdicts WHERE turn NOT IN (SELECT turn FROM trained) AND turn NOT IN (SELECT turn FROM drops)"
            )
            if not unread and not unjudged and not unused:
                return True
            time.sleep(0.1)
    return False
