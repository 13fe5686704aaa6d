"""Template variables by allow-list: a caller sets what a template asks for, never a parameter of the renderer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from test_local_models import byte_tokenizer, prompt
from transformers import PreTrainedTokenizerBase

from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.errors import RequestError
from openclaw_rl.formats.variables import ALLOWED
from openclaw_rl.serve.openapi import description
from openclaw_rl.testing import RunningServer, serving

pytestmark = pytest.mark.slow
ROADS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}]},
    "/api/generate": {"prompt": "hi"},
}
PARAMETERS = sorted(
    set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"self", "documents", "kwargs"}
    | {"messages", "bos_token", "chat_template_kwargs"}
)
TOO_MUCH: list[tuple[str, Any]] = [
    ("enable_thinking", "yes"),
    ("enable_thinking", {"a": 1}),
    ("thinking_budget", -1),
    ("thinking_budget", 10**30),
    ("reasoning_effort", "x" * 65),
    ("reasoning_effort", ["high"]),
    ("documents", "text"),
    ("documents", [{"text": ["nested"]}]),
    ("documents", [{"text": "a"}] * 1001),
    ("documents", [{str(at): "a" for at in range(17)}]),
    ("builtin_tools", [{"name": "x"}]),
    ("date_string", 7),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving() as made:
        yield made


@pytest.mark.parametrize("road", ROADS)
def test_every_parameter_of_the_renderer_is_refused_by_name_with_what_is_allowed(
    server: RunningServer, road: str
) -> None:
    assert {"chat_template", "continue_final_message", "tokenize", "tools", "padding"} <= set(PARAMETERS)
    for name in (*PARAMETERS, "unheard_of", "", "__class__"):
        told = server.post(road, {**ROADS[road], "chat_template_kwargs": {name: True}})
        assert told.status_code == 400, name
        error = told.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert repr(name) in message
        assert "enable_thinking" in message


@pytest.mark.parametrize("road", ROADS)
def test_what_a_template_asks_for_goes_through_in_bounds(server: RunningServer, road: str) -> None:
    good = {
        "enable_thinking": False,
        "thinking": None,
        "reasoning_effort": "high",
        "documents": [{"title": "t", "text": "x"}],
    }
    assert server.post(road, {**ROADS[road], "chat_template_kwargs": good}).status_code == 200
    assert "thinking" not in server.ledger.last.prompt.template, "null is absent"
    for name, value in TOO_MUCH:
        told = server.post(road, {**ROADS[road], "chat_template_kwargs": {name: value}})
        assert (told.status_code, f"chat_template_kwargs.{name}" in told.text) == (400, True), (name, value)


def test_a_stored_prompt_with_others_is_refused_by_the_renderer_too() -> None:
    chat = ChatTemplate(byte_tokenizer())
    for name in ("chat_template", "continue_final_message", "x"):
        with pytest.raises(RequestError, match=f"'{name}' cannot be set"):
            chat.encode(prompt("hi", template={name: "{{ 'a' * 10**9 }}"}))


def test_the_description_of_the_api_names_the_same_ones() -> None:
    body = description("m")["components"]["schemas"]["ChatRequest"]
    assert set(body["properties"]["chat_template_kwargs"]["properties"]) == set(ALLOWED)
