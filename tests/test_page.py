"""The page without a browser: who comes in, what is shown to whom, what is done with whose key."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from openclaw_rl.app.page import page_app
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.envs.gui.env import ScreenBlobs
from openclaw_rl.errors import NotAllowed
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.page.door import COOKIE, MARK, Door
from openclaw_rl.page.html import el, join, text
from openclaw_rl.page.site import Site, build_site
from openclaw_rl.ports import GateDecision
from openclaw_rl.store import LedgerReader, NotesLedger, Place
from openclaw_rl.testing import (
    FakeClock,
    RunningApp,
    TemporaryLedger,
    fake_config,
    make_completion,
    make_message,
    serving,
    ticking_app,
)
from openclaw_rl.types import Distillation, Hint, Message, Prompt, SessionReward, Step, Version, new_id
from openclaw_rl.views.status import LiveFigures

pytestmark = pytest.mark.anyio

SENTENCE = "Too long. Please keep it under 30 words."
RULE = "Please keep it under 30 words."
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&[click](javascript:alert(3))"
KEYS = {"key-ann": "ann", "key-bob": "bob", "key-owner": "default"}
ACT = {MARK: "1"}


# --- markup ---


def test_text_is_escaped_wherever_it_is_put_in() -> None:
    assert el("p", HOSTILE) == (
        "<p>&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;\"'&amp;"
        "[click](javascript:alert(3))</p>"
    )
    assert el("a", title='"><script>') == '<a title="&quot;&gt;&lt;script&gt;"></a>'
    assert join("<", el("b", "x"), None, ["<i>", el("u")]) == "&lt;<b>x</b>&lt;i&gt;<u></u>"
    assert el("input", type="text", disabled=True, hidden=False) == '<input type="text" disabled />'


@pytest.mark.parametrize(
    ("tag", "attributes"), [("script", {}), ("style", {}), ("iframe", {}), ("p", {"onclick": "x"})]
)
def test_no_script_and_no_style_can_stand_in_markup(tag: str, attributes: Mapping[str, str]) -> None:
    with pytest.raises(AssertionError, match="not allowed in markup"):
        el(tag, **attributes)


def test_a_text_of_a_megabyte_is_cut_with_the_rest_counted() -> None:
    shown = text("x" * 1_000_000)
    assert len(shown) < 21_000
    assert "980,000 characters more" in shown


# --- the door ---


def test_a_login_lasts_twelve_hours_and_wrong_keys_are_slowed_down() -> None:
    now = [0.0]
    door = Door(KEYS, admins=("default",), clock=lambda: now[0])
    token = door.log_in("key-ann", address="10.0.0.1")
    asked = _request(cookie=token)
    assert door.person(asked) is not None
    for _ in range(10):
        with pytest.raises(NotAllowed, match="not known"):
            door.log_in("key-nn", address="10.0.0.1")
    with pytest.raises(NotAllowed, match="too many"):
        door.log_in("key-nn", address="10.0.0.1")
    now[0] = 61.0
    with pytest.raises(NotAllowed, match="not known"):
        door.log_in("key-nn", address="10.0.0.1")
    now[0] = 12 * 3600.0
    assert door.person(asked) is None


def _request(cookie: str) -> Any:
    from starlette.requests import Request

    return Request({"type": "http", "headers": [(b"cookie", f"{COOKIE}={cookie}".encode())]})


@contextmanager
def site(ledger: Place, keys: Mapping[str, str] | None = None, api: Any = None) -> Iterator[httpx2.AsyncClient]:
    """The page over a ledger; ``api`` is what it acts by."""

    def client(key: str | None) -> ApiClient:
        assert api is not None, "this story acts by no API"
        return ApiClient("http://localhost/v1", key=key, transport=httpx2.ASGITransport(app=api))

    app = build_site(
        Site(
            ledger=lambda: LedgerReader(ledger),
            api=client,
            door=Door(keys or {}, admins=("default",)),
            alarms=lambda _: ["the disk is full; free some"],
        )
    )
    yield httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1")


@pytest.fixture
def told(tmp_path: Path) -> Iterator[TemporaryLedger]:
    """See `tell`."""
    with tell(tmp_path / "ledger.db") as ledger:
        yield ledger


@contextmanager
def tell(place: Place) -> Iterator[TemporaryLedger]:
    """Ann's correction led to a note, a distillation and version 1; Bob complained and was not understood."""
    with TemporaryLedger(place=place) as ledger:
        ledger.add(
            -1.0,
            Hint(text=RULE),
            text="What is tea?",
            id="ann1",
            user="ann",
            session="talk-a",
            completion=make_completion("A very long story of tea."),
            outcome={"session": "talk-a", "next_state": (make_message("user", SENTENCE),)},
        )
        said = (make_message("user", f"Hm, no. {HOSTILE}"),)
        ledger.add(
            -1.0,
            text="What is rain?",
            id="bob1",
            user="bob",
            session="talk-b",
            completion=make_completion(HOSTILE),
            outcome={"session": "talk-b", "next_state": said},
        )
        _learned(ledger)
        yield ledger


