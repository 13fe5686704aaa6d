"""A correction holds from the next turn on: through the API, the loops and the ledger, on the shipped fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.app.application import ledger_place
from openclaw_rl.notes import NotesBook
from openclaw_rl.store import NotesLedger
from openclaw_rl.testing import RunningApp, ticking_app
from openclaw_rl.types import PromptNote

CORRECTION = "Too long. Please answer in one sentence."
RULE = "Please answer in one sentence."


async def correct(
    run: RunningApp, said: str = CORRECTION, *, about: str = "tea", headers: dict[str, str] | None = None
) -> None:
    """A request, a reply, a correction of it, and the loops until nothing moves."""
    first = await run.ask(f"Tell me about {about}", headers=headers)
    reply = first["choices"][0]["message"]["content"]
    await run.ask(f"Tell me about {about}", reply, said, headers=headers)
    await run.app.finish()


async def noted(run: RunningApp, *contents: str, headers: dict[str, str] | None = None, **fields: Any) -> str | None:
    """What was put into the prompt of a request."""
    answer = await run.ask(*contents, headers=headers, **fields)
    turn = run.ledger.turn(answer["id"])
    assert [message.content for message in turn.prompt.messages if message.role != "system"] == list(contents)
    return None if turn.noted is None else turn.noted.text


NO_STEPS = "train.batch_size=1000"


async def test_a_correction_is_in_the_next_prompt_and_the_turn_keeps_both(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        plain = await run.ask("What is coffee?")
        await correct(run)
        answer = await run.ask("What is coffee?")
        before, after = (run.ledger.turn(one["id"]) for one in (plain, answer))
        assert before.noted is None
        assert after.noted == PromptNote(text=RULE, notes=(1,))
        assert after.prompt == before.prompt
        assert after.sent.messages[-1].content == f"What is coffee?\n\n{RULE}"
        assert run.app.policy is not None
        assert after.completion.prompt_tokens == await run.app.policy.encode(after.sent)
        assert before.completion.prompt_tokens == await run.app.policy.encode(before.prompt)


async def test_a_prompt_is_as_it_was_where_there_is_no_note(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run, "Thanks, that's perfect!")
        assert await noted(run, "What is coffee?") is None


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-openclaw-rl-notes": "off"}, {}),
        ({"x-turn-type": "side"}, {}),
        ({}, {"model": "fake-side"}),
        ({}, {"model": "fake@0"}),
        ({}, {"response_format": {"type": "json_object"}}),
    ],
    ids=["off", "side", "side model", "a version by number", "a prescribed form"],
)
async def test_some_requests_go_without_notes(tmp_path: Path, headers: dict[str, str], fields: dict[str, Any]) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run)
        assert await noted(run, "What is coffee?") == RULE
        assert await noted(run, "What is coffee?", headers=headers, **fields) is None


async def test_a_run_without_notes_makes_none(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS, "notes.enabled=false") as run:
        await correct(run)
        assert await noted(run, "What is coffee?") is None
        assert run.ledger.notes() == []


async def test_the_note_after_the_last_message_breaks_no_conversation(tmp_path: Path) -> None:
    """The client's history has no notes in it, and its turns are found all the same."""
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run)
        first = await run.ask("What is coffee?")
        reply = first["choices"][0]["message"]["content"]
        second = await run.ask("What is coffee?", reply, "And what is cocoa?")
        await run.app.finish()
        outcome = run.ledger.outcome(first["id"])
        assert outcome is not None
        assert [message.content for message in outcome.next_state] == ["And what is cocoa?"]
        assert run.ledger.turn(second["id"]).sent.messages[-1].content == f"And what is cocoa?\n\n{RULE}"


async def test_the_newer_correction_is_the_one_that_holds(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run)
        await correct(run, "That's too short. From now on, answer in full detail.", about="rice")
        assert await noted(run, "What is coffee?") == "From now on, answer in full detail."


