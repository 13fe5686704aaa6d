"""The page on troubles quotes what the program says: each message is made by what prints it, and looked for there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.app import checks
from openclaw_rl.app.devices import gpu_layout
from openclaw_rl.app.doctor import _engines
from openclaw_rl.config import Config, load
from openclaw_rl.errors import OpenClawError
from openclaw_rl.judge import reported
from openclaw_rl.serve.loop import refuse_open_listener
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import TemporaryLedger
from openclaw_rl.types import Drop, Step, Verdict, Version
from openclaw_rl.versions import checkpoints
from openclaw_rl.versions.checkpoints import Checkpoint, TrainingProgress, to_be_adopted
from openclaw_rl.views import status
from openclaw_rl.views.status import falling_behind, nothing_trainable

PAGE = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text()


def said(error: pytest.ExceptionInfo[OpenClawError]) -> str:
    return f"error: {error.value}\n"


def alarmed(found: reported.Alarm | None) -> str:
    assert found is not None
    return f"alarm     {found.what}; {found.remedy}\n"


def test_the_page_quotes_the_alarms_of_judging() -> None:
    for found in (
        reported.backlog(250),
        reported.collapse([("u", 1.0, "judge")] * 49 + [("u", -1.0, "judge")]),
        reported.starvation([("u", 1.0, "judge")] * 3 + [("u", None, "judge")] * 47),
    ):
        assert alarmed(found) in PAGE


def test_the_page_quotes_the_alarms_of_training() -> None:
    behind = falling_behind(12, 40)
    starved = nothing_trainable(answered=20, trainable=0, reasons={"no signal": 20}, after=20)
    loops = [
        {"loop": "train", "state": "failing", "failures": 3, "error": "…", "detail": {}},
        {"loop": "judge", "state": "silent", "seconds_ago": 95, "pid": 4711, "host": "box", "detail": {}},
    ]
    for text in (behind, starved, *status.alarms({"outcomes": 0}, {}, loops, after=20)):
        assert f"alarm     {text}\n" in PAGE


def test_the_page_quotes_the_refusals_of_a_start() -> None:
    with pytest.raises(OpenClawError) as few:
        gpu_layout(load(environ={}, sets=["gpus.total=8"]).config, visible=0)
    with pytest.raises(OpenClawError) as open_to_all:
        refuse_open_listener("0.0.0.0", {})
    served = load(environ={}, sets=["policy.backend=sglang"]).config
    with pytest.raises(OpenClawError) as engine:
        checks.policy(served)
    for error in (few, open_to_all, engine):
        assert said(error) in PAGE
    found = _engines(Config())
    if "no optional engine" in found.detail:
        assert f"{found.state:>8}  {found.check}: {found.detail}" in PAGE


def test_the_page_quotes_the_refusals_about_folders(tmp_path: Path) -> None:
    (tmp_path / ".run").write_text("/data/first\n")
    (tmp_path / "000001").mkdir()
    with pytest.raises(OpenClawError) as another:
        checkpoints.claim(tmp_path, run=tmp_path / "second", known=())
    assert said(another).replace(str(tmp_path), "/data/checkpoints") in PAGE
    line = [
        Version(number=0, parent=None, base="b", state="live"),
        *(Version(number=n, parent=n - 1, base="b", adapter=f"/data/{n}", step=n, state="live") for n in (1, 2, 3)),
    ]
    resumed = Checkpoint(directory=Path("/data/1"), base="b", progress=TrainingProgress())
    with pytest.raises(OpenClawError) as own:
        to_be_adopted(resumed, line, line[-1])
    assert said(own).replace("/data/1:", "/data/checkpoints/checkpoint-1:") in PAGE


@pytest.mark.slow
def test_the_page_quotes_what_does_not_fit(tmp_path: Path) -> None:
    import torch

    from openclaw_rl.backends.hf.finding import find
    from openclaw_rl.backends.hf.models import check_fits
    from openclaw_rl.backends.local.training.memory import GIB, ModelShape, plan

    place = torch.device("cuda")
    with pytest.raises(OpenClawError) as large:
        check_fits("qwen3", 14 * GIB, 12 * GIB, kind=torch.bfloat16, place=place)
    with pytest.raises(OpenClawError) as nowhere:
        find("/path/to/qwen3-7b", cache_dir=tmp_path, progress=print)
    for error in (large, nowhere):
        assert said(error) in PAGE
    shape = ModelShape(
        parameters=4_000_000_000,
        trainable=4_000_000_000,
        layers=36,
        hidden=2560,
        intermediate=9728,
        vocabulary=151_936,
        weight_bytes=2,
    )
    with pytest.raises(OpenClawError) as training:
        plan(shape, 12 * GIB, recompute=None)
    before, _, remedy = str(training.value).partition("does not fit: ")
    assert f"ModelRefused: {before}does not fit: …; {remedy.partition('; ')[2]}\n" in PAGE


# --- the alarms themselves


def test_status_counts_turns_that_were_judged_and_not_their_verdicts() -> None:
    with TemporaryLedger() as ledger:
        turn = ledger.add(None)
        ledger.judge.add_verdicts([status_verdict(turn.id)])
        with LedgerReader(ledger.path) as reader:
            view = status.status(reader, starve_after=20)
    assert (view["turns"]["judged"], view["turns"]["answered"]) == (1, 1)


def status_verdict(turn: str) -> Any:
    return Verdict(turn=turn, score=1.0, source="explicit", judge="evidence")


def test_turns_that_came_too_late_to_train_are_an_alarm_for_an_hour() -> None:
    with TemporaryLedger() as ledger:
        turns = [ledger.add(1.0) for _ in range(5)]
        ledger.train.add_drops([Drop(turn=turn.id, stage="train", reason="stale", at=1000.0) for turn in turns[:4]])
        ledger.train.add_version(Version(number=0, parent=None, base="b", state="live"))
        ledger.train.add_step(Step(number=1, turns=(turns[4].id,), metrics={}, seconds=1.0, at=1000.0), None)
        with LedgerReader(ledger.path) as reader:
            soon = status.status(reader, starve_after=20, now=2000.0)["alarms"]
            later = status.status(reader, starve_after=20, now=9000.0)["alarms"]
    assert soon[0].startswith("training falls behind: 4 turns of the last hour were dropped as stale and 1 trained;")
    assert not any("falls behind" in alarm for alarm in later)


@pytest.mark.parametrize(("stale", "trained"), [(0, 0), (3, 0), (4, 100)])
def test_a_few_late_turns_are_no_alarm(stale: int, trained: int) -> None:
    assert falling_behind(stale, trained) is None