def _learned(ledger: TemporaryLedger) -> None:
    with NotesLedger(ledger.path) as notes:
        notes.atomically(
            lambda: notes.insert_note(
                user="ann", kind="rule", text=RULE, vague=False, turn="ann1", by="judge", reason="a correction"
            )
        )
        notes.atomically(lambda: notes.insert_change(1, "learned", by="trainer", reason="16 of 16"))
    train = ledger.train
    train.add_version(Version(number=0, parent=None, base="fake", state="live"))
    adapter = str(ledger.folder / "one")
    figures = {"kl": 0.1, "replies": 16, "words": 20.0}
    evidence = {
        "first": {**figures, "met": 0},
        "last": {**figures, "met": 15},
        "with_note": {**figures, "met": 14},
        "steps": 12,
    }
    train.add_distillation(
        Distillation(note=1, step=1, learned=True, evidence=evidence),
        Step(number=1, turns=(), metrics={"loss": 0.5}, seconds=1.0),
        Version(number=1, parent=0, base="fake", adapter=adapter, step=1),
    )
    example = {
        "prompt": "What is tea?",
        "turn": "ann1",
        "live": "A very long story.",
        "candidate": "A leaf.",
        "flaw": None,
    }
    train.add_gate_decision(
        GateDecision(
            version=1, against=0, decision="promote", reason="passed: all", evidence={"examples": [example]}, seconds=2
        )
    )
    train.set_state(1, "live", "passed: all")


async def test_what_was_practised_in_the_prompt_is_told_apart_from_what_was_learned(told: TemporaryLedger) -> None:
    figures = {"kl": 0.0, "replies": 16, "words": 20.0}
    evidence = {
        "first": {**figures, "met": 13},
        "last": {**figures, "met": 16},
        "with_note": {**figures, "met": 12},
        "steps": 16,
        "practised": RULE,
    }
    told.train.add_distillation(
        Distillation(note=1, step=2, learned=False, evidence=evidence),
        Step(number=2, turns=(), metrics={"loss": 0.5}, seconds=1.0),
        Version(number=2, parent=1, base="fake", adapter=str(told.folder / "two"), step=2),
    )
    with site(told.path) as page:
        shown = (await page.get("/learning", params={"turn": "ann1"})).text
        curves = (await page.get("/curves")).text
    practised = shown[shown.index("by training with note 1 in the prompt") :]
    assert "by distilling note 1" in shown
    assert practised.index("13 of 16") < practised.index("16 of 16")
    assert "12 of 16" not in shown
    rate = curves[curves.index("Preference rate") :]
    assert "one point so far, distillation 1" in rate, "what was practised says nothing of replies without the note"


async def test_without_keys_only_names_of_this_machine_are_answered(told: TemporaryLedger) -> None:
    with site(told.path) as page:
        for host, status in {"127.0.0.1": 200, "localhost:31001": 200, "[::1]:1": 200, "evil.example": 403}.items():
            assert (await page.get("/talk", headers={"host": host})).status_code == status, host
        refused = await page.get("/talk", headers={"host": "evil.example"})
        assert "only loopback names" in refused.text


