"""Feedback said outright in any client: taken by the gateway, answered in one line, never seen by the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from openclaw_rl.collect.loop import ThreadLookup
from openclaw_rl.errors import LedgerDown
from openclaw_rl.serve.feedback import BAD, FIX, GOOD, LATER, NO_TEXT, NO_TURN, NOT_KEPT, read_remark, without_remarks
from openclaw_rl.testing import RunningServer, ScriptedPolicy, chat_chunks, serving, sse_events, ticking_app
from openclaw_rl.types import Message

RULE = "Answer in one sentence, please."
TEA = "Tell me about tea, which I drink daily."


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving(ScriptedPolicy(lambda prompt: f"You said: {prompt.messages[-1].content}")) as server:
        yield server


def messages(*contents: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]


def chat(server: RunningServer, *contents: str, **fields: Any) -> str:
    answer = server.chat(messages=messages(*contents), **fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def given(server: RunningServer) -> list[tuple[str, float | None, str | None, str]]:
    return [(one.turn, one.score, one.hint, one.source) for one in server.ledger.feedback]


@pytest.mark.parametrize(
    ("words", "thumb", "text"),
    [
        ("/good", "up", None),
        ("  /Good!\n", "up", None),
        ("/bad", "down", None),
        ("👍", "up", None),
        ("👍🏽", "up", None),
        (" 👍🏿 👍🏿\ufe0f ", "up", None),
        ("👎🏻", "down", None),
        (f"/fix {RULE}", "down", RULE),
        ("/fix: two lines,\nplease", "down", "two lines,\nplease"),
        ("/fix", "down", ""),
    ],
)
def test_a_message_that_is_only_a_remark_is_one(words: str, thumb: str, text: str | None) -> None:
    found = read_remark(words)
    assert found is not None
    assert (found.thumb, found.text) == (thumb, text)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "good",
        "/goodbye",
        "/good morning",
        "/fixed it",
        "/fix/this.py",
        "thanks 👍",
        "👍👎",
        "👍" * 6,
        "what does /bad do?",
    ],
)
def test_any_other_message_is_for_the_model(words: str) -> None:
    assert read_remark(words) is None


def test_a_thumb_is_feedback_for_the_turn_before_and_no_turn_itself(server: RunningServer) -> None:
    reply = chat(server, TEA)
    turn = server.ledger.last.id
    answer = server.chat(messages=messages(TEA, reply, "/good"))
    assert answer.json()["choices"][0]["message"]["content"] == GOOD
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert answer.headers["x-openclaw-rl-turn"] == turn
    assert given(server) == [(turn, 1.0, None, "explicit")]
    assert len(server.ledger.turns) == len(server.policy.requests) == 1
    read = server.ledger.last.completion
    assert answer.json()["usage"]["prompt_tokens"] == len(read.prompt_tokens) + len(read.reply_tokens)


def test_the_model_never_sees_a_remark_in_a_later_history(server: RunningServer) -> None:
    reply = chat(server, TEA)
    fix = f"/fix {RULE}"
    assert chat(server, TEA, reply, "👎") == BAD
    assert chat(server, TEA, reply, "👎", BAD, fix) == FIX
    chat(server, TEA, reply, "👎", BAD, fix, FIX, "And coffee?")
    prompt, _, _ = server.policy.requests[-1]
    assert [message.content for message in prompt.messages] == [TEA, reply, "And coffee?"]
    assert server.ledger.last.prompt == prompt
    first = next(iter(server.ledger.turns))
    assert given(server) == [(first, -1.0, None, "explicit"), (first, -1.0, RULE, "explicit")]


def test_a_remark_whose_answer_was_lost_is_taken_out_too() -> None:
    said = [Message(role="user", content=text) for text in ("Tea?", "/good", "And coffee?")]
    kept = without_remarks(said, ThreadLookup(), unanswered=True)
    assert [message.content for message in kept] == ["Tea?", "And coffee?"]
    assert without_remarks(said, ThreadLookup(), unanswered=False) == said, "the model was asked: it may answer"


def test_what_the_model_itself_answered_to_a_remark_stays() -> None:
    said = [
        Message(role="user", content="/good"),
        Message(role="assistant", content="Thank you!"),
        Message(role="user", content="Tea?"),
    ]
    assert without_remarks(said, ThreadLookup(), unanswered=True) == said


def test_openclaws_envelopes_are_no_part_of_a_remark(server: RunningServer) -> None:
    context = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnow: noon\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    asked = f"[Sun 2026-11-15 00:06 UTC] {TEA}\n\nRuntime: agent=main | session=agent:main:k | sessionId=7 | model=x"
    thumb = "[Sun 2026-11-15 00:07 UTC] 👍🏾"

    def ask(*contents: str) -> str:
        whole = [*messages(*contents), {"role": "user", "content": context}]
        return str(server.chat(messages=whole).json()["choices"][0]["message"]["content"])

    reply = ask(asked)
    assert ask(asked, reply, thumb) == GOOD
    assert [one.score for one in server.ledger.feedback] == [1.0]
    ask(asked, reply, thumb, GOOD, "[Sun 2026-11-15 00:08 UTC] And coffee?")
    contents = [message.content for message in server.policy.requests[-1][0].messages]
    assert contents == [asked, reply, "[Sun 2026-11-15 00:08 UTC] And coffee?", context]


def test_a_streamed_chat_is_answered_as_a_stream(server: RunningServer) -> None:
    reply = chat(server, TEA)
    fields = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
    answer = server.chat(messages=messages(TEA, reply, "/bad"), **fields)
    chunks = chat_chunks(answer.text)
    for choice in (0, 1):
        mine = [one["choices"][0] for one in chunks if one["choices"] and one["choices"][0]["index"] == choice]
        assert "".join(one["delta"].get("content", "") for one in mine) == BAD
        assert mine[-1]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 0
    assert len(server.ledger.feedback) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_messages_take_remarks(server: RunningServer, stream: bool) -> None:
    body = {"model": "toy", "max_tokens": 99, "messages": messages(TEA)}
    reply = server.post("/v1/messages", body).json()["content"][0]["text"]
    text = {"type": "text", "text": "<system-reminder>be kind</system-reminder>\n/good"}
    said = [*messages(TEA, reply), {"role": "user", "content": [text]}]
    answer = server.post("/v1/messages", {**body, "messages": said, "stream": stream})
    if stream:
        events = sse_events(answer.text)
        assert (events[0][0], events[-1][0]) == ("message_start", "message_stop")
        shown = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    else:
        assert answer.json()["stop_reason"] == "end_turn"
        shown = answer.json()["content"][0]["text"]
    assert shown == GOOD
    assert [one.score for one in server.ledger.feedback] == [1.0]
    later = [*said, {"role": "assistant", "content": GOOD}, {"role": "user", "content": "Coffee?"}]
    count = server.post("/v1/messages/count_tokens", {**body, "messages": later}).json()["input_tokens"]
    assert count == len(f"user{TEA}assistant{reply}userCoffee?")


@pytest.mark.parametrize("stream", [False, True])
def test_a_chain_of_responses_goes_on_behind_a_remark(server: RunningServer, stream: bool) -> None:
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    first = sdk.responses.create(model="toy", input=TEA)
    body = {"model": "toy", "input": f"/fix {RULE}", "previous_response_id": first.id, "stream": stream}
    answer = server.post("/v1/responses", body)
    noted = sse_events(answer.text)[-1][1]["response"] if stream else answer.json()
    assert noted["status"] == "completed"
    assert noted["output"][0]["content"][0]["text"] == FIX
    assert noted["id"] != first.id
    second = sdk.responses.create(model="toy", input="And coffee?", previous_response_id=noted["id"])
    assert second.output_text == "You said: And coffee?"
    prompt, _, _ = server.policy.requests[-1]
    assert [message.content for message in prompt.messages] == [TEA, first.output_text, "And coffee?"]
    assert given(server) == [(first.id.removeprefix("resp_"), -1.0, RULE, "explicit")]
    rated = server.post("/v1/feedback", {"turn": noted["id"], "thumb": "up"}).json()
    assert rated["turn"] == first.id.removeprefix("resp_"), "the answer's id leads to the turn that it is about"


def test_a_chain_that_begins_with_a_remark_begins_anew(server: RunningServer) -> None:
    noted = server.post("/v1/responses", {"model": "toy", "input": "/good"}).json()
    assert noted["output"][0]["content"][0]["text"] == NO_TURN
    after = {"model": "toy", "input": "Tea?", "previous_response_id": noted["id"]}
    assert server.post("/v1/responses", after).json()["output"][0]["content"][0]["text"] == "You said: Tea?"


def test_without_a_turn_before_it_the_answer_says_so(server: RunningServer) -> None:
    answer = server.chat("/bad")
    assert answer.json()["choices"][0]["message"]["content"] == NO_TURN
    assert "x-openclaw-rl-turn" not in answer.headers
    assert chat(server, TEA, "A reply that nobody gave, or that was rewritten.", "/bad") == NO_TURN
    assert server.ledger.feedback == []
    assert server.policy.requests == []


def test_the_turn_before_is_of_the_same_user_and_conversation() -> None:
    keys = {"key-a": "ann", "key-b": "bob"}
    with serving(keys=keys) as server:
        ann, bob = ({"authorization": f"Bearer {key}"} for key in keys)
        reply = chat(server, TEA, headers=ann)
        assert chat(server, TEA, reply, "/good", headers=bob) == NO_TURN
        named = {**ann, "x-session-id": "another"}
        assert chat(server, TEA, reply, "/good", headers=named) == NO_TURN
        assert chat(server, TEA, reply, "/good", headers=ann) == GOOD


def test_a_fix_says_when_its_text_cannot_be_a_rule(server: RunningServer) -> None:
    reply = chat(server, TEA)
    assert chat(server, TEA, reply, "/fix") == NO_TEXT
    assert server.ledger.feedback == []
    assert chat(server, TEA, reply, "/fix shorter").endswith("it has 7 characters, a rule has 11 to 600.")
    assert [(one.score, one.hint) for one in server.ledger.feedback] == [(-1.0, "shorter")]


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-turn-type": "side"}, {}),
        ({}, {"model": "toy-side"}),
        ({"x-openclaw-rl-group": "g"}, {}),
        ({}, {"response_format": {"type": "json_object"}}),
    ],
)
def test_side_calls_rollouts_and_forms_are_the_models(
    server: RunningServer, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    reply = chat(server, TEA)
    assert GOOD not in chat(server, TEA, reply, "/good", headers=headers, **fields)
    assert server.ledger.feedback == []
    assert len(server.policy.requests) == 2


def test_a_call_that_left_out_the_conversations_tools_is_a_side_call(server: RunningServer) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    reply = chat(server, TEA, tools=tools)
    assert chat(server, TEA, reply, "/good") == "You said: /good"
    assert chat(server, TEA, reply, "/good", tools=tools) == GOOD


def test_a_tools_result_is_no_remark(server: RunningServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        *messages(TEA),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "/good"},
    ]
    assert server.chat(messages=said).json()["choices"][0]["message"]["content"] == "You said: /good"
    assert server.ledger.feedback == []


def test_an_environments_words_are_never_a_remark() -> None:
    with serving(keys={"k": "env:game"}) as server:
        own = {"authorization": "Bearer k"}
        reply = chat(server, TEA, headers=own)
        assert chat(server, TEA, reply, "/good", headers=own) == "Hello there."


def test_switched_off_a_remark_is_a_message_like_any_other() -> None:
    with serving(enabled=False) as server:
        reply = chat(server, TEA)
        assert chat(server, TEA, reply, "/good") == "Hello there."
        assert server.ledger.feedback == []


def test_what_is_not_kept_cannot_be_rated_and_the_answer_says_so() -> None:
    with serving(intercept=False) as server:
        assert chat(server, TEA, chat(server, TEA), "/good") == NOT_KEPT


def test_a_ledger_that_is_down_is_told_and_fails_no_request(server: RunningServer, monkeypatch: Any) -> None:
    reply = chat(server, TEA)

    def down(feedback: object) -> None:
        raise LedgerDown("the disk is full", why="the disk is full", remedy="make room")

    monkeypatch.setattr(server.ledger, "add_feedback", down)
    assert chat(server, TEA, reply, "/good") == LATER


@pytest.mark.anyio
async def test_the_verdict_is_explicit_and_the_next_turn_still_finds_its_parent(tmp_path: Path) -> None:
    async with ticking_app(tmp_path, "train.batch_size=9") as run:
        first = await run.ask(TEA)
        reply = first["choices"][0]["message"]["content"]
        noted = (await run.ask(TEA, reply, f"/fix {RULE}"))["choices"][0]["message"]["content"]
        coffee = "And how is coffee made, step by step?"
        second = await run.ask(TEA, reply, f"/fix {RULE}", noted, coffee, headers={"x-session-done": "true"})
        await run.app.finish()
        shown, after = run.show(first["id"]), run.show(second["id"])
    assert (shown["verdict"]["score"], shown["verdict"]["source"]) == (-1.0, "explicit")
    assert [(hint["kind"], hint["text"]) for hint in shown["verdict"]["hints"]] == [("rule", RULE)]
    assert [message["content"] for message in shown["next_state"]] == [coffee]
    assert after["parent"] == first["id"]
    assert "/fix" not in str(after["prompt"])
