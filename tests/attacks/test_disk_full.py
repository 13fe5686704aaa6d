"""A disk without room loses no answered turn that memory can hold, says so everywhere, and recovers automatically."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system import System

from openclaw_rl.errors import LedgerDamaged, LedgerDown
from openclaw_rl.serve import recorder
from openclaw_rl.serve.recorder import Metrics, TurnRecorder
from openclaw_rl.store import LedgerReader, ServeLedger
from openclaw_rl.testing import MemoryLedger, RunningServer, make_turn, serving, wait_until
from openclaw_rl.views import status as views

WIRES = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
DOWN = LedgerDown("x cannot be used", why="there is no room left for it", remedy="free some space on its disk")


def large() -> str:
    return os.urandom(20_000).hex()  # so that packing it makes it no smaller


def asks(server: RunningServer, path: str, *, stream: bool) -> Any:
    said = large()
    body = {"model": "toy", "messages": [{"role": "user", "content": said}], "input": said, "max_tokens": 9}
    return server.post(path, {**body, "stream": stream})


def full(ledger: ServeLedger, *, pages: int = 1) -> None:
    """sqlite itself finds no room from now on; it takes the present size where less is asked for."""
    ledger.row(f"PRAGMA max_page_count = {pages}")


@pytest.fixture
def book(ledger_path: Path) -> Iterator[ServeLedger]:
    with ServeLedger(ledger_path, sync="normal") as ledger:
        yield ledger


def test_turns_wait_in_their_order_and_are_written_as_soon_as_there_is_room(
    book: ServeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_EVERY", 0.01)
    with serving(ledger=book) as server:
        known = server.chat().json()["id"]
        full(book)
        answers = [asks(server, path, stream=stream) for path in WIRES for stream in (False, True)]
        assert [answer.status_code for answer in answers] == [200] * 8
        turns = [answer.headers["x-openclaw-rl-turn"] for answer in answers]

        unfit = server.get("/readyz")
        assert (unfit.status_code, unfit.json()["ready"]) == (503, False)
        [reason] = unfit.json()["reasons"]
        assert reason == (
            "8 answered turns wait for the ledger: there is no room left for it; free some space on its disk"
        )
        page = server.get("/metrics").text
        assert "openclaw_rl_turns_waiting 8.0" in page
        assert "openclaw_rl_turns_lost_total 0.0" in page

        for turn in (known, turns[0]):
            refused = server.post("/v1/feedback", {"turn": turn, "thumb": "up", "comment": large()})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "ledger_down"
            assert "free some space" in refused.json()["error"]["message"]
            assert str(book.place) not in refused.text, "where the files lie is not a caller's business"
            assert int(refused.headers["retry-after"]) >= 1

        full(book, pages=10**6)
        readiness(f"{server.url}/readyz", 200)
        assert [row["id"] for row in book.rows("SELECT id FROM turns ORDER BY seq")] == [known, *turns]
        assert server.post("/v1/feedback", {"turn": turns[0], "thumb": "up"}).status_code == 200
        assert "openclaw_rl_turns_waiting 0.0" in server.get("/metrics").text


def test_what_still_waits_at_the_end_is_written_then_or_counted_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    ledger = MemoryLedger()
    ledger.fails = DOWN
    kept, metrics = TurnRecorder(ledger, Metrics()), Metrics()
    first, second = make_turn("a"), make_turn("b")
    kept.add(first)
    ledger.fails = None
    kept.end()
    assert (list(ledger.turns), kept.lost, kept.alarms()) == ([first.id], 0, [])
    ledger.fails = DOWN
    kept = TurnRecorder(ledger, metrics)
    kept.add(second)
    with caplog.at_level(logging.ERROR):
        kept.end()
    assert kept.lost == metrics.lost._value.get() == 1
    assert "1 answered turns are lost: x cannot be used; free some space" in caplog.text


def test_memory_is_bounded_and_what_exceeds_it_is_an_alarm() -> None:
    ledger = MemoryLedger()
    ledger.fails = DOWN
    kept = TurnRecorder(ledger, Metrics(), room=5_000)
    turns = [make_turn(str(number)) for number in range(4)]
    for turn in turns:
        kept.add(turn)
    assert [kept.find(turn.id) is not None for turn in turns] == [True, True, False, False]
    assert [alarm["what"] for alarm in kept.alarms()] == [
        "2 answered turns wait for the ledger: there is no room left for it; free some space on its disk",
        "2 answered turns are lost: the ledger could not take them",
    ]
    ledger.fails = None
    kept.flush()
    assert list(ledger.turns) == [turn.id for turn in turns[:2]]
    assert [alarm["what"] for alarm in kept.alarms()] == ["2 answered turns are lost: the ledger could not take them"]


def test_a_turn_that_no_ledger_would_take_does_not_hold_up_those_behind_it() -> None:
    class Picky(MemoryLedger):
        def add_turn(self, turn: Any) -> None:
            if self.fails is None and turn.prompt.messages[-1].content == "bad":
                raise LedgerDamaged("no")
            super().add_turn(turn)

    ledger = Picky()
    ledger.fails = DOWN
    kept, bad, good = TurnRecorder(ledger, Metrics()), make_turn("bad"), make_turn("good")
    kept.add(bad)
    kept.add(good)
    ledger.fails = None
    kept.flush()
    assert (list(ledger.turns), kept.lost, kept.reasons()) == ([good.id], 1, [])


def test_status_raises_an_alarm_for_a_loop_that_can_no_longer_say_how_it_is(ledger_path: Path) -> None:
    with ServeLedger(ledger_path, sync="full") as ledger:
        ledger.report("serve", state="running", moved=0, failures=0)
        assert views.status(ledger, starve_after=20)["alarms"] == []
        alarms = views.status(ledger, starve_after=20, now=time.time() + 60)["alarms"]
    assert alarms[0].startswith("loop serve has not reported for 60 s; check that process")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def call(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def readiness(url: str, wanted: int) -> Any:
    """What /readyz says once it answers so."""
    answers: list[tuple[int, Any]] = []

    def answered() -> bool:
        answers.append(call(url))
        return answers[-1][0] == wanted

    wait_until(answered)
    return answers[-1][1]


@pytest.mark.slow
def test_a_real_disk_that_fills_up_and_is_freed(small_disk: Path) -> None:
    system = System(small_disk / "run")
    url = system.start()
    ready = url.replace("/v1", "/readyz")
    try:
        readiness(ready, 200)
        fill = small_disk / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={fill}", "bs=64k"], capture_output=True)
        answered = []
        for _ in range(3):
            status, told = call(
                f"{url}/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": large()}]}
            )
            assert status == 200
            answered.append(told["id"])
        told = readiness(ready, 503)
        assert any("free some space on its disk" in reason for reason in told["reasons"]), told
        words = [sys.executable, "-m", "openclaw_rl", "status", "--rl-buffer-dir", str(small_disk / "run")]
        shown = subprocess.run(words, capture_output=True, text=True)
        assert "0.0 MiB are left on the disk" in shown.stdout, shown.stderr
        assert system.process.poll() is None
        fill.unlink()
        readiness(ready, 200)
        with LedgerReader(small_disk / "run" / "ledger.db") as ledger:
            assert all(ledger.has_turn(turn) for turn in answered)
            assert ledger.check() == []
        assert system.end() == 0
    finally:
        if system.process.poll() is None:
            system.kill()
