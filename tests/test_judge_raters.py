"""Where the words' log-probs come from: a policy's scores, an endpoint's log-probs."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from openclaw_rl.errors import BackendDown, InvalidValue, JudgeUnavailable
from openclaw_rl.judge.availability import TokenBudget
from openclaw_rl.judge.base_rate import WORDS
from openclaw_rl.judge.one_pass import OPENING
from openclaw_rl.judge.raters import EndpointRater, NoLogprobs, PolicyRater
from openclaw_rl.judge.voters import EndpointSettings
from openclaw_rl.ports import Scores
from openclaw_rl.testing import ScriptedPolicy
from openclaw_rl.types import Message, Tokens

pytestmark = pytest.mark.anyio

ASKED = (
    Message(role="user", content="an example"),
    Message(role="assistant", content=f'{OPENING}bad"}}'),
    Message(role="user", content="the exchange"),
)


class Scoring(ScriptedPolicy):
    """A policy of letters whose likeliest tokens after any prompt are ``top``."""

    def __init__(self, top: dict[str, float]) -> None:
        super().__init__()
        self.top = {ord(letter): value for letter, value in top.items()}
        self.calls: list[tuple[Tokens, Tokens, int | None]] = []

    async def tokenize(self, text: str) -> Tokens:
        return (*map(ord, text), 0)

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        if self.down:
            raise BackendDown("the engine is down")
        self.calls.append((prompt, reply, version))
        return Scores(
            logprobs=(self.top[reply[0]],),
            top_tokens=(tuple(self.top),),
            top_logprobs=(tuple(self.top.values()),),
        )


async def test_one_scoring_call_of_the_base_model_rates_all_words() -> None:
    policy = Scoring({"b": -1.0, "n": -2.0, "g": -0.5, "x": -9.0})
    assert await PolicyRater(policy).rate(ASKED, OPENING, WORDS) == (-1.0, -2.0, -0.5)
    ((prompt, reply, version),) = policy.calls
    assert prompt[-len(OPENING) :] == tuple(map(ord, OPENING)), "the prompt ends inside the quotation mark"
    assert reply == (ord("b"),)
    assert version == 0, "a policy that learns must not change what its judge's thresholds were set for"


async def test_a_word_that_is_not_among_the_likeliest_is_below_all_that_are() -> None:
    policy = Scoring({"b": -1.0, "g": -0.5, "x": -9.0})
    assert await PolicyRater(policy).rate(ASKED, OPENING, WORDS) == (-1.0, -9.0, -0.5)


async def test_words_that_share_their_beginning_are_rated_where_they_part() -> None:
    policy = Scoring({"a": -1.0, "o": -3.0})
    assert await PolicyRater(policy).rate(ASKED, OPENING, ("bad", "bold")) == (-1.0, -3.0)
    assert chr(policy.calls[0][0][-1]) == "b"
    with pytest.raises(InvalidValue, match="with the same token"):
        await PolicyRater(policy).rate(ASKED, OPENING, ("bad", "bat", "bold"))


async def test_an_engine_that_is_down_leaves_the_case_waiting() -> None:
    policy = Scoring({"b": 0.0})
    policy.down = 1
    with pytest.raises(JudgeUnavailable, match="the engine is down"):
        await PolicyRater(policy).rate(ASKED, OPENING, WORDS)


# --- endpoints


def rater(script: Any) -> EndpointRater:
    endpoint = EndpointSettings(base_url="http://judge/v1", model="m", api_key="k", timeout=5, retries=0)
    return EndpointRater(endpoint, transport=httpx2.MockTransport(script))


def answer(top: dict[str, float], *, status: int = 200) -> httpx2.Response:
    pairs = [{"token": token, "logprob": value} for token, value in top.items()]
    content = [{**pairs[0], "top_logprobs": pairs}]
    return httpx2.Response(status, json={"choices": [{"message": {"content": "x"}, "logprobs": {"content": content}}]})


async def test_an_endpoint_is_asked_for_one_token_and_its_alternatives() -> None:
    bodies: list[dict[str, Any]] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        assert request.headers["authorization"] == "Bearer k"
        return answer({"neutral": -0.2, "bad": -2.0, "the": -4.0, "good": -5.0, "Good": -3.0})

    assert await rater(script).rate(ASKED, OPENING, WORDS) == (-2.0, -0.2, -3.0)
    (body,) = bodies
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (1, True, 20)
    assert body["messages"][-1] == {"role": "assistant", "content": OPENING}
    assert body["continue_final_message"] is True


async def test_a_server_that_cannot_continue_a_message_is_asked_for_the_bare_word() -> None:
    bodies: list[dict[str, Any]] = []

    def script(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        if "continue_final_message" in bodies[-1]:
            return httpx2.Response(400, json={"error": "unknown field"})
        return answer({"Neut": -0.1, "Bad": -3.0})

    asked = rater(script)
    assert await asked.rate(ASKED, OPENING, WORDS) == (-3.0, -0.1, -3.0)
    await asked.rate(ASKED, OPENING, WORDS)
    assert len(bodies) == 3, "it is refused once"
    assert [message["content"] for message in bodies[-1]["messages"]] == [
        "an example",
        "bad",
        "the exchange\nAnswer with one word: bad, neutral, good.",
    ]


async def test_a_server_without_log_probs_is_named_so_that_votes_take_their_place() -> None:
    with pytest.raises(NoLogprobs):
        await rater(lambda _: httpx2.Response(200, json={"choices": [{"message": {"content": "bad"}}]})).rate(
            ASKED, OPENING, WORDS
        )
    with pytest.raises(NoLogprobs):
        await rater(lambda _: answer({"Hello": -0.1})).rate(ASKED, OPENING, WORDS)


async def test_a_server_that_fails_or_is_away_leaves_the_case_waiting() -> None:
    def away(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    for script in (away, lambda _: httpx2.Response(503)):
        with pytest.raises(JudgeUnavailable) as failure:
            await rater(script).rate(ASKED, OPENING, WORDS)
        assert not isinstance(failure.value, NoLogprobs)


async def test_the_tokens_of_a_day_bound_what_an_endpoint_may_cost() -> None:
    endpoint = EndpointSettings(base_url="http://judge/v1", model="m", api_key=None, timeout=5, retries=0)
    budget = TokenBudget(10, wall=lambda: 0.0)
    transport = httpx2.MockTransport(lambda _: answer({"bad": -0.1}))
    asked = EndpointRater(endpoint, budget=budget, transport=transport)
    await asked.rate(ASKED, OPENING, WORDS)
    assert budget.spent == 12, "10, 17 and 12 bytes are about 3, 5 and 3 tokens; one is sampled"
    with pytest.raises(JudgeUnavailable, match="10 tokens of today"):
        await asked.rate(ASKED, OPENING, WORDS)
