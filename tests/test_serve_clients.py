"""What real clients send is understood, and the SDKs talk with the real embedded model behind the real command.

The bodies under data/clients were recorded from the clients themselves, their long texts shortened. `scripts/clients.sh`
runs all of these clients for real.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_local_models import embedded  # noqa: F401 (a fixture)

from openclaw_rl.collect.classify import classify
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import RunningServer, ScriptedPolicy, serving, sse_events
from openclaw_rl.types import Turn

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent / "data" / "clients"
EXAMPLES = Path(__file__).parents[1] / "examples"
SESSION = "5e55104a-0000-4000-8000-000000000001"
CALL = '<think>Hm.</think>I look.\n<tool_call>\n{"name": "%s", "arguments": {"x": "y"}}\n</tool_call>'


def replay(server: RunningServer, name: str) -> tuple[Turn, list[tuple[str | None, Any]]]:
    """Send what a client sent; the turn that came of it and the events that the client got."""
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    with server.client(**recorded["headers"]) as client:
        answer = client.post(recorded["path"], json=recorded["body"])
    assert answer.status_code == 200, answer.text
    return server.ledger.last, sse_events(answer.text)


@pytest.mark.parametrize(
    ("name", "session", "client", "roles", "tools", "kind"),
    [
        ("claude_code_tool", SESSION, "claude-cli/2.1.325", "system user system assistant tool", ["Bash"], "main"),
        ("claude_code_resume", SESSION, "claude-cli/2.1.325", "system user system assistant user", ["Bash"], "main"),
        (
            "codex_tool",
            SESSION,
            "codex_exec/0.166.0",
            "system system user user assistant tool",
            ["exec_command"],
            "main",
        ),
        (
            "codex_resume",
            SESSION,
            "codex_exec/0.166.0",
            "system system user user assistant user",
            ["exec_command"],
            "main",
        ),
        ("opencode_title", "ses_", "opencode/1.18.18", "system user user", [], "side"),
        ("opencode_tool", "ses_", "opencode/1.18.18", "system user assistant tool", ["bash"], "main"),
        ("openclaw_second", None, "OpenAI/JS 7.15.0", "system user assistant user", ["exec"], "main"),
    ],
)
def test_what_a_client_sends_is_read_as_it_is_meant(
    name: str, session: str | None, client: str, roles: str, tools: list[str], kind: str
) -> None:
    with serving() as server:
        turn, _ = replay(server, name)
    assert [message.role for message in turn.prompt.messages] == roles.split()
    assert [tool.name for tool in turn.prompt.tools] == tools
    assert turn.client.startswith(client)
    assert (turn.session is None) == (session is None)
    assert (turn.session or "").startswith(session or "")
    assert classify(turn).kind == kind


def test_a_tool_result_stands_behind_the_call_that_asked_for_it_in_every_clients_words() -> None:
    with serving() as server:
        for name in ("claude_code_tool", "codex_tool", "opencode_tool"):
            turn, _ = replay(server, name)
            *_, assistant, result = turn.prompt.messages
            (call,) = assistant.tool_calls
            assert (result.role, result.tool_call_id) == ("tool", call.id)
            assert assistant.content == "I look."
            assert "echo hi" in call.arguments
            assert "hi" in result.content


@pytest.mark.parametrize(
    ("name", "tool", "begins", "last"),
    [
        ("claude_code_tool", "Bash", "message_start", "message_stop"),
        ("codex_tool", "exec_command", "response.created", "response.completed"),
        ("opencode_tool", "bash", None, None),
        ("openclaw_second", "exec", None, None),
    ],
)
def test_a_client_gets_a_call_in_the_events_it_waits_for(
    name: str, tool: str, begins: str | None, last: str | None
) -> None:
    with serving(ScriptedPolicy(CALL % tool)) as server:
        turn, found = replay(server, name)
    assert (found[0][0], found[-1][0]) == (begins, last)
    assert turn.completion.reply.tool_calls[0].name == tool
    told = json.dumps([data for _, data in found])
    assert tool in told
    assert turn.completion.reply.tool_calls[0].id in told
    if last is None:
        assert found[-1][1] == "[DONE]"
        assert found[-2][1]["usage"]["completion_tokens"] == len(turn.completion.reply_tokens)


# --- the real model, the real command, the real SDKs -------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, embedded: Path) -> Iterator[tuple[str, Path]]:  # noqa: F811
    """The command as people start it, with a key; its address and its ledger."""
    run = tmp_path_factory.mktemp("run")
    log = run / "log"
    command = [sys.executable, "-m", "openclaw_rl", "serve", "--port", "0", f"--set=run.dir={run}"]
    with log.open("wb") as sink:
        env = {**os.environ, "OPENCLAW_API_KEY": "key-of-u1", "OPENCLAW_RL_CACHE": str(embedded)}
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=env)
        try:
            yield _address(log, process), run / "ledger.db"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        found = re.search(r"listening on\s+(http://\S+)/v1", log.read_text())
        if found:
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "prefix", "suffix", "turns"), [("openai", "OPENAI", "/v1", 4), ("anthropic", "ANTHROPIC", "", 2)]
)
def test_the_sdk_talks_with_the_embedded_model_and_every_turn_is_kept_with_its_tokens(
    served: tuple[str, Path],
    example: str,
    prefix: str,
    suffix: str,
    turns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, path = served
    monkeypatch.setenv(f"{prefix}_BASE_URL", url + suffix)
    monkeypatch.setenv(f"{prefix}_API_KEY", "key-of-u1")
    with LedgerReader(path) as ledger:
        before = ledger.newest("turns")
        runpy.run_path(str(EXAMPLES / f"client_{example}.py"), run_name="__main__")
        kept = [turn for _, turn in ledger.turns_after(before, 100)]
    said = capsys.readouterr().out
    assert len(kept) == turns
    for turn in kept:
        done = turn.completion
        assert done.reply.content.strip() in said
        assert 0 < len(done.reply_tokens) == len(done.logprobs) <= 32
        assert turn.client.lower().startswith(example)
    first, second = kept[:2]
    assert second.prompt.messages[-2].content == first.completion.reply.content
    assert second.completion.prompt_tokens[: len(first.completion.prompt_tokens)] == first.completion.prompt_tokens
