"""From a version back to the sentences that made it, and from a correction forward to its effect."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.backends.fake import ADAPTER, FakePolicy
from openclaw_rl.cli import cli
from openclaw_rl.errors import NotInLedger
from openclaw_rl.ports import GateDecision, Stream
from openclaw_rl.store import CollectLedger, JudgeLedger, LedgerReader, ServeLedger, TrainLedger, submit_request
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_turn, make_verdict
from openclaw_rl.types import Hint, Prompt, Sampling, Step, Version
from openclaw_rl.views import lineage as why

SENTENCE = "Far too long. Please keep it under 30 words."
RULE = "Please keep it under 30 words."


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Version 1 learned from one correction and one thumb, version 2 was refused, version 3 is 1 again."""
    path = tmp_path / "ledger.db"
    corrected = make_turn("What is tea?", id="t1", completion=make_completion("Tea is a very long story."))
    praised = make_turn("What is rain?", id="t2", user="u2")
    later = make_turn("What is snow?", id="t3", completion=make_completion("Cold.", version=1))
    with ServeLedger(path, sync="normal") as serve:
        for turn in (corrected, praised, later):
            serve.add_turn(turn)
    with CollectLedger(path) as collect:
        collect.settle(
            [
                make_outcome(corrected, next_state=(make_message("user", SENTENCE),)),
                make_outcome(praised),
                make_outcome(later),
            ],
            [],
        )
    with JudgeLedger(path) as judge:
        bad = make_verdict(
            corrected, -1.0, hints=(Hint(text=RULE), Hint(text="It is warm.", kind="fact")), note="a complaint"
        )
        judge.add_verdicts([bad, make_verdict(praised, 1.0), make_verdict(later, -1.0)])
    one = tmp_path / "one"
    one.mkdir()
    (one / ADAPTER).write_text(json.dumps({"rules": [RULE], "turns": []}))
    with TrainLedger(path, sync="normal") as train:
        train.add_version(Version(number=0, parent=None, base="fake", state="live", note="the base model"))
        first = Version(number=1, parent=0, base="fake", adapter=str(one), step=1, note="step 1")
        train.add_step(Step(number=1, turns=("t1", "t2"), metrics={"loss": 0.5}, seconds=1.0), first)
        train.add_gate_decision(_decision(1, "promote", "passed: all"))
        train.set_state(1, "live", "passed: all")
        second = Version(number=2, parent=1, base="fake", adapter=str(tmp_path / "two"), step=2, note="step 2")
        train.add_step(Step(number=2, turns=("t3",), metrics={}, seconds=1.0), second)
        train.add_gate_decision(_decision(2, "refuse", "length: 1.0 words a reply"))
        train.set_state(2, "refused", "length: 1.0 words a reply")
        train.add_version(
            Version(
                number=3,
                parent=1,
                base="fake",
                adapter=str(one),
                step=1,
                state="live",
                note="rollback to 1",
                origin="rollback",
            )
        )
    return tmp_path


def _decision(number: int, decision: str, reason: str) -> GateDecision:
    example = {
        "prompt": "What is tea?",
        "turn": "t1",
        "live": "Tea is a very long story.",
        "candidate": f"Tea {number}.",
    }
    check = {"name": "length", "ok": decision == "promote", "detail": "words", "numbers": {"p_value": 0.5}}
    former = {"name": "slide", "ok": True, "said": "3 of 6", "numbers": {"chance": 0.5}}  # as older code wrote it
    return GateDecision(
        version=number,
        against=number - 1,
        decision=decision,  # type: ignore[arg-type]
        reason=reason,
        evidence={"checks": [check, former], "examples": [{**example, "flaw": None}]},
        seconds=2.5,
    )


def test_the_table_has_a_line_per_version_with_gate_decision_and_reception(run: Path) -> None:
    with LedgerReader(run / "ledger.db") as ledger:
        rows = why.versions(ledger, now=ledger.version(3).at + 90)
    assert [(row["number"], row["state"], row["live"]) for row in rows] == [
        (0, "live", False),
        (1, "live", False),
        (2, "refused", False),
        (3, "live", True),
    ]
    assert (rows[0]["bad"], rows[0]["scored"], rows[1]["bad"], rows[1]["scored"]) == (1, 2, 1, 1)
    assert rows[1]["ruling"] == rows[1]["gate_decision"], "the former name still works"
    assert (rows[1]["turns"], rows[1]["gate_decision"]["decision"], rows[3]["seconds_ago"]) == (2, "promote", 90.0)
    table = list(why.versions_lines(rows))
    assert any(line.lstrip().startswith("3*") and line.endswith("2 min") for line in table)
    assert any("length: 1.0 words a reply" in line for line in table)


def test_a_version_leads_back_to_the_sentence_and_the_hint(run: Path) -> None:
    with LedgerReader(run / "ledger.db") as ledger:
        view = why.version(ledger, 3)
        assert view["line"] == [3, 0], "a rollback stands for the weights it went back to"
        [step] = view["steps"]
        assert [cause["turn"] for cause in step["turns"]] == ["t1", "t2"]
        cause = step["turns"][0]
        assert (cause["next_message"], cause["score"], cause["hints"][0]["text"]) == (SENTENCE, -1.0, RULE)
        assert why.version(ledger, 2)["line"] == [2, 1, 0]
        story = "\n".join(why.version_lines(why.version(ledger, 2), steps=1))
    assert "! length: words" in story
    assert "and 1 steps before that" in story


