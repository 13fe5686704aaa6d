"""JSON that is made to break its reader: halves of characters, great depth, huge numbers; each is refused where it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from test_page import site

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.envs.actions import calls_of
from openclaw_rl.envs.play.forwarder import GatewayForwarder
from openclaw_rl.envs.pool.leases import EnvPool, EventLog
from openclaw_rl.envs.pool.server import pool_app
from openclaw_rl.envs.toolcall.tools_config import written_calls
from openclaw_rl.formats.reply_parser import ReplyParser
from openclaw_rl.page.door import MARK
from openclaw_rl.store import ImportLedger, LedgerReader
from openclaw_rl.testing import FakeClock, FakeEnv, TemporaryLedger, serving
from openclaw_rl.types import Message, Prompt, Tool, ToolCall
from openclaw_rl.views import transcripts

pytestmark = pytest.mark.anyio

DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = {
    "half a character": r'"\ud83d"',
    "100,000 levels": DEEP,
    "900 levels": "[" * 900 + "]" * 900,
    "a number of 5,000 digits": "9" * 5000,
    "a number beyond all": "1e999",
    "not a number": "NaN",
}
REFUSED = [name for name in HOSTILE if name != "half a character"]
"""half a character is read as U+FFFD where a person or a program may send it again"""

# --- the page


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    with serving() as server, TemporaryLedger(tmp_path) as ledger, site(ledger.path, api=server.app) as page:
        page.headers[MARK] = "1"
        yield page


ACTS = ["login", "talk", "feedback", "notes", "notes/1", "again", "control", "compare", "tokens", "delete"]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", HOSTILE)
async def test_no_act_of_the_page_fails_by_its_body(page: httpx2.AsyncClient, act: str, name: str) -> None:
    for body in (f'{{"key": {HOSTILE[name]}, "x": 1}}', HOSTILE[name]):
        answer = await page.post(f"/do/{act}", content=body.encode())
        assert answer.status_code in (400, 401, 404, 413), answer.text
        assert answer.json()["error"]


async def test_half_a_character_as_a_key_is_a_wrong_key(tmp_path: Path) -> None:
    with TemporaryLedger(tmp_path) as ledger, site(ledger.path, {"key-ann": "ann"}) as page:
        answer = await page.post("/do/login", content=rb'{"key": "\ud83d"}', headers={MARK: "1"})
    assert (answer.status_code, "not known" in answer.json()["error"]) == (401, True)


@pytest.mark.parametrize("origin", ["http://[::1", "http://[x]]:80", "//[", "http://evil.example", "null"])
async def test_an_origin_that_is_no_address_is_refused_by_the_page(page: httpx2.AsyncClient, origin: str) -> None:
    for path in ("/do/login", "/do/logout", "/do/talk"):
        answer = await page.post(path, json={}, headers={"origin": origin})
        assert answer.status_code in (400, 403), answer.text
        assert answer.json()["error"]


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5000, "-1", "0"])
async def test_a_number_of_a_note_that_is_none_is_not_there(tmp_path: Path, number: str) -> None:
    with serving() as server, TemporaryLedger(tmp_path) as ledger, site(ledger.path, api=server.app) as page:
        for path in (f"/do/notes/{number}", f"/do/notes/{number}/remove"):
            assert (await page.post(path, json={"enabled": True}, headers={MARK: "1"})).status_code == 404, path
        for path in (f"/v1/notes/{number}",):
            assert server.get(path).status_code == 404


async def test_a_version_of_5000_digits_is_no_version(page: httpx2.AsyncClient) -> None:
    body = {"prompts": "a", "first": "9" * 5000, "second": "٣"}
    answer = await page.post("/do/compare", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "first: is not a version")


# --- a pool of environments


@pytest.mark.parametrize("name", REFUSED)
async def test_a_pool_refuses_a_body_that_cannot_be_read(name: str) -> None:
    pool = EnvPool(lambda: FakeEnv(rewards=(0.0, 1.0)), capacity=1, ttl=60.0, events=EventLog(), clock=FakeClock())
    transport = httpx2.ASGITransport(app=pool_app(pool, key="k"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://one") as client:
        for path in ("/v1/leases", "/v1/leases/x/step", "/v1/leases/x/outcome"):
            body = f'{{"task": "a", "seed": 1, "request": "r", "reply": {{"content": {HOSTILE[name]}}}}}'
            answer = await client.post(path, content=body.encode(), headers={"authorization": "Bearer k"})
            assert answer.status_code == 400
            assert answer.json()["error"]["message"]
    await pool.close()


# --- an import


GOOD = '{"session_id": "good", "turns": [{"prompt": "a", "response": "b"}]}'
PLACES = {
    "a message": '{{"session_id": "bad", "turns": [{{"prompt": {value}, "response": "b"}}]}}',
    "a reply": '{{"session_id": "bad", "turns": [{{"prompt": "a", "response": {value}}}]}}',
    "a field of a turn": '{{"session_id": "bad", "turns": [{{"prompt": "a", "response": "b", "more": {value}}}]}}',
    "a field of a conversation": '{{"session_id": "bad", "more": {value}, "turns": [{{"prompt": "a", "response": "b"}}]}}',
    "a tool": '{{"session_id": "bad", "turns": [{{"messages": [{{"role": "user", "content": "a"}}], "response": "b",'
    ' "tools": [{{"name": "f", "parameters": {{"x": {value}}}}}]}}]}}',
    "a name": '{{"session_id": {value}, "turns": [{{"prompt": "a", "response": "b"}}]}}',
    "a whole line": "{value}",
}


async def imported(folder: Path, *lines: str, between: str = "\n") -> transcripts.ImportReport:
    file = folder / "talk.jsonl"
    file.write_text(between.join(lines))
    with ImportLedger(folder / "ledger.db", sync="normal") as ledger:
        return await transcripts.import_file(ledger, file, FakePolicy(), user="u")


@pytest.mark.parametrize("name", ["half a character", "100,000 levels", "900 levels", "a number of 5,000 digits"])
@pytest.mark.parametrize("place", PLACES)
async def test_an_import_refuses_a_record_by_its_line_and_takes_the_next(tmp_path: Path, place: str, name: str) -> None:
    report = await imported(tmp_path, GOOD, PLACES[place].format(value=HOSTILE[name]), GOOD.replace("good", "next"))
    assert report.sessions == 2
    [refused] = report.refused
    assert refused.startswith(f"{tmp_path}/talk.jsonl:2: "), refused
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert [session for session, _ in ledger.sessions()] == ["good", "next"]


@pytest.mark.parametrize(("name", "why"), [
    ("half a character", "2: turns[0]: holds half a character, or bytes that are not UTF-8"),
    ("100,000 levels", "2: nested more than 64 levels deep"),
    ("a number of 5,000 digits", "2: a number has too many digits"),
])  # fmt: skip
async def test_a_refusal_of_an_import_says_what_is_wrong(tmp_path: Path, name: str, why: str) -> None:
    report = await imported(tmp_path, GOOD, PLACES["a field of a turn"].format(value=HOSTILE[name]))
    assert report.refused == [f"{tmp_path}/talk.jsonl:{why}"]


async def test_a_list_with_a_broken_record_is_read_on_at_the_next_line(tmp_path: Path) -> None:
    bad = PLACES["a reply"].format(value=DEEP)
    report = await imported(tmp_path, "[", GOOD + ",", bad + ",", GOOD.replace("good", "next"), "]")
    assert (report.sessions, len(report.refused)) == (2, 1)


async def test_a_reply_that_a_user_gave_is_refused_as_no_reply(tmp_path: Path) -> None:
    report = await imported(tmp_path, PLACES["a reply"].format(value='{"role": "user", "content": "x"}'), GOOD)
    assert report.sessions == 1
    assert report.refused == [f"{tmp_path}/talk.jsonl:1: turns[0].response.role: must be assistant"]


# --- what a model writes

TOOL = Tool(name="f", parameters={"type": "object", "properties": {"a": {}}})
CALLS = ["[]:1", "{}:1", "**{}", "[]", "[]:1, **x"]


@pytest.mark.parametrize("inside", CALLS)
def test_a_call_with_a_list_for_a_key_is_a_call_with_a_fault(inside: str) -> None:
    [call] = written_calls(f"f(a={{{inside}}})", (TOOL,))
    assert (call.tool, call.arguments, call.fault) == ("f", {}, "an argument is no plain value")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("reads", ["hermes", "llama", "pythonic", "harmony"])
def test_no_reply_of_a_model_breaks_the_reading_of_calls(reads: str, name: str) -> None:
    value = HOSTILE[name]
    for reply in (
        f'<tool_call>\n{{"name": "f", "arguments": {{"a": {value}}}}}\n</tool_call>',
        f'<tool_call>\n{{"name": "f", "arguments": {value}}}\n</tool_call>',
        f'{{"name": "f", "parameters": {{"a": {value}}}}}',
        f"[f(a={value})]",
        "[f(a={[]:1})]",
        f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{value}<|call|>",
        f'<|channel|>commentary to=functions.f <|message|>{{"a": {value}}}<|call|>',
    ):
        prompt = Prompt(messages=(Message(role="user", content="x"),), tools=(TOOL,))
        parser = ReplyParser(prompt, tool_format=reads, reasoning="tags")
        parser.feed(reply)
        parser.end(cut=False)
        message = parser.message()
        assert len(message.tool_calls) <= 1
        assert len(calls_of(message, (TOOL,))) == len(message.tool_calls)


@pytest.mark.parametrize("name", REFUSED[:3])
def test_arguments_that_cannot_be_read_are_a_fault_of_the_call(name: str) -> None:
    call = ToolCall(id="c", name="f", arguments=f'{{"a": {HOSTILE[name]}}}')
    [action] = calls_of(Message(role="assistant", tool_calls=(call,)), (TOOL,))
    assert action.fault.startswith(("the arguments are no JSON", "the arguments have over 64 levels"))


@pytest.mark.parametrize("name", HOSTILE)
async def test_the_way_from_a_sandbox_passes_a_body_that_it_cannot_read_to_the_gateway(name: str) -> None:
    with serving() as server:
        async with httpx2.AsyncClient() as upstream:
            forwarder = GatewayForwarder(upstream, root=server.url, headers={}, max_calls=5, temperature=0.5)
            transport = httpx2.ASGITransport(app=forwarder.app())
            async with httpx2.AsyncClient(transport=transport, base_url="http://inside") as client:
                body = f'{{"messages": [{{"role": "user", "content": {HOSTILE[name]}}}]}}'
                answer = await client.post("/v1/chat/completions", content=body.encode())
    assert answer.status_code == (200 if name == "half a character" else 400), answer.text


async def test_a_client_that_reads_a_deep_answer_says_that_it_is_none(tmp_path: Path) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=DEEP.encode())

    async with ApiClient("http://here/v1", transport=httpx2.MockTransport(answer)) as api:
        with pytest.raises(Exception, match="no OpenClaw-RL server"):
            await api.models()
