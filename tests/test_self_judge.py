"""The served model as judge: measured on labelled lines first, and at work only where it hears better."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judges import rules_judge, settings

from openclaw_rl.app.judges import build_judge, judges_itself, running
from openclaw_rl.config import load
from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.auto import AutoJudge
from openclaw_rl.judge.calibration import Agreement, Hits, agreement, measure, shipped_rows
from openclaw_rl.judge.evaluation import Reading
from openclaw_rl.judge.labelled import LabelledRow
from openclaw_rl.judge.parts import at_work
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.judge.self_judge import CalibrationPlan, SelfJudge
from openclaw_rl.ports import Case
from openclaw_rl.testing import FakeJudge, ScriptedPolicy, make_case, make_message, vote_json

ROOT = Path(__file__).parents[1]
ROWS = shipped_rows()
LABELS = {row.next: row.score for row in ROWS}


def right(case: Case) -> float | None:
    """The judge that is always right."""
    return LABELS[case.outcome.next_state[0].content]


def praises(case: Case) -> float | None:
    """Hears complaints, and praise in everything else."""
    return right(case) or 1.0


# --- the lines


def test_the_shipped_lines_are_balanced_as_a_whole_and_in_every_part() -> None:
    assert Counter(row.score for row in ROWS) == {None: 48, -1: 24, 1: 24}
    for at in range(0, 96, 4):
        assert Counter(row.score for row in ROWS[at : at + 4]) == {None: 2, -1: 1, 1: 1}
    assert sum(row.language == "en" for row in ROWS) == 48
    assert len({row.language for row in ROWS}) >= 10
    assert max(Counter(row.voice for row in ROWS).values()) <= 4


def test_the_script_writes_the_shipped_lines_from_the_voices() -> None:
    spec = importlib.util.spec_from_file_location("calibration_lines", ROOT / "scripts" / "calibration_lines.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.sample(ROOT / "data" / "voices", seed=0) == script.TARGET.read_text("utf-8")


# --- measuring


def read(score: float | None, label: Any) -> Reading:
    row = next(row for row in ROWS if row.label == label)
    return Reading(row=row, score=score)


def test_precision_recall_and_strength_by_hand() -> None:
    readings = [
        *(read(-1, "complaint"), read(-0.5, "rule"), read(0, "fact"), read(-1, "neutral")),
        *(read(1, "praise"), read(None, "praise_rule"), read(None, "neutral")),
    ]
    found = agreement(readings)
    assert found.complaints == Hits(right=2, given=3, there=3)
    assert found.praise == Hits(right=1, given=1, there=2)
    assert str(found) == "complaints 0.67 / 0.67, praise 1.00 / 0.50 (precision / recall)"
    assert found.complaints.strength == 0, "two of three is too seldom"
    assert found.praise.strength == pytest.approx(1.25 * 0.5 / 0.75)
    assert found.strength == pytest.approx(found.praise.strength / 2)
    assert [found.heard(score) for score in (-1, 1, 0, None)] == [False, True, True, True]
    assert Agreement.read(found.plain()) == found


async def measured(judge: Any, rows: tuple[LabelledRow, ...] = ROWS) -> Agreement:
    return await measure(judge, rows, workers=4, progress=lambda done: None)


@pytest.mark.anyio
async def test_any_judge_can_be_measured() -> None:
    perfect = await measured(FakeJudge(right))
    assert (perfect.rows, perfect.strength) == (96, 1.0)
    half = await measured(FakeJudge(lambda case: -1.0 if right(case) == -1 else None))
    assert (half.rows, half.strength) == (96, 0.5), "it hears every complaint and no praise"
    rules = await measured(rules_judge())
    assert rules.rows in (24, 96), "one that gets nothing right of the first lines is asked no further"
    assert rules.strength < 0.5


@pytest.mark.anyio
async def test_a_judge_that_gets_nothing_right_at_first_is_asked_no_further() -> None:
    mute = FakeJudge(None)
    assert (await measured(mute)).rows == 24
    assert len(mute.cases) == 24


@pytest.mark.anyio
async def test_a_judge_that_cannot_be_asked_is_not_measured() -> None:
    with pytest.raises(JudgeUnavailable, match="24 of 24 lines could not be judged"):
        await measured(FakeJudge(JudgeUnavailable("down")))


@pytest.mark.anyio
async def test_a_judge_that_was_fitted_to_such_lines_is_taken_at_its_word() -> None:
    class Reader(FakeJudge):
        agreement = Agreement(
            rows=9, complaints=Hits(right=1, given=1, there=2), praise=Hits(right=0, given=0, there=2)
        )

    reader = Reader(right)
    assert (await measured(reader)).rows == 9
    assert reader.cases == []


# --- who is at work


def self_judge(
    tmp_path: Path, model: Callable[[Case], float | None] | JudgeUnavailable, *, pauses: list[float] | None = None
) -> tuple[SelfJudge, FakeJudge, FakeJudge]:
    async def sleep(seconds: float) -> None:
        assert pauses is not None
        pauses.append(seconds)
        if isinstance(taster.score, JudgeUnavailable):
            taster.score = right
        await asyncio.sleep(0)

    asked, taster = FakeJudge(right if isinstance(model, JudgeUnavailable) else model), FakeJudge(model)
    plan = CalibrationPlan(rows=ROWS, workers=4, folder=tmp_path / "judges", identity=lambda: "base-1")
    return (
        SelfJudge(baseline=rules_judge(), model=asked, taster=taster, plan=plan, sleep=sleep),
        asked,
        taster,
    )


def complaint() -> Case:
    return make_case(next(row.next for row in ROWS if row.label == "complaint"))


@pytest.mark.anyio
async def test_the_model_judges_once_it_is_measured_to_hear_better(tmp_path: Path) -> None:
    judge, asked, _ = self_judge(tmp_path, right)
    assert at_work(judge) == "rules, until the served model is measured (0 of 96 lines)"
    assert (await judge.judge(complaint())).judge == "rules"
    async with running(judge, wait=True):
        assert (await judge.judge(complaint())).score == -1
        assert at_work(judge).startswith("the served model itself (fake), which hears better; the served model: comp")
        report = judge.measured()
        assert report is not None
        assert report["model_leads"]
        assert report["model"]["complaints"] == {"right": 24, "given": 24, "there": 24}
        before = len(asked.cases)
        tools = make_case(make_message("tool", "3 failed, 1 passed"))
        assert (await judge.judge(tools)).judge == "rules", "tools' results are the rules'"
        assert len(asked.cases) == before


@pytest.mark.anyio
async def test_the_model_gives_way_where_it_is_the_weaker(tmp_path: Path) -> None:
    judge, asked, _ = self_judge(tmp_path, lambda case: 1.0)
    async with running(judge, wait=True):
        assert at_work(judge).startswith("rules, which the served model does not better; rules: complaints")
        assert (await judge.judge(complaint())).judge == "rules"
        assert (await judge.explain(complaint())).judge == "rules"
    assert asked.cases == []


@pytest.mark.anyio
async def test_a_score_that_the_model_gives_wrongly_too_often_is_not_heard(tmp_path: Path) -> None:
    judge, _, _ = self_judge(tmp_path, praises)
    async with running(judge, wait=True):
        assert (await judge.judge(complaint())).score == -1
        neutral = make_case(next(row.next for row in ROWS if row.label == "neutral"))
        verdict = await judge.judge(neutral)
        assert (verdict.score, verdict.note) == (None, "not heard, since it says so wrongly too often: +1; ")


@pytest.mark.anyio
async def test_what_was_measured_of_these_weights_is_kept(tmp_path: Path) -> None:
    for again in (False, True):
        judge, _, taster = self_judge(tmp_path, right)
        async with running(judge, wait=True):
            assert bool(taster.cases) is not again
            assert at_work(judge).startswith("the served model itself")
    [file] = (tmp_path / "judges").iterdir()
    file.write_text("{")
    judge, _, taster = self_judge(tmp_path, right)
    async with running(judge, wait=True):
        assert len(taster.cases) == 96, "a file that cannot be read is written anew"


@pytest.mark.anyio
async def test_a_model_that_cannot_be_measured_is_tried_again_and_the_rules_judge_meanwhile(tmp_path: Path) -> None:
    pauses: list[float] = []
    judge, _, _ = self_judge(tmp_path, JudgeUnavailable("the model is down"), pauses=pauses)
    async with running(judge, wait=True):
        why = "24 of 24 lines could not be judged: the model is down"
        assert at_work(judge) == f"rules; the served model could not be measured: {why}"
        assert (await judge.judge(complaint())).judge == "rules"
        while judge.measured() is None:
            await asyncio.sleep(0.001)
    assert pauses == [60.0]


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
    ],
)
def test_a_model_that_can_be_told_what_to_do_judges_itself_unless_told_otherwise(
    sets: list[str], expected: bool
) -> None:
    assert judges_itself(load(environ={}, sets=sets).config) is expected


@pytest.mark.anyio
async def test_the_served_model_is_asked_with_examples_and_its_votes_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(tmp_path))
    policy = ScriptedPolicy(vote_json(-1))
    config = load(environ={}, sets=["policy.model=a/model", "judge.llm.votes=1"]).config
    judge = build_judge(config, policy)
    assert isinstance(judge, SelfJudge)
    async with running(judge, wait=True):
        prompt, _, version = policy.requests[0]
        assert version == 0
        assert "Examples, shortened:" in prompt.messages[0].content
        assert len(policy.requests) == 96
        found = judge.measured()
        assert found is not None
        assert found["model"]["complaints"] == {"right": 24, "given": 96, "there": 24}
        assert not found["model_leads"], "it complains about everything"
    alone = build_judge(config, None)
    assert isinstance(alone, AutoJudge), "a process without the policy does not load it for this"
    assert isinstance(build_judge(load(environ={}, sets=["judge.kind=rules"]).config, policy), RulesJudge)
    assert settings().prompts.template == "turn"
