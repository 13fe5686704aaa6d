"""The demo and the benchmark on fakes: a policy that learns one sentence by heart."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from learner import BACKEND, BROKEN, FAILING

from benchmarks.learning import benchmark
from benchmarks.learning.cell_run import BenchmarkSetup, cell_config, run_cell
from benchmarks.learning.cells import Cell, cells, summary, table
from benchmarks.personal import personal
from benchmarks.prompted import prompted
from openclaw_rl.cli import cli
from openclaw_rl.cli.demo import print_report
from openclaw_rl.config import load
from openclaw_rl.errors import BackendError, ConfigError
from openclaw_rl.experiments import charts, demo, results
from openclaw_rl.experiments.demo import DemoPlan, Obeyed, run
from openclaw_rl.experiments.demo_server import Progress
from openclaw_rl.experiments.results import (
    HeldOutRates,
    measure,
    relevance_kept,
    sessions_until,
    sparkline,
    spread,
    teachable,
)
from openclaw_rl.experiments.sessions import SimulatedTurn
from openclaw_rl.store import LedgerReader
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import PREFERENCES
from openclaw_rl.testing import wait_until

ROOT = Path(__file__).parents[1]
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


class Recording:
    """A view that records what it was shown."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.answers: list[tuple[int, int]] = []
        self.turns: list[SimulatedTurn] = []
        self.notes: list[str] = []
        self.shown: list[Obeyed] = []
        self.progresses: list[Progress] = []

    def phase(self, what: str) -> None:
        self.phases.append(what)

    def answered(self, done: int, total: int) -> None:
        self.answers.append((done, total))

    def turn(self, turn: SimulatedTurn) -> None:
        self.turns.append(turn)

    def noted(self, note: str) -> None:
        self.notes.append(note)

    def obeyed(self, obeyed: Obeyed) -> None:
        self.shown.append(obeyed)

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)


def plan(**more: Any) -> DemoPlan:
    usual: dict[str, Any] = {"preference": PREFERENCES["closing"], "seed": 0, "probes": 4, "sessions": 6, "rounds": 2}
    return DemoPlan(**{**usual, **more})


# --- the measure ---


@pytest.mark.parametrize(
    ("met", "sessions"), [("111", 3), ("0111", 4), ("110110111", 9), ("11011", None), ("", None), ("0111000", 4)]
)
def test_the_measure_is_the_session_that_makes_three_in_a_row(met: str, sessions: int | None) -> None:
    assert sessions_until([one == "1" for one in met]) == sessions


def test_held_out_replies_are_measured_for_the_preference_and_for_relevance() -> None:
    asked = [Task(prompt=f"What is {name}?", mentions=(name,), about="facts") for name in ("tea", "ice", "rain")]
    found = measure(PREFERENCES["short"], asked, ["Tea is a hot drink.", "word " * 40, "Wet."])
    assert (found.count, round(found.rate, 3), round(found.relevance, 3)) == (3, 0.333, 0.333), (
        "one word is no reply, however short it is to be"
    )
    assert (found.words, found.degenerate) == (46 / 3, 2), "5 + 40 + 1 words; one repeats itself, one is a single word"
    left = Task(prompt="How many are left?", mentions=("38",), about="facts", answer="38")
    assert [measure(PREFERENCES["short"], [left], [reply]).degenerate for reply in ("38.", "...", "")] == [0, 1, 1]


def test_relevance_is_kept_in_proportion_to_that_of_the_prompted_baseline() -> None:
    def with_relevance(relevance: float) -> HeldOutRates:
        return HeldOutRates(count=10, rate=1.0, relevance=relevance, words=9.0, degenerate=0)

    assert relevance_kept(with_relevance(0.6), with_relevance(0.8)) == pytest.approx(0.75)
    assert relevance_kept(with_relevance(0.6), with_relevance(0.0)) is None


