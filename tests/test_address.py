"""A run remembers where it is served: commands find its server by the run directory alone."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.app import address
from openclaw_rl.app.address import ServerAddress, find_url
from openclaw_rl.app.application import App
from openclaw_rl.cli import cli
from openclaw_rl.config import load
from openclaw_rl.errors import BackendDown

SETS = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules", "serve.port=0")


def found(run: Path, *sets: str) -> str:
    return find_url(load(environ={}, sets=[f"run.dir={run}", *sets]))


def chat(run: Path, *flags: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["chat", "--run-dir", str(run), *flags], input="hello\n")
    return done.exit_code, f"{done.output}{done.exception or ''}"


@pytest.mark.anyio
async def test_chat_finds_the_server_of_a_run_by_its_directory_while_it_listens(tmp_path: Path) -> None:
    run = tmp_path / "run"
    sets = [f"run.dir={run}", *SETS, "serve.api_key=the-key", "serve.model_name=mine"]
    app, stop, urls = App(load(environ={}, sets=sets).config), asyncio.Event(), asyncio.Queue[str]()
    running = asyncio.create_task(app.run(stop, listening=urls.put_nowait))
    url = await urls.get()
    kept = (run / address.FILE).read_text()
    said = json.loads(kept)
    assert len(said.pop("env_key")) > 30, "by which commands on this run act as an environment"
    assert said == {
        "host": "127.0.0.1",
        "port": int(url.removesuffix("/v1").rpartition(":")[2]),
        "model": "mine",
        "pid": os.getpid(),
    }
    assert (run / address.FILE).stat().st_mode & 0o077 == 0
    assert "the-key" not in kept
    assert found(run) == url
    code, said = await asyncio.to_thread(chat, run, "--key", "the-key")
    assert (code, "You said: hello" in said) == (0, True)
    stop.set()
    await running
    assert not (run / address.FILE).exists()


def test_a_server_that_was_killed_is_said_to_be_gone_with_the_line_that_starts_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address.write(tmp_path, ServerAddress.of("127.0.0.1", port, model="fake"))
        assert found(tmp_path) == f"http://127.0.0.1:{port}/v1"
    code, said = chat(tmp_path)
    assert code != 0
    assert f"nothing listens at http://127.0.0.1:{port}/v1, where the run in {tmp_path} was served last" in said
    assert f"openclaw-rl up --run-dir {tmp_path}" in said


def test_a_named_run_without_a_server_is_not_looked_for_where_another_may_listen(tmp_path: Path) -> None:
    with pytest.raises(BackendDown, match=f"no server runs on {tmp_path}"):
        found(tmp_path)
    assert found(tmp_path, "serve.port=8123") == "http://127.0.0.1:8123/v1"


def test_without_a_run_of_its_own_the_configured_address_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_url(load(environ={})) == "http://127.0.0.1:30000/v1"
    assert find_url(load(environ={"OPENCLAW_HOST": "0.0.0.0"})) == "http://127.0.0.1:30000/v1"
    assert find_url(load(environ={"OPENCLAW_HOST": "::"})) == "http://[::1]:30000/v1"


def test_an_address_that_cannot_be_read_or_belongs_to_another_process_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / address.FILE).write_text("{")
    assert address.read(tmp_path) is None
    other = ServerAddress(host="127.0.0.1", port=1, model="fake", pid=os.getpid() + 1)
    address.write(tmp_path, other)
    address.remove(tmp_path)
    assert address.read(tmp_path) == other


def test_a_run_directory_that_cannot_be_written_keeps_nobody_from_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address.write(tmp_path / "none", ServerAddress.of("127.0.0.1", 1, model="fake"))
    assert "could not be written" in caplog.text


@pytest.mark.parametrize("command", ["up", "serve", "status", "chat", "doctor", "versions", "rollback", "export"])
def test_a_command_that_takes_the_run_directory_takes_both_its_names(command: str) -> None:
    shown = CliRunner().invoke(cli, [command, "--help"]).output
    assert "--run-dir, --rl-buffer-dir" in shown
