"""Recorded conversations through the whole line: read, judged, trained, and never twice."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from openclaw_rl.app.application import App
from openclaw_rl.app.operations import Summary, train_from
from openclaw_rl.app.recorded import data_files
from openclaw_rl.backends.fake import read_rules, read_turns
from openclaw_rl.cli import cli
from openclaw_rl.config import load
from openclaw_rl.errors import ConfigError, LedgerHeld
from openclaw_rl.store import ImportLedger, LedgerReader, TrainLedger
from openclaw_rl.testing import fake_config, ticking_app
from openclaw_rl.train import records
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views import transcripts

pytestmark = pytest.mark.anyio


def talk(name: str, *said: str) -> dict[str, Any]:
    """A conversation: a question, and what the user said after each reply."""
    asked = ["Tell me about tea", *said]
    turns = [
        {"type": "main", "prompt": now, "response": f"reply {at} of {name}", "next_state": then}
        for at, (now, then) in enumerate(zip(asked, said, strict=False))
    ]
    return {"session_id": name, "turns": turns}


WISH = "Too long. Please keep it under 30 words."
LISTS = "Please do not use bullet lists."


def written(path: Path, *talks: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(one) for one in talks))
    return path


async def train(root: Path, *files: Path, sets: tuple[str, ...] = (), told: list[str] | None = None) -> Summary:
    settings = [f"run.dir={root}", "policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules"]
    settings += ["store.sync=normal", "train.batch_size=2", *sets]
    said = told if told is not None else []
    return await train_from(load(environ={}, sets=settings).config, files, progress=said.append)


async def test_a_file_is_read_judged_and_trained_and_then_it_ends(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", talk("one", WISH), talk("two", LISTS), talk("three", WISH, "Thanks!"))
    told: list[str] = []
    done = await train(tmp_path / "run", file, told=told)
    assert (done.steps, done.trained, done.live, done.waiting, done.whole) == (2, 4, 2, 0, True)
    first, second, last, verdicts = told
    assert (first.startswith("step 1: 2 samples"), first.endswith("version 1")) == (True, True)
    assert (second.startswith("step 2: 2 samples"), second.endswith("version 2")) == (True, True)
    assert last.endswith("a.jsonl: 4 turns taken, 0 known already, 0 refused")
    assert verdicts.endswith("a.jsonl: 4 main turns to train, all get a verdict")
    with LedgerReader(tmp_path / "run" / "ledger.db") as ledger:
        live = LiveVersions(ledger).live()
        known = " ".join(read_rules(live.adapter))
        assert "under 30 words" in known
        assert "bullet lists" in known
    kinds = [line["kind"] for line in records.read(tmp_path / "run" / "record.jsonl")]
    assert kinds == ["sample", "sample", "step"] * 2


async def test_a_run_directory_that_is_given_as_a_relative_path_is_found_again_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "a.jsonl", talk("one", WISH), talk("two", LISTS))
    monkeypatch.chdir(tmp_path)
    await train(Path("./rl_buffer"), file)
    monkeypatch.chdir("/")
    with LedgerReader(tmp_path / "rl_buffer" / "ledger.db") as ledger:
        live = LiveVersions(ledger).live()
        assert live.adapter == str(tmp_path / "rl_buffer" / "versions" / "000001")
        assert "under 30 words" in " ".join(read_rules(live.adapter))
    more = written(tmp_path / "b.jsonl", talk("three", WISH), talk("four", LISTS))
    assert (await train(tmp_path / "rl_buffer", more)).live == 2


async def test_a_run_whose_versions_were_written_from_its_working_directory_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    await train(run, written(tmp_path / "a.jsonl", talk("one", WISH), talk("two", LISTS)))
    with sqlite3.connect(run / "ledger.db") as ledger:
        ledger.execute("UPDATE versions SET adapter = 'runs/one/versions/000001' WHERE number = 1")
    ledger.close()
    more = written(tmp_path / "b.jsonl", talk("three", WISH), talk("four", LISTS))
    assert (await train(run, more)).live == 2


async def test_the_same_file_again_trains_nothing_and_a_longer_one_only_what_is_new(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", talk("one", WISH), talk("two", LISTS))
    assert (await train(tmp_path / "run", file)).trained == 2
    again = await train(tmp_path / "run", file)
    assert (again.trained, again.steps, again.live) == (0, 0, 1)
    assert (again.reports[file].turns, again.reports[file].known) == (0, 2)
    copy = written(tmp_path / "copy.jsonl", talk("one", WISH), talk("two", LISTS, LISTS), talk("three", WISH))
    more = await train(tmp_path / "run", copy)
    assert (more.reports[copy].turns, more.reports[copy].known) == (2, 2)
    with LedgerReader(tmp_path / "run" / "ledger.db") as ledger:
        inside = read_turns(LiveVersions(ledger).live().adapter)
        assert len(inside) == len(set(inside)) == 4


async def test_a_changed_reply_or_another_users_copy_is_another_turn() -> None:
    record = transcripts.TranscriptRecord(1, talk("one", WISH))
    session, [said] = transcripts.parse(record)
    other = transcripts.parse(transcripts.TranscriptRecord(1, talk("one", LISTS)))[1][0]
    ids = {
        transcripts.turn_id("u1", session, 0, said),
        transcripts.turn_id("u2", session, 0, said),
        transcripts.turn_id("u1", "two", 0, said),
        transcripts.turn_id("u1", session, 1, said),
        transcripts.turn_id("u1", session, 0, other),
    }
    assert len(ids) == 5
    assert transcripts.turn_id("u1", session, 0, transcripts.parse(record)[1][0]) in ids


async def test_a_long_file_does_not_grow_stale_while_it_is_trained(tmp_path: Path) -> None:
    """Each reply is measured by the version that is live when it is read: twelve steps on, none is behind by more."""
    file = written(tmp_path / "a.jsonl", *(talk(f"s{n}", WISH) for n in range(24)))
    done = await train(tmp_path / "run", file, sets=("train.max_lag=1",))
    assert (done.trained, done.steps, done.dropped) == (24, 12, {})
    with LedgerReader(tmp_path / "run" / "ledger.db") as ledger:
        assert max(part["lag"] for n in range(1, 13) for part in ledger.step(n).parts.values()) <= 1.0


async def test_what_was_interrupted_is_gone_on_with(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", talk("one", WISH), talk("two", LISTS), talk("three", WISH))

    class Died(Exception):
        pass

    def dies(line: str) -> None:
        raise Died(line)

    settings = [f"run.dir={tmp_path / 'run'}", "policy.backend=fake", "policy.model=fake", "train.backend=fake"]
    config = load(environ={}, sets=[*settings, "judge.kind=rules", "train.batch_size=2"]).config
    with pytest.raises(Died, match="step 1"):
        await train_from(config, [file], progress=dies)
    done = await train(tmp_path / "run", file)
    assert done.trained == 1
    with LedgerReader(tmp_path / "run" / "ledger.db") as ledger:
        inside = read_turns(LiveVersions(ledger).live().adapter)
        assert len(inside) == len(set(inside)) == 3


async def test_several_files_and_a_checkpoint_to_begin_with(tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", talk("one", WISH))
    await train(tmp_path / "old", first)
    second, third = written(tmp_path / "b.jsonl", talk("two", LISTS)), written(tmp_path / "c.jsonl", talk("x", LISTS))
    resume = f"train.resume={tmp_path}/old/versions/000001"
    done = await train(tmp_path / "new", second, third, sets=(resume, "run.record=false"))
    assert (done.live, done.trained) == (2, 2)
    with LedgerReader(tmp_path / "new" / "ledger.db") as ledger:
        assert len(read_rules(LiveVersions(ledger).live().adapter)) == 2
        trained = ledger.turn(ledger.last_step().turns[0])
        assert trained.completion.version == 1, "read with the checkpoint's own weights"
    assert not (tmp_path / "new" / "record.jsonl").exists()


async def test_what_cannot_be_read_is_named_and_the_rest_is_trained(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", talk("one", WISH))
    file.write_text(file.read_text() + '\n{"session_id": 3}\n')
    told: list[str] = []
    done = await train(tmp_path / "run", file, told=told)
    assert (done.trained, done.whole) == (1, False)
    assert any("a.jsonl:2: session_id" in line for line in told)
    with pytest.raises(ConfigError, match="there is no file"):
        await train(tmp_path / "run", tmp_path / "nowhere.jsonl")


async def test_a_reply_too_long_for_the_model_is_refused_and_stops_no_other(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", talk("long" * 100, WISH), talk("one", WISH))
    ledger = ImportLedger(tmp_path / "ledger.db", sync="full")

    from openclaw_rl.backends.fake import FakePolicy
    from openclaw_rl.errors import ContextOverflow
    from openclaw_rl.ports import Scores

    class Small(FakePolicy):
        async def score(self, prompt: Any, reply: Any, **more: Any) -> Scores:
            if len(reply) > 100:
                raise ContextOverflow(limit=100, asked=len(reply))
            return await super().score(prompt, reply, **more)

    report = await transcripts.import_file(ledger, file, Small(), user="u1")
    assert report.turns == 1
    [fault] = report.refused
    assert "a.jsonl:1: this model's maximum context length is 100 tokens" in fault


async def test_a_run_that_is_up_is_not_trained_beside_itself(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", talk("one", WISH))
    (tmp_path / "run").mkdir()
    with (
        TrainLedger(tmp_path / "run" / "ledger.db", sync="full"),
        pytest.raises(LedgerHeld, match="already writes as 'train'"),
    ):
        await train(tmp_path / "run", file)


def typed(root: Path, *words: str, **environ: str) -> str:
    fakes = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules", "train.batch_size=2")
    sets = [word for one in fakes for word in ("--set", one)]
    done = CliRunner().invoke(cli, [*words, "--rl-buffer-dir", str(root), *sets], env=environ, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_person_trains_from_files_by_flag_or_by_the_known_name_and_pins_what_came_of_it(tmp_path: Path) -> None:
    one, two = written(tmp_path / "a.jsonl", talk("one", WISH)), written(tmp_path / "b.jsonl", talk("two", LISTS))
    said = typed(tmp_path / "run", "train", "--data", str(one), "--data", str(two))
    assert "2 turns trained in 1 steps; version 1 is live; dropped: none" in said
    again = typed(tmp_path / "run", "train", DATA_PATH=f"{one},{two}")
    assert "0 turns trained in 0 steps; version 1 is live" in again
    assert "recorded" in typed(tmp_path / "run", "pin", "1")
    with LedgerReader(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.pinned() == {1}
    typed(tmp_path / "run", "unpin", "1")
    with LedgerReader(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.pinned() == set()


EXAMPLE = {
    "session_id": "user_session_abc123",
    "turns": [
        {
            "type": "main",
            "prompt": "Help me refactor this function to use async/await",
            "response": "Here's the refactored version: ...",
            "next_state": "User accepted the change and said 'perfect, thanks!'",
            "trainable": True,
        },
        {"type": "side", "prompt": "What is 2+2?", "response": "4", "trainable": False},
    ],
}


def test_the_example_conversation_trains_its_main_turn_as_good_and_not_its_side_turn(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "talk.json").write_text(json.dumps(EXAMPLE))
    said = typed(tmp_path / "run", "train", DATA_PATH=str(folder))
    assert "1 main turns to train, all get a verdict" in said
    assert "1 turns trained in 1 steps; version 1 is live; dropped: 1 side turn" in said
    with LedgerReader(tmp_path / "run" / "ledger.db") as ledger:
        main, side = ledger.session("user_session_abc123", "default")
        found = ledger.verdict(main)
        assert found is not None
        assert (found.score, found.note) == (1, "described as accepted")
        assert (ledger.trained_in(main), ledger.trained_in(side)) == (1, None)


def test_an_import_says_what_share_gets_no_verdict_and_why(tmp_path: Path) -> None:
    open_end = {"prompt": "And now?", "response": "Nothing."}
    silent = {"prompt": "Hm?", "response": "Yes.", "next_state": "What is the capital of Peru?"}
    turns = [EXAMPLE["turns"][0], open_end, silent]  # type: ignore[index]
    (tmp_path / "a.json").write_text(json.dumps({"session_id": "s", "turns": turns}))
    said = typed(tmp_path / "run", "import", str(tmp_path / "a.json"))
    assert "3 main turns to train, 2 (67%) get no verdict by rules:" in said
    assert "nothing came after the reply (1)" in said
    assert "nothing about the reply (1)" in said


def test_a_folder_without_conversations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no \.json or \.jsonl file"):
        data_files([tmp_path])
    with pytest.raises(ConfigError, match="there is no file .*give the path of a JSON or JSONL file, or a folder"):
        data_files([tmp_path / "none"])


# --- beside a run that serves


async def test_files_are_read_while_the_run_serves_a_batch_at_a_time_with_the_newest_version(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", *(talk(f"s{number}", WISH) for number in range(5)))
    async with ticking_app(tmp_path / "run", "train.batch_size=2", f"train.data={file}") as run:
        recorded = run.app.loops["recorded"]
        assert [await recorded.tick() for _ in range(4)] == [1, 1, 0, 0], "two turns wait to be trained"
        answer = await run.ask("Tell me about rain")
        assert answer["choices"], "and the server answers"
        await run.app.finish()
        turns = [run.ledger.turn(id) for number in range(5) for id in run.ledger.session(f"s{number}", "default")]
        assert [turn.completion.version for turn in turns] == [0, 0, 1, 1, 2]
        assert LiveVersions(run.ledger).live().number == 2, "the fifth waits for a batch"  # type: ignore[union-attr]
        with ImportLedger(tmp_path / "run" / "ledger.db", sync="normal"):
            pass  # all is read, so another import may begin
    async with ticking_app(tmp_path / "run", f"train.data={file}") as run:
        assert await run.app.loops["recorded"].tick() == 0
        await run.app.finish()
        assert run.ledger.counts()["turns"] == 6, "nothing is read twice"


async def test_a_run_that_ends_while_it_reads_goes_on_there(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", *(talk(f"s{number}", WISH) for number in range(3)))
    async with ticking_app(tmp_path / "run", f"train.data={file}") as run:
        assert await run.app.loops["recorded"].tick() == 1
    async with ticking_app(tmp_path / "run", f"train.data={file}") as run:
        await run.app.finish()
        assert run.ledger.counts()["turns"] == 3


async def test_a_file_that_cannot_be_read_fails_its_loop_alone_and_is_read_once_it_can_be(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", talk("one", WISH))
    async with ticking_app(tmp_path / "run", f"train.data={file}") as run:
        recorded = run.app.loops["recorded"]
        file.rename(tmp_path / "b.jsonl")
        with pytest.raises(FileNotFoundError):
            await recorded.tick()
        (tmp_path / "b.jsonl").rename(file)
        assert await recorded.tick() == 1


def test_data_that_is_not_there_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train.data: there is no file"):
        App(fake_config(tmp_path / "run", f"train.data={tmp_path}/none.jsonl"))
    App(fake_config(tmp_path / "run", f"train.data={tmp_path}/none.jsonl"), loops=("serve",)).close()
