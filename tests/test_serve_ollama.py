"""Ollama's API, asked by hand and by the `ollama` package, and what is kept of it."""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import ollama
import pytest

from openclaw_rl.serve import api
from openclaw_rl.serve.ollama import API_VERSION
from openclaw_rl.testing import RunningServer, ScriptedPolicy, request_limits, serving

ASK = {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}
SAID = {"model": "toy", "prompt": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "tea", "twice": true}}\n</tool_call>'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


Connect = Callable[..., ollama.Client]


@pytest.fixture
def client() -> Iterator[Connect]:
    """Makes clients, and closes their connections at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda server, **headers: stack.enter_context(ollama.Client(host=server.url, headers=headers))


def lines(server: RunningServer, path: str, body: Any) -> list[dict[str, Any]]:
    answer = server.post(path, body)
    assert answer.headers["content-type"] == "application/x-ndjson", answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


# --- replies


def test_a_chat_is_answered_whole_and_its_turn_is_kept_with_its_tokens(server: RunningServer) -> None:
    answer = server.post("/api/chat", {**ASK, "stream": False})
    body = answer.json()
    server.ledger.wait_for_turns(1)
    turn = server.ledger.last
    assert body["message"] == {"role": "assistant", "content": "Hello there."}
    assert (body["done"], body["done_reason"], body["model"]) == (True, "stop", "toy")
    assert body["turn"] == turn.id == answer.headers["x-openclaw-rl-turn"]
    assert body["prompt_eval_count"] == len(turn.completion.prompt_tokens)
    assert body["eval_count"] == len(turn.completion.reply_tokens) == len(turn.completion.logprobs)
    assert body["total_duration"] == pytest.approx(body["prompt_eval_duration"] + body["eval_duration"], abs=2)
    assert body["total_duration"] > 0


def test_a_chat_streams_a_line_for_each_text_unless_it_asks_for_the_whole(server: RunningServer) -> None:
    *texts, end = lines(server, "/api/chat", ASK)
    assert "".join(line["message"]["content"] for line in texts) == "Hello there."
    assert {line["done"] for line in texts} == {False}
    assert (end["done"], end["done_reason"], end["message"]["content"]) == (True, "stop", "")
    assert end["eval_count"] == len(server.ledger.last.completion.reply_tokens)


def test_generate_answers_a_prompt_with_its_system_prompt(server: RunningServer) -> None:
    *texts, end = lines(server, "/api/generate", {**SAID, "system": "Be brief."})
    assert "".join(line["response"] for line in texts) == "Hello there."
    assert (end["done"], end["response"]) == (True, "")
    assert server.post("/api/generate", {**SAID, "stream": False}).json()["response"] == "Hello there."
    [first, second] = [prompt.messages for prompt, _, _ in server.policy.requests]
    assert [(said.role, said.content) for said in first] == [("system", "Be brief."), ("user", "hi")]
    assert [said.content for said in second] == ["hi"]


@pytest.mark.parametrize("body", [ASK, {**ASK, "think": True}])
def test_a_thought_comes_in_its_own_field(body: dict[str, Any]) -> None:
    with serving(ScriptedPolicy("<think>\nhm\n</think>\n\nTea.")) as server:
        message = server.post("/api/chat", {**body, "stream": False}).json()["message"]
        assert message == {"role": "assistant", "content": "Tea.", "thinking": "hm"}
        streamed = [line["message"] for line in lines(server, "/api/chat", body)]
        assert "".join(each.get("thinking", "") for each in streamed) == "hm"
        assert "".join(each["content"] for each in streamed) == "Tea."


@pytest.mark.parametrize(
    ("think", "variables"),
    [
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
        (None, {}),
    ],
)
def test_think_is_a_variable_of_the_chat_template(server: RunningServer, think: Any, variables: dict[str, Any]) -> None:
    server.post("/api/chat", {**ASK, "think": think})
    assert server.policy.requests[-1][0].template == variables


def test_options_are_the_sampling_parameters(server: RunningServer) -> None:
    options = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "num_predict": 3, "stop": ["x"], "seed": 5}
    penalties = {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    ignored = {"num_ctx": 4096, "num_gpu": 1, "mirostat": 0, "tfs_z": 1.0}
    end = lines(server, "/api/chat", {**ASK, "options": {**options, **penalties, **ignored}})[-1]
    used = server.policy.requests[-1][1]
    assert (used.temperature, used.top_p, used.top_k, used.min_p) == (0.5, 0.9, 7, 0.1)
    assert (used.max_tokens, used.stop, used.seed) == (3, ("x",), 5)
    assert (used.repetition_penalty, used.presence_penalty, used.frequency_penalty) == (1.1, 0.2, 0.3)
    assert (end["done_reason"], end["eval_count"]) == ("length", 3)


def test_minus_one_means_no_limit_and_no_seed(server: RunningServer) -> None:
    server.post("/api/chat", {**ASK, "options": {"num_predict": -1, "seed": -1}})
    used = server.policy.requests[-1][1]
    assert (used.max_tokens, used.seed) == (None, None)


@pytest.mark.parametrize(
    ("form", "schema"), [("json", {"type": "object"}), ({"type": "array"}, {"type": "array"}), ("", None)]
)
def test_format_is_the_schema_of_the_reply(server: RunningServer, form: Any, schema: Any) -> None:
    server.post("/api/generate", {**SAID, "format": form})
    assert server.policy.requests[-1][1].json_schema == schema


def test_a_stream_with_log_probs_has_every_token_once(server: RunningServer) -> None:
    streamed = lines(server, "/api/chat", {**ASK, "logprobs": True, "top_logprobs": 1})
    tokens = [each["token"] for line in streamed for each in line.get("logprobs", ())]
    whole = server.post("/api/chat", {**ASK, "logprobs": True, "stream": False}).json()
    assert tokens == [each["token"] for each in whole["logprobs"]]
    assert len(tokens) == whole["eval_count"] - 1  # the token that ends a reply has no text


def test_a_model_is_named_with_and_without_its_tag() -> None:
    with serving(any_model=False) as server:
        for name in ("toy", "toy:latest"):
            answer = server.post("/api/chat", {**ASK, "model": name, "stream": False})
            assert answer.json()["model"] == name
        server.post("/api/chat", {**ASK, "model": "toy-side:latest"})
        assert server.ledger.last.declared == "side"
        assert server.post("/api/chat", {**ASK, "model": "toy@2:latest", "stream": False}).json()["version"] == 2
        unknown = server.post("/api/chat", {**ASK, "model": "other:latest"})
        assert unknown.status_code == 404
        assert "'other'" in unknown.json()["error"]


def test_a_session_is_named_as_in_the_other_formats(server: RunningServer) -> None:
    server.post("/api/chat", ASK, x_session_id="by-header")
    server.post("/api/generate", {**SAID, "metadata": {"session_id": "by-body"}})
    server.post("/api/chat", ASK, x_openclaw_rl_train="off")
    assert [(turn.session, turn.trainable) for turn in server.ledger.turns.values()] == [
        ("by-header", True),
        ("by-body", True),
        (None, False),
    ]


def test_a_remark_in_a_conversation_is_feedback(server: RunningServer) -> None:
    first = server.post("/api/chat", {**ASK, "stream": False}).json()
    talk = [*ASK["messages"], first["message"], {"role": "user", "content": "/bad"}]
    [said, end] = lines(server, "/api/chat", {**ASK, "messages": talk})
    assert said["message"]["content"].startswith("noted")
    assert end["done"]
    assert [each.score for each in server.ledger.feedback] == [-1.0]
    assert server.post("/v1/feedback", {"turn": first["turn"], "thumb": "up"}).status_code == 200


# --- what is asked without a reply


@pytest.mark.parametrize(("path", "empty"), [("/api/chat", {"messages": []}), ("/api/generate", {"prompt": ""})])
@pytest.mark.parametrize(
    ("more", "reason"), [({}, "load"), ({"keep_alive": 0}, "unload"), ({"keep_alive": "5m"}, "load")]
)
def test_a_request_that_asks_nothing_is_answered_without_the_model(
    server: RunningServer, path: str, empty: dict[str, Any], more: dict[str, Any], reason: str
) -> None:
    answer = server.post(path, {"model": "toy", **empty, **more}).json()
    assert (answer["done"], answer["done_reason"], answer["model"]) == (True, reason, "toy")
    assert server.policy.requests == []
    assert not server.ledger.turns


def test_the_model_is_listed_and_described(server: RunningServer) -> None:
    listed = server.get("/api/tags").json()["models"]
    assert [entry["name"] for entry in listed] == ["toy:latest", "toy-side:latest"]
    assert {len(entry["digest"]) for entry in listed} == {64}
    shown = server.post("/api/show", {"name": listed[0]["name"]}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["openclaw-rl.context_length"] == server.policy.context
    assert server.get("/api/ps").json()["models"][0]["context_length"] == server.policy.context
    assert server.get("/api/version").json()["version"] == API_VERSION
    assert server.get("/").text == "OpenClaw-RL is running"
    assert server.client().head("/").status_code == 200


# --- what is refused

REFUSED = {
    "no object": ("/api/chat", b"[]", "must be a JSON object"),
    "a role": ("/api/chat", {"messages": [{"role": "robot"}]}, "messages.0.role"),
    "parts": ("/api/chat", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
    "an option": ("/api/chat", {**ASK, "options": {"temperature": "hot"}}, "options.temperature: must be a number"),
    "no mass at all": ("/api/chat", {**ASK, "options": {"top_p": 0}}, "options.top_p: "),
    "a thought": ("/api/chat", {**ASK, "think": "hard"}, "think: must be one of"),
    "an address": (
        "/api/chat",
        {"messages": [{"role": "user", "images": ["http://x/y.png"]}]},
        "messages.0.images.0: must be a JPEG, PNG, GIF or WebP image",
    ),
    "a variable": ("/api/chat", {**ASK, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    "a template": ("/api/generate", {**SAID, "template": "{{ .Prompt }}"}, "template: the model's own"),
    "no template": ("/api/generate", {**SAID, "raw": True}, "raw: each prompt goes through"),
    "a gap": ("/api/generate", {**SAID, "suffix": "x"}, "suffix: text before"),
    "tokens": ("/api/generate", {**SAID, "context": [1, 2]}, "context: a conversation is not sent as tokens"),
    "no name": ("/api/show", {}, "model: is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_ollamas_shape(server: RunningServer, name: str) -> None:
    path, body, what = REFUSED[name]
    answer = server.post(path, body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert what in answer.json()["error"]
    assert not server.ledger.turns


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/pull"), ("DELETE", "/api/delete"), ("GET", "/api/chat")])
def test_what_is_not_there_is_refused_in_ollamas_shape(server: RunningServer, method: str, path: str) -> None:
    answer = server.client().request(method, path)
    assert answer.status_code in (404, 405)
    assert isinstance(answer.json()["error"], str)


def test_keys_are_asked_for_as_everywhere(client: Connect) -> None:
    with serving(keys={"k": "ann"}) as server:
        for path in ("/api/tags", "/api/ps", "/api/version"):
            assert server.get(path).status_code == 401
        for path, body in (("/api/chat", ASK), ("/api/generate", SAID), ("/api/show", {"model": "toy"})):
            refused = server.post(path, body)
            assert (refused.status_code, list(refused.json())) == (401, ["error"])
        assert client(server, Authorization="Bearer k").chat(**ASK).message.content == "Hello there."
        assert server.ledger.last.user == "ann"


def test_a_page_of_another_site_is_refused(server: RunningServer) -> None:
    assert server.post("/api/chat", ASK, origin="http://elsewhere").status_code == 403
    assert server.get("/api/tags", host="elsewhere").status_code == 403


def test_a_stream_that_fails_ends_with_the_error(client: Connect) -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.break_after = 3
    with serving(policy) as server:
        *texts, last = lines(server, "/api/chat", ASK)
        assert "".join(line["message"]["content"] for line in texts) == "Hel"
        assert list(last) == ["error"]
        with pytest.raises(ollama.ResponseError, match="the engine died"):
            list(client(server).chat(**ASK, stream=True))


def test_a_silent_stream_gets_lines_that_clients_can_read(client: Connect) -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.pause_after = 3
    with serving(policy, limits=request_limits(keepalive_seconds=0.02)) as server:
        stream = client(server).chat(**ASK, stream=True)
        seen = [next(stream) for _ in range(6)]
        policy.go_on()
        seen += stream
        assert [each.message.content for each in seen[3:6]] == ["", "", ""]
        assert "".join(each.message.content or "" for each in seen) == "Hello there."


# --- the package


def test_the_package_talks_streams_and_goes_on(server: RunningServer, client: Connect) -> None:
    ask = client(server)
    first = ask.chat("toy", ASK["messages"], options={"temperature": 0.0, "num_predict": 50})
    assert first.message.content == "Hello there."
    assert first.done_reason == "stop"
    assert first.eval_count
    talk = [*ASK["messages"], first.message, {"role": "user", "content": "Shorter."}]
    assert "".join(part.message.content or "" for part in ask.chat("toy", talk, stream=True)) == "Hello there."
    assert ask.generate("toy", "hi", system="Be brief.").response == "Hello there."
    assert "".join(part.response or "" for part in ask.generate("toy", "hi", stream=True)) == "Hello there."
    assert [message.role for message in list(server.ledger.turns.values())[1].prompt.messages] == [
        "user",
        "assistant",
        "user",
    ]


def test_the_package_calls_a_tool_and_sends_its_result(client: Connect) -> None:
    def reply(prompt: Any) -> str:
        return "It is there." if prompt.messages[-1].role == "tool" else f"<think>\nhm\n</think>\n\nI look.\n{CALL}"

    def look(at: str) -> str:
        """Look at something.

        Args:
            at: where
        """
        return at

    with serving(ScriptedPolicy(reply)) as server:
        for stream in (False, True):
            given = client(server).chat("toy", ASK["messages"], tools=[look], stream=stream, think=True)
            parts = list(given) if stream else [given]
            [call] = [call for part in parts for call in part.message.tool_calls or ()]
            assert (call.function.name, call.function.arguments) == ("look", {"at": "tea", "twice": True})
            assert "".join(part.message.thinking or "" for part in parts) == "hm"
            said = ollama.Message(role="assistant", content="I look.", thinking="hm", tool_calls=[call])
            result = {"role": "tool", "content": "tea", "tool_name": "look"}
            last = client(server).chat("toy", [*ASK["messages"], said, result], tools=[look])
            assert last.message.content == "It is there."
            prompt = server.ledger.last.prompt
            assert prompt.messages[1].reasoning == "hm"
            assert prompt.messages[1].tool_calls[0].arguments == '{"at":"tea","twice":true}'
            assert (prompt.messages[2].name, prompt.tools[0].name) == ("look", "look")


def test_the_package_sends_images_lists_and_shows(server: RunningServer, client: Connect) -> None:
    ask = client(server)
    ask.chat("toy", [{"role": "user", "content": "what?", "images": [PNG]}])
    assert server.ledger.last.prompt.messages[0].images == (f"data:image/png;base64,{b64encode(PNG).decode()}",)
    assert [model.model for model in ask.list().models] == ["toy:latest", "toy-side:latest"]
    assert ask.ps().models[0].expires_at is not None
    assert ask.show("toy").capabilities == ["completion", "tools", "thinking"]


def test_the_package_reads_errors(client: Connect) -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.context = 3
    with serving(policy) as server:
        with pytest.raises(ollama.ResponseError, match="maximum context length is 3") as refused:
            client(server).chat("toy", [{"role": "user", "content": "x" * 40}])
        assert refused.value.status_code == 400


def test_the_start_of_the_module_names_every_path() -> None:
    for path in ("/api/chat", "/api/generate", "/api/show", "/api/tags", "/api/ps", "/api/version"):
        assert path in (api.__doc__ or "")
