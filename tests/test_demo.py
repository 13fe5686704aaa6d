"""The demo and the benchmark, told on fakes: a policy that learns one sentence by heart."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from learner import BACKEND, BROKEN, FAILING

from openclaw_rl.cli import cli
from openclaw_rl.cli.demo_view import print_report
from openclaw_rl.config import load
from openclaw_rl.errors import BackendError, ConfigError
from openclaw_rl.experiments import benchmark as bench
from openclaw_rl.experiments import charts as pictures
from openclaw_rl.experiments.demo import Plan, Standing, run
from openclaw_rl.experiments.personal import (
    Cell,
    Measured,
    cells,
    kept,
    measure,
    sessions_until,
    sparkline,
    spread,
    summary,
    table,
    teachable,
)
from openclaw_rl.experiments.users import Exchange
from openclaw_rl.store import Ledger
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import WISHES

SETTINGS = [
    f"policy.backend={BACKEND}",
    "policy.model=fake",
    "train.backend=fake",
    "judge.kind=rules",
    "run.poll=0.01",
    "train.batch_size=2",
    "store.sync=normal",
    "serve.port=0",
]


def config(root: Path, *more: str) -> Any:
    return load(environ={}, sets=[*SETTINGS, f"run.dir={root}/run", *more]).config


class Watching:
    """A view that writes down what it was shown."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.answered: list[tuple[int, int]] = []
        self.exchanges: list[Exchange] = []
        self.standings: list[Standing] = []

    def phase(self, what: str) -> None:
        self.phases.append(what)

    def probed(self, done: int, total: int) -> None:
        self.answered.append((done, total))

    def heard(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def stands(self, standing: Standing) -> None:
        self.standings.append(standing)


# --- the measure ---


@pytest.mark.parametrize(
    ("met", "sessions"), [("111", 3), ("0111", 4), ("110110111", 9), ("11011", None), ("", None), ("0111000", 4)]
)
def test_the_measure_is_the_session_that_makes_three_in_a_row(met: str, sessions: int | None) -> None:
    assert sessions_until([one == "1" for one in met]) == sessions


def test_held_out_replies_are_measured_for_the_wish_and_for_their_sense() -> None:
    asked = [Task(prompt=f"What is {name}?", mentions=(name,), about="facts") for name in ("tea", "ice", "rain")]
    found = measure(WISHES["short"], asked, ["Tea is a hot drink.", "word " * 40, "Wet."])
    assert (found.count, round(found.rate, 3), round(found.sense, 3)) == (3, 0.333, 0.333), (
        "one word is no reply, however short it was wished"
    )
    assert (found.words, found.degenerate) == (46 / 3, 2), "5 + 40 + 1 words; one repeats itself, one is a single word"
    left = Task(prompt="How many are left?", mentions=("38",), about="facts", answer="38")
    assert [measure(WISHES["short"], [left], [reply]).degenerate for reply in ("38.", "...", "")] == [0, 1, 1]


def test_sense_is_kept_in_proportion_to_what_the_base_has_when_told() -> None:
    def with_sense(sense: float) -> Measured:
        return Measured(count=10, rate=1.0, sense=sense, words=9.0, degenerate=0)

    assert kept(with_sense(0.6), with_sense(0.8)) == pytest.approx(0.75)
    assert kept(with_sense(0.6), with_sense(0.0)) is None


def test_the_mean_and_spread_over_seeds_are_in_the_table() -> None:
    measured = {"count": 10, "rate": 0.5, "sense": 0.9, "words": 12.0, "degenerate": 1}
    results = {
        f"opd short seed{seed}": {
            "arm": "opd",
            "users": {
                "short": {
                    "sessions": sessions,
                    "before": {**measured, "rate": 0.0},
                    "after": measured,
                    "sense_kept": None if sessions is None else sessions / 8,
                }
            },
            "ability_before": 0.8,
            "ability_after": 0.7,
            "seconds": 5.0,
        }
        for seed, sessions in enumerate([6, 10, None])
    }
    [row] = summary(results, sessions=20)
    assert row["sessions"] == {"mean": 12.0, "deviation": 7.2111, "least": 6, "most": 20}
    assert (row["reached"], row["seeds"], row["degenerate"]) == (2, 3, 3)
    assert row["ability"]["mean"] == pytest.approx(-0.1)
    assert row["sense_kept"]["mean"] == 1.0
    assert "| short | short | opd | 12.0 ± 7.2 | 2 of 3 | 0.00 -> 0.50 ± 0.00 |" in table([row])
    assert spread([4.0])["deviation"] == 0.0


def test_every_arm_is_run_for_every_user_alone_and_together_seed_by_seed() -> None:
    wanted = cells(users=("short", "list"), together=("short", "metric"), arms=("none", "opd"), seeds=range(3, 5))
    assert len(wanted) == len({cell.key for cell in wanted}) == 12
    assert wanted[0] == Cell(arm="none", users=("short",), seed=3)
    assert wanted[5].key == "opd short+metric seed3"


def test_pictures_are_well_formed_and_show_what_they_are_given() -> None:
    curve = pictures.lines("a < b", {"rate": [(1, 0.0), (2, 1.0)]}, x="turns", y="share", marks=[(2, "v1")])
    bars = pictures.bars("t", {"short": {"opd": (6.0, 1.0), "none": (20.0, 0.0)}}, y="sessions")
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(curve).iter()]
    assert {"a < b", "v1", "turns"} <= set(texts)
    assert {"6.0", "20.0", "opd", "short"} <= {"".join(n.itertext()) for n in ElementTree.fromstring(bars).iter()}
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"


