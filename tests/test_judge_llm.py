"""The llm judge: votes, strict answers, and everything an endpoint can do wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx2
import pytest
from judges import LIMITS, auto_judge, llm_judge, settings

from openclaw_rl.errors import BackendDown, ConfigError, ContextOverflow, JudgeUnavailable
from openclaw_rl.judge.availability import Breaker
from openclaw_rl.judge.explain import explain
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.prompt import load
from openclaw_rl.judge.votes import parse, schema
from openclaw_rl.ports import Case, Delta, Judge
from openclaw_rl.testing import (
    FakeClock,
    JudgeEndpoint,
    chat_answer,
    make_completion,
    make_message,
    make_outcome,
    make_turn,
    vote_json,
)
from openclaw_rl.types import Completion, Feedback, Hint, Prompt, Sampling

GOOD = '{"reason": "thanks", "score": 1, "hint": null, "kind": null}'


def case(after: str = "well, I could imagine something else", reply: str = "ls", **outcome: Any) -> Case:
    turn = make_turn("list files", completion=make_completion(reply))
    return Case(turn=turn, outcome=make_outcome(turn, **{"next_state": (make_message("user", after),), **outcome}))


def judge(script: Callable[[httpx2.Request], Any], clock: FakeClock | None = None, **more: Any) -> LlmJudge:
    return llm_judge(script, clock or FakeClock(), **more)


@pytest.mark.anyio
async def test_votes_are_counted_and_the_verdict_names_everything() -> None:
    script = JudgeEndpoint(
        vote_json(1),
        vote_json(-1, "Keep it under 30 words.", "rule"),
        vote_json(-1, "Please use one sentence.", "rule"),
    )
    verdict = await judge(script).judge(case())
    assert isinstance(judge(script), Judge)
    assert (verdict.score, sorted(verdict.votes, key=str)) == (-1, [-1, -1, 1])
    assert [hint.text for hint in verdict.hints] == ["Keep it under 30 words.", "Please use one sentence."]
    assert (verdict.judge, verdict.source, verdict.prompt_version) == ("llm:m", "judge", load("turn").version)
    assert verdict.seconds > 0
    assert len(script.requests) == 3
    asked = script.requests[0]
    assert (asked["temperature"], asked["model"]) == (0.6, "m")
    assert asked["response_format"]["json_schema"]["schema"] == schema(hints=True)


@pytest.mark.anyio
async def test_the_key_is_sent_and_never_shown() -> None:
    script = JudgeEndpoint(GOOD)
    asked = judge(script, api_key="sk-secret")
    verdict = await asked.judge(case())
    assert script.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(verdict)
    await judge(script).judge(case())
    assert "authorization" not in script.headers[-1]


@pytest.mark.anyio
async def test_an_endpoint_without_json_mode_is_asked_more_simply_from_then_on() -> None:
    def old(request: httpx2.Request) -> httpx2.Response:
        form = json.loads(request.content).get("response_format", {}).get("type", "none")
        seen.append(form)
        return chat_answer(GOOD) if form == "none" else httpx2.Response(400, json={"error": "unknown response_format"})

    seen: list[str] = []
    plain = judge(old, votes=1)
    assert (await plain.judge(case())).score == 1
    assert (await plain.judge(case("another one"))).score == 1
    assert seen == ["json_schema", "json_object", "none", "none"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "the answer is not one JSON object"),
        ("score: 1", "the answer is not one JSON object"),
        ("1", "the answer is not one JSON object"),
        ("[1]", "the answer is not one JSON object"),
        ('{"score": 1} and more', "the answer is not one JSON object"),
        ('{"score": 1}{"score": 1}', "the answer is not one JSON object"),
        ('{"score": 1, "score": -1}', "the answer is not one JSON object"),
        ('{"score": "1"}', "the score is none of 1, 0, -1"),
        ('{"score": true}', "the score is none of 1, 0, -1"),
        ('{"score": 1.0}', "the score is none of 1, 0, -1"),
        ('{"score": 2}', "the score is none of 1, 0, -1"),
        ("{}", "the score is none of 1, 0, -1"),
        ('{"score": 1, "hint": 7}', "the hint or its kind is of the wrong form"),
        ('{"score": 1, "hint": "x", "kind": "order"}', "the hint or its kind is of the wrong form"),
        ('{"score": 1, "vote": 1}', "unknown keys in the answer: vote"),
        ("[HINT_START]a[HINT_END][HINT_START]b[HINT_END]", "more than one marked hint"),
        ("[" * 100_000, "the answer is not one JSON object"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_no_answer(text: str, note: str) -> None:
    assert (parse(text, hints=True).value, parse(text, hints=True).note) == (None, note)


def test_what_is_forgiven_thoughts_a_fence_and_a_marked_hint() -> None:
    assert parse('<think>hm {"score": 1}</think>\n```json\n{"score": -1}\n```', hints=True).value == -1
    marked = parse('{"score": -1, "hint": null, "kind": "rule"}\n[HINT_START] Use metric units. [HINT_END]', hints=True)
    assert marked.hint == Hint(text="Use metric units.", kind="rule")
    assert parse(vote_json(-1, "Use metric units.", "rule"), hints=False).hint is None


@pytest.mark.anyio
async def test_one_answer_and_two_unreadable_ones_are_no_opinion_with_a_note() -> None:
    verdict = await judge(JudgeEndpoint(GOOD, "garbage", "garbage")).judge(case())
    assert (verdict.score, sorted(verdict.votes, key=str)) == (None, [1, None, None])
    assert verdict.note == "1 of 3 votes answered, 2 needed; the answer is not one JSON object"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "trouble",
    [500, 503, 429, httpx2.ConnectError("refused"), httpx2.ReadTimeout("slow"), httpx2.RemoteProtocolError("cut")],
)
async def test_passing_trouble_is_tried_again_after_a_growing_pause_with_jitter(trouble: Any) -> None:
    clock = FakeClock()
    verdict = await judge(JudgeEndpoint(trouble, trouble, GOOD), clock, votes=1).judge(case())
    assert verdict.score == 1
    assert 0.25 <= clock.slept[0] <= 0.5 <= clock.slept[1] <= 1.0


@pytest.mark.anyio
async def test_the_server_may_ask_for_a_longer_pause() -> None:
    clock = FakeClock()
    wait = httpx2.Response(429, headers={"retry-after": "7"})
    assert (await judge(JudgeEndpoint(wait, GOOD), clock, votes=1).judge(case())).score == 1
    assert clock.slept == [7.0]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (500, "the endpoint answered 500"),
        (401, "check the judge's key"),
        (404, "check the judge's base URL and model name"),
        (httpx2.ConnectError("refused"), "no answer: ConnectError"),
        ("garbage", "the answer is not one JSON object"),
        (httpx2.Response(200, text="<html>"), "the answer is no chat completion"),
        (httpx2.Response(200, json={"choices": [{"message": {"content": None}}]}), "the answer holds no text"),
        (418, "the endpoint answered 418"),
    ],
)
async def test_an_endpoint_that_fails_makes_the_case_wait_and_never_scores(trouble: Any, said: str) -> None:
    with pytest.raises(JudgeUnavailable, match="no vote could be had") as caught:
        await judge(JudgeEndpoint(trouble)).judge(case())
    assert said in str(caught.value)


@pytest.mark.anyio
async def test_a_vote_that_hangs_ends_at_its_deadline() -> None:
    async def hangs(request: httpx2.Request) -> httpx2.Response:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(JudgeUnavailable, match=r"no answer within 0\.01 s"):
        await judge(hangs, deadline=0.01).judge(case())


@pytest.mark.anyio
async def test_one_hanging_vote_of_three_does_not_spoil_the_others() -> None:
    turns = iter([True, False, False])

    async def one_hangs(request: httpx2.Request) -> httpx2.Response:
        if next(turns):
            await anyio.sleep_forever()
        return chat_answer(GOOD)

    verdict = await judge(one_hangs, deadline=0.05).judge(case())
    assert (verdict.score, verdict.votes.count(None)) == (1, 1)


@pytest.mark.anyio
async def test_five_failures_open_the_breaker_and_one_good_answer_closes_it() -> None:
    clock, script = FakeClock(), JudgeEndpoint(500)
    asked = judge(script, clock, votes=1, retries=0)
    for at in range(5):
        with pytest.raises(JudgeUnavailable):
            await asked.judge(case(f"number {at}"))
    assert (asked.breaker.state, len(script.requests)) == ("open", 5)
    with pytest.raises(JudgeUnavailable, match="judging is paused"):
        await asked.judge(case())
    assert len(script.requests) == 5
    clock.now += 1.0
    script.answers = [GOOD]
    assert (await asked.judge(case())).score == 1
    assert asked.breaker.state == "closed"


@pytest.mark.anyio
async def test_a_case_that_only_draws_nonsense_is_given_up_once_others_are_answered() -> None:
    def picky(request: httpx2.Request) -> httpx2.Response:
        return chat_answer("???" if b"cursed" in request.content else GOOD)

    clock = FakeClock()
    asked = judge(picky, clock)
    for at in range(2):
        clock.now += 1
        with pytest.raises(JudgeUnavailable):
            await asked.judge(case("cursed"))
        clock.now += 1
        await asked.judge(case(f"fine {at}"))
    verdict = await asked.judge(case("cursed"))
    assert (verdict.score, verdict.votes) == (None, (None, None, None))
    assert "not one JSON object" in verdict.note


@pytest.mark.anyio
async def test_an_endpoint_of_nothing_but_nonsense_is_given_up_after_its_patience() -> None:
    clock = FakeClock()
    asked = judge(JudgeEndpoint("???"), clock, patience=100.0)
    with pytest.raises(JudgeUnavailable):
        await asked.judge(case("same"))
    clock.now = 100.0
    assert (await asked.judge(case("same"))).score is None


@pytest.mark.anyio
async def test_the_same_content_is_asked_once() -> None:
    script = JudgeEndpoint(GOOD)
    asked = judge(script)
    first, second = await asked.judge(case("a")), await asked.judge(case("a"))
    assert (len(script.requests), first.score, second.score) == (3, 1, 1)
    assert first.turn != second.turn
    await asked.judge(case("b"))
    assert len(script.requests) == 6


@pytest.mark.anyio
async def test_a_days_tokens_once_spent_are_back_the_next_day() -> None:
    clock = FakeClock()
    asked = judge(JudgeEndpoint(GOOD), clock, daily_tokens=30)
    await asked.judge(case("a"))
    assert asked.tokens.spent == 30
    with pytest.raises(JudgeUnavailable, match="has used its 30 tokens of today; judging resumes at 1970-01-02T00:00"):
        await asked.judge(case("b"))
    clock.now = 86_400.0
    assert (await asked.judge(case("b"))).score == 1


@pytest.mark.anyio
async def test_votes_run_at_once_but_no_more_than_there_are_workers() -> None:
    now, most = 0, 0

    async def slow(request: httpx2.Request) -> httpx2.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        now -= 1
        return chat_answer(GOOD)

    asked = judge(slow, votes=5, workers=2)
    async with anyio.create_task_group() as group:
        for at in range(3):
            group.start_soon(asked.judge, case(str(at)))
    assert most == 2


@pytest.mark.anyio
async def test_nothing_said_after_the_reply_is_not_asked_about() -> None:
    script = JudgeEndpoint(GOOD)
    verdict = await judge(script).judge(case(next_state=()))
    assert (verdict.score, verdict.note, script.requests) == (None, "nothing came after the reply", [])


def test_a_judge_without_a_model_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="needs a base URL and a model"):
        LlmJudge(settings=settings(model=None))


class Base:
    """A policy that answers a judge's prompt."""

    name, base, context, tool_format, live = "tiny", "tiny", 4096, "none", 3

    def __init__(self, text: str = GOOD, error: Exception | None = None) -> None:
        self.text, self.error = text, error
        self.asked: list[tuple[Prompt, Sampling, int | None]] = []

    async def generate(
        self, prompt: Prompt, sampling: Sampling, *, version: int | None = None
    ) -> AsyncIterator[Delta | Completion]:
        self.asked.append((prompt, sampling, version))
        if self.error:
            raise self.error
        yield Delta(text=self.text)
        yield make_completion(self.text)


