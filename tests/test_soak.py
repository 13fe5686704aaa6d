"""The soak run: what counts for and against it, and a short one against the real server without weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import soak  # noqa: E402
from benchmarks.soaking.clients import Failure, Seen, Talker  # noqa: E402
from benchmarks.soaking.system import Fault  # noqa: E402


def view(**more: Any) -> dict[str, Any]:
    whole = {"lost": 0, "twice": [], "damage": [], "unexplained": {}, "commands_failed": {}, "memory": {}}
    whole |= {"undeleted": [], "notes_wrong": [], "off_format": []}
    return {**whole, "settled": True, "exit_code": 0, "answered": 1, **more}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"lost": 2}, "2 answered turns are not in the ledger"),
        ({"twice": ["t"]}, "1 turns were trained twice"),
        ({"undeleted": ["t", "u"]}, "2 turns of deleted sessions are in the ledger"),
        ({"notes_wrong": [3]}, "1 notes are not what their user made of them"),
        ({"off_format": ["{"]}, "1 replies or more are not of their format"),
        ({"damage": ["malformed"]}, "the ledger is damaged"),
        ({"unexplained": {"status 500: x": 3}}, "3 requests failed without a fault"),
        ({"commands_failed": {"rollback: late": 1}}, "1 commands failed"),
        ({"settled": False}, "not judged in time"),
        ({"exit_code": 1}, "ended with code 1"),
        ({"answered": 0}, "nothing was answered"),
        ({"memory": {"engine": {"flat": False}}}, "the memory of the engine grew"),
    ],
)
def test_each_of_these_speaks_against_a_run(more: dict[str, Any], word: str) -> None:
    assert soak.verdict(view()) == []
    (said,) = soak.verdict(view(**more))
    assert word in said


def test_a_request_that_failed_is_explained_by_a_fault_that_it_met_and_never_by_a_command() -> None:
    faults = [Fault(kind="pause", at=0, over=100), Fault(kind="kill server", at=10, over=20)]

    def failed(began: float, ended: float) -> str | None:
        return soak.under(Failure(kind="status 500", detail="", began=began, ended=ended), faults)

    assert failed(5, 9) is None
    assert failed(5, 11) == failed(19, 60) == "kill server"
    assert failed(21, 22) is None


def test_memory_is_flat_when_its_last_quarter_is_near_its_first() -> None:
    def grown(last: float) -> Any:
        return soak.quarters([(i, 1000.0 if i < 180 else last) for i in range(240)])["flat"]

    assert (grown(1249.0), grown(1251.0)) == (True, False)
    assert soak.quarters([(0, 1.0)] * 239)["flat"] is None, "too few to tell"


def test_a_note_is_wrong_where_it_is_gone_by_itself_or_there_after_its_removal() -> None:
    seen = Seen(notes={1, 2, 3, 4, 5}, removed={2, 3}, unsure_notes={4})
    states = {1: "in force", 2: "removed", 3: "in force", 4: "removed"}
    assert soak.notes_wrong(seen, states) == [3, 5], "3 is in force again, 5 was lost; of 4 nobody knows"
    assert soak.notes_wrong(seen, states | {3: "removed", 5: "learned"}) == []


def test_a_reply_off_its_format_is_noted_unless_it_was_cut() -> None:
    talker = Talker("c", key="", port=1, seen=(seen := Seen()), tokens=1, pause=0.0, holds=True)
    talker._check_format('"stop"', '{"answer": "tea", "sure": true}')
    talker._check_format('"length"', '{"answer": "te')
    assert seen.off_format == []
    for reply in ('{"answer": "te', "[]", '{"answer": "tea"}', "tea"):
        talker._check_format('"stop"', reply)
    assert len(seen.off_format) == 4


@pytest.mark.slow
def test_a_short_run_with_every_fault_but_those_of_weights_passes() -> None:
    command = [sys.executable, "benchmarks/soak.py", "--backend", "fake", "--minutes", "0.35", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    told = json.loads(done.stdout)
    assert told["against"] == [], told
    assert done.returncode == 0
    assert told["faults"]["kill server"] >= 1
    assert told["answered"] > 50
    assert min(told[name] for name in ("formatted", "notes", "notes_removed", "deletions")) > 0
