"""Main or side: the shapes of the real OpenClaw client, and what clients that say nothing may look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.collect.classify import REWRITTEN, ThreadContext, classify, compacted
from openclaw_rl.collect.threads import Threads
from openclaw_rl.types import Completion, Message, Outcome, Prompt, Sampling, Tool, ToolCall, Turn

DATA = Path(__file__).parent / "data"
TOOLS = (Tool(name="exec"),)
RESUMED = "[System] Your previous turn was interrupted by a gateway restart while OpenClaw was waiting on model work."


def message(wire: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(id=each["id"], name=each["function"]["name"], arguments=each["function"]["arguments"])
        for each in wire.get("tool_calls", ())
    )
    return Message(
        role=wire["role"], content=wire.get("content") or "", tool_calls=calls, tool_call_id=wire.get("tool_call_id")
    )


def turn_of(request: dict[str, Any]) -> Turn:
    body = request["body"]
    return asked(
        *map(message, body["messages"]),
        reply=message(request["reply"]),
        tools=tuple(Tool(name=tool["function"]["name"]) for tool in body.get("tools", ())),
        id=request["id"],
        at=float(request["at"]),
        client=request["headers"]["user-agent"],
        session=body.get("prompt_cache_key"),
    )


def asked(*messages: Message, reply: Message | None = None, tools: tuple[Tool, ...] = (), **more: Any) -> Turn:
    completion = Completion(
        reply=reply or Message(role="assistant", content="ok"),
        prompt_tokens=(1,),
        reply_tokens=(2,),
        logprobs=(-0.1,),
        sampling=more.pop("sampling", Sampling()),
        finish="stop",
        version=0,
    )
    return Turn(**{"prompt": Prompt(messages=messages, tools=tools), "completion": completion, "user": "u1", **more})


def says(role: Any, content: str) -> Message:
    return Message(role=role, content=content)


@pytest.mark.parametrize(
    "name", ["conversation", "heartbeat", "compaction", "compaction_plain", "two_sessions", "side_calls"]
)
def test_openclaws_requests_are_understood_without_any_header(name: str) -> None:
    requests = json.loads((DATA / f"openclaw_{name}.json").read_text())["requests"]
    threads, outcomes = Threads(idle=1800.0), dict[str, Outcome]()
    for seq, request in enumerate(requests, 1):
        outcomes |= {outcome.turn: outcome for outcome in threads.add(seq, turn_of(request))}
    outcomes |= {outcome.turn: outcome for outcome in threads.expire(1e9)}
    for request in requests:
        outcome, expected = outcomes[request["id"]], dict(request["expect"])
        seen = {
            "kind": outcome.kind,
            "reason": outcome.kind_reason,
            "parent": outcome.parent,
            "next_state": [[said.role, said.content] for said in outcome.next_state],
            "ended": outcome.ended,
        }
        if "index" in expected:
            seen["index"] = outcome.index
        assert (request["id"], seen) == (request["id"], expected)
    assert len(outcomes) == len(requests)


def test_two_sessions_at_once_keep_their_names() -> None:
    requests = json.loads((DATA / "openclaw_two_sessions.json").read_text())["requests"]
    threads, outcomes = Threads(idle=1800.0), list[Outcome]()
    for seq, request in enumerate(requests, 1):
        outcomes += threads.add(seq, turn_of(request))
    outcomes += threads.expire(1e9)
    names = {request: {o.session for o in outcomes if o.turn[0] == request} for request in "ab"}
    assert names == {"a": {"6f1c2b9e-3a57-4b0e-9d51-7a2f4c8e1b10"}, "b": {"b2d7e0f4-91c3-4e6a-8f2b-0c5d9a7e3f21"}}


def test_what_is_declared_wins_over_every_sign() -> None:
    beat = says("user", "Follow the heartbeat monitor.")
    main = classify(asked(beat, declared="main"))
    side = classify(asked(says("user", "hi"), declared="side"))
    assert (main.kind, main.reason, main.confidence) == ("main", "declared", 1.0)
    assert (side.kind, side.reason, side.confidence) == ("side", "declared", 1.0)


@pytest.mark.parametrize(
    ("messages", "tools", "more", "reason"),
    [
        ([says("system", "You are a title generator."), says("user", "fix the bug")], (), {}, "title"),
        (
            [
                says("system", "Generate a concise session title (3-6 words) from the first message."),
                says("user", "hi"),
            ],
            (),
            {},
            "utility call",
        ),
        (
            [says("system", "You write the live status line for an AI assistant."), says("user", "{}")],
            (),
            {},
            "utility call",
        ),
        ([says("user", "Please write a 5-word title for the following conversation: ...")], (), {}, "title"),
        ([says("system", "Summarize the conversation so far."), says("user", "...")], (), {}, "summary"),
        ([says("user", "a"), says("assistant", "b"), says("user", "Summarize this conversation.")], (), {}, "summary"),
        ([says("user", "positive or negative?")], (), {"sampling": Sampling(max_tokens=1)}, "one-shot utility"),
        ([says("user", "extract")], (), {"sampling": Sampling(json_schema={})}, "one-shot utility"),
        ([says("user", "daily report")], TOOLS, {"session": "openclaw-cron-7"}, "scheduled job"),
        ([says("user", "a"), says("assistant", "b"), says("user", f"Shorter.\n{RESUMED}")], TOOLS, {}, REWRITTEN),
    ],
)
def test_side_calls_give_themselves_away(messages: list[Message], tools: Any, more: Any, reason: str) -> None:
    found = classify(asked(*messages, tools=tools, **more))
    assert (found.kind, found.reason) == ("side", reason)
    assert 0.5 < found.confidence <= 1.0


@pytest.mark.parametrize(
    ("messages", "tools", "context", "reason"),
    [
        ([says("user", "hi")], (), ThreadContext(), "opening"),
        ([says("user", "Give my novel a title and a summary of the plot")], (), ThreadContext(), "opening"),
        ([says("user", "Write a title for my essay")], (), ThreadContext(), "opening"),
        (
            [says("user", "a"), says("assistant", "b"), says("user", "Summarize our chat")],
            (),
            ThreadContext(parent="main"),
            "talk",
        ),
        (
            [says("user", "[Sun 2026-11-15 00:06 UTC] what does 'Follow the heartbeat monitor' mean?")],
            (),
            ThreadContext(),
            "talk",
        ),
        (
            [says("user", "a"), says("assistant", "b"), says("user", "c")],
            (),
            ThreadContext(),
            "talk with an unknown past",
        ),
        (
            [says("user", "a"), says("assistant", "b"), says("tool", "c")],
            TOOLS,
            ThreadContext(parent="main"),
            "tool results",
        ),
        # A long system prompt may speak of summaries; only its opening says what the call is for.
        (
            [says("system", "You help. " * 60 + "You may summarize the conversation."), says("user", "a")],
            (),
            ThreadContext(),
            "opening",
        ),
    ],
)
def test_talk_is_main(messages: list[Message], tools: Any, context: ThreadContext, reason: str) -> None:
    found = classify(asked(*messages, tools=tools), context)
    assert (found.kind, found.reason) == ("main", reason)


def test_in_doubt_a_turn_is_main_and_less_sure() -> None:
    plain = classify(asked(says("user", "hi")))
    equipped = classify(asked(says("user", "hi"), tools=TOOLS))
    talk = classify(
        asked(says("user", "hi"), says("assistant", "yo"), says("user", "so")), ThreadContext(parent="main")
    )
    assert (plain.kind, equipped.kind, talk.kind) == ("main", "main", "main")
    assert plain.confidence < equipped.confidence < talk.confidence


def test_a_side_call_stays_one_over_its_tool_results_and_no_longer() -> None:
    context = ThreadContext(parent="side", reason="sub-agent")
    history = (says("user", "a"), says("assistant", "b"))
    assert classify(asked(*history, says("tool", "c"), tools=TOOLS), context).reason == "sub-agent"
    assert classify(asked(*history, says("user", "c"), tools=TOOLS), context).kind == "main"


def test_a_rollout_is_main_whatever_it_looks_like() -> None:
    found = classify(asked(says("user", "label this"), group="g", sampling=Sampling(max_tokens=1)))
    assert (found.kind, found.reason) == ("main", "rollout")


def test_a_summary_at_the_head_is_seen() -> None:
    assert compacted([says("system", "x"), says("user", "Summary of the conversation: they met.")])
    assert not compacted([says("user", "Summarise chapter one")])
    assert not compacted([says("user", "hi"), says("assistant", "<summary>no</summary>")])