@pytest.mark.anyio
async def test_the_policys_own_base_can_be_the_judge() -> None:
    base = Base()
    asked = LlmJudge(settings=settings(), policy=base)  # type: ignore[arg-type]
    verdict = await asked.judge(case())
    assert (verdict.score, verdict.judge) == (1, "llm:tiny@0")
    assert {version for _, _, version in base.asked} == {0}
    assert base.asked[0][1].temperature == 0.6
    assert asked.tokens.spent == 3 * (3 + 2)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [BackendDown("restarting"), ContextOverflow(limit=1, asked=2)])
async def test_a_policy_that_cannot_answer_makes_the_case_wait(error: Exception) -> None:
    with pytest.raises(JudgeUnavailable):
        await LlmJudge(settings=settings(), policy=Base(error=error)).judge(case())  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_auto_asks_the_model_only_where_the_reader_is_silent() -> None:
    script = JudgeEndpoint(vote_json(-1))
    auto = auto_judge(judge(script))
    assert ((await auto.judge(case("Thanks!"))).judge, script.requests) == ("feedback-classifier", [])
    assert (await auto.judge(case("hm"))).judge == "llm:m"
    assert (await auto_judge().judge(case("hm"))).score is None


@pytest.mark.anyio
async def test_an_explanation_shows_evidence_prompt_and_votes() -> None:
    asked = judge(JudgeEndpoint(vote_json(1), vote_json(1), "garbage"))
    seen = case("hm, one more thing")
    seen = Case(turn=seen.turn, outcome=seen.outcome, feedback=(Feedback(turn=seen.turn.id, score=-1.0),))
    told = await explain(seen, auto_judge(asked), limits=LIMITS, trusted=(), behaviour=True)
    assert [(one.source, one.score) for one in told.evidence] == [("explicit", -1.0)]
    assert told.prompt is not None
    assert '<next_state role="user">\n| hm, one more thing\n</next_state>' in told.prompt
    assert told.prompt_version == load("turn").version
    assert sorted(told.ballots) == sorted([vote_json(1), vote_json(1), "garbage"])
    assert told.verdict is not None
    assert (told.verdict.score, told.verdict.source) == (-1.0, "explicit")
    assert told.note == "decided by evidence; the judge alone: 2 of 2 for +1"


@pytest.mark.anyio
async def test_an_explanation_without_an_answer_still_shows_the_prompt() -> None:
    told = await explain(case("hm"), judge(JudgeEndpoint(500)), limits=LIMITS, trusted=(), behaviour=True)
    assert told.prompt is not None
    assert told.verdict is None
    assert "no vote could be had" in told.note


def test_a_breaker_lets_one_try_and_doubles_its_pause() -> None:
    clock = FakeClock()
    breaker = Breaker(failures=2, pause=10.0, longest=15.0, clock=clock)
    breaker.failure("a")
    assert (breaker.state, breaker.allow()) == ("closed", True)
    breaker.failure("b")
    assert (breaker.state, breaker.allow(), breaker.retry_in) == ("open", False, 10.0)
    clock.now = 10.0
    assert (breaker.state, breaker.allow(), breaker.allow()) == ("half open", True, False)
    breaker.failure("c")
    assert (breaker.state, breaker.retry_in, breaker.reason) == ("open", 15.0, "c")
    clock.now = 25.0
    assert breaker.allow()
    breaker.release()
    assert breaker.allow()
    breaker.success()
    assert (breaker.state, breaker.retry_in, breaker.reason) == ("closed", 0.0, "")