def test_the_mean_and_spread_over_seeds_are_in_the_table() -> None:
    measured = {"count": 10, "rate": 0.5, "relevance": 0.9, "words": 12.0, "degenerate": 1}
    results = {
        f"opd short seed{seed}": {
            "arm": "opd",
            "users": {
                "short": {
                    "sessions": sessions,
                    "before": {**measured, "rate": 0.0},
                    "after": measured,
                    "relevance_kept": None if sessions is None else sessions / 8,
                }
            },
            "ability_before": 0.8,
            "ability_after": 0.7,
            "seconds": 5.0,
        }
        for seed, sessions in enumerate([6, 10, None])
    }
    [row] = summary(results, sessions=20)
    within = row["sessions"]
    assert (within.pop("low"), within.pop("high")) == (pytest.approx(-5.9, abs=0.4), pytest.approx(29.9, abs=0.4)), (
        "Student's t for two degrees of freedom is 4.3: 12 ± 4.3 * 7.2111 / sqrt(3)"
    )
    assert within == {"mean": 12.0, "deviation": 7.2111, "least": 6, "most": 20}
    row["sessions"] = {**within, "low": None, "high": None}
    assert (row["reached"], row["seeds"], row["degenerate"]) == (2, 3, 3)
    assert row["ability"]["mean"] == pytest.approx(-0.1)
    assert row["relevance_kept"]["mean"] == 1.0
    assert "| short | short | opd | 12.0 | 2 of 3 | 0.00 -> 0.50 (0.50 to 0.50) |" in table([row])
    assert (spread([4.0])["deviation"], spread([4.0, 5.0])["low"]) == (0.0, None), "two seeds are too few to say"


def test_every_arm_is_run_for_every_user_alone_and_together_seed_by_seed() -> None:
    wanted = cells(users=("short", "list"), together=("short", "metric"), arms=("none", "opd"), seeds=range(3, 5))
    assert len(wanted) == len({cell.key for cell in wanted}) == 12
    assert wanted[0] == Cell(arm="none", users=("short",), seed=3)
    assert wanted[5].key == "opd short+metric seed3"


def test_charts_are_well_formed_and_show_what_they_are_given() -> None:
    curve = charts.lines("a < b", {"rate": [(1, 0.0), (2, 1.0)]}, x="turns", y="share", marks=[(2, "v1")])
    bars = charts.bars("t", {"short": {"opd": (6.0, 1.0), "none": (20.0, 0.0)}}, y="sessions")
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(curve).iter()]
    assert {"a < b", "v1", "turns"} <= set(texts)
    assert {"6.0", "20.0", "opd", "short"} <= {"".join(n.itertext()) for n in ElementTree.fromstring(bars).iter()}
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"


# --- the demo ---


CLOSING = "Hope that helps!"


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_correction_is_obeyed_at_once_learned_and_leaves_the_prompt(tmp_path: Path) -> None:
    view = Recording()
    warm = replace(PREFERENCES["closing"], sampling={"temperature": 0.9})
    report = await run(config(tmp_path), plan(preference=warm, probes=5, seed=3), view)
    plain = report.plain()
    assert (plain["rate_before"], plain["rate_noted"], plain["rate_after"]) == (0.0, 1.0, 1.0)
    assert view.notes == [report.note]
    assert report.note is not None
    assert CLOSING in report.note
    [shown] = view.shown
    assert (shown.without.endswith(CLOSING), shown.within.endswith(CLOSING)) == (False, True)
    assert view.progresses[-1].state == plain["state"] == "learned"
    assert (view.progresses[-1].live, view.progresses[-1].served) == (1, True), "what is measured is what answers"
    states = {progress.change: progress.state for progress in view.progresses}
    road = [(1, "proposed"), (2, "in force"), (3, "learning"), (4, "learned")]
    assert list(states.items()) == road, "each is shown, however short"
    assert any("s of idle processor time" in progress.reason for progress in view.progresses), "before it is spent"
    assert view.answers.count((5, 5)) == 3, "before, with the note, after"
    assert [answer["after"].endswith(CLOSING) for answer in plain["answers"]] == [True] * 5
    [row] = plain["distillations"]
    assert (row["measured_after"], row["held_back"]) == ([0, 12], 16)
    unknown = replace(report, distillations=({**row, "met": [None, None]},))
    assert [step for step, _ in unknown.curves()["distance left"]] == [0, 12], "a wish that no program checks"
    known = replace(report, distillations=({**row, "met": [0, 16], "sampled": [[4, 8, 16], [6, 12, 16]]},) * 2)
    assert known.curves() == {
        "held-back prompts": [(0, 0.0), (12, 1.0), (12, 0.0), (24, 1.0)],
        "distilled prompts": [(4, 0.5), (6, 0.75), (16, 0.5), (18, 0.75)],
    }
    assert "held-out after: 100%" in report.chart()
    with LedgerReader(tmp_path / "run" / "ledger.db") as reader:
        assert reader.counts()["trained"] == 0, "turns take no steps: what is shown is what the note teaches"
        turns = [reader.turn(found["id"]) for found in reader.rows("SELECT id FROM turns")]
        assert {turn.completion.sampling.temperature for turn in turns} == {0.9}, "asked for, also where it is measured"


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_correction_that_nobody_hears_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "HEARD", 0.0)
    mumbling = replace(PREFERENCES["closing"], precise=("Hm.", "Well."))
    report = await run(config(tmp_path), plan(preference=mumbling, probes=1, sessions=2), Recording())
    assert (report.note, report.end, report.learned) == (None, None, False)
    print_report(report)
    assert "no correction was read as a rule in 4 turns" in capsys.readouterr().out
    assert report.plain()["state"] is None