# --- the demo ---


@pytest.mark.anyio
async def test_the_demo_measures_talks_trains_and_measures_again(tmp_path: Path) -> None:
    view = Watching()
    plan = Plan(wish=replace(WISHES["closing"], asks={"temperature": 0.9}), turns=16, probes=5, together=2, seed=3)
    report = await run(config(tmp_path, "train.max_wait=0"), plan, view)  # of no account here
    plain = report.plain()
    assert (plain["rate_before"], plain["rate_hinted"], plain["rate_after"]) == (0.0, 1.0, 1.0)
    assert plain["degenerate_hinted"] == report.hinted.degenerate == 0
    assert plain["words_hinted"] > plain["words_before"], "told, it says the phrase besides"
    assert plain["turns"] == len(view.exchanges) == len(plain["curve"]) == 16
    assert plain["versions"]["promoted"] >= 1
    assert plain["versions"]["refused"] == 0
    assert plain["curve"][0] == [1, 0.0]
    assert plain["curve"][-1][1] > 0
    assert (5, 5) in view.answered
    assert (10, 10) in view.answered, "before: plain and told"
    assert [answer["after"].endswith("Hope that helps!") for answer in plain["answers"]] == [True] * 5
    assert view.standings[-1].live == plain["promotions"][-1][1]
    assert "held-out after: 100%" in report.picture()
    with Ledger(tmp_path / "run" / "ledger.db") as reader:
        steps = [reader.step(number).turns for number in reader.steps_after(0, 100)]
        assert {len(turns) for turns in steps} == {2}, "no turn slips in beside a batch"
        trained = {turn for turns in steps for turn in turns}
        turns = [reader.turn(name) for (name,) in reader.rows("SELECT id FROM turns")]
        assert {turn.completion.sampling.temperature for turn in turns} == {0.9}, "asked for, also where it is measured"
        held = {answer["prompt"] for answer in plain["answers"]}
        assert trained
        assert not held & {reader.turn(turn).prompt.messages[0].content for turn in trained}


@pytest.mark.anyio
async def test_the_user_slows_down_while_the_trainer_is_behind(tmp_path: Path) -> None:
    view = Watching()
    plan = Plan(wish=WISHES["closing"], turns=14, probes=1, together=4)
    await run(config(tmp_path, "train.options.seconds=0.3"), plan, view)
    most = max(standing.waiting for standing in view.standings)
    assert most <= 2 * 2, "a batch of two, or its version twice while it moves on"
    with Ledger(tmp_path / "run" / "ledger.db") as reader:
        parts = [part for number in reader.steps_after(0, 100) for part in reader.step(number).parts.values()]
    assert {part["lag"] for part in parts} == {0.0}, "each turn was answered by what the batches before it made"


@pytest.mark.anyio
async def test_a_demo_whose_model_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    broken = config(tmp_path, f"policy.backend={BROKEN}")
    with pytest.raises(BackendError, match="64 GiB"):
        await run(broken, Plan(wish=WISHES["closing"], turns=1, probes=1), Watching())


@pytest.mark.anyio
async def test_a_demo_whose_trainer_fails_goes_on_to_its_end_and_says_why_nothing_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = config(tmp_path, f"train.backend={FAILING}")
    report = await run(failing, Plan(wish=WISHES["closing"], turns=6, probes=1), Watching())
    assert len(report.told) == 6
    assert report.standing.promoted == 0
    print_report(report)
    said = next(line for line in capsys.readouterr().out.splitlines() if "training stopped" in line)
    assert "the trainer fails" in said
    assert "out of memory" in said


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words], catch_exceptions=False)


