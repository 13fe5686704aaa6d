"""Requests of the real OpenClaw, recorded and shortened: what comes of them when it says all it can, or nothing.

Each file of tests/data/openclaw holds requests as a gateway of version 2026.9.6 sent them, in order, with the reply it
got. System prompts are cut, of the tools only names are left, paths and hosts are made up; the rest is as it came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.collect.threads import Threads
from openclaw_rl.serve.auth import read_headers
from openclaw_rl.serve.wire.chat import ChatWire
from openclaw_rl.testing import request_limits
from openclaw_rl.types import Completion, Message, Outcome, Sampling, ToolCall, Turn

DATA = Path(__file__).parent / "data" / "openclaw"
FILES = sorted(path.stem for path in DATA.glob("*.json"))
Headers = Mapping[str, str]


def all_of_them(headers: Headers) -> Headers:
    return headers


def without_the_plugin(headers: Headers) -> Headers:
    said = ("x-session-id", "x-turn-type")
    return {name: value for name, value in headers.items() if name not in said and not name.startswith("x-openclaw")}


def none_of_them(headers: Headers) -> Headers:
    return {"user-agent": headers["user-agent"]}


def turn_of(request: dict[str, Any], heard: Callable[[Headers], Headers]) -> Turn:
    """The turn that serving would keep: parsed by the same code, the reply as it was."""
    silent = heard is none_of_them
    body = {name: value for name, value in request["body"].items() if not (silent and name == "prompt_cache_key")}
    parsed = ChatWire(Sampling()).parse(body, request_limits())
    marks = read_headers(heard(request["headers"]))
    side = parsed.model.endswith("-side") and not silent
    reply = request["reply"]
    calls = tuple(
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in reply.get("tool_calls", ())
    )
    completion = Completion(
        reply=Message(role="assistant", content=reply["content"], tool_calls=calls),
        prompt_tokens=(1,),
        reply_tokens=(2,),
        logprobs=(-0.1,),
        sampling=parsed.sampling,
        finish="stop",
        version=0,
    )
    return Turn(
        id=request["id"],
        prompt=parsed.prompt,
        completion=completion,
        user="u1",
        session=marks.session or parsed.guessed_session,
        declared="side" if side else marks.declared,
        client=marks.client,
        at=float(request["at"]),
    )


def collected(name: str, heard: Callable[[Headers], Headers]) -> dict[str, Outcome]:
    threads, found = Threads(idle=1800.0), list[Outcome]()
    for seq, request in enumerate(requests(name), 1):
        found += threads.add(seq, turn_of(request, heard))
    return {outcome.turn: outcome for outcome in (*found, *threads.expire(1e9))}


def requests(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text())["requests"]
    return found


@pytest.mark.parametrize("heard", [all_of_them, without_the_plugin, none_of_them])
@pytest.mark.parametrize("name", FILES)
def test_the_same_is_found_whatever_openclaw_says_of_itself(name: str, heard: Callable[[Headers], Headers]) -> None:
    outcomes = collected(name, heard)
    for request in requests(name):
        outcome = outcomes[request["id"]]
        seen = {
            "kind": outcome.kind,
            "parent": outcome.parent,
            "next_state": [[said.role, said.content] for said in outcome.next_state],
            "ended": outcome.ended,
        }
        assert (request["id"], seen) == (request["id"], request["expect"])
    assert len(outcomes) == len(requests(name))


@pytest.mark.parametrize("heard", [all_of_them, without_the_plugin, none_of_them])
def test_two_conversations_at_once_keep_their_own_names(heard: Callable[[Headers], Headers]) -> None:
    outcomes = collected("two_at_once", heard)
    first, second = (outcomes[turn].session.partition(":")[0] for turn in ("a00", "a08"))
    assert first != second
    talk = [outcome for outcome in outcomes.values() if outcome.kind == "main"]
    assert {outcome.session.partition(":")[0] for outcome in talk} == {first, second}


def test_an_epoch_is_heard_beside_the_plugins_session_id() -> None:
    names = [outcome.session for outcome in collected("compaction_and_reset", all_of_them).values()]
    epochs = {name.rpartition(":")[2] for name in names if ":" in name}
    assert epochs == {"0", "1", "2"}