@pytest.mark.anyio
async def test_a_demo_whose_model_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    broken = config(tmp_path, f"policy.backend={BROKEN}")
    with pytest.raises(BackendError, match="64 GiB"):
        await run(broken, plan(probes=1), Recording())


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_demo_whose_trainer_fails_goes_on_to_its_end_and_says_why_nothing_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = config(tmp_path, f"train.backend={FAILING}")
    report = await run(failing, plan(probes=1), Recording())
    assert not report.learned
    assert (report.noted.rate, report.after.rate) == (1.0, 0.0), "the note holds all the same"
    print_report(report)
    said = next(line for line in capsys.readouterr().out.splitlines() if "training stopped" in line)
    assert "the trainer fails" in said
    assert "out of memory" in said


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words], catch_exceptions=False)


def benchmark_command(script: click.Command, *words: str) -> Result:
    return CliRunner().invoke(script, [*words], catch_exceptions=False)


@pytest.mark.slow
def test_the_command_shows_conversations_figures_and_how_to_undo_it(tmp_path: Path) -> None:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    folder, figures = tmp_path / "kept", tmp_path / "figures.json"
    voice = tmp_path / "blunt.toml"
    blunt = 'From here on, end your answers with "Hope that helps!"'
    voice.write_text(f"[any]\nthanks = ['Aye.']\n[closing]\nprecise = ['{blunt}']\n")
    asked = [
        "demo",
        "--user",
        "closing",
        "--voice",
        str(voice),
        "--probes",
        "4",
        "--dir",
        str(folder),
        "--json",
        str(figures),
    ]
    done = command(*asked, *sets)
    assert done.exit_code == 0, done.output
    for words in (
        f"u1: {blunt}",
        "u1: Aye.",
        "noted: ",
        "without the note: ",
        "the note is learning: prompt distillation begins: about",
        "the note is learned: version 1 has learned it",
        "before and after",
        "preference rate",
        f"rollback 0 --rl-buffer-dir {folder}",
    ):
        assert words in done.output
    assert done.output.count(f"u1: {blunt}") == 1, "said once, shown once"
    found = json.loads(figures.read_text())["users"]["closing"]
    assert (found["rate_before"], found["rate_after"]) == (0.0, 1.0)
    assert found["sense_after"] == found["relevance_after"], "former names still work"
    assert ElementTree.parse(folder / "curve.svg").getroot().tag.endswith("svg")
    undone = command("rollback", "0", "--rl-buffer-dir", str(folder))
    assert undone.exit_code == 0, undone.output
    with pytest.raises(ConfigError, match="there is a run in"):
        command(*asked, *sets)


