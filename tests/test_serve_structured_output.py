"""A reply keeps to the form that was asked for, or the caller is told that it cannot; what was forced is never 'sampled'."""

from __future__ import annotations

from typing import Any

import pytest
from test_local_models import byte_tokenizer

from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.testing import RunningServer, ScriptedPolicy, chat_chunks, serving, sse_events
from openclaw_rl.testing.policies import END
from openclaw_rl.types import Message, Prompt

pytestmark = pytest.mark.slow

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look", "wait")
]
NAMED = {"type": "function", "function": {"name": "look"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OPENS = frozenset({"opening"})


def opening(reply: str, tool_format: str = "hermes") -> ScriptedPolicy:
    """A policy that can only be given a beginning; ``reply`` is how it goes on from there."""
    policy = ScriptedPolicy(reply, tool_format=tool_format)
    policy.abilities = OPENS
    return policy


@pytest.mark.parametrize(
    ("tool_format", "choice", "begun", "rest"),
    [
        ("hermes", NAMED, '<tool_call>\n{"name": "look", "arguments":', ' {"at": 1}}\n</tool_call>'),
        ("hermes", "required", '<tool_call>\n{"name": "', 'look", "arguments": {"at": 1}}\n</tool_call>'),
        ("llama", NAMED, '{"name": "look", "parameters":', ' {"at": 1}}'),
        ("llama", "required", '{"name": "', 'look", "parameters": {"at": 1}}'),
        ("pythonic", NAMED, "[look(", "at=1)]"),
        ("pythonic", "required", "[", "look(at=1)]"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_is_a_call_and_only_what_was_sampled_counts_as_the_reply(
    tool_format: str, choice: Any, begun: str, rest: str, stream: bool
) -> None:
    with serving(opening(rest, tool_format)) as server:
        answer = server.chat("hi", tools=TOOLS, tool_choice=choice, stream=stream)
        assert answer.status_code == 200
        turn = server.ledger.last
        assert turn.prompt.opening == begun
        assert turn.completion.prompt_tokens == tuple(map(ord, f"userhi{begun}"))
        assert turn.completion.reply_tokens == (*map(ord, rest), END)
        assert len(turn.completion.logprobs) == len(rest) + 1
        (call,) = turn.completion.reply.tool_calls
        assert (call.name, call.arguments.replace(" ", ""), turn.completion.reply.content) == ("look", '{"at":1}', "")
        if stream:
            last = chat_chunks(answer.text)[-1]["choices"][0]
            assert last["finish_reason"] == "tool_calls"
        else:
            assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


def test_one_tool_that_is_required_is_a_tool_that_is_named() -> None:
    with serving(opening(" {}}\n</tool_call>")) as server:
        server.chat("hi", tools=TOOLS[:1], tool_choice="required")
        assert server.ledger.last.prompt.opening == '<tool_call>\n{"name": "look", "arguments":'


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_that_is_left_open_forces_nothing(choice: str) -> None:
    with serving(opening("Hello.")) as server:
        server.chat("hi", tools=TOOLS, tool_choice=choice)
        assert server.ledger.last.prompt.opening == ""


def test_the_other_formats_force_a_call_in_their_own_words() -> None:
    tool = {"name": "look", "input_schema": SCHEMA}
    rest = ' {"at": 1}}\n</tool_call>'
    with serving(opening(rest)) as server:
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99, "tools": [tool]}
        told = server.post("/v1/messages", {**asked, "tool_choice": {"type": "any"}}).json()
        assert told["content"][0]["input"] == {"at": 1}
        items = server.post(
            "/v1/responses",
            {
                "input": "hi",
                "tools": [{"type": "function", "name": "look"}],
                "tool_choice": {"type": "function", "name": "look"},
                "stream": True,
            },
        )
        done = [data for name, data in sse_events(items.text) if name == "response.completed"]
        assert done[0]["response"]["output"][0]["name"] == "look"


def test_a_forced_call_that_goes_wrong_is_text_and_marked() -> None:
    with serving(opening(" no idea")) as server:
        reply = server.chat("hi", tools=TOOLS, tool_choice=NAMED).json()["choices"][0]["message"]
        assert reply["content"] == '<tool_call>\n{"name": "look", "arguments": no idea'
        assert server.ledger.last.completion.flaws == ("malformed_tool_call",)


def refused(server: RunningServer, **asked: Any) -> dict[str, Any]:
    answer = server.chat("hi", **asked)
    assert answer.status_code == 400
    assert not server.ledger.turns
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_what_cannot_be_held_is_refused_with_the_field_and_the_remedy() -> None:
    with serving(opening("Hello.", tool_format="none")) as server:
        error = refused(server, tools=TOOLS, tool_choice="required")
        assert error["param"] == "tool_choice"
        assert error["message"].endswith("cannot be held to a tool call; use auto or none")
        error = refused(server, tool_choice="required")
        assert error["message"] == "tool_choice: there are no tools to choose from"
        strict = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
        error = refused(server, response_format=strict)
        assert (error["param"], "leave strict out" in error["message"]) == ("response_format", True)
    cannot = ScriptedPolicy("Hello.")
    cannot.abilities = frozenset()
    with serving(cannot) as server:
        assert refused(server, tools=TOOLS, tool_choice="required")["param"] == "tool_choice"


def test_a_strict_schema_is_refused_in_the_words_of_responses_too() -> None:
    with serving(opening("Hello.")) as server:
        form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
        answer = server.post("/v1/responses", {"input": "hi", "text": {"format": form}})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format")


@pytest.mark.parametrize(
    "form", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}]
)
def test_json_that_can_only_be_tried_is_begun_for_the_model_and_the_caller_is_told(form: dict[str, Any]) -> None:
    with serving(opening('"a": 1}')) as server:
        answer = server.chat("hi", response_format=form)
        assert answer.json()["choices"][0]["message"]["content"] == '{"a": 1}'
        assert answer.headers["x-openclaw-rl-unenforced"] == "response_format"
        assert server.ledger.last.completion.reply_tokens == (*map(ord, '"a": 1}'), END)
        streamed = server.chat("hi", response_format=form, stream=True)
        said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chat_chunks(streamed.text))
        assert said == '{"a": 1}'


def test_json_with_tools_at_hand_is_not_begun_because_a_call_may_come_instead() -> None:
    with serving(opening("Hello.")) as server:
        answer = server.chat("hi", tools=TOOLS, response_format={"type": "json_object"})
        assert answer.headers["x-openclaw-rl-unenforced"] == "response_format"
        assert server.ledger.last.prompt.opening == ""


def test_a_backend_that_holds_a_schema_by_itself_is_simply_asked() -> None:
    with serving(ScriptedPolicy('{"a": 1}')) as server:
        strict = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
        answer = server.chat("hi", response_format=strict)
        assert "x-openclaw-rl-unenforced" not in answer.headers
        (asked, sampling, _) = server.policy.requests[-1]
        assert (asked.opening, sampling.json_schema) == ("", SCHEMA)


def test_the_local_model_and_its_teacher_read_the_opening_at_the_very_end_of_the_prompt() -> None:
    chat = ChatTemplate(byte_tokenizer())
    prompt = Prompt(messages=(Message(role="user", content="hi"),), opening='{"name": "')
    assert chat.decode(chat.encode(prompt)).endswith('<|im_start|>assistant\n{"name": "')
    assert chat.decode(chat.encode(prompt.hinted("Look first."))).endswith('<|im_start|>assistant\n{"name": "')


@pytest.mark.parametrize(
    ("able", "tool_format", "told"),
    [({"strict_tools"}, "hermes", None), ({"strict_tools"}, "llama", "tools"), (set(), "hermes", "tools")],
)
def test_a_strict_tool_that_the_model_may_leave_alone_is_held_or_the_caller_is_told(
    able: set[Any], tool_format: str, told: str | None
) -> None:
    policy = ScriptedPolicy("no call", tool_format=tool_format)
    policy.abilities = frozenset(able)
    strict = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}]
    with serving(policy) as server:
        assert server.chat("hi", tools=strict).headers.get("x-openclaw-rl-unenforced") == told
        assert server.ledger.last.prompt.tools[0].strict
        assert "x-openclaw-rl-unenforced" not in server.chat("hi", tools=TOOLS).headers
        assert "x-openclaw-rl-unenforced" not in server.chat("hi", tools=strict, tool_choice="none").headers


LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "a constant of 1 MB": ({"const": "x" * 2**20}, "schemas have more than"),
    "a constant of 10,000 characters": ({"const": "x" * 10_000}, "a constant or name has 10,000 characters"),
    "a name of 10,000 characters": ({"properties": {"x" * 10_000: {}}}, "a constant or name has 10,000 characters"),
    "65 patterns": ({"allOf": [{"pattern": f"^{at}"} for at in range(65)]}, "more than 64 patterns"),
    "65 names by patterns": ({"patternProperties": {f"^{at}": {} for at in range(65)}}, "more than 64 patterns"),
    "a pattern of 2,000 characters": ({"pattern": "a" * 2000}, "a pattern has 2,000 characters"),
    "300,000 characters of prose": ({"description": "x" * 300_000}, "schemas have more than 262,144 characters"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_schema_too_large_to_compile_is_refused_before_any_backend_sees_it(name: str) -> None:
    schema, why = LARGE[name]
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    strict = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    forced = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("response_format", {"response_format": form}),
        ("tools", {"tools": strict}),
        ("tools", {"tools": forced, "tool_choice": "required"}),
    ]
    policy = ScriptedPolicy("ok")
    with serving(policy) as server:
        for field, fields in asked:
            answer = server.chat("hi", **fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, field)
            assert why in error["message"]
            assert "make the schema smaller" in error["message"]
        assert not policy.began.is_set()
        assert server.chat("hi", tools=forced).status_code == 200, "a tool that holds the reply to nothing may be large"


def test_a_schema_with_long_descriptions_and_many_choices_is_not_too_large() -> None:
    schema = {"type": "string", "description": "x" * 50_000, "enum": [f"choice {at}" for at in range(1000)]}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    with serving(ScriptedPolicy('"choice 1"')) as server:
        assert server.chat("hi", response_format=form).status_code == 200
