"""What the results of tools show: real outputs of real programs, and others in their form; false alarms cost most."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.judge import tools
from openclaw_rl.judge.custom import reaction_of
from openclaw_rl.judge.evidence import evidence_items
from openclaw_rl.ports import Case
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_turn
from openclaw_rl.types import ToolCall

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "tool_results.jsonl").read_text().splitlines()
]


def call(command: str, name: str = "exec", id: str = "c1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=json.dumps({"command": command}))


def shown(output: str, made: ToolCall | None) -> int | None:
    return -1 if tools.failure(output, made) else tools.reported(output, made)


@pytest.mark.parametrize("row", ROWS, ids=[f"{at}-{row['command'][:40]}" for at, row in enumerate(ROWS)])
def test_a_failure_is_seen_and_nothing_else_is_taken_for_one(row: dict[str, Any]) -> None:
    score = shown(row["output"], call(row["command"]))
    if row.get("missed"):
        assert score is None, "it is seen now: take the mark off"
    elif row["fails"]:
        assert score == -1
    else:
        assert score != -1
        assert not row.get("passes") or score == 1


def test_most_outputs_were_printed_by_the_programs_themselves() -> None:
    run = [row for row in ROWS if row["origin"] == "run"]
    assert len(run) >= 100
    assert sum(row["fails"] for row in run) >= 70
    assert sum(not row["fails"] for row in run) >= 30
    missed = [row for row in ROWS if row.get("missed")]
    assert len(missed) <= 3


def test_to_know_the_call_only_takes_alarms_away() -> None:
    for row in ROWS:
        if shown(row["output"], None) is None:
            assert shown(row["output"], call(row["command"])) is None, row["command"]


@pytest.mark.parametrize(
    ("command", "shows"),
    [
        ("cat a.log", True),
        ("cd x && cat a.log | sort", True),
        ("LANG=C sudo /bin/cat a.log; ls", True),
        ("git log --oneline -5", True),
        ("git push", False),
        ("make 2>&1 | tail -5", False),
        ("cat a.log && make", False),
        ("python3 x.py > out.txt; cat out.txt", True),
        ("bash -lc 'grep -n error a.log'", True),
        ("", False),
    ],
)
def test_what_only_shows_is_known_by_its_programs(command: str, shows: bool) -> None:
    assert tools.is_showing(call(command)) == shows


def test_what_only_shows_is_known_by_the_tools_name_too() -> None:
    log = "ERROR: disk full\nFATAL: gave up"
    read = ToolCall(id="c1", name="Read", arguments='{"path": "a.log"}')
    assert tools.failure(log, read) is None
    assert (
        tools.failure(log, ToolCall(id="c1", name="deploy", arguments="not json")) == "the tool answered with an error"
    )
    assert tools.failure("cat: a.log: No such file or directory", call("cat a.log")) == "the shell refused the command"


def test_a_result_goes_with_its_call_however_the_client_wrote_the_id() -> None:
    calls = (call("make", id="call_1-a"), call("cat error.log", id="call_2-b"))
    reply = make_message("assistant", "", tool_calls=calls)
    turn = make_turn("Build it.", completion=make_completion(reply=reply))
    log = "make: *** [all] Error 1"

    def case(*results: tuple[str, str]) -> Case:
        said = tuple(make_message("tool", text, tool_call_id=name) for name, text in results)
        return Case(turn=turn, outcome=make_outcome(turn, next_state=said))

    fine = case(("call1a", "built"), ("call2b", log))
    assert evidence_items(fine) == ()
    assert reaction_of(fine).score is None
    failed = case(("call1a", log), ("call2b", "built"))
    assert [(item.score, item.note) for item in evidence_items(failed)] == [(-1.0, "the build failed")]
    unknown = case(("other", "bad.c:1:1: error: expected ';'"))
    assert [item.note for item in evidence_items(unknown)] == ["it does not compile"]


def test_no_result_of_a_tool_becomes_a_hint() -> None:
    for row in ROWS:
        reply = make_message("assistant", "", tool_calls=(call(row["command"]),))
        turn = make_turn("Do it.", completion=make_completion(reply=reply))
        said = make_message("tool", row["output"], tool_call_id="c1")
        assert reaction_of(Case(turn=turn, outcome=make_outcome(turn, next_state=(said,)))).hints == ()


def test_every_row_of_the_table_has_its_fields_and_an_expression_that_compiles() -> None:
    table = tomllib.loads(resources.files("openclaw_rl.judge").joinpath("tool_results.toml").read_text("utf-8"))
    for row in table["failure"]:
        assert set(row) <= {"name", "why", "at", "line", "needs", "shown"}, row["name"]
        assert row["at"] in ("first", "last", "ends", "any")
        assert re.compile(row["line"]).match("") is None, f"{row['name']} matches nothing at all"
    for row in table["report"]:
        assert set(row) <= {"name", "line", "failed", "passed", "needs", "failed_if", "passed_if"}
        assert ("line" in row) == bool(row.get("failed")) == bool(row.get("passed")), row["name"]
        assert ("failed_if" in row) != ("line" in row), row["name"]
    assert len({row["name"] for row in (*table["failure"], *table["report"])}) == len(
        table["failure"] + table["report"]
    )
