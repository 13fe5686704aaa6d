"""The record follows the ledger: each step once, its samples before it, whatever was interrupted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training import train_loop

from openclaw_rl.app.application import App
from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.config import load
from openclaw_rl.errors import MissingExtra
from openclaw_rl.testing import TemporaryLedger, make_completion
from openclaw_rl.train import records, sinks
from openclaw_rl.train.loop import TrainLoop
from openclaw_rl.train.records import Recorder, RecordFile
from openclaw_rl.types import Step

pytestmark = pytest.mark.anyio


class Story(TemporaryLedger):
    """A ledger with every writer at hand; ``train`` trains what was said so far and writes no record."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root, self.file = root, root / "record.jsonl"

    def say(self, score: float | None, *hints: str, **completion: Any) -> str:
        return self.add(score, *hints, completion=make_completion(**completion)).id

    def loop(self, recorder: Recorder | None = None) -> TrainLoop:
        return train_loop(self.train, FakeTrainer(), self.root, max_wait=0.0, recorder=recorder)

    def recorder(self, *given: Any) -> Recorder:
        return Recorder(self.train, self.file, given)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


async def test_a_step_is_one_line_after_its_samples_with_numbers_and_ids_and_no_words(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first = story.say(-1.0, "Be brief, please.", "No lists, please.", reply_tokens=(7, 8, 9), logprobs=(-0.5,) * 3)
    second = story.say(1.0)
    await story.loop(story.recorder()).tick()
    one, two, step = sorted(story.lines()[:2], key=lambda line: line["turn"] != first) + story.lines()[2:]
    assert one == {
        **{"kind": "sample", "step": 1, "turn": first, "user": "u1", "group": None, "version": 0, "score": -1.0},
        **{"source": "judge", "prompt_tokens": 3, "reply_tokens": 3, "advantage": -1.0, "hints": 2.0, "lag": 0.0},
    }
    # the baseline after the first score is 0.05 * -1, so the second is worth 1 - -0.05
    assert (two["turn"], two["score"], two["advantage"], two["hints"]) == (second, 1.0, 1.05, 0.0)
    assert (step["kind"], step["step"], step["samples"], step["version"], step["parent"]) == ("step", 1, 2, 1, 0)
    assert step["metrics"] == {"samples": 2.0, "advantage": pytest.approx(0.025)}
    assert step["skipped"] is None
    assert "brief" not in story.file.read_text()


async def test_steps_that_a_crash_kept_out_of_the_record_are_written_at_the_next_start_and_none_twice(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    for _ in range(3):
        story.say(1.0), story.say(-1.0)
        await story.loop().tick()
    story.recorder().catch_up()
    story.say(1.0), story.say(-1.0)
    await story.loop().tick()  # died before it was recorded
    whole = Recorder(story.train, tmp_path / "whole.jsonl")
    whole.catch_up()
    assert story.recorder().catch_up() == 1
    assert story.recorder().catch_up() == 0
    assert [line["step"] for line in story.lines() if line["kind"] == "step"] == [1, 2, 3, 4]
    assert story.file.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("cut", [1, 40, 400, 100_000])
async def test_a_file_cut_anywhere_is_mended_to_the_same_bytes(tmp_path: Path, cut: int) -> None:
    story = Story(tmp_path)
    for _ in range(3):
        story.say(1.0), story.say(-1.0)
        await story.loop().tick()
    story.recorder().catch_up()
    whole = story.file.read_bytes()
    story.file.write_bytes(whole[: max(0, len(whole) - cut)])
    for line in records.read(story.file):
        assert line["kind"] in ("sample", "step"), "a reader passes over what is not whole"
    story.recorder().catch_up()
    assert story.file.read_bytes() == whole


async def test_zeros_that_a_power_cut_leaves_and_steps_the_ledger_does_not_know_are_cut_off(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.say(1.0), story.say(-1.0)
    await story.loop().tick()
    story.recorder().catch_up()
    whole = story.file.read_bytes()
    story.file.write_bytes(whole + b'{"kind": "step", "step": 2}\n' + b"\x00" * 5000)
    assert RecordFile(story.file, newest=1).last == 1
    assert story.file.read_bytes() == whole


def test_a_long_record_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_WINDOW", 16)
    file = tmp_path / "record.jsonl"
    record = RecordFile(file, newest=9)
    for number in (1, 2):
        record.add(number, [{"kind": "sample", "text": "x" * 100}, {"kind": "step", "step": number}])
    with file.open("a") as more:
        more.write('{"kind": "sample", "text": "of a step that')
    assert RecordFile(file, newest=9).last == 2
    assert file.read_text().endswith('"step": 2}\n')


def test_a_full_disk_leaves_no_half_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RecordFile(tmp_path / "record.jsonl", newest=9)
    record.add(1, [{"kind": "step", "step": 1}])
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, text: real(file, text[:9]))
    with pytest.raises(OSError, match="only part of step 2 was written"):
        record.add(2, [{"kind": "step", "step": 2}])
    assert record.last == 1
    assert (tmp_path / "record.jsonl").read_text() == '{"kind": "step", "step": 1}\n'


def test_what_could_not_be_measured_is_null(tmp_path: Path) -> None:
    step = Step(number=1, turns=(), metrics={"gap_mean": float("nan"), "loss": 0.5}, seconds=1.0)
    assert records.step_line(step, None)["metrics"] == {"gap_mean": None, "loss": 0.5}
    assert "train/gap_mean" not in records.figures(step, None)


# --- sinks


class Noted:
    name = "noted"

    def __init__(self, *, fails_at: int = 99) -> None:
        self.seen: list[tuple[int, Mapping[str, float]]] = []
        self.fails_at, self.closed = fails_at, False

    def step(self, number: int, values: Mapping[str, float]) -> None:
        if number == self.fails_at:
            raise ConnectionError("no route to host")
        self.seen.append((number, values))

    def close(self) -> None:
        self.closed = True


async def test_a_sink_gets_each_step_once_even_over_a_restart(tmp_path: Path) -> None:
    story, seen = Story(tmp_path), []
    for _ in range(2):
        story.say(1.0), story.say(-1.0)
        sink = Noted()
        recorder = story.recorder(sink)
        await story.loop(recorder).tick()
        recorder.close()
        assert sink.closed
        seen += [number for number, _ in sink.seen]
    assert seen == [1, 2]
    assert sink.seen[0][1]["train/version"] == 2.0


async def test_a_sink_that_fails_is_given_up_and_shown_and_training_goes_on(tmp_path: Path) -> None:
    story, bad, good = Story(tmp_path), Noted(fails_at=1), Noted()
    loop = story.loop(story.recorder(bad, good))
    for _ in range(2):
        story.say(1.0), story.say(-1.0)
        await loop.tick()
    assert bad.seen == []
    assert [number for number, _ in good.seen] == [1, 2]
    [alarm] = (await loop.status())["alarms"]
    assert alarm["what"] == "sink noted failed and is disabled: ConnectionError: no route to host"


def fakes(root: Path, *sets: str) -> Any:
    settings = [f"run.dir={root}", "policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules"]
    return load(environ={}, sets=[*settings, *sets]).config


async def test_a_sink_whose_package_is_not_installed_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs the package 'trackio'.*pip install 'openclaw-rl\[trackio\]'"):
        App(fakes(tmp_path, "run.sinks=trackio"))
    App(fakes(tmp_path)).close()


class FakeBoard:
    """Stands for a package: notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> FakeBoard:
            self.calls.append((name, (*args, *more.values())))
            return self

        return call


@pytest.mark.parametrize(
    ("name", "module", "written"),
    [
        ("tensorboard", "tensorboard.summary", [("add_scalar", ("train/loss", 0.5, 3)), ("flush", ()), ("close", ())]),
        ("trackio", "trackio", [("log", ({"train/loss": 0.5}, 3)), ("finish", ())]),
        ("wandb", "wandb", [("log", ({"train/loss": 0.5}, 3)), ("finish", ())]),
    ],
)
def test_each_package_is_opened_with_the_first_figures_and_told_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, written: list[Any]
) -> None:
    board = FakeBoard()
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(__spec__=SimpleNamespace()))
    monkeypatch.setitem(sys.modules, module, board)
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: object())
    (sink,) = sinks.open_sinks([name], tmp_path / "mine")
    assert board.calls == []
    sink.step(3, {"train/loss": 0.5})
    sink.close()
    assert board.calls[1:] == written
    assert any("mine" in str(part) for part in board.calls[0][1])