def test_the_command_shows_conversations_figures_and_how_to_undo_it(tmp_path: Path) -> None:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    folder, figures = tmp_path / "kept", tmp_path / "figures.json"
    asked = [
        "demo",
        "--user",
        "closing",
        "--turns",
        "12",
        "--probes",
        "4",
        "--dir",
        str(folder),
        "--json",
        str(figures),
    ]
    done = command(*asked, *sets)
    assert done.exit_code == 0, done.output
    for words in ("u1: ", "is live", "before and after", "as wished", f"rollback 0 --rl-buffer-dir {folder}"):
        assert words in done.output
    found = json.loads(figures.read_text())["users"]["closing"]
    assert (found["rate_before"], found["rate_after"]) == (0.0, 1.0)
    assert ElementTree.parse(folder / "curve.svg").getroot().tag.endswith("svg")
    undone = command("rollback", "0", "--rl-buffer-dir", str(folder))
    assert undone.exit_code == 0, undone.output
    with pytest.raises(ConfigError, match="there is a run in"):
        command(*asked, *sets)


def test_a_user_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="known: short, list, one_sentence"):
        command("demo", "--user", "grumpy")


# --- the benchmark ---


def setup(root: Path, **more: Any) -> bench.Setup:
    return bench.Setup(config=config(root), directory=root / "cells", sessions=14, probes=4, **more)


@pytest.mark.anyio
async def test_an_arm_that_trains_learns_a_memory_helps_and_nothing_changes_nothing(tmp_path: Path) -> None:
    found = {
        arm: await bench.run_cell(setup(tmp_path), Cell(arm=arm, users=("closing",), seed=1))
        for arm in ("opd", "memory", "none")
    }
    told = {arm: result["users"]["closing"] for arm, result in found.items()}
    assert {one["before"]["rate"] for one in told.values()} == {0.0}
    assert (told["opd"]["after"]["rate"], told["memory"]["after"]["rate"], told["none"]["after"]["rate"]) == (1, 1, 0)
    assert told["none"]["met"] == [0] * 14
    assert told["none"]["turns"] == 14
    assert {one["told"]["rate"] for one in told.values()} == {1.0}
    assert told["opd"]["sense_kept"] == told["opd"]["after"]["sense"] / told["opd"]["told"]["sense"]
    assert told["opd"]["met"][-3:] == [1, 1, 1]
    assert told["memory"]["sessions"] is not None
    assert told["memory"]["sessions"] < told["opd"]["sessions"], "a note works at once, weights after a batch"
    assert found["opd"]["versions"]["promoted"] >= 1
    assert found["none"]["versions"] is None
    assert not list((tmp_path / "cells").iterdir()), "a cell's run is removed when it is over"


@pytest.mark.anyio
async def test_a_cell_depends_on_its_seed_alone(tmp_path: Path) -> None:
    def essence(result: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in result.items() if name != "seconds"}

    cell = Cell(arm="topk", users=("closing:facts", "short:advice"), seed=2)
    once = await bench.run_cell(setup(tmp_path), cell)
    again = await bench.run_cell(setup(tmp_path), cell)
    assert essence(once) == essence(again)
    assert once["users"]["closing"]["sessions"] is not None


def test_what_the_base_can_follow_when_told_is_measured_and_said(tmp_path: Path) -> None:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    file = tmp_path / "told.json"
    found = command("bench", "told", "--users", "closing,list", "--probes", "3", "--json", str(file), *sets)
    assert found.exit_code == 0, found.output
    told = json.loads(file.read_text())["users"]
    assert (told["closing"]["plain"]["rate"], told["closing"]["told"]["rate"]) == (0.0, 1.0)
    assert (told["closing"]["said"], told["closing"]["told"]["count"]) == ("can be taught", 3)
    assert told["list"]["said"] == "cannot be followed even when told"
    assert "| closing | 3 | 0.00 | 1.00 |" in found.output


@pytest.mark.parametrize(
    ("plain", "told", "said"),
    [
        (0.0, 0.5, "can be taught"),
        (0.0, 0.49, "cannot be followed even when told"),
        (0.84, 0.82, "nothing to teach: much the same when told"),
        (0.2, 0.41, "cannot be followed even when told"),
    ],
)
def test_a_wish_can_be_taught_where_telling_it_helps(plain: float, told: float, said: str) -> None:
    def rated(rate: float) -> Measured:
        return Measured(count=100, rate=rate, sense=1.0, words=9.0, degenerate=0)

    assert teachable(rated(plain), rated(told)) == said