async def test_what_is_said_outright_holds_in_the_very_next_turn(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        first = await run.ask("Tell me about tea")
        body = {"turn": first["id"], "thumb": "down", "comment": RULE}
        assert (await run.client.post("/v1/feedback", json=body)).status_code == 200
        await run.app.loops["judge"].tick()
        assert await noted(run, "What is coffee?") == RULE


async def test_a_complaint_that_says_what_a_learned_note_said_brings_the_note_back(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run, "Too long. Please answer in under 30 words.")
        with NotesLedger(ledger_place(run.app.config)) as ledger:
            book = NotesBook(ledger)
            book.advance(1, "learned", "version 1 does it")
            assert await noted(run, "What is coffee?") is None, "the weights do it"
            await correct(run, "That was too long again, shorter please!", about="rice")
            assert await noted(run, "What is coffee?") == "Please answer in under 30 words.", "they did not"
            last = book.history(1)[-1]
        assert (last.state, last.by, last.reason) == ("in force", "judge", "the user said it again")
        assert len(run.ledger.notes()) == 1


def keys(root: Path, *users: str) -> tuple[str, dict[str, dict[str, str]]]:
    file = root / "keys"
    file.write_text("".join(f"{user}:{user}-secret-key\n" for user in users))
    file.chmod(0o600)
    return f"serve.keys_file={file}", {user: {"authorization": f"Bearer {user}-secret-key"} for user in users}


async def test_three_users_with_opposite_preferences_each_have_their_own_note(tmp_path: Path) -> None:
    setting, key = keys(tmp_path, "ann", "bob", "cid")
    wanted = {
        "ann": "Please answer in one sentence.",
        "bob": "Please answer in at least 100 words.",
        "cid": "Please use bullet points.",
    }
    async with ticking_app(tmp_path, NO_STEPS, setting) as run:
        for user, rule in wanted.items():
            await correct(run, rule, headers=key[user])
        found = {user: await noted(run, "What is coffee?", headers=key[user]) for user in wanted}
        assert found == wanted | {"cid": "Please answer with a bulleted list of short points."}


async def test_a_user_sees_and_changes_only_own_notes_over_the_api(tmp_path: Path) -> None:
    setting, key = keys(tmp_path, "ann", "bob")
    async with ticking_app(tmp_path, NO_STEPS, setting) as run:
        client = run.client
        made = (await client.post("/v1/notes", json={"text": RULE}, headers=key["ann"])).json()
        assert (made["number"], made["user"], made["state"], made["new"]) == (1, "ann", "in force", True)
        assert (await client.get("/v1/notes", headers=key["bob"])).json()["data"] == []
        for method, body in (("GET", None), ("PATCH", {"enabled": False}), ("DELETE", None)):
            answer = await client.request(method, "/v1/notes/1", json=body, headers=key["bob"])
            assert (answer.status_code, answer.json()["error"]["message"]) == (404, "there is no note 1 of yours")
        assert (await client.get("/v1/notes")).status_code == 401
        mine = (await client.get("/v1/notes", headers=key["ann"])).json()
        assert [(note["text"], note["state"]) for note in mine["data"]] == [(RULE, "in force")]
        edited = await client.patch("/v1/notes/1", json={"text": "Answer in two sentences."}, headers=key["ann"])
        assert (edited.json()["number"], edited.json()["replaced"]) == (2, [1])
        assert await noted(run, "What is coffee?", headers=key["ann"]) == "Please answer in two sentences."
        off = await client.patch("/v1/notes/2", json={"enabled": False}, headers=key["ann"])
        assert off.json()["state"] == "off"
        assert await noted(run, "What is coffee?", headers=key["ann"]) is None
        history = (await client.get("/v1/notes/2", headers=key["ann"])).json()["history"]
        assert [(change["state"], change["by"]) for change in history] == [("in force", "user"), ("off", "user")]
        assert (await client.delete("/v1/notes/2", headers=key["ann"])).json()["state"] == "removed"
        assert (await client.get("/v1/notes/2", headers=key["ann"])).status_code == 404


async def test_a_user_switches_all_notes_off_over_the_api(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await run.client.post("/v1/notes", json={"text": RULE})
        assert (await run.client.patch("/v1/notes", json={"enabled": False})).json()["enabled"] is False
        assert await noted(run, "What is coffee?") is None
        assert (await run.client.patch("/v1/notes", json={"enabled": True})).json()["enabled"] is True
        assert await noted(run, "What is coffee?") == RULE


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/v1/notes", {}, "text: is missing"),
        ("POST", "/v1/notes", {"text": "  \n "}, "text: a note needs a text"),
        ("POST", "/v1/notes", {"text": "x" * 601}, "text: 601 characters, a note has at most 600"),
        ("POST", "/v1/notes", {"text": "hi there", "kind": "wish"}, "kind: must be one of rule, fact"),
        ("PATCH", "/v1/notes", {"enabled": "no"}, "enabled: must be true or false, not text"),
        ("PATCH", "/v1/notes/1", {}, "text: set either text or enabled"),
    ],
)
async def test_a_wrong_value_is_refused_with_its_field(
    tmp_path: Path, method: str, path: str, body: dict[str, Any], message: str
) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await run.client.post("/v1/notes", json={"text": RULE})
        answer = await run.client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


