"""`openclaw-rl judge eval`: what a judge is worth on labelled exchanges, in figures that can be counted by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from openclaw_rl.cli import cli
from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.evaluation import evaluate, holds
from openclaw_rl.judge.labelled import BadRow, LabelledRow, read_lines
from openclaw_rl.ports import Case
from openclaw_rl.stats import wilson
from openclaw_rl.types import Hint, Verdict

VOICE = {"voice": "en-someone", "language": "en", "about": "somebody"}
RULE = "one sentence, please"


def line(next: str, kind: str, hint: str | None = None, **more: Any) -> str:
    return json.dumps({"request": "Tea?", "reply": "A plant.", "next": next, "kind": kind, "hint": hint, **more})


LINES = [
    json.dumps(VOICE),
    line("wrong!", "complaint", tags=["terse"]),
    line("wrong", "complaint"),
    line(f"too long; {RULE}", "rule", RULE, tags=["terse", "polite"]),
    line("thanks!", "praise"),
    line("thanks; next time one sentence, please", "praise_rule", RULE),
    line("and coffee?", "neutral", language="de"),
    line("wrong door, he said", "neutral", tags=["reported"]),
]


def rows(lines: Sequence[str] = LINES) -> list[LabelledRow]:
    return [row for row in read_lines(lines, name="f.jsonl", voice="f") if isinstance(row, LabelledRow)]


class WordJudge:
    """-1 for "wrong" and "too long", +1 for "thanks", a rule for "please"; unavailable for what it is told."""

    name = "words"

    def __init__(self, out: str = "\0") -> None:
        self.out = out

    async def judge(self, case: Case) -> Verdict:
        said = case.outcome.next_state[0].content
        if self.out in said:
            raise JudgeUnavailable("it is out")
        score = -1 if "wrong" in said or "too long" in said else 1 if "thanks" in said else None
        hints = (Hint(text=f"Please: {RULE}."),) if "please" in said else ()
        return Verdict(turn=case.turn.id, score=score, source="judge", hints=hints)


@pytest.mark.anyio
async def test_precision_is_shown_at_the_base_rate_of_each_channel() -> None:
    lines = [*LINES, line("wrong file", "complaint", channel="coding"), line("go on", "neutral", channel="coding")]
    found = (await evaluate(WordJudge(), rows(lines), workers=2))["base_rate"]
    chat, coding = found["chat"], found["coding"]
    # chat: 3 of 3 complaints, 1 of 4 others: 0.21 / (0.21 + 0.79 / 4) = 0.5153, where the rows say 0.75
    assert (chat["rows"], coding["rows"]) == (7, 2)
    assert chat["complaints"]["precision"] == pytest.approx(0.21 / (0.21 + 0.79 / 4))
    assert chat["complaints"]["recall"] == 1.0
    assert chat["praise"]["precision"] == 1.0
    assert chat["praise"]["low"] < 0.1, "two lines say nothing of a class of 3 in 100"
    assert coding["complaints"]["precision"] == 1.0
    assert coding["praise"]["precision"] is None


@pytest.mark.anyio
async def test_precision_recall_and_rules_are_what_a_person_counts() -> None:
    found = await evaluate(WordJudge(), rows(), workers=2)
    over = found["all"]
    assert over["rows"] == 7
    precision = over["bad"]["precision"]
    assert (precision["right"], precision["of"]) == (3, 4), "the neutral one about a door is wrong"
    assert (precision["low"], precision["high"]) == wilson(3, 4)
    assert (over["bad"]["recall"]["right"], over["bad"]["recall"]["of"]) == (3, 3)
    assert over["good"]["precision"]["rate"] == over["good"]["recall"]["rate"] == 1.0
    assert (over["rules"]["right"], over["rules"]["of"]) == (2, 2)
    assert (over["unwanted"]["right"], over["unwanted"]["of"]) == (0, 5)
    assert (over["standing"]["right"], over["standing"]["of"]) == (2, 2)
    assert (over["false_standing"]["right"], over["false_standing"]["of"]) == (0, 7)
    assert found["kind"]["neutral"] == {"rows": 2, "bad": 1, "good": 0, "silent": 1, "rules": 0, "with_key": 0}
    assert {name: one["rows"] for name, one in found["language"].items()} == {"en": 6, "de": 1}
    assert found["language"]["de"]["bad"]["precision"]["rate"] is None
    assert {name: one["rows"] for name, one in found["tag"].items()} == {"terse": 2, "polite": 1, "reported": 1}
    assert list(found["voice"]) == ["en-someone"]


@pytest.mark.anyio
async def test_a_rule_that_nobody_said_is_a_false_standing_note_only_where_it_would_stand() -> None:
    lines = [*LINES, line("please refactor it", "neutral"), line("From now on, please use metric units.", "neutral")]
    over = (await evaluate(WordJudge(), rows(lines), workers=1))["all"]
    assert (over["unwanted"]["right"], over["unwanted"]["of"]) == (2, 7)
    assert (over["false_standing"]["right"], over["false_standing"]["of"]) == (1, 9)


@pytest.mark.anyio
async def test_rows_on_which_the_judge_failed_count_as_nothing_else() -> None:
    found = await evaluate(WordJudge(out="wrong"), rows(), workers=1)
    assert (found["rows"], found["failed"], found["failures"]) == (7, 3, {"it is out": 3})
    assert found["all"]["rows"] == 4
    assert found["all"]["bad"]["recall"]["of"] == 1


@pytest.mark.anyio
async def test_a_judge_that_is_never_there_is_not_asked_for_ever() -> None:
    found = await evaluate(WordJudge(out=""), rows(), workers=1)
    assert found["failures"] == {"it is out": 5, "the judge is unavailable": 2}


def test_a_hint_has_the_key_in_it_whatever_its_script_and_the_words_around_it() -> None:
    assert holds("Please answer in ONE sentence.", "one sentence")
    assert holds("请用一句话回答。", "用一句话")
    assert not holds("Please be brief.", "one sentence")
    assert not holds("anything", "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("[1]", "no JSON object"),
        ('{"request": "a", "reply": "b"}', "next: must be text"),
        (line("x", "angry"), "kind: 'angry' is none of complaint, rule"),
        (line("x", "rule"), "hint: is missing"),
        (line("x", "neutral", 3), "hint: must be text"),  # type: ignore[arg-type]
        (line("x", "neutral", tags="long"), "tags: must be a list"),
        (line("x", "neutral", role="system"), "role: 'system'"),
        ('{"request": "a", "reply": "b", "next": "c"}', "kind: is missing"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_the_reason(text: str, why: str) -> None:
    good, bad = read_lines([line("x", "neutral"), "", text], name="f.jsonl", voice="f")
    assert isinstance(good, LabelledRow)
    assert isinstance(bad, BadRow)
    assert bad.where == "f.jsonl:3"
    assert why in bad.why


def test_a_score_does_where_there_is_no_kind() -> None:
    said = {"request": "a", "reply": "b", "next": "c"}
    given = [
        {**said, "score": 1},
        {**said, "score": -1, "hint": "under 30 words", "hint_kind": "rule"},
        {**said, "score": -1, "hint": None},
        {**said, "score": None, "role": "tool"},
    ]
    found = rows([json.dumps(one) for one in given])
    assert [row.label for row in found] == ["praise", "rule", "complaint", "neutral"]
    assert found[-1].case().outcome.next_state[0].role == "tool"


def run(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(cli, ["judge", *words])
    assert done.exit_code == code, done.output
    return done


def test_the_command_reads_a_file_or_a_folder_and_names_what_it_skips(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join([*LINES, "{"]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(LINES) + "\n")
    one = run("eval", str(tmp_path / "a.jsonl"), "--judge", "rules")
    assert "skipped a.jsonl:9: " in one.stderr
    assert "judge rules, 7 rows" in one.stdout
    assert "| all | 7 | 75 (30-95), 3 of 4 | 100 (44-100), 3 of 3 |" in one.stdout
    both = json.loads(run("eval", str(tmp_path), "--judge", "rules", "--json").stdout)
    assert (both["rows"], len(both["skipped"])) == (14, 1)


@pytest.mark.slow
def test_the_default_judge_is_measured_as_it_judges_with_its_classifier(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    whole = json.loads(run("eval", str(tmp_path), "--json").stdout)
    assert whole["classifier"].startswith("SmolLM2-135M-Instruct-")
    alone = json.loads(
        run("eval", str(tmp_path), "--set", "judge.feedback_classifier.classifier=false", "--json").stdout
    )
    assert alone["classifier"] is None
    assert (whole["rows"], alone["rows"]) == (7, 7)


def test_a_judge_of_ones_own_is_measured_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(prompt, reply, next_state):\n    return -1.0\n")
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    found = json.loads(run("eval", str(tmp_path), "--judge", f"{tmp_path}/mine.py:score", "--json").stdout)
    assert (found["all"]["bad"]["precision"]["right"], found["all"]["bad"]["precision"]["of"]) == (3, 7)


def test_what_cannot_be_measured_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("{}\n")
    assert "holds no labelled exchange: empty.jsonl:1" in str(run("eval", str(tmp_path), code=1).exception)
    assert "give options after 'eval'" in run("--once", "eval", str(tmp_path), code=2).stderr
    assert "does not exist" in run("eval", str(tmp_path / "nowhere"), code=2).stderr
    (tmp_path / "empty.jsonl").write_text("\n".join(LINES))
    assert "nobody" in str(run("eval", str(tmp_path), "--judge", "nobody", code=1).exception)