def test_a_user_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="known: short, list, one_sentence"):
        command("demo", "--user", "grumpy")


def test_a_voice_that_cannot_speak_for_the_user_is_refused_before_anything_starts(tmp_path: Path) -> None:
    voice = tmp_path / "terse.toml"
    voice.write_text('[any]\nthanks = ["Aye."]\n[short]\nprecise = ["Thirty words is your lot."]\n')
    with pytest.raises(ConfigError, match="the voice terse has no correction for the preference 'list'"):
        command("demo", "--user", "list", "--voice", str(voice))


# --- the benchmark ---


def setup(root: Path) -> BenchmarkSetup:
    return BenchmarkSetup(
        config=config(root), directory=root / "cells", sessions=14, probes=4, rounds=1, to_the_end=False
    )


@pytest.mark.anyio
async def test_an_arm_that_trains_learns_a_memory_helps_and_nothing_changes_nothing(tmp_path: Path) -> None:
    found = {
        arm: await run_cell(setup(tmp_path), Cell(arm=arm, users=("closing",), seed=1))
        for arm in ("opd", "memory", "none")
    }
    users = {arm: result["users"]["closing"] for arm, result in found.items()}
    assert {one["before"]["rate"] for one in users.values()} == {0.0}
    assert (users["opd"]["after"]["rate"], users["memory"]["after"]["rate"], users["none"]["after"]["rate"]) == (
        1,
        1,
        0,
    )
    assert users["none"]["met"] == [0] * 14
    assert users["none"]["turns"] == 14
    assert {one["prompted"]["rate"] for one in users.values()} == {1.0}
    assert users["opd"]["relevance_kept"] == users["opd"]["after"]["relevance"] / users["opd"]["prompted"]["relevance"]
    assert users["opd"]["met"][-3:] == [1, 1, 1]
    assert users["memory"]["sessions"] is not None
    assert users["memory"]["sessions"] < users["opd"]["sessions"], "a note works at once, weights after a batch"
    assert found["opd"]["versions"]["promoted"] >= 1
    assert found["none"]["versions"] is None
    assert not list((tmp_path / "cells").iterdir()), "a cell's run is removed when it is over"


@pytest.mark.anyio
async def test_a_note_works_at_once_and_leaves_the_prompt_once_it_is_learned(tmp_path: Path) -> None:
    found = {
        arm: await run_cell(setup(tmp_path), Cell(arm=arm, users=("closing",), seed=1))
        for arm in ("note", "distill", "note+distill")
    }
    users = {arm: result["users"]["closing"] for arm, result in found.items()}
    noted = {
        arm: [(note["state"], bool(note["distillations"])) for note in result["notes"]] for arm, result in found.items()
    }
    assert noted["note"] == [("in force", False)]
    assert noted["note+distill"][-1] == noted["distill"][-1] == ("learned", True)
    assert {one["after"]["rate"] for one in users.values()} == {1.0}
    spent = {arm: max(one["added_tokens"]) for arm, one in users.items()}
    assert spent["note"] > 0 == spent["distill"], "a note is in the prompt, a distillation never"
    assert users["note+distill"]["added_tokens"][-1] == 0, "learned, it is there no more"
    assert found["note"]["training_per_correction"] is None
    assert found["distill"]["training_per_correction"] is not None
    assert {one["served"] for one in users.values()} == {None}, "without a note there is nothing but the policy"


@pytest.mark.anyio
async def test_users_who_share_a_policy_keep_their_notes(tmp_path: Path) -> None:
    cell = Cell(arm="note+distill", users=("closing:facts", "short:advice"), seed=1)
    found = await run_cell(setup(tmp_path), cell)
    assert {note["state"] for note in found["notes"]} == {"in force"}
    assert found["versions"]["steps"] == 0
    closing = found["users"]["closing"]
    assert (closing["after"]["rate"], closing["served"]["rate"]) == (0.0, 1.0)


