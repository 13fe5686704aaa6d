"""A one-pass judge at work: only where it was measured to be precise, and set anew by what users rate."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from judges import LIMITS, rules_judge

from openclaw_rl.app.judges import build_judge, judges_itself, running
from openclaw_rl.config import load
from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.custom import RulesJudge
from openclaw_rl.judge.measured import MeasuredJudge, MeasurePlan, shipped_rows
from openclaw_rl.judge.one_pass import OnePass
from openclaw_rl.judge.parts import AutoJudge, at_work
from openclaw_rl.judge.raters import NoLogprobs
from openclaw_rl.testing import ScriptedPolicy, make_case, make_message
from openclaw_rl.types import Message

pytestmark = pytest.mark.anyio

ROWS = shipped_rows()
TRUTH = {row.next: row.score or 0 for row in ROWS}


class Model:
    """A rater that reads the truth of a shipped line from the question; ``says`` turns it into the sure word."""

    model = "model"
    context = None

    def __init__(self, says: Callable[[int], int] = lambda truth: truth, *, fails: Exception | None = None) -> None:
        self.says, self.fails, self.asked = says, fails, 0

    async def count(self, text: str) -> int:
        return len(text) // 4

    async def rate(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> tuple[float, ...]:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        said = messages[-1].content.partition("<next_message>")[2].partition("</next_message>")[0]
        lines = [line.removeprefix("| ") for line in said.splitlines() if line.startswith("| ")]
        text = "\n".join(lines).replace("&lt;", "<").replace("&gt;", ">").replace("&#91;", "[").replace("&amp;", "&")
        word = self.says(TRUTH.get(text, -1)) + 1
        return tuple(math.log(0.9 if at == word else 0.05) for at in range(3))


def judge(tmp_path: Path, model: Model, *, pauses: list[float] | None = None) -> MeasuredJudge:
    async def sleep(seconds: float) -> None:
        assert pauses is not None, "it is not to be tried again"
        pauses.append(seconds)
        model.fails = None
        await asyncio.sleep(0)

    plan = MeasurePlan(
        rows=ROWS, workers=4, folder=tmp_path / "cache", identity=lambda: "weights", rated=tmp_path / "rated.json"
    )
    return MeasuredJudge(baseline=rules_judge(), asks=OnePass(model), plan=plan, limits=LIMITS, sleep=sleep)


def complaint():  # type: ignore[no-untyped-def]
    return make_case("that is not at all what the brief was")


async def test_a_model_that_is_precise_judges_once_it_is_measured(tmp_path: Path) -> None:
    made = judge(tmp_path, Model())
    assert at_work(made) == f"rules, until model in one pass is measured (0 of {len(ROWS)} lines)"
    assert (await made.judge(complaint())).judge == "rules"
    async with running(made, wait=True):
        assert at_work(made).startswith("model in one pass: chat complaints 1.00 / 1.00")
        verdict = await made.judge(complaint())
        assert (verdict.score, verdict.judge) == (-1, "one-pass:model")
        tools = await made.judge(make_case(make_message("tool", "exit code 1")))
        assert tools.judge == "rules", "results of tools are read by rules"


async def test_a_model_that_takes_everything_for_a_complaint_stays_silent(tmp_path: Path) -> None:
    made = judge(tmp_path, Model(lambda truth: -1))
    async with running(made, wait=True):
        assert (await made.judge(complaint())).judge == "rules"
        assert at_work(made) == "rules; model in one pass is silent: no threshold reaches its precision at base rate"


async def test_a_class_that_is_not_precise_is_silent_and_the_other_is_scored(tmp_path: Path) -> None:
    made = judge(tmp_path, Model(lambda truth: truth or 1))
    async with running(made, wait=True):
        found = made.measured()
        assert found is not None
        assert sorted(found["thresholds"]) == ["chat complaints", "coding complaints"]
        assert (await made.judge(make_case(next(row.next for row in ROWS if row.score == 1)))).score is None


async def test_what_was_measured_of_these_weights_is_kept(tmp_path: Path) -> None:
    first, second = Model(), Model()
    for model in (first, second):
        async with running(judge(tmp_path, model), wait=True):
            pass
    assert (first.asked, second.asked) == (len(ROWS), 0)


async def test_a_model_that_is_away_is_measured_later_and_one_without_log_probs_never(tmp_path: Path) -> None:
    pauses: list[float] = []
    away = judge(tmp_path / "a", Model(fails=JudgeUnavailable("the model is down")), pauses=pauses)
    async with running(away, wait=True):
        assert at_work(away) == "rules; model in one pass could not be measured: the model is down"
        while away.measured() is None:
            await asyncio.sleep(0.001)
    assert pauses == [60.0]
    without = Model(fails=NoLogprobs("no log-probs"))
    votes = judge(tmp_path / "b", without)
    async with running(votes, wait=True):
        assert (await votes.judge(complaint())).judge == "rules"
    assert without.asked == 4, "each worker asked once"


async def test_turns_that_users_rate_are_counted_kept_and_can_silence_it(tmp_path: Path) -> None:
    made = judge(tmp_path, Model())
    async with running(made, wait=True):
        await made.rated(complaint(), -1.0)
        await made.rated(complaint(), 0.0)
        assert "right in 1 of 1 rated turns" in at_work(made)
    again = judge(tmp_path, Model())
    async with running(again, wait=True):
        assert "right in 1 of 1 rated turns" in at_work(again), "ratings outlive the process"
        for _ in range(6):
            await again.rated(complaint(), 1.0)
        assert (await again.judge(complaint())).score is None, "here its complaints are wrong"
    assert "brief" not in (tmp_path / "rated.json").read_text(), "no text of a conversation is kept"


def test_the_shipped_lines_are_of_both_channels_and_mostly_no_feedback() -> None:
    for channel in ("chat", "coding"):
        scores = [row.score for row in ROWS if row.channel == channel]
        assert len(scores) >= 50
        assert scores.count(None) >= scores.count(-1) >= 20


# --- from settings


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["policy.model=a/model"], True),
        ([], False),
        (["policy.model=a/model", "policy.backend=fake"], False),
        (["policy.model=a/model", "judge.kind=rules"], False),
        (["policy.model=a/model", "judge.llm.model=policy"], False),
        (["policy.model=a/model", "judge.models.score=a/prm"], False),
        (["policy.model=a/model", "judge.models.score=a/model"], True),
    ],
)
def test_a_model_that_can_be_told_what_to_do_judges_itself_unless_told_otherwise(
    sets: list[str], expected: bool
) -> None:
    assert judges_itself(load(environ={}, sets=sets).config) is expected


@pytest.mark.parametrize("more", [[], ["judge.models.score=a/model"]])
def test_the_served_model_judges_in_one_pass_with_one_copy(more: list[str]) -> None:
    config = load(environ={}, sets=["policy.model=a/model", *more]).config
    policy = ScriptedPolicy()
    made = build_judge(config, policy)
    assert isinstance(made, MeasuredJudge)
    assert at_work(made).endswith(f"until toy@0 in one pass is measured (0 of {len(ROWS)} lines)")
    assert isinstance(build_judge(load(environ={}, sets=["judge.kind=rules"]).config, policy), RulesJudge)


def test_an_endpoint_is_asked_in_one_pass_where_the_kind_is_auto_and_by_votes_where_it_is_llm() -> None:
    endpoint = ["judge.llm.base_url=http://judge/v1", "judge.llm.model=m"]
    assert isinstance(build_judge(load(environ={}, sets=endpoint).config, None), MeasuredJudge)
    assert build_judge(load(environ={}, sets=[*endpoint, "judge.kind=llm"]).config, None).name == "llm"
    assert isinstance(build_judge(load(environ={}).config, None), AutoJudge)
