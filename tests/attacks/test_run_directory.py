"""The run directory: its owner's alone, and whatever is wrong with it is said in words with the remedy."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from system import System

from openclaw_rl.app.doctor import Diagnosis, examine
from openclaw_rl.cli import cli
from openclaw_rl.config import load
from openclaw_rl.errors import LedgerError, OpenClawError
from openclaw_rl.store import ServeLedger
from openclaw_rl.testing import make_turn

pytestmark = pytest.mark.slow

FAKES = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules", "serve.port=0")


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(place: Path) -> list[str]:
    """Files and folders; a link has no mode of its own."""
    found = [path for path in (place, *place.rglob("*")) if not path.is_symlink()]
    return [str(path) for path in found if path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_nobody_else_can_look_at_anything_of_a_run(tmp_path: Path) -> None:
    system = System(tmp_path / "new" / "run")
    url = system.start()
    try:
        messages = [{"role": "user", "content": "hi"}]
        for said in ("Please keep it under 30 words.", "Please keep it under 30 words, I said.", "Thanks!"):
            body = json.dumps({"model": "fake", "messages": messages}).encode()
            request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                reply = json.load(answer)["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
        version = tmp_path / "new" / "run" / "versions" / "000001"
        while not version.exists() or not (tmp_path / "new" / "run" / "record.jsonl").exists():
            assert system.process.poll() is None
        names = {found.name for found in (tmp_path / "new" / "run").rglob("*")}
        assert {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.serve.lock", "record.jsonl"} <= names
        assert open_to_others(tmp_path / "new" / "run") == []
    finally:
        system.kill()


def test_a_ledger_is_its_owners_also_where_the_process_is_generous(tmp_path: Path) -> None:
    with ServeLedger(tmp_path / "run" / "ledger.db", sync="full") as ledger:
        ledger.add_turn(make_turn())
        assert open_to_others(tmp_path / "run") == []


def directory(place: Path, *sets: str) -> Diagnosis:
    found = examine(load(sets=[f"run.dir={place}", *FAKES, *sets]).config)
    return next(one for one in found if one.check == "directory")


def test_doctor_warns_of_an_older_run_that_others_can_read_and_says_the_line_that_helps(tmp_path: Path) -> None:
    place = tmp_path / "my run"
    ServeLedger(place / "ledger.db", sync="full").close()
    assert directory(place).state == "ok"
    place.chmod(0o755)
    (place / "ledger.db").chmod(0o644)
    found = directory(place)
    assert (found.state, found.remedy) == ("warning", f"chmod -R go-rwx '{place}'")
    subprocess.run(found.remedy, shell=True, check=True)
    assert directory(place).state == "ok"


def a_file_in_the_way(place: Path) -> None:
    place.write_text("notes")


def a_directory_in_the_way(place: Path) -> None:
    (place / "ledger.db").mkdir(parents=True)


def a_foreign_database(place: Path) -> None:
    place.mkdir()
    db = sqlite3.connect(place / "ledger.db")
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()


def an_empty_file(place: Path) -> None:
    place.mkdir()
    (place / "ledger.db").touch()


def a_damaged_ledger(place: Path) -> None:
    """Whole at its beginning, rotten further in."""
    with ServeLedger(place / "ledger.db", sync="full") as ledger:
        for number in range(50):
            ledger.add_turn(make_turn(os.urandom(2_000).hex() + str(number)))
    content = bytearray((place / "ledger.db").read_bytes())
    content[40_000:-4096] = b"\xff" * (len(content) - 4096 - 40_000)
    (place / "ledger.db").write_bytes(content)


WRONG: list[tuple[Callable[[Path], None], str]] = [
    (a_file_in_the_way, "a file is in the way: move it, or choose another run directory"),
    (a_directory_in_the_way, "a directory is in the way: move it"),
    (a_foreign_database, "another program's database; nothing was changed; restore a copy, or move the file away"),
    (an_empty_file, "does not begin as a ledger does"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG)
@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_wrong_directory_is_refused_in_words(
    tmp_path: Path, wrong: Callable[[Path], None], words: str, command: str
) -> None:
    place = tmp_path / "run"
    wrong(place)
    sets = [word for one in FAKES for word in ("--set", one)]
    done = CliRunner().invoke(cli, [command, *sets, "--rl-buffer-dir", str(place)], standalone_mode=False)
    assert isinstance(done.exception, OpenClawError), done.exception
    assert words in str(done.exception)
    assert str(place) in str(done.exception)


def examined(place: Path) -> list[Diagnosis]:
    return [one for one in examine(load(sets=[f"run.dir={place}", *FAKES]).config) if one.state == "trouble"]


@pytest.mark.parametrize("wrong", [a_file_in_the_way, a_directory_in_the_way, a_foreign_database, a_damaged_ledger])
def test_doctor_says_what_is_wrong_with_the_directory_or_the_ledger(
    tmp_path: Path, wrong: Callable[[Path], None]
) -> None:
    wrong(tmp_path / "run")
    found = examined(tmp_path / "run")
    assert {one.check for one in found} & {"directory", "ledger"}
    assert all(one.remedy for one in found)


def test_doctor_finds_words_for_a_ledger_with_any_rotten_page(tmp_path: Path) -> None:
    place = tmp_path / "run" / "ledger.db"
    with ServeLedger(place, sync="full") as ledger:
        ledger.add_turn(make_turn())
    whole = place.read_bytes()
    for at in range(0, len(whole), 4096):
        place.write_bytes(whole[:at] + b"\xff" * 4096 + whole[at + 4096 :])
        [found] = [one for one in examined(tmp_path / "run") if one.check == "ledger"]
        assert "ledger.db" in found.detail
        assert "restore a copy, or move" in found.remedy


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk; ``ro`` or ``size=`` as asked."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode != 0:
            pytest.skip("only root may mount a small disk")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], capture_output=True)


@pytest.mark.parametrize("there", [True, False])
def test_a_disk_that_can_only_be_read_is_said_with_the_remedy(mounted: Callable[[str], Path], there: bool) -> None:
    disk = mounted("size=4m")
    if there:
        ServeLedger(disk / "run" / "ledger.db", sync="full").close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(LedgerError, match=r"run\.dir"):
        ServeLedger(disk / "run" / "ledger.db", sync="full")
    [found] = [one for one in examined(disk / "run") if one.check == "directory"]
    assert "cannot be written" in found.detail


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
def test_starting_on_a_full_disk_is_said_with_the_remedy(mounted: Callable[[str], Path], there: bool) -> None:
    disk = mounted("size=2m")
    if there:
        ServeLedger(disk / "run" / "ledger.db", sync="full").close()
    subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=4k"], capture_output=True)
    words = [sys.executable, "-m", "openclaw_rl", "up", "--rl-buffer-dir", str(disk / "run")]
    for one in FAKES:
        words += ["--set", one]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "free some space on its disk" in done.stderr
    assert "Traceback" not in done.stderr
