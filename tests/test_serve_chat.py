"""Chat completions over a real connection, and what is kept of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from openclaw_rl.testing import MemoryLedger, RunningServer, ScriptedPolicy, chat_chunks, serving
from openclaw_rl.testing.policies import END
from openclaw_rl.types import Message, Sampling, Tool, ToolCall

CALL = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "look at it", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


def sdk(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=server.client())


def test_the_openai_sdk_gets_an_answer_and_the_turn_is_kept_with_its_exact_tokens(server: RunningServer) -> None:
    answer = sdk(server).chat.completions.create(model="toy", messages=[{"role": "user", "content": "hi"}], seed=7)
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == "openclaw-rl-v3"
    turn = server.ledger.turn(answer.id)
    assert turn.completion.reply_tokens == (*map(ord, "Hello there."), END)
    assert turn.completion.logprobs == tuple(-1 / (at + 2) for at in range(13))
    assert turn.completion.prompt_tokens == tuple(map(ord, "userhi"))
    assert turn.completion.sampling == Sampling(seed=7)
    assert (turn.completion.version, turn.completion.finish, turn.user) == (3, "stop", "local")
    assert turn.client.startswith("OpenAI/Python")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 13, 19)


def test_the_openai_sdk_streams_token_by_token_and_the_usage_comes_last(server: RunningServer) -> None:
    stream = sdk(server).chat.completions.create(
        model="toy",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    found = list(stream)
    texts = [chunk.choices[0].delta.content for chunk in found if chunk.choices and chunk.choices[0].delta.content]
    assert texts == list("Hello there.")
    assert found[-2].choices[0].finish_reason == "stop"
    assert found[-1].choices == []
    assert found[-1].usage is not None
    assert found[-1].usage.completion_tokens == 13
    assert {chunk.id for chunk in found} == set(server.ledger.turns)
    assert {chunk.system_fingerprint for chunk in found} == {"openclaw-rl-v3"}


def test_every_response_names_its_version_and_turn_in_its_headers(server: RunningServer) -> None:
    for stream in (False, True):
        response = server.chat(stream=stream)
        assert response.headers["x-openclaw-rl-version"] == "3"
        assert response.headers["x-openclaw-rl-turn"] in server.ledger.turns


def test_a_streamed_call_comes_in_deltas_and_the_sdk_puts_it_together() -> None:
    with serving(ScriptedPolicy(CALL)) as server:
        stream = sdk(server).chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": "?"}],
            tools=TOOLS,
            stream=True,  # type: ignore[arg-type]
        )
        content, arguments, names, finish = "", [], [], None
        for chunk in stream:
            delta = chunk.choices[0].delta
            content += delta.content or ""
            for call in delta.tool_calls or []:
                assert call.function is not None
                names += [call.function.name] if call.function.name else []
                arguments += [call.function.arguments or ""]
            finish = chunk.choices[0].finish_reason or finish
    assert (content, names, "".join(arguments), finish) == ("I look.", ["look"], '{"at": "sky"}', "tool_calls")
    assert len(arguments) > 5
    reply = server.ledger.last.completion.reply
    assert reply.content == "I look."
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("look", '{"at": "sky"}')]
    assert server.ledger.last.completion.finish == "tool_calls"
    assert server.ledger.last.completion.reply_tokens[:7] == tuple(map(ord, "I look."))
    assert len(server.ledger.last.completion.reply_tokens) == len(CALL) + 1


def test_a_malformed_call_comes_back_as_text_and_is_marked_for_the_judge() -> None:
    broken = '<tool_call>{"name": "look", "arguments": {"at": sky}}</tool_call>'
    with serving(ScriptedPolicy(broken)) as server:
        message = server.chat(tools=TOOLS).json()["choices"][0]
        assert message["message"]["content"] == broken
        assert "tool_calls" not in message["message"]
        assert message["finish_reason"] == "stop"
        assert server.ledger.last.completion.flaws == ("malformed_tool_call",)
        streamed = chat_chunks(server.chat(tools=TOOLS, stream=True).text)
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed)
        assert text == broken


def test_reasoning_is_told_apart_from_the_answer() -> None:
    with serving(ScriptedPolicy("<think>\nhm\n</think>\n\nyes")) as server:
        message = server.chat().json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
        streamed = chat_chunks(server.chat(stream=True).text)
        deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "hm"
        assert "".join(delta.get("content") or "" for delta in deltas) == "yes"
        assert server.ledger.last.completion.reply == Message(role="assistant", content="yes", reasoning="hm")


def test_everything_a_client_may_say_reaches_the_policy(server: RunningServer) -> None:
    server.post(
        "/v1/chat/completions",
        {
            "model": "toy",
            "messages": [
                {"role": "developer", "content": "be brief"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                    ],
                },
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "blue", "unknown": None},
                {"role": "assistant", "content": None, "reasoning_content": "ok"},
            ],
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "max_tokens": 5,
            "max_completion_tokens": 9,
            "stop": ["\n", "END"],
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 11,
            "presence_penalty": None,
            "dry_multiplier": 0.8,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
            "chat_template_kwargs": {"enable_thinking": False},
            "something_new": {"a": [1]},
        },
    ).raise_for_status()
    prompt, sampling, version = server.policy.requests[0]
    assert prompt.messages == (
        Message(role="system", content="be brief"),
        Message(role="user", content="a", images=("data:image/png;base64,AA",)),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="look", arguments="{}"),)),
        Message(role="tool", content="blue", tool_call_id="c1"),
        Message(role="assistant", reasoning="ok"),
    )
    assert prompt.tools == (
        Tool(name="look", description="look at it", parameters={"type": "object", "properties": {}}),
    )
    assert (prompt.tool_choice, prompt.template) == ("name:look", {"enable_thinking": False})
    assert sampling == Sampling(
        max_tokens=9,
        stop=("\n", "END"),
        temperature=0.5,
        top_p=0.9,
        seed=11,
        dry_multiplier=0.8,
        json_schema={"type": "array"},
    )
    assert version == 3


def test_a_request_that_says_nothing_takes_the_servers_defaults() -> None:
    with serving(defaults=Sampling(temperature=0.7, max_tokens=4)) as server:
        assert server.chat().json()["choices"][0]["finish_reason"] == "length"
        server.chat(temperature=0.0, max_tokens=50)
    assert [(s.temperature, s.max_tokens) for _, s, _ in server.policy.requests] == [(0.7, 4), (0.0, 50)]


def test_log_probs_cover_every_sampled_token(server: RunningServer) -> None:
    content = server.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == list("Hello there.")
    assert content[1]["logprob"] == pytest.approx(-1 / 3)
    assert [other["token"] for other in content[0]["top_logprobs"]] == ["a", "b"]
    streamed = chat_chunks(server.chat(logprobs=True, stream=True).text)
    told = [
        entry["token"]
        for chunk in streamed
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert told == list("Hello there.")


def test_three_choices_are_three_turns_and_the_first_gives_its_id(server: RunningServer) -> None:
    answer = server.chat(n=3, seed=5).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["id"] == answer["turns"][0]
    assert set(answer["turns"]) == set(server.ledger.turns)
    assert sorted(sampling.seed or 0 for _, sampling, _ in server.policy.requests) == [5, 6, 7]
    streamed = chat_chunks(server.chat(n=3, stream=True).text)
    assert {chunk["id"] for chunk in streamed} == {streamed[-1]["turns"][0]}
    for index in range(3):
        mine = [chunk["choices"][0] for chunk in streamed if chunk["choices"] and chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content") or "" for choice in mine) == "Hello there."
        assert mine[-1]["finish_reason"] == "stop"
    assert len(server.ledger.turns) == 6


def test_the_side_name_is_the_same_weights_and_never_main(server: RunningServer) -> None:
    server.chat(model="toy-side")
    assert server.ledger.last.declared == "side"
    server.chat(model="toy@2")
    assert server.ledger.last.completion.version == 2
    assert server.chat(model="whatever").status_code == 200
    assert server.ledger.last.declared is None


def test_where_names_are_strict_an_unknown_model_is_404_and_the_known_ones_are_named() -> None:
    with serving(any_model=False) as server:
        response = server.chat(model="gpt-5")
        assert response.status_code == 404
        assert "toy-side" in response.json()["error"]["message"]
        assert server.chat(model="toy@x").status_code == 404


def test_the_model_list_reads_in_both_sdks_and_a_model_can_be_asked_for(server: RunningServer) -> None:
    assert [model.id for model in sdk(server).models.list()] == ["toy", "toy-side"]
    assert sdk(server).models.retrieve("toy").id == "toy"


def test_a_limit_beyond_the_context_means_as_many_as_fit(server: RunningServer) -> None:
    server.chat(max_tokens=500_000)
    assert server.policy.requests[0][1].max_tokens is None


def test_a_text_that_fits_no_context_is_400_with_the_words_that_clients_look_for(server: RunningServer) -> None:
    server.policy.context = 20
    for stream in (False, True):
        response = server.chat("x" * 30, stream=stream)
        assert response.status_code == 400
        assert "maximum context length is 20 tokens" in response.json()["error"]["message"]
        assert response.json()["error"]["code"] == "context_length_exceeded"


def test_nothing_is_kept_when_interception_is_off() -> None:
    with serving(intercept=False) as server:
        assert server.chat().status_code == 200
    assert server.ledger.turns == {}


def test_a_custom_generate_stands_between_the_api_and_the_policy() -> None:
    def shout(policy, prompt, sampling, *, version):  # type: ignore[no-untyped-def]
        louder = Message(role="user", content=prompt.messages[-1].content.upper())
        return policy.generate(type(prompt)(messages=(louder,)), sampling, version=version)

    with serving(ScriptedPolicy(lambda prompt: prompt.messages[-1].content), generate=shout) as server:
        assert server.chat("hello").json()["choices"][0]["message"]["content"] == "HELLO"


def test_the_turn_is_in_the_ledger_before_the_last_event_of_a_stream_is_sent() -> None:
    seen: list[int] = []

    class Slow(MemoryLedger):
        def add_turn(self, turn):  # type: ignore[no-untyped-def]
            super().add_turn(turn)
            seen.append(len(self.turns))

    with serving(ledger=Slow()) as server, server.client() as client:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["finish_reason"]:
                    assert seen == [1]
    assert seen == [1]