async def test_the_reply_names_the_notes_that_were_put_into_its_prompt(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await run.client.post("/v1/notes", json={"text": RULE})
        await run.client.post("/v1/notes", json={"text": "I am vegetarian.", "kind": "fact"})
        body = {"model": "fake", "messages": [{"role": "user", "content": "What shall I cook?"}]}
        answer = await run.client.post("/v1/chat/completions", json=body)
        assert answer.headers["x-openclaw-rl-notes"] == "2,1"
        wrong = await run.client.post("/v1/chat/completions", json=body, headers={"x-openclaw-rl-notes": "maybe"})
        assert wrong.json()["error"]["message"] == "x-openclaw-rl-notes: must be on or off"


async def test_a_proposed_note_is_listed_accepted_and_then_in_the_prompt(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run, "Shorter, please.")
        assert await noted(run, "What is coffee?") is None
        [asked] = (await run.client.get("/v1/notes?state=proposed")).json()["data"]
        assert (asked["number"], asked["state"]) == (1, "proposed")
        assert (await run.client.get("/v1/notes?state=in%20force")).json()["data"] == []
        accepted = (await run.client.post("/v1/notes/1/accept")).json()
        assert (accepted["state"], accepted["replaced"]) == ("in force", [])
        assert await noted(run, "What is coffee?") == asked["put"]
        again = await run.client.post("/v1/notes/1/accept")
        assert (again.status_code, again.json()["error"]["message"]) == (
            400,
            "number: note 1 is in force, only a proposed one can be accepted",
        )


@pytest.mark.parametrize(
    ("body", "reason"),
    [(None, "the user said no"), ({}, "the user said no"), ({"only_here": True}, "the user meant it for one reply")],
)
async def test_a_declined_note_is_asked_about_no_more(tmp_path: Path, body: dict[str, Any] | None, reason: str) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run, "Shorter, please.")
        declined = await run.client.post("/v1/notes/1/decline", json=body)
        assert (declined.status_code, declined.json()["state"]) == (200, "declined")
        history = (await run.client.get("/v1/notes/1")).json()["history"]
        assert [(change["state"], change["reason"]) for change in history[1:]] == [("declined", reason)]
        await correct(run, "Shorter, please.", about="rice")
        assert (await run.client.get("/v1/notes?state=proposed")).json()["data"] == []


async def test_a_user_answers_only_own_questions(tmp_path: Path) -> None:
    setting, key = keys(tmp_path, "ann", "bob")
    async with ticking_app(tmp_path, NO_STEPS, setting) as run:
        await correct(run, "Shorter, please.", headers=key["ann"])
        for answer in ("accept", "decline"):
            refused = await run.client.post(f"/v1/notes/1/{answer}", headers=key["bob"])
            assert (refused.status_code, refused.json()["error"]["message"]) == (404, "there is no note 1 of yours")
        assert (await run.client.get("/v1/notes?state=proposed", headers=key["bob"])).json()["data"] == []
        assert len((await run.client.get("/v1/notes?state=proposed", headers=key["ann"])).json()["data"]) == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "/v1/notes?state=perhaps", None, "state: must be one of proposed, in force"),
        ("GET", "/v1/notes?state=", None, "state: must be one of proposed, in force"),
        ("POST", "/v1/notes/1/decline", {"only_here": "no"}, "only_here: must be true or false, not text"),
    ],
)
async def test_a_wrong_answer_is_refused_with_its_field(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None, message: str
) -> None:
    async with ticking_app(tmp_path, NO_STEPS) as run:
        await correct(run, "Shorter, please.")
        answer = await run.client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["message"][: len(message)]) == (400, message)