@pytest.mark.anyio
async def test_a_cell_depends_on_its_seed_alone(tmp_path: Path) -> None:
    def essence(result: dict[str, Any]) -> dict[str, Any]:
        of_a_clock = ("seconds", "training_seconds", "training_per_correction")
        found = {**result, "versions": {**result["versions"]}}
        return {name: value for name, value in found.items() if name not in of_a_clock} | {
            "versions": {name: value for name, value in found["versions"].items() if name not in of_a_clock}
        }

    cell = Cell(arm="topk", users=("closing:facts", "short:advice"), seed=2)
    once = await run_cell(setup(tmp_path), cell)
    again = await run_cell(setup(tmp_path), cell)
    assert essence(once) == essence(again)
    assert once["users"]["closing"]["sessions"] is not None


def test_what_the_base_model_meets_when_prompted_is_measured(tmp_path: Path) -> None:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    file = tmp_path / "prompted.json"
    found = benchmark_command(prompted, "--users", "closing,list", "--probes", "3", "--json", str(file), *sets)
    assert found.exit_code == 0, found.output
    users = json.loads(file.read_text())["users"]
    assert (users["closing"]["plain"]["rate"], users["closing"]["prompted"]["rate"]) == (0.0, 1.0)
    assert (users["closing"]["teachable"], users["closing"]["prompted"]["count"]) == ("can be taught", 3)
    assert users["list"]["teachable"] == "cannot be followed even when prompted"
    assert users["list"]["told"]["sense"] == users["list"]["prompted"]["relevance"], "former names still work"
    assert "| closing | 3 | 0.00 | 1.00 |" in found.output


@pytest.mark.parametrize(
    ("plain", "prompted", "found"),
    [
        (0.0, 0.5, "can be taught"),
        (0.0, 0.49, "cannot be followed even when prompted"),
        (0.84, 0.82, "nothing to teach: much the same when prompted"),
        (0.2, 0.41, "cannot be followed even when prompted"),
    ],
)
def test_a_preference_can_be_taught_where_prompting_helps(plain: float, prompted: float, found: str) -> None:
    def rated(rate: float) -> HeldOutRates:
        return HeldOutRates(count=100, rate=rate, relevance=1.0, words=9.0, degenerate=0)

    assert teachable(rated(plain), rated(prompted)) == found


def test_a_report_has_a_line_for_each_part_and_reads_back_as_it_was(tmp_path: Path) -> None:
    file, cell = tmp_path / "report.json", {"met": [0, 1], "users": {"ä": {"rate": 0.5}}}
    report = {"command": "bench", "cells": {"a": cell, "b": cell}, "summary": [cell, {}], "none": {}, "empty": []}
    results.write(file, report)
    assert json.loads(file.read_text(encoding="utf-8")) == report
    assert f' "a": {json.dumps(cell, ensure_ascii=False)},' in file.read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_the_benchmark_goes_on_where_it_stopped_and_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [word for setting in SETTINGS if "batch_size" not in setting for word in ("--set", setting)]
    file, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    asked = ["--users", "closing", "--together", "", "--methods", "opd", "--arms", "none"]
    asked += ["--sessions", "10", "--probes", "2", "--json", str(file), "--dir", str(tmp_path / "cells"), *sets]
    first = benchmark_command(personal, *asked, "--seeds", "1")
    assert first.exit_code == 0, first.output
    report = json.loads(file.read_text())
    assert report["settings"]["train"]["batch_size"] == 1, "a complaint counts in the next session"
    report["cells"]["none closing seed0"]["seconds"] = 12345.0
    file.write_text(json.dumps(report))
    with monkeypatch.context() as patched:
        patched.delattr(benchmark, "run_cell")  # several at once run elsewhere
        second = benchmark_command(personal, *asked, "--seeds", "2", "--jobs", "2", "--plot", str(plot))
    assert second.exit_code == 0, second.output
    report = json.loads(file.read_text())
    assert list(report["cells"]) == [
        "none closing seed0",
        "opd closing seed0",
        "none closing seed1",
        "opd closing seed1",
    ]
    assert report["cells"]["none closing seed0"]["seconds"] == 12345.0, "what is finished is not repeated"
    assert "| closing | closing | opd |" in second.output
    assert "none" in plot.read_text()
    benchmark_command(personal, *asked, "--seeds", "1", "--seed", "5")
    assert list(json.loads(file.read_text())["cells"])[4:] == ["none closing seed5", "opd closing seed5"]
    with pytest.raises(ConfigError, match="other settings"):
        benchmark_command(personal, *asked, "--rounds", "2")
    with pytest.raises(ConfigError, match="other settings"):
        benchmark_command(personal, *asked, "--set", "train.batch_size=2")
    with pytest.raises(ConfigError, match="other settings"):
        benchmark_command(personal, *asked, "--set", "gate.limits.kl_budget=9")
    monkeypatch.setattr(results, "code_digest", lambda *_roots: "after a change")
    with pytest.raises(ConfigError, match="other code"):
        benchmark_command(personal, *asked)