async def test_every_answer_forbids_what_is_not_our_own(told: TemporaryLedger) -> None:
    with site(told.path) as page:
        for path in (
            "/",
            "/talk",
            "/learning",
            "/static/page.js",
            "/static/page.css",
            "/nowhere",
            "/static/../html.py",
        ):
            headers = (await page.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "unsafe" not in policy
            assert "form-action 'none'" in policy, path
            assert headers["x-content-type-options"] == "nosniff"
        searched = (await page.get("/sessions")).headers["content-security-policy"]
        assert ("form-action 'self'" in searched, "default-src 'none'" in searched) == (True, True)
        assert (await page.get("/static/html.py")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "header x-openclaw-page is missing"),
        ({**ACT, "origin": "http://evil.example"}, "another site"),
        ({**ACT, "sec-fetch-site": "cross-site"}, "another site"),
        ({**ACT, "origin": "null"}, "another site"),
    ],
)
async def test_another_site_can_do_nothing_here(told: TemporaryLedger, headers: dict[str, str], why: str) -> None:
    with site(told.path) as page:
        for path in ("/do/notes", "/do/feedback", "/do/login", "/do/logout", "/do/talk"):
            refused = await page.post(path, json={}, headers=headers)
            assert refused.status_code == 403, path
            assert why in refused.json()["error"]


async def test_with_keys_nothing_is_shown_before_a_login(told: TemporaryLedger) -> None:
    with site(told.path, KEYS) as page:
        for path in ("/talk", "/learning", "/learning?turn=ann1"):
            shown = await page.get(path)
            assert shown.status_code == 401
            assert "tea" not in shown.text
        assert (await page.post("/do/notes", json={"text": "x"}, headers=ACT)).status_code == 401
        wrong = await page.post("/do/login", json={"key": "nope"}, headers=ACT)
        assert (wrong.status_code, "not known" in wrong.json()["error"]) == (401, True)


async def logged_in(page: httpx2.AsyncClient, key: str) -> None:
    done = await page.post("/do/login", json={"key": key}, headers=ACT)
    assert done.status_code == 200
    cookie = done.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert key not in cookie


async def test_two_users_do_not_see_each_other_and_an_admin_sees_both(told: TemporaryLedger) -> None:
    with site(told.path, KEYS) as page:
        await logged_in(page, "key-ann")
        own = (await page.get("/learning")).text
        assert "What is tea?" in own
        assert "What is rain?" not in own
        assert "bob" not in own
        assert (await page.get("/learning?turn=bob1")).status_code == 404
        assert "A very long story" in (await page.get("/talk?session=talk-a")).text
        assert "What is rain?" not in (await page.get("/talk?session=talk-b")).text
        again = await page.post("/do/again", json={"turn": "bob1"}, headers=ACT)
        assert (again.status_code, again.json()["error"]) == (404, "there is no turn 'bob1' of yours")
        await page.post("/do/logout", json={}, headers=ACT)
        assert (await page.get("/learning")).status_code == 401
        await logged_in(page, "key-owner")
        both = (await page.get("/learning")).text
        assert "What is tea?" in both
        assert "What is rain?" in both


# --- what is shown ---


async def test_a_correction_is_a_line_from_what_was_said_to_the_answer_now(told: TemporaryLedger) -> None:
    with site(told.path, KEYS) as page:
        await logged_in(page, "key-ann")
        shown = (await page.get("/learning")).text
    parts = [SENTENCE, RULE, "note 1 learned", "Step 1", "version 1: served", "0 of 16", "15 of 16"]
    parts += ["14 of 16", "Gate: passed: all", "before, version 0", "now, version 1", "A leaf."]
    at = 0
    for part in parts:
        assert part in shown[at:], part
        at = shown.index(part, at)


async def test_what_was_not_understood_comes_with_a_button_to_say_what_was_meant(told: TemporaryLedger) -> None:
    with site(told.path, KEYS) as page:
        await logged_in(page, "key-bob")
        shown = (await page.get("/learning")).text
    assert "Not understood (1)" in shown
    assert "&quot;turn&quot;: &quot;bob1&quot;, &quot;thumb&quot;: &quot;down&quot;" in shown
    assert 'data-ask="comment"' in shown


async def test_what_was_taken_as_no_feedback_can_be_called_a_correction(told: TemporaryLedger) -> None:
    talk = (make_message("user", "Could you perhaps be a little brisker?"),)
    told.add(None, text="What is ice?", id="ann2", user="ann", outcome={"session": "talk-c", "next_state": talk})
    with site(told.path, KEYS) as page:
        await logged_in(page, "key-ann")
        shown = (await page.get("/learning")).text
    assert "Treated as ordinary conversation (1)" in shown
    assert "a little brisker?" in shown
    assert "&quot;turn&quot;: &quot;ann2&quot;" in shown


