"""Names of sessions that read as paths, as other alphabets or as options: each reaches its session and is deleted."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from click.testing import CliRunner

from openclaw_rl.app.control import delete_session
from openclaw_rl.cli import cli
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.page.door import MARK, Door
from openclaw_rl.page.site import Site, build_site
from openclaw_rl.store import LedgerReader, ServeLedger
from openclaw_rl.testing import RunningServer, TemporaryLedger, serving, ticking_app

pytestmark = pytest.mark.anyio

NAMES = [
    "agent:main/whatsapp",
    "..",
    ".",
    "../../metrics",
    "a/../b",
    "work/reward",
    "work/end",
    "/",
    "50%2Foff",
    "what?user=bob#x",
    "café 东京",
    "--yes",
    "v1.2",
]


@pytest.fixture
def server(ledger_path: Path) -> Iterator[RunningServer]:
    """A server over a real ledger that deletes as a run does."""

    def delete(session: str, user: str, /, *, by: str) -> Any:
        return delete_session(ledger_path, session, user, by=by)

    with ServeLedger(ledger_path, sync="normal") as ledger, serving(ledger=ledger, delete=delete) as server:
        yield server


def talk(server: RunningServer, name: str) -> str:
    """A turn of a session of this name."""
    answer = server.chat(headers=httpx2.Headers({"x-session-id": name}, encoding="utf-8"))
    assert answer.status_code == 200, answer.text
    turn = str(answer.json()["id"])
    assert turn in server.ledger.turns_of(name, "local"), "the name is kept as it was sent"
    return turn


@pytest.mark.parametrize("name", NAMES)
async def test_the_api_ends_and_deletes_a_session_whatever_its_name(server: RunningServer, name: str) -> None:
    turn = talk(server, name)
    async with ApiClient(f"{server.url}/v1") as api:
        await api.end(name)
        assert (await api.delete_session(name)).startswith("1 turn deleted")
    assert not server.ledger.has_turn(turn)


def test_a_name_with_slashes_is_deleted_quoted_or_not(server: RunningServer) -> None:
    for path in ("agent:main/whatsapp", quote("agent:main/whatsapp", safe="")):
        turn = talk(server, "agent:main/whatsapp")
        done = httpx2.delete(f"{server.url}/v1/sessions/{path}")
        assert (done.status_code, done.json()["session"]) == (200, "agent:main/whatsapp")
        assert not server.ledger.has_turn(turn)


@pytest.mark.parametrize("name", NAMES)
async def test_the_page_goes_on_with_a_session_and_deletes_it_whatever_its_name(
    server: RunningServer, ledger_path: Path, name: str
) -> None:
    turn = talk(server, name)
    page = build_site(
        Site(
            ledger=lambda: LedgerReader(ledger_path),
            api=lambda key: ApiClient(f"{server.url}/v1", key=key),
            door=Door({}, admins=()),
            alarms=lambda _: [],
        )
    )
    transport = httpx2.ASGITransport(app=page)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers={MARK: "1"}) as browser:
        said = await browser.post(
            "/do/talk", json={"session": name, "messages": [{"role": "user", "content": "go on"}]}
        )
        lines = [json.loads(line) for line in said.text.splitlines()]
        assert (lines[0]["session"], lines[-1].get("end")) == (name, True), said.text
        view = await browser.get("/sessions", params={"session": name, "user": "local"})
        assert view.status_code == 200
        done = await browser.post("/do/delete", json={"session": name, "user": "local"})
        assert (done.status_code, done.json().get("go")) == (200, "/sessions"), done.text
    assert not server.ledger.has_turn(turn)
    assert server.ledger.turns_of(name, "local") == []


@pytest.mark.parametrize("name", NAMES)
def test_the_command_deletes_a_session_whatever_its_name(tmp_path: Path, name: str) -> None:
    with TemporaryLedger(tmp_path) as ledger:
        turn = ledger.add(1.0, session=name, user="ann", outcome={"session": name})
        done = CliRunner().invoke(cli, ["delete", "--yes", "--run-dir", str(tmp_path), "--", name])
        assert done.exit_code == 0, done.output
        assert not ledger.train.has_turn(turn.id)


def test_a_name_in_other_bytes_than_utf_8_is_read_as_latin_1(server: RunningServer) -> None:
    client = server.client()
    request = client.build_request(
        "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]}
    )
    request.headers = httpx2.Headers([*request.headers.raw, (b"x-session-id", "café".encode("latin-1"))])
    turn = client.send(request).json()["id"]
    assert server.ledger.turns_of("café", "local") == [turn]


# --- in the log


async def test_no_line_of_the_log_names_a_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = {"x-session-id": "my divorce"}
    with caplog.at_level(logging.INFO):
        async with ticking_app(tmp_path, "train.batch_size=1") as run:
            first = await run.ask("Tell me about tea", headers=name)
            reply = first["choices"][0]["message"]["content"]
            await run.ask("Tell me about tea", reply, "Too long. Please keep it under 30 words.", headers=name)
            await run.ask("/bad", headers={**name, "x-openclaw-rl-train": "off-session"})
            await run.app.finish()
            path = "/v1/sessions/my%20divorce"
            assert (await run.client.post(f"{path}/end")).status_code == 200
            assert (await run.client.delete(path)).status_code == 200
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("openclaw_rl")]
    assert any(first["id"] in line for line in lines)
    assert [line for line in lines if "divorce" in line] == []