async def test_a_cell_that_fails_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Cell(arm="none", users=("short",), seed=seed) for seed in range(3)]
    ran = list[int]()

    async def run_cell(_setup: object, cell: Cell) -> dict[str, object]:
        ran.append(cell.seed)
        if cell.seed == 1:
            raise RuntimeError("out of memory")
        return {"seed": cell.seed}

    monkeypatch.setattr(benchmark, "run_cell", run_cell)
    monkeypatch.setattr(benchmark, "summary", lambda _cells, sessions: [])
    setup = BenchmarkSetup(
        config=load(preset="cpu-demo").config, directory=tmp_path, sessions=3, probes=1, rounds=1, to_the_end=False
    )
    file = tmp_path / "report.json"
    with pytest.raises(BackendError, match=r"1 of 3 cells failed; none short seed1: out of memory.*same --json"):
        await benchmark.run(setup, wanted, file, done=lambda _cell, _result: None, jobs=1)
    assert ran == [0, 1, 2]
    assert list(json.loads(file.read_text())["cells"]) == ["none short seed0", "none short seed2"]


def test_a_cell_takes_no_more_memory_than_its_replies_need(tmp_path: Path) -> None:
    usual, cell = load(preset="cpu-demo").config, Cell(arm="none", users=("short",), seed=0)
    assert usual.policy.cache_tokens is None
    assert cell_config(usual, cell, tmp_path / "a").policy.cache_tokens == 512 * usual.policy.max_batch
    given = load(preset="cpu-demo", sets=["policy.cache_tokens=9000"]).config
    assert cell_config(given, cell, tmp_path / "b").policy.cache_tokens == 9000


def test_results_know_the_code_that_made_them(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "users.py").write_text("RATE = 1")
    first = results.code_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "users.pyc").write_bytes(b"compiled")
    assert results.code_digest(tmp_path) == first
    (tmp_path / "part" / "users.py").write_text("RATE = 2")
    second = results.code_digest(tmp_path)
    (tmp_path / "part" / "users.py").rename(tmp_path / "part" / "people.py")
    assert len({first, second, results.code_digest(tmp_path), results.code_digest(results.PACKAGE)}) == 4


@pytest.mark.slow
def test_runs_side_by_side_end_with_the_benchmark_that_was_killed(tmp_path: Path) -> None:
    cells = tmp_path / "cells"
    asked = ["--users", "closing", "--together", "", "--methods", "opd", "--arms", "none"]
    asked += ["--jobs", "2", "--to-the-end", "--sessions", "1000", "--dir", str(cells)]
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    whole = [sys.executable, str(ROOT / "benchmarks" / "personal.py"), *asked, *sets]
    with subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(__file__).parent
    ) as running:
        wait_until(lambda: len(list(cells.glob("*"))) == 2 or running.poll() is not None)
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
        benchmark_command(personal, *words)


@pytest.mark.parametrize(("words", "script"), [(["personal", "--seeds", "1"], "personal"), (["told"], "prompted")])
def test_the_former_command_names_the_benchmark_that_replaces_it(words: list[str], script: str) -> None:
    with pytest.raises(ConfigError, match=rf"python benchmarks/{script}\.py, with the same options"):
        command("bench", *words)
