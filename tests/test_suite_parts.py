"""The suite in parts: every file once, about equally long, and told as one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shards import HERE, Cost, _cost, divide, shards

from openclaw_rl.testing import wait_until

RUNNER = HERE.parent / "scripts" / "run_tests.py"
PLAIN = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # none of them is needed, and each takes its time to load


@pytest.mark.parametrize("fast", [True, False])
def test_every_file_is_in_one_part_and_the_parts_take_about_equally_long(fast: bool) -> None:
    parts = shards(3, fast)
    files = sorted(path for part in parts for path in part)
    assert len(files) == len(set(files))
    slow_alone = {
        path for path in HERE.rglob("test_*.py") if re.search(r"^pytestmark = .*slow", path.read_text(), re.M)
    }
    assert set(files) == set(HERE.rglob("test_*.py")) - (slow_alone if fast else set())


def costs(**seconds: float) -> dict[Path, Cost]:
    """Files that take so long, with the need that they are named after."""
    needs = {name: name.partition("_")[0] for name in seconds if "_" in name}
    return {Path(name): Cost(seconds=each, need=needs.get(name)) for name, each in seconds.items()}


def names(parts: list[set[Path]]) -> list[list[str]]:
    return [sorted(path.name for path in part) for part in parts]


def test_the_longest_comes_first_and_each_goes_where_it_is_done_first() -> None:
    """6 | 5, then 4 makes 6 | 9, then 3 makes 9 | 9, and 2 goes to the first of two alike."""
    assert names(divide(costs(a=2, b=3, c=4, d=5, e=6), 2)) == [["a", "b", "e"], ["c", "d"]]


def test_as_few_parts_meet_a_need_as_its_files_fill() -> None:
    """3 of 9 seconds are a third: one part of three. 6 of 9 are two of three."""
    third = costs(torch_a=2, torch_b=1, c=3, d=3)
    assert names(divide(third, 3)) == [["torch_a", "torch_b"], ["c"], ["d"]]
    most = costs(torch_a=3, torch_b=2, torch_c=1, d=3)
    assert names(divide(most, 3)) == [["torch_a"], ["torch_b", "torch_c"], ["d"]]


def test_each_need_has_a_part_of_its_own_as_far_as_there_are_any() -> None:
    """The fourth second of a client goes where clients are, though another part is done first."""
    needs = costs(torch_a=3, clients_a=3, clients_b=1, postgres_a=1, e=4)
    assert names(divide(needs, 3)) == [["torch_a"], ["clients_a", "clients_b"], ["e", "postgres_a"]]
    assert names(divide(needs, 2)) == [["e", "postgres_a", "torch_a"], ["clients_a", "clients_b"]]


def test_the_needs_of_a_file_are_seen_in_its_text() -> None:
    shows = {
        "torch": ["import torch\n", "from tiny import tiny\n", "from test_local_models import make_folder\n"],
        "clients": ["import openai\n", "from anthropic import Anthropic\n"],
        "postgres": [
            "def test_a(database: ServerPlace) -> None:\n",
            "from fakes.postgres import PostgresServer\n",
        ],
    }
    for need, texts in shows.items():
        for text in texts:
            assert _cost(HERE / "test_new.py", text, fast=True).need == need
    assert _cost(HERE / "test_new.py", "    import torch\n# a server\n", fast=True).need is None


# --- the runner


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two test files with the hooks of this suite."""
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(HERE / "shards.py", tests)
    (tests / "durations.json").write_text("{}")
    (tests / "conftest.py").write_text("from shards import pytest_addoption, pytest_configure, pytest_ignore_collect\n")
    (tests / "test_a.py").write_text("def test_a():\n    pass\n\ndef test_b():\n    pass\n")
    (tests / "test_b.py").write_text("def test_c():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = -q\nmarkers = slow\n")
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, str(RUNNER), "-j", "2", *words]


def ran(project: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(command(*words), cwd=project, env=PLAIN, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def last_line(said: str) -> str:
    return said.splitlines()[-1].split(" in ")[0]


@pytest.mark.slow
def test_all_parts_run_and_the_last_line_counts_everything(project: Path) -> None:
    code, said = ran(project)
    assert (code, last_line(said)) == (0, "==== 3 passed")
    assert re.search(r"^1/2 \.", said, re.M)
    assert re.search(r"^2/2 \.", said, re.M)


@pytest.mark.slow
def test_a_failure_in_one_part_is_shown_whole_and_fails_the_run(project: Path) -> None:
    (project / "tests" / "test_b.py").write_text("def test_c():\n    print('seen before')\n    assert 6 * 7 == 41\n")
    code, said = ran(project)
    assert (code, last_line(said)) == (1, "==== FAILED: 1 failed, 2 passed")
    assert said.count("E       assert (6 * 7) == 41") == 1
    assert "seen before" in said
    assert "FAILED tests/test_b.py::test_c" in said


@pytest.mark.slow
def test_a_part_that_dies_fails_the_run_and_is_named(project: Path) -> None:
    (project / "tests" / "test_b.py").write_text("import os\n\ndef test_c():\n    os.kill(os.getpid(), 9)\n")
    code, said = ran(project)
    assert (code, last_line(said)) == (1, "==== FAILED: 2 passed")
    assert re.search(r"^---- part [12]/2 was ended by SIGKILL$", said, re.M)


@pytest.mark.slow
def test_no_test_at_all_is_no_success_and_a_part_without_one_is_no_failure(project: Path) -> None:
    assert ran(project, "-k", "test_c")[0] == 0
    code, said = ran(project, "-k", "nobody")
    assert (code, last_line(said)) == (5, "==== no tests ran")


@pytest.mark.slow
def test_a_file_that_is_named_runs_in_one_process_as_pytest_does_it(project: Path) -> None:
    code, said = ran(project, "tests/test_a.py")
    assert code == 0
    assert re.search(r"^2 passed in ", said, re.M)


@pytest.mark.slow
def test_what_each_file_took_is_recorded(project: Path) -> None:
    assert ran(project, "--record")[0] == 0
    text = (project / "tests" / "durations.json").read_text()
    assert re.fullmatch(r'\{\n"test_a.py": \[0.\d, 0.0\],\n"test_b.py": \[0.\d, 0.0\]\n\}\n', text)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_parts_after_they_have_cleaned_up(project: Path, sent: signal.Signals) -> None:
    """Each test notes its process, waits for ever, and would not leave its note behind."""
    for name in ("test_a", "test_b"):
        story = "import os, pathlib, time\n\ndef test_c():\n    note = pathlib.Path(f'{os.getpid()}.here')\n"
        story += "    note.touch()\n    try:\n        time.sleep(600)\n    finally:\n        note.unlink()\n"
        (project / "tests" / f"{name}.py").write_text(story)
    runner = subprocess.Popen(command(), cwd=project, env=PLAIN, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: len(list(project.glob("*.here"))) == 2)
    pids = [int(note.stem) for note in project.glob("*.here")]
    runner.send_signal(sent)
    said, _ = runner.communicate()
    assert runner.returncode == 2
    assert said.splitlines()[-1].startswith("==== interrupted: ")
    assert list(project.glob("*.here")) == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
