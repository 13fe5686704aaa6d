"""Nobody takes the ledger's log away under a running server: not a command, not a shell, not a second connection."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from system import System

from openclaw_rl.app.operations import roll_back_now
from openclaw_rl.config import load
from openclaw_rl.errors import AlreadyInLedger, LedgerError, NotInLedger
from openclaw_rl.store import CollectLedger, JudgeLedger, LedgerReader, ServeLedger, TrainLedger, submit_request
from openclaw_rl.testing import make_turn
from openclaw_rl.types import Version
from openclaw_rl.versions import VersionManager

SHELL = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT count(*) FROM turns').fetchall(); db.close()"
ASK = "import sys; from openclaw_rl.store import submit_request; submit_request(sys.argv[1], 'pause')"
FIND = "import sys; from openclaw_rl.store import LedgerReader; LedgerReader(sys.argv[1]).turn(sys.argv[2])"


def elsewhere(code: str, *words: object) -> None:
    """Run code in a process of its own, as a person at the command line does."""
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True)


def deleted(pid: int | str) -> list[str]:
    """Files that a process has open and that no longer have a name."""
    named = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    return [name for name in named if name.endswith("(deleted)") and "ledger.db" in name]


@pytest.mark.parametrize("other", [SHELL, ASK])
def test_another_connection_of_this_process_costs_a_ledger_none_of_its_locks(ledger_path: Path, other: str) -> None:
    turn = make_turn()
    with ServeLedger(ledger_path, sync="full") as serve:
        JudgeLedger(ledger_path).close()
        LedgerReader(ledger_path).close()
        submit_request(ledger_path, "resume")
        elsewhere(other, ledger_path)
        assert deleted("self") == []
        serve.add_turn(turn)
        elsewhere(FIND, ledger_path, turn.id)


def test_a_command_leaves_the_log_even_under_a_server_that_lost_its_locks(ledger_path: Path) -> None:
    turn = make_turn()
    with ServeLedger(ledger_path, sync="full") as serve:
        ledger_path.read_bytes()  # what a plug-in in the server's process might do: all its locks are gone
        elsewhere(ASK, ledger_path)
        assert deleted("self") == []
        serve.add_turn(turn)
        elsewhere(FIND, ledger_path, turn.id)


@pytest.mark.slow
def test_a_turn_that_is_answered_after_pause_is_found(tmp_path: Path, system: System) -> None:
    url = system.start()
    words = [sys.executable, "-m", "openclaw_rl", "pause", "--rl-buffer-dir", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True)
    elsewhere(SHELL, tmp_path / "ledger.db")
    assert deleted(system.process.pid) == []
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        turn = json.load(answer)["id"]
    with LedgerReader(tmp_path / "ledger.db") as reader:
        assert (reader.turn(turn).id, reader.paused()) == (turn, "on request")
    system.kill()
    with LedgerReader(tmp_path / "ledger.db") as reader:
        assert reader.has_turn(turn), "it was answered, so it is on disk"


def two_versions(train: TrainLedger) -> None:
    train.add_version(Version(number=0, parent=None, base="b", state="live"))
    train.add_version(Version(number=1, parent=0, base="b", adapter="/v1", state="live"))


async def test_a_rollback_is_reported_done_though_a_newer_version_is_live_by_then(tmp_path: Path) -> None:
    config = load(sets=[f"run.dir={tmp_path}"]).config
    with TrainLedger(tmp_path / "ledger.db", sync="full") as train:
        two_versions(train)
        asked = asyncio.ensure_future(roll_back_now(config, to=0, why="worse"))
        while not (requests := train.new_requests(1)) and not asked.done():
            await asyncio.sleep(0)
        VersionManager(train).roll_back(0, "worse", request=requests[0].seq)
        train.add_version(Version(number=3, parent=2, base="b", adapter="/v3", state="live"))
        train.done_requests(requests[0].seq)
        done = await asked
    assert (done.number, done.note) == (2, "rollback from 1 to 0: worse")


async def test_a_rollback_that_waits_for_the_trainer_is_not_called_a_failure(tmp_path: Path) -> None:
    config = load(sets=[f"run.dir={tmp_path}"]).config
    with TrainLedger(tmp_path / "ledger.db", sync="full") as train:
        two_versions(train)
        with pytest.raises(
            LedgerError, match=r"is written down \(request 1\).*follows automatically, so do not repeat it"
        ):
            await roll_back_now(config, to=0, why="worse", patience=0.0)
        with pytest.raises(NotInLedger, match="no version '9'"):
            await roll_back_now(config, to=9, why="worse")
        assert len(train.new_requests(9)) == 1


def test_what_could_not_be_written_moves_no_mark(ledger_path: Path) -> None:
    with ServeLedger(ledger_path, sync="full") as serve, CollectLedger(ledger_path) as collect:
        serve.add_turn(make_turn())
        [(seq, _)] = collect.new_turns(9)
        collect.db.execute("PRAGMA query_only = on")
        with pytest.raises(LedgerError, match="may only be read"):
            collect.settle([], [], turns_read=seq)
        assert not collect.db.connection.in_transaction
        collect.db.execute("PRAGMA query_only = off")
        assert [found for found, _ in collect.new_turns(9)] == [seq], "it is still there to be read"
        collect.settle([], [], turns_read=seq)
        assert collect.new_turns(9) == []


def fill(serve: ServeLedger) -> None:
    for number in range(500):
        serve.add_turn(make_turn(str(number) * 200))


def test_a_write_that_fails_at_its_end_does_not_spoil_the_next_one(ledger_path: Path) -> None:
    with ServeLedger(ledger_path, sync="full") as serve:
        serve.db.execute("PRAGMA max_page_count = 1")  # sqlite raises it to the present size: full from now on
        with pytest.raises(LedgerError, match=r"there is no room left for it \(database or disk is full\); free some"):
            fill(serve)
        kept = serve.counts()["turns"]
        serve.db.execute("PRAGMA max_page_count = 100000")
        serve.add_turn(make_turn("again"))
        assert serve.counts()["turns"] == kept + 1
        assert serve.check() == []
        with pytest.raises(AlreadyInLedger):
            serve.add_turn(serve.turn(serve.row("SELECT id FROM turns")["id"]))