def test_a_report_has_a_line_for_each_part_and_reads_back_as_it_was(tmp_path: Path) -> None:
    file, cell = tmp_path / "book.json", {"met": [0, 1], "users": {"ä": {"rate": 0.5}}}
    book = {"command": "bench", "cells": {"a": cell, "b": cell}, "summary": [cell, {}], "none": {}, "empty": []}
    bench.write(file, book)
    assert json.loads(file.read_text(encoding="utf-8")) == book
    assert f' "a": {json.dumps(cell, ensure_ascii=False)},' in file.read_text(encoding="utf-8").splitlines()


def test_the_benchmark_goes_on_where_it_stopped_and_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [word for setting in SETTINGS if "batch_size" not in setting for word in ("--set", setting)]
    file, plot = tmp_path / "book.json", tmp_path / "plot.svg"
    asked = ["bench", "personal", "--users", "closing", "--together", "", "--methods", "opd", "--arms", "none"]
    asked += ["--sessions", "10", "--probes", "2", "--json", str(file), "--dir", str(tmp_path / "cells"), *sets]
    first = command(*asked, "--seeds", "1")
    assert first.exit_code == 0, first.output
    book = json.loads(file.read_text())
    assert book["settings"]["train"]["batch_size"] == 1, "a complaint counts in the next session"
    book["cells"]["none closing seed0"]["seconds"] = 12345.0
    file.write_text(json.dumps(book))
    with monkeypatch.context() as patched:
        patched.delattr(bench, "run_cell")  # several at once run elsewhere
        second = command(*asked, "--seeds", "2", "--jobs", "2", "--plot", str(plot))
    assert second.exit_code == 0, second.output
    book = json.loads(file.read_text())
    assert list(book["cells"]) == ["none closing seed0", "opd closing seed0", "none closing seed1", "opd closing seed1"]
    assert book["cells"]["none closing seed0"]["seconds"] == 12345.0, "what is finished is not repeated"
    assert "| closing | closing | opd |" in second.output
    assert "none" in plot.read_text()
    command(*asked, "--seeds", "1", "--seed", "5")
    assert list(json.loads(file.read_text())["cells"])[4:] == ["none closing seed5", "opd closing seed5"]
    with pytest.raises(ConfigError, match="other settings"):
        command(*asked, "--rounds", "2")
    with pytest.raises(ConfigError, match="other settings"):
        command(*asked, "--set", "train.batch_size=2")
    with pytest.raises(ConfigError, match="other settings"):
        command(*asked, "--set", "gate.limits.kl_budget=9")
    monkeypatch.setattr(bench, "code", lambda: "after a change")
    with pytest.raises(ConfigError, match="other code"):
        command(*asked)


def test_results_know_the_code_that_made_them(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "users.py").write_text("WISH = 1")
    first = bench.code(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "users.pyc").write_bytes(b"compiled")
    assert bench.code(tmp_path) == first
    (tmp_path / "part" / "users.py").write_text("WISH = 2")
    second = bench.code(tmp_path)
    (tmp_path / "part" / "users.py").rename(tmp_path / "part" / "people.py")
    assert len({first, second, bench.code(tmp_path), bench.code()}) == 4


def test_runs_side_by_side_end_with_the_benchmark_that_was_killed(tmp_path: Path) -> None:
    cells = tmp_path / "cells"
    asked = ["bench", "personal", "--users", "closing", "--together", "", "--methods", "opd", "--arms", "none"]
    asked += ["--jobs", "2", "--to-the-end", "--sessions", "1000", "--dir", str(cells)]
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    whole = [sys.executable, "-m", "openclaw_rl", *asked, *sets]
    with subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(__file__).parent
    ) as running:
        until = time.monotonic() + 60
        while len(list(cells.glob("*"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        running.kill()
        said, _ = running.communicate(timeout=30)  # ends when nobody is left who could write to it
    assert len(list(cells.glob("*"))) == 2, said.decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "magic"], "no method 'magic'; known: binary, opd, combine, topk"),
        (["--arms", "hope"], "no arm 'hope'"),
        (["--users", "grumpy"], "no simulated user 'grumpy'"),
        (["--together", "short:poems"], "no kind of task 'poems'"),
    ],
)
def test_what_the_benchmark_does_not_know_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        command("bench", "personal", *words)