def test_checks_that_older_code_wrote_are_read_under_their_present_names(run: Path) -> None:
    with LedgerReader(run / "ledger.db") as ledger:
        view = why.version(ledger, 1)
    [decision] = view["gate_decisions"]
    assert view["rulings"] == [decision]
    new, old = decision["checks"]
    assert (old["name"], old["former_name"], old["detail"]) == ("drift", "slide", "3 of 6")
    assert (new["said"], new["numbers"]) == ("words", {"p_value": 0.5, "chance": 0.5})
    assert "+ drift: 3 of 6" in "\n".join(why.version_lines(view))


def test_a_correction_leads_forward_to_its_step_and_the_answers_before_and_after(run: Path) -> None:
    with LedgerReader(run / "ledger.db") as ledger:
        view = why.turn(ledger, "t1")
        assert (view["step"], view["made"]["number"], view["failed_version"]) == (1, 1, None)
        assert view["before"] == "Tea is a very long story."
        assert [(after["version"], after["reply"]) for after in view["after"]] == [(1, "Tea 1."), (2, "Tea 2.")]
        told = "\n".join(why.turn_lines(view))
        assert "trained in step 1, which made version 1 (live)" in told
        failed = why.turn(ledger, "t3")
        assert failed["failed_version"] == failed["fallen"] == {"version": 2, "state": "refused"}
        with pytest.raises(NotInLedger):
            why.either(ledger, "t9")
        with pytest.raises(NotInLedger):
            why.either(ledger, "9")


def test_a_turn_that_a_remembered_rule_taught_names_the_turn_it_came_from(run: Path) -> None:
    parts: dict[str, dict[str, float | str]] = {"t2": {"hints": 1.0, "lag": 0.0, "recalled": "t1"}}
    with TrainLedger(run / "ledger.db", sync="normal") as train:
        train.db.execute("UPDATE trained SET part = ? WHERE turn = 't2'", (json.dumps(parts["t2"]),))
        view = why.turn(train, "t2")
        assert view["recalled"] == {"turn": "t1", "rules": [RULE]}
        assert f"recalled from turn t1  {RULE}" in "\n".join(why.turn_lines(view))
        assert why.turn(train, "t1")["recalled"] is None


def test_pins_are_what_a_person_last_said(run: Path) -> None:
    path = run / "ledger.db"
    for turn in ("t1", "t2"):
        submit_request(path, "pin turn", turn=turn)
    submit_request(path, "unpin turn", turn="t1")
    submit_request(path, "pin turn", turn="t3")
    with LedgerReader(path) as ledger:
        assert ledger.pinned_turns() == ["t2", "t3"]
        assert why.turn(ledger, "t2")["pinned"]


def test_the_command_line_tells_the_same(run: Path) -> None:
    where = ["--rl-buffer-dir", str(run)]

    def said(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli, [*words, *where])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    assert "rollback to 1" in said("versions")
    assert json.loads(said("versions", "--json"))[3]["live"] is True
    assert SENTENCE in said("why", "1")
    assert json.loads(said("why", "t1", "--json"))["sentence"] == SENTENCE
    assert "recorded" in said("pin", "resp_t1")
    assert "recorded" in said("pin", "1")
    assert json.loads(said("pin", "--list", "--json")) == {"turns": ["t1"], "versions": [1]}
    said("unpin", "t1"), said("unpin", "1")
    assert "nothing is pinned" in said("pin", "--list")
    fakes = ["--set", "policy.backend=fake", "--set", "policy.model=fake"]
    assert f"[learned: {RULE}]" in said("why", "t1", "--answer", *fakes)


def test_what_is_asked_again_is_drawn_as_the_turn_was_and_what_is_compared_as_the_settings_say(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[Sampling] = []
    generate = FakePolicy.generate

    def recorded(self: FakePolicy, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        sampled.append(sampling)
        return generate(self, prompt, sampling, version=version)

    monkeypatch.setattr(FakePolicy, "generate", recorded)
    asked = Sampling(temperature=0.7, presence_penalty=0.25, min_p=0.1, stop=("END",), max_tokens=40, seed=11)
    with ServeLedger(run / "ledger.db", sync="normal") as serve:
        serve.add_turn(make_turn("What is ice?", id="t4", completion=make_completion("Cold.", sampling=asked)))
    where = ["--rl-buffer-dir", str(run), "--set", "policy.backend=fake", "--set", "policy.model=fake"]
    done = CliRunner().invoke(cli, ["why", "t4", "--answer", *where])
    assert done.exit_code == 0, done.output
    assert sampled == [replace(asked, seed=0)]
    warm = [
        "--set",
        "policy.sampling.temperature=0.6",
        "--set",
        "policy.sampling.top_p=0.9",
        "--set",
        "policy.sampling.dry_multiplier=0.8",
    ]
    done = CliRunner().invoke(cli, ["compare", "0", "1", "--prompt", "What is tea?", *where, *warm])
    assert done.exit_code == 0, done.output
    assert [(one.temperature, one.top_p, one.dry_multiplier) for one in sampled[1:]] == [(0.6, 0.9, 0.8)] * 2


@pytest.mark.parametrize(
    ("heading", "names"), [("`versions`", ["versions"]), ("`why VERSION`", ["why", "1"]), ("`why TURN`", ["why", "t1"])]
)
def test_every_field_that_is_printed_is_in_the_docs(run: Path, heading: str, names: list[str]) -> None:
    done = CliRunner().invoke(cli, [*names, "--json", "--rl-buffer-dir", str(run)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    page = (Path(__file__).parents[1] / "docs" / "json.md").read_text(encoding="utf-8")
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    cause = page.split("## `why VERSION`\n")[1].split("\n## ")[0] if names[-1] == "t1" else ""
    former = page.split("## Former names\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"\w+", section + cause + former))
    assert set(found[0] if isinstance(found, list) else found) - documented == set()