async def test_hostile_text_of_models_and_users_is_only_ever_text(told: TemporaryLedger) -> None:
    with site(told.path) as page:
        for path in ("/learning", "/learning?turn=bob1", "/talk?session=talk-b"):
            shown = (await page.get(path)).text
            assert "<script>alert" not in shown
            assert "<img src=x" not in shown
            assert 'javascript:alert(3))"' not in shown.replace("[click](javascript:alert(3))", "")
        assert "&lt;script&gt;alert(1)" in (await page.get("/learning")).text


async def test_alarms_are_counted_on_every_view(told: TemporaryLedger) -> None:
    with site(told.path) as page:
        assert "1 to look at" in (await page.get("/talk")).text


# --- what is done ---


@asynccontextmanager
async def run(root: Path, *settings: str) -> AsyncIterator[tuple[RunningApp, httpx2.AsyncClient]]:
    """The application on fakes, and the page over it."""
    async with ticking_app(root, "train.batch_size=1", *settings) as app:
        with site(root / "ledger.db", api=app.app.api) as page:
            yield app, page


async def said(page: httpx2.AsyncClient, *contents: str, session: str = "") -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    done = await page.post("/do/talk", json={"session": session, "messages": messages}, headers=ACT)
    return [json.loads(line) for line in done.text.splitlines()]


async def test_a_talk_streams_is_corrected_and_learned_from_before_ones_eyes(tmp_path: Path) -> None:
    async with run(tmp_path) as (app, page):
        begun, *deltas, end = await said(page, "Tell me about tea")
        reply = "".join(delta["text"] for delta in deltas)
        assert (reply, end, begun["version"], begun["notes"]) == (
            "You said: Tell me about tea",
            {"end": True, "version": 0},
            0,
            [],
        )
        await said(page, "Tell me about tea", reply, SENTENCE, session=begun["session"])
        await app.app.finish()
        shown = (await page.get("/learning")).text
        for part in (SENTENCE, RULE, "Step 1", "version 1: served"):
            assert part in shown, part
        assert "note 1" in (await page.get("/talk")).text
        again = (await page.post("/do/again", json={"turn": begun["turn"]}, headers=ACT)).json()
        assert again["version"] == 1
        assert RULE in again["text"], "the version that learned it answers"


async def test_thumbs_edits_and_words_are_feedback_on_the_turn(tmp_path: Path) -> None:
    async with run(tmp_path) as (app, page):
        begun = (await said(page, "What is tea?"))[0]
        for fields in ({"thumb": "up"}, {"edit": "A leaf."}, {"thumb": "down", "comment": RULE}):
            done = await page.post("/do/feedback", json={"turn": begun["turn"], **fields}, headers=ACT)
            assert done.status_code == 200, done.text
        kept = app.ledger.feedback(begun["turn"])
        assert [(one.score, one.edit, one.hint) for one in kept] == [
            (1.0, None, None),
            (None, "A leaf.", None),
            (-1.0, None, RULE),
        ]
        wrong = await page.post("/do/feedback", json={"turn": "none", "thumb": "up"}, headers=ACT)
        assert (wrong.status_code, "no turn" in wrong.json()["error"]) == (404, True)


async def test_notes_are_made_switched_and_removed(tmp_path: Path) -> None:
    async with run(tmp_path) as (app, page):
        await page.post("/do/notes", json={"text": "Use metric units."}, headers=ACT)
        assert "Use metric units." in (await page.get("/talk")).text
        begun = (await said(page, "How far is the moon?"))[0]
        assert begun["notes"] == [1]
        await page.post("/do/notes/1", json={"enabled": False}, headers=ACT)
        assert app.ledger.note(1).state == "off"
        await page.post("/do/notes/1", json={"enabled": True}, headers=ACT)
        assert app.ledger.note(1).state == "in force"
        await page.post("/do/notes/1/remove", json={}, headers=ACT)
        assert app.ledger.note(1).state == "removed"
        gone = await page.post("/do/notes/1", json={"enabled": True}, headers=ACT)
        assert gone.status_code == 404


