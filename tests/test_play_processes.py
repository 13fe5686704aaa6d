"""``openclaw-rl play`` as a command: killed and resumed beside a real server, and a real agent program on real weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sandboxes import needs_sandbox
from system import System

from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import wait_until

pytestmark = [pytest.mark.slow, needs_sandbox]

SLOW_AGENT = """
import json, os, subprocess, sys, time, urllib.request
body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]})
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body.encode())
request.add_header("content-type", "application/json")
for _ in range(3):
    urllib.request.urlopen(request).read()
    time.sleep(0.2)
words = sys.argv[1].split()
subprocess.run(["sh", "-c", f"echo {words[3]} > {words[-1].rstrip('.')}"])
"""


def command(run: Path, agent: str, *more: str) -> list[str]:
    words = [sys.executable, "-m", "openclaw_rl", "play", "--run-dir", str(run), "--agent", agent]
    return [*words, "--set", "env.parallel=2", *more]


def played(run: Path, agent: str, *more: str, **given: Any) -> dict[str, Any]:
    done = subprocess.run(command(run, agent, "--json", *more), capture_output=True, text=True, check=False, **given)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def running(system: System) -> System:
    system.start()
    return system


def rewards(run: Path) -> list[Any]:
    with LedgerReader(run / "ledger.db") as ledger:
        return list(ledger.rows("SELECT session, score, failed FROM session_rewards ORDER BY seq"))


def test_a_player_that_is_killed_is_resumed_and_no_session_is_paid_twice(running: System, tmp_path: Path) -> None:
    run = running.root
    script = tmp_path / "agent.py"
    script.write_text(SLOW_AGENT)
    agent, tasks = f"/usr/bin/python3 {script} {{instruction}}", ("--tasks", "write-word", "--count", "3")
    first = subprocess.Popen(command(run, agent, *tasks), stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    assert "+1.00 paid, 3 calls" in first.stderr.readline()
    wait_until(lambda: _turns(run) > 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stderr.close()

    second = played(run, agent, *tasks, "--resume")
    assert second["solved"] == len(second["episodes"]) <= 2, "those that were done are left out"
    found = rewards(run)
    paid = [row["session"] for row in found if row["score"] is not None]
    assert len(paid) == len(set(paid)) == 3
    failed = {row["session"] for row in found if row["failed"]}
    assert not failed & set(paid)
    with LedgerReader(run / "ledger.db") as ledger:
        unpaid = ledger.rows(
            "SELECT t.session FROM turns t WHERE t.session LIKE 'play-%' AND t.session NOT IN"
            " (SELECT session FROM session_rewards)"
        )
        assert list(unpaid) == [], "what the killed player had begun is told to have failed"
        users = ledger.rows("SELECT DISTINCT user FROM turns WHERE session LIKE 'play-%'")
        assert [row["user"] for row in users] == ["env:local"]


def _turns(run: Path) -> int:
    with LedgerReader(run / "ledger.db") as ledger:
        return ledger.counts()["turns"]


MINI = os.environ.get("OPENCLAW_RL_MINI_SWE_AGENT") or shutil.which("mini")


@pytest.mark.skipif(MINI is None, reason="mini-swe-agent is not installed: pip install mini-swe-agent (its own venv)")
def test_mini_swe_agent_plays_on_the_embedded_model_and_is_paid(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.words = ["up", "--port", "0", "--run-dir", str(tmp_path), "--set", "policy.sampling.max_tokens=48"]
    system.words += ["--set", "judge.kind=rules", "--set", "train.batch_size=64", "--set", "run.log_level=error"]
    system.start()
    try:
        found = played(
            tmp_path, "mini-swe-agent", "--program", str(MINI), "--tasks", "write-word/0", "--max-calls", "2"
        )
    finally:
        system.end()
    [episode] = found["episodes"]
    assert (episode["error"], episode["paid"], episode["calls"]) == ("", True, 2)
    assert episode["outcome"] in (-1.0, 1.0)
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        turns = list(ledger.rows("SELECT id, session, user FROM turns"))
        assert {(row["session"], row["user"]) for row in turns} == {(episode["session"], "env:local")}
        whole = [ledger.turn(row["id"]) for row in turns]
    assert len(whole) == 2
    assert all(len(turn.completion.logprobs) == len(turn.completion.reply_tokens) > 0 for turn in whole)
    assert "mswea_bash_command" in whole[0].prompt.messages[0].content
    assert [row["session"] for row in rewards(tmp_path)] == [episode["session"]]


OPENCLAW = os.environ.get("OPENCLAW_RL_OPENCLAW") or shutil.which("openclaw")
WRITES = """<tool_call>
{"name": "exec", "arguments": {"command": "echo mint > otter.txt"}}
</tool_call>"""
"""what solves write-word/0"""


@pytest.mark.skipif(OPENCLAW is None, reason="OpenClaw is not installed: npm install openclaw (wants Node 24.16)")
def test_openclaw_carries_out_a_call_in_the_folder_of_the_task_and_is_paid(tmp_path: Path) -> None:
    system = System(tmp_path, f"policy.options.reply={json.dumps(WRITES)}", "policy.tool_format=hermes")
    system.start()
    try:
        found = played(tmp_path, "openclaw", "--program", str(OPENCLAW), "--tasks", "write-word/0", "--max-calls", "2")
    finally:
        system.end()
    [episode] = found["episodes"]
    assert (episode["error"], episode["outcome"], episode["paid"], episode["calls"]) == ("", 1.0, True, 2)
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        turns = [ledger.turn(row["id"]) for row in ledger.rows("SELECT id FROM turns WHERE session LIKE 'play-%'")]
    assert [turn.prompt.messages[-1].role for turn in turns] == ["user", "tool"]