async def test_a_proposed_note_is_asked_about_with_a_button_for_each_answer(tmp_path: Path) -> None:
    async with run(tmp_path) as (app, page):
        with NotesLedger(tmp_path / "ledger.db") as ledger:
            for text in ("Shorter, please.", "Use metric units."):
                NotesBook(ledger).add(NewNote(user="local", text=text, reach="wish", by="judge", reason="a correction"))
        shown = (await page.get("/talk")).text
        assert shown.count("Did you mean this for all replies?") == 2
        assert 'data-act="/do/notes/1/accept"' in shown
        assert (await said(page, "How far is the moon?"))[0]["notes"] == []
        await page.post("/do/notes/1/accept", json={}, headers=ACT)
        await page.post("/do/notes/2/decline", json={"only_here": True}, headers=ACT)
        assert [note.state for note in app.ledger.notes()] == ["in force", "declined"]
        assert "Did you mean" not in (await page.get("/talk")).text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[]", "must be a JSON object"),
        (b"{", "not valid JSON"),
        (b"{}", "messages: is not a list"),
        (b'{"messages": [{"role": "system", "content": "x"}]}', "messages: a message has a role"),
        (b'{"messages": ["x"]}', "messages: a message has a role"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_the_field(tmp_path: Path, body: bytes, why: str) -> None:
    with TemporaryLedger() as ledger, site(ledger.path) as page:
        refused = await page.post("/do/talk", content=body, headers=ACT)
        assert (refused.status_code, why in refused.json()["error"]) == (400, True)


async def test_a_server_that_is_away_is_said_in_the_reply(tmp_path: Path) -> None:
    config = fake_config(tmp_path, "serve.port=1")
    with TemporaryLedger(tmp_path):
        transport = httpx2.ASGITransport(app=page_app(config))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as page:
            [told] = await said(page, "hello")
            assert "no server answers" in told["error"]
            assert (await page.get("/learning")).status_code == 200, "what was is still to be seen"


# --- versions, curves, sessions ---


async def test_a_person_without_the_right_steers_nothing_and_sees_no_talk_in_versions(told: TemporaryLedger) -> None:
    with site(told.path, KEYS) as page:
        await logged_in(page, "key-bob")
        shown = (await page.get("/versions?version=1")).text
        assert "passed: all" in shown
        assert "What is tea?" not in shown, "the gate's examples of other people's talk"
        listed = (await page.get("/versions")).text
        assert "Version 1" in listed
        assert "Roll back" not in listed
        await logged_in(page, "key-owner")
        assert "A very long story." in (await page.get("/versions?version=1")).text
        assert "Serve the weights of version 0 again?" in (await page.get("/versions")).text


async def test_versions_are_rolled_back_paused_and_pinned_with_who_and_why(tmp_path: Path) -> None:
    async with run(tmp_path) as (app, page):
        begun, *deltas, _ = await said(page, "Tell me about tea")
        await said(
            page, "Tell me about tea", "".join(one["text"] for one in deltas), SENTENCE, session=begun["session"]
        )
        await app.app.finish()

        async def told_to(**given: Any) -> str:
            done = asyncio.create_task(page.post("/do/control", json=given, headers=ACT))
            while not done.done():
                await app.app.tick()
                await asyncio.sleep(0)
            return str((await done).json().get("said") or (await done).json()["error"])

        assert await told_to(command="rollback", reason="worse") == "rollback: done."
        assert (app.ledger.last_live(), app.ledger.version(2).adapter) == (2, None)
        assert "worse (by local)" in app.ledger.history(2)[0].reason
        await told_to(command="pause", reason="holiday")
        assert app.ledger.paused() == "holiday (by local)"
        assert "Resume training" in (await page.get("/versions")).text
        await told_to(command="resume")
        await told_to(command="pin", version=1)
        await told_to(command="pin", turn=begun["turn"])
        assert (app.ledger.pinned(), app.ledger.pinned_turns()) == ({1}, [begun["turn"]])
        await told_to(command="unpin", version=1)
        assert app.ledger.pinned() == set()
        assert "no version" in (await told_to(command="rollback", version=77))
        assert "command" in (await told_to(command="explode"))


async def test_two_versions_answer_the_same_prompts_side_by_side(tmp_path: Path) -> None:
    async with run(tmp_path) as (_, page):
        body = {"first": "0", "second": 0, "prompts": "What is tea?\n\nWhat is rain?"}
        found = (await page.post("/do/compare", json=body, headers=ACT)).json()
        assert found["versions"] == [0, 0]
        assert [row["first"] for row in found["rows"]] == ["You said: What is tea?", "You said: What is rain?"]
        wrong = await page.post("/do/compare", json={**body, "second": "live"}, headers=ACT)
        assert (wrong.status_code, wrong.json()["error"]) == (400, "second: is not a version")


async def test_a_reply_is_shown_by_its_very_tokens(tmp_path: Path) -> None:
    async with run(tmp_path) as (app, page):
        begun = (await said(page, "Hi"))[0]
        found = (await page.post("/do/tokens", json={"turn": begun["turn"]}, headers=ACT)).json()["tokens"]
        kept = app.ledger.turn(begun["turn"]).completion
        assert "".join(text for text, _ in found).startswith("You said: Hi")
        assert [logprob for _, logprob in found] == [round(one, 3) for one in kept.logprobs]
        shown = (await page.get(f"/sessions?turn={begun['turn']}")).text
        assert f"{len(kept.prompt_tokens)} tokens in, {len(kept.reply_tokens)} out" in shown


async def test_sessions_are_found_by_what_was_said_and_by_how_it_went(told: TemporaryLedger) -> None:
    for number in range(70):
        told.add(1.0, text=f"Question {number} about Ärger", user="ann", outcome={"session": f"s{number}"})
    with site(told.path) as page:
        first = (await page.get("/sessions")).text
        assert first.count("<li>") == 30
        more = re.search(r'href="(/sessions\?before=\d+)"', first)
        assert more is not None
        assert "Question 39 " in (await page.get(more[1])).text
        found = (await page.get("/sessions?q=tion%2012%20ABOUT%20ärger")).text
        assert "Question 12 about" in found
        assert "Question 13 about" not in found
        bad = (await page.get("/sessions?only=bad&user=bob")).text
        assert "What is rain?" in bad
        assert "Question" not in bad
        assert "Nothing found" in (await page.get("/sessions?q=no%20such%20words")).text
        assert (await page.get("/sessions?session=none&user=ann")).status_code == 404


async def test_a_session_is_exported_to_whose_it_is(told: TemporaryLedger) -> None:
    with site(told.path, KEYS) as page:
        assert (await page.get("/export?session=talk-a&user=ann")).status_code == 401
        await logged_in(page, "key-ann")
        [line] = (await page.get("/export?session=talk-a&user=ann")).text.splitlines()
        assert json.loads(line)["turns"][0]["response"] == "A very long story of tea."
        assert (await page.get("/export?session=talk-b&user=bob")).status_code == 404


async def test_a_session_is_deleted_from_the_page_after_two_questions(tmp_path: Path) -> None:
    async with run(tmp_path) as (_, page):
        [begun, *_] = await said(page, "Tell me about tea")
        gone = {"session": begun["session"], "user": "local"}
        shown = (await page.get("/sessions", params=gone)).text
        for part in ("Delete this session of local with all its data: 1 turn?", "Nothing was trained on it."):
            assert part in shown, part
        done = (await page.post("/do/delete", json=gone, headers=ACT)).json()
        assert done == {"said": "1 turn deleted; nothing was trained on it.", "go": "/sessions"}
        assert (await page.get("/sessions", params=gone)).status_code == 404
        again = (await page.post("/do/delete", json=gone, headers=ACT)).json()
        assert again == done, "a second time it is told again"
        missing = await page.post("/do/delete", json={"session": "none", "user": "local"}, headers=ACT)
        assert (missing.status_code, "no such session" in missing.json()["error"]) == (404, True)
        foreign = await page.post("/do/delete", json=gone, headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403


async def test_curves_say_what_good_looks_like_and_alarms_come_first(told: TemporaryLedger) -> None:
    with site(told.path) as page:
        shown = (await page.get("/curves")).text
    for part in ("the disk is full", "free some", "Loss", "Falls within a distillation", "Reward", "Preference rate"):
        assert part in shown, part
    assert shown.index("the disk is full") < shown.index("Falls within a distillation")
    assert 'aria-label="Reward: -1 at verdict 1, -1 at 2' in shown


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def play(ledger: TemporaryLedger) -> None:
    """Three episodes of a task, by two versions; the last has a screen, and one that is no picture."""
    for number, score in enumerate((1.0, -1.0, 1.0)):
        named = {"session": f"e{number}"}
        shots = (f"data:image/png;base64,{PIXEL}", "data:image/svg+xml;base64,PHN2Zy8+", "http://127.0.0.1:9/beacon")
        seen = Message(role="user", content=f"$ {HOSTILE}", images=shots)
        after = Message(role="tool", content="3 files", tool_call_id="c", images=shots[:1])
        told = make_completion("ls | wc -l", version=number // 2)
        given = {"group": "count files", "completion": told, "prompt": Prompt(messages=(seen,))}
        came = {**named, "next_state": (after,)}
        ledger.add(0.5, id=f"e{number}-1", user="env:terminal", outcome=came, **given, **named)
        for paid in (-score, score):
            ledger.serve.add_reward(SessionReward(session=f"e{number}", user="env:terminal", score=paid))


async def test_environments_show_what_is_solved_greedily_before_what_was_sampled(told: TemporaryLedger) -> None:
    play(told)
    numbers = {"live": 12, "candidate": 14, "tasks": 16, "lost": 0, "p_value": 1.0}
    checks = [{"name": "tasks", "ok": True, "detail": "", "numbers": numbers}]
    told.train.add_gate_decision(
        GateDecision(version=2, against=1, decision="promote", reason="passed", evidence={"checks": checks}, seconds=1)
    )
    with site(told.path) as page:
        shown = (await page.get("/environments")).text
    greedy = "Held-out tasks solved, greedily: 0.75 at version 1, 0.88 at 2"
    assert greedy in shown
    assert shown.index(greedy) < shown.index("Episodes won, as sampled")


async def test_environments_show_success_by_task_and_version_and_what_was_done(told: TemporaryLedger) -> None:
    play(told)
    with site(told.path) as page:
        shown = (await page.get("/environments")).text
        episodes = (await page.get("/environments?env=terminal&task=count+files")).text
        replay = (await page.get("/environments?env=terminal&session=e2")).text
    for part in ("terminal", "67% of 3 episodes won", "count files", "2 of 3", "+0.33", "0.50 at version 0, 1 at 1"):
        assert part in shown, part
    assert (episodes.count("won +1"), episodes.count("lost -1")) == (2, 1)
    for part in ("Step 1", "ls | wc -l", "worth +0.5", "3 files", "won +1", "part=after", "&lt;script&gt;"):
        assert part in replay, part
    assert "<script>alert" not in replay
    assert "beacon" not in replay


async def test_a_screen_is_a_picture_or_nothing_and_an_admins_to_see(told: TemporaryLedger) -> None:
    play(told)
    with site(told.path, KEYS) as page:
        await logged_in(page, "key-owner")
        asked = [f"turn=e2-1&part=before&number={number}" for number in range(4)]
        found = [await page.get(f"/screen?{query}") for query in (*asked, "turn=e2-1&part=after", "turn=none")]
        assert [one.status_code for one in found] == [200, 404, 404, 404, 200, 404]
        assert (found[0].headers["content-type"], found[0].content[:4]) == ("image/png", b"\x89PNG")
        assert "sandbox" in found[0].headers["content-security-policy"]
    with site(told.path, KEYS) as page:
        assert (await page.get("/screen?turn=e2-1")).status_code == 401
        await logged_in(page, "key-ann")
        hidden = ["/screen?turn=e2-1", "/environments?env=terminal", "/environments?env=terminal&session=e2"]
        assert [(await page.get(one)).status_code for one in hidden] == [404] * 3
        assert "env=terminal" not in (await page.get("/environments")).text


async def test_screens_that_an_environment_kept_stand_at_their_steps(tmp_path: Path) -> None:
    """Two episodes of a task began at once; what their actions came to tells which screens are whose."""
    session, first, second = f"episode-{new_id()}", new_id(), new_id()
    blobs = ScreenBlobs(tmp_path / "screens")
    for name, said in ((first, "clicked Cancel"), (second, "clicked Ok")):
        for step, words in enumerate(("", said)):
            blobs.note(episode=name, task="t", step=step, said=words, screen=blobs.add(f"{name} {step}".encode()))
    with TemporaryLedger(tmp_path) as ledger:
        came = {"session": session, "next_state": (make_message("user", "clicked Ok\nthe page"),)}
        ledger.add(1.0, user="env:gui", session=session, group="t", outcome=came)
        ledger.serve.add_reward(SessionReward(session=session, user="env:gui", score=1.0))
        with site(ledger.path) as page:
            shown = (await page.get(f"/environments?env=gui&session={session}")).text
            strip, steps = shown.split('class="strip"')[1].split("</div>", 1)
            named = re.findall("/screen[?]kept=([0-9a-f]+)", steps)
            found = [(await page.get(f"/screen?kept={name}")).content.decode() for name in named]
            assert found == [f"{second} 0", f"{second} 1"]
            assert re.findall("/screen[?]kept=([0-9a-f]+)", strip) == named, "the same in one row, at the top"
            assert 'href="#step-1"' in strip
            assert 'id="step-1"' in steps
            for name in ("../../ledger.db", "0" * 64, ""):
                assert (await page.get("/screen", params={"kept": name})).status_code == 404
        with site(ledger.path, KEYS) as page:
            await logged_in(page, "key-ann")
            assert (await page.get(f"/screen?kept={named[0]}")).status_code == 404


def test_serving_is_looked_at_every_few_seconds_and_drawn_by_the_minute(told: TemporaryLedger) -> None:
    clock = FakeClock(time.time())
    figures = LiveFigures(clock)
    assert figures.curves() == []
    for tokens, waiting in ((0, 0), (500, 3), (100, 1)):
        load = {"running": 2, "waiting": waiting, "reply_tokens": tokens}
        told.serve.report("serve", state="running", moved=0, failures=0, detail={"load": load})
        figures.look(told.serve)
        figures.look(told.serve)
        clock.now += 5
    queue, served = figures.curves()
    assert [y for _, y in queue.points] == [0, 3, 1], "a second look at once sees nothing new"
    assert served.points == ((-0.08, 100.0),), "a server that began anew is no negative speed"
    clock.now += 60
    figures.look(told.serve)
    assert len(figures.curves()[0].points) == 3, "what a server said a minute ago is not how it does now"


async def test_every_view_is_drawn_from_either_store(place: Place) -> None:
    with tell(place) as told, site(place) as page:
        told.serve.add_reward(SessionReward(session="talk-a", user="ann", score=1.0))
        shown = {}
        for path in (
            *("talk?session=talk-a", "learning", "learning?turn=ann1", "versions", "versions?version=1", "curves"),
            *("environments", "sessions", "sessions?q=story", "sessions?only=bad", "sessions?turn=ann1"),
            *("sessions?session=talk-a&user=ann", "export?session=talk-a&user=ann"),
        ):
            answer = await page.get(f"/{path}")
            assert answer.status_code == 200, path
            shown[path] = answer.text
    assert "A leaf." in shown["learning"]
    assert "A very long story of tea." in shown["sessions?q=story"]
    assert "1 good" not in shown["sessions?only=bad"]
    assert "0 good and 2 bad of 2 scored" in shown["versions"]


# --- the API behind it ---


def test_only_an_admin_controls_a_run_and_a_command_takes_what_it_can_use() -> None:
    submitted: list[tuple[str, int | None, str | None, str]] = []

    def submit(word: str, /, *, version: int | None, turn: str | None, reason: str) -> int:
        submitted.append((word, version, turn, reason))
        return len(submitted)

    with serving(keys=KEYS, admins=("default",), control=submit) as server:

        def control(key: str, **given: Any) -> tuple[int, Any]:
            done = server.post("/v1/control", given, authorization=f"Bearer {key}")
            return done.status_code, done.json()

        status, told = control("key-ann", command="pause")
        assert (status, "serve.admins" in told["error"]["message"]) == (403, True)
        assert control("key-owner", command="rollback", version=3, reason="worse")[1]["request"] == 1
        for given in (
            {"command": "pin"},
            {"command": "pin", "version": 1, "turn": "t"},
            {"command": "pause", "version": 1},
            {"command": "rollback", "turn": "t"},
            {"command": "destroy"},
            {},
        ):
            assert control("key-owner", **given)[0] == 400, given
    assert submitted == [("rollback", 3, None, "worse (by default)")]


def test_tokens_are_their_users_and_an_admins() -> None:
    with serving(keys=KEYS, admins=("default",)) as server:
        turn = server.chat(headers={"authorization": "Bearer key-ann"}).json()["id"]
        server.ledger.wait_for_turns(1)
        found = {key: server.get(f"/v1/turns/{turn}/tokens", authorization=f"Bearer {key}") for key in KEYS}
        assert {key: one.status_code for key, one in found.items()} == {
            "key-ann": 200,
            "key-bob": 404,
            "key-owner": 200,
        }
        reply = found["key-ann"].json()["reply"]
        assert "".join(one["text"] for one in reply).startswith("Hello there.")
        assert reply[0]["logprob"] == server.ledger.last.completion.logprobs[0]
