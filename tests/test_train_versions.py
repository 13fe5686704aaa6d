"""Versions on disk: which are kept, what is gone on from, and that nothing in use is ever taken away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
from training import sample_settings, train_loop

from openclaw_rl.app.application import App
from openclaw_rl.backends.fake import FakeTrainer, read_rules
from openclaw_rl.config import load
from openclaw_rl.errors import ConfigError, NotInLedger
from openclaw_rl.store import LedgerReader, TrainLedger, submit_request
from openclaw_rl.testing import TemporaryLedger
from openclaw_rl.train.loop import TrainLoop
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions, RetentionPolicy, VersionManager, checkpoints
from openclaw_rl.versions.manager import expired

pytestmark = pytest.mark.anyio


def line(count: int) -> list[Version]:
    """Version 0 and as many after it, each from the one before, each of the step of its number."""
    return [
        Version(number=0, parent=None, base="b", state="live"),
        *(
            Version(number=n, parent=n - 1, base="b", adapter=f"/v{n}", step=n, state="live")
            for n in range(1, count + 1)
        ),
    ]


def gone(
    versions: list[Version], *, live: int | None = None, pinned: set[int] | None = None, **policy: Any
) -> list[str]:
    """What expires at time 1000, if each version became live at the time of its number."""
    return expired(
        versions,
        live=versions[-1] if live is None else versions[live],
        live_history=[(v.number, float(v.number)) for v in versions if v.state == "live"],
        pinned=pinned or set(),
        now=1000.0,
        policy=RetentionPolicy(**{"keep": 2, "interval": 10, "grace": 0.0, **policy}),
    )


def test_the_live_version_the_newest_and_every_tenth_step_are_kept() -> None:
    # live 13; newest two: 13, 12; two ancestors: 12, 11; tenth: 10
    assert gone(line(13)) == [f"/v{n}" for n in range(1, 10)]
    assert gone(line(13), keep=5) == [f"/v{n}" for n in range(1, 8)]  # newest 9 .. 13, ancestors 8 .. 12
    assert gone(line(13), interval=4) == [f"/v{n}" for n in (1, 2, 3, 5, 6, 7, 9, 10)]


def test_what_is_pinned_stays() -> None:
    assert gone(line(13), pinned={3, 5}) == [f"/v{n}" for n in (1, 2, 4, 6, 7, 8, 9)]


def test_the_ancestors_of_a_version_that_was_rolled_back_to_stay_for_the_next_rollback() -> None:
    versions = line(13)
    versions.append(Version(number=14, parent=4, base="b", adapter="/v4", step=4, state="live"))
    # live is v4 again: its ancestors v3 and v2 stay, the newest two are v4 and v13, v10 is a tenth
    assert gone(versions) == [f"/v{n}" for n in (1, 5, 6, 7, 8, 9, 11, 12)]


def test_weights_that_several_versions_share_go_only_with_the_last_of_them() -> None:
    versions = line(6)
    versions.append(Version(number=7, parent=1, base="b", adapter="/v1", step=1, state="live"))
    versions += [
        Version(number=n, parent=n - 1, base="b", adapter=f"/v{n}", step=n, state="live") for n in range(8, 13)
    ]
    assert "/v1" in gone(versions)
    assert "/v1" not in gone(versions, pinned={7})


def test_a_candidate_that_nobody_has_decided_about_stays() -> None:
    versions = line(13)
    versions[2] = Version(number=2, parent=1, base="b", adapter="/v2", step=2, state="candidate")
    assert "/v2" not in gone(versions)


def test_a_version_that_was_live_a_moment_ago_stays_for_requests_in_flight() -> None:
    # at time 1000 with 993 seconds of grace: live at 7 or later were v7 (until 8) .. v13, and v6 until 7
    assert gone(line(13), grace=993.0) == [f"/v{n}" for n in range(1, 6)]


# --- on disk


class Story(TemporaryLedger):
    """A run that trains a rule at each call, with the clock at hand."""

    def __init__(self, root: Path, resume: Path | None = None, base: str = "fake", **policy: Any) -> None:
        super().__init__(root)
        self.root, self.now = root, 4e9  # long after all that happens here
        self.loop = self.begin(resume=resume, base=base, **policy)

    def begin(self, *, resume: Path | None = None, base: str = "fake", **policy: Any) -> TrainLoop:
        return train_loop(
            self.train,
            FakeTrainer(),
            self.root,
            base=base,
            resume=resume,
            samples=sample_settings(max_lag=99),
            batch_size=1,
            retain=RetentionPolicy(**{"keep": 2, "interval": 100, "grace": 0.0, **policy}),
            clock=lambda: self.now,
        )

    async def learn(self, *rules: str) -> None:
        for rule in rules:
            self.add(-1.0, rule)
            await self.loop.tick()

    def folders(self) -> list[str]:
        return sorted(path.name for path in (self.root / "versions").iterdir() if not path.is_symlink())

    def names(self) -> dict[str, str]:
        """The names of versions by their step, and the folder that each leads to."""
        links = (self.root / "versions").glob("checkpoint-*")
        return {path.name: path.readlink().name for path in sorted(links)}


def rules(count: int) -> list[str]:
    return [f"Rule number {n}, please." for n in range(1, count + 1)]


async def test_old_weights_are_deleted_and_the_ledger_says_so(tmp_path: Path) -> None:
    story = Story(tmp_path)
    await story.learn(*rules(5))
    assert story.folders() == ["000003", "000004", "000005"]
    first = story.train.version(1)
    assert (first.state, first.step) == ("deleted", 1)
    assert [state for state, _, _ in story.train.history(1)] == ["candidate", "live", "deleted"]
    assert story.train.step(1).turns, "what was learned, and from what, is known for ever"
    assert LiveVersions(story.train).live().number == 5
    assert len(read_rules(LiveVersions(story.train).live().adapter)) == 5


async def test_a_rollback_to_deleted_weights_is_refused_and_one_without_a_number_passes_them_by(tmp_path: Path) -> None:
    story = Story(tmp_path)
    await story.learn(*rules(5))
    with pytest.raises(NotInLedger, match="the weights of version 1 are no longer kept"):
        VersionManager(story.train).roll_back(1, "nostalgia")
    assert LiveVersions(story.train).live().number == 5
    went = [VersionManager(story.train).roll_back(None, "further").adapter for _ in range(3)]
    assert [Path(adapter).name if adapter else None for adapter in went] == ["000004", "000003", None]


async def test_a_pin_keeps_a_version_until_it_is_taken_off(tmp_path: Path) -> None:
    story = Story(tmp_path)
    await story.learn(*rules(1))
    submit_request(tmp_path / "ledger.db", "pin version", version=1)
    await story.learn(*rules(4))
    assert "000001" in story.folders()
    submit_request(tmp_path / "ledger.db", "unpin version", version=1)
    await story.learn(*rules(1))
    assert "000001" not in story.folders()


async def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    story = Story(tmp_path, keep=99)
    await story.learn(*rules(4))
    story.train.set_state(1, "deleted", "retention")  # the row was written, then the process died
    (tmp_path / "versions" / "000002").rename(tmp_path / "versions" / ".000002.deleted")
    story.train.set_state(2, "deleted", "retention")  # or half way through
    await story.begin(keep=99).tick()
    assert story.folders() == ["000003", "000004"]


async def test_weights_outside_the_runs_own_folder_are_never_touched(tmp_path: Path) -> None:
    story = Story(tmp_path)
    other = tmp_path / "somewhere" / "else"
    other.mkdir(parents=True)
    (other / "learned.json").write_text('{"rules": [], "turns": []}')
    await story.loop.tick()
    story.train.add_version(Version(number=1, parent=0, base="fake", adapter=str(other), state="live"))
    await story.learn(*rules(5))
    assert other.is_dir()
    assert story.train.version(1).state == "live"


def test_a_ledger_without_a_live_version_keeps_everything(tmp_path: Path) -> None:
    kept = tmp_path / "versions" / "000001"
    kept.mkdir(parents=True)
    with TrainLedger(tmp_path / "ledger.db", sync="normal") as ledger:
        ledger.add_version(Version(number=1, parent=0, base="fake", adapter=str(kept), state="refused"))
        policy = RetentionPolicy(keep=2, interval=10)
        assert VersionManager(ledger).retain(tmp_path / "versions", policy, now=4e9) == 0
        assert ledger.version(1).state == "refused"
    assert kept.is_dir()


# --- going on from a checkpoint


async def trained(root: Path, count: int = 3) -> Path:
    """The directory of the last version of another run."""
    story = Story(root, keep=99)
    await story.learn(*rules(count))
    story.close()
    return root / "versions" / f"{count:06d}"


async def test_a_fresh_run_goes_on_from_anothers_version_with_its_count_and_its_baselines(tmp_path: Path) -> None:
    source = await trained(tmp_path / "first")
    with LedgerReader(tmp_path / "first" / "ledger.db") as ledger:
        before = ledger.last_step().baselines["u1"].mean
    story = Story(tmp_path / "second", resume=source)
    await story.loop.tick()
    live = LiveVersions(story.train).live()
    assert (live.number, live.parent, live.state, live.note) == (1, 0, "live", f"resumed from {source}")
    shutil.rmtree(tmp_path / "first")  # it is a copy: what becomes of the original is of no concern
    assert len(read_rules(live.adapter)) == 3
    await story.learn("A fourth rule, please.")
    step = story.train.last_step()
    assert step.number == 4, "the count goes on"
    assert step.baselines["u1"].mean == pytest.approx(0.95 * before - 0.05)
    assert LiveVersions(story.train).live().parent == 1
    assert len(read_rules(LiveVersions(story.train).live().adapter)) == 4


async def test_the_same_command_again_goes_on_where_the_run_stands(tmp_path: Path) -> None:
    source = await trained(tmp_path / "first")
    story = Story(tmp_path / "second", resume=source)
    await story.learn("A fourth rule, please.")
    story.loop = story.begin(resume=source)
    await story.learn("A fifth rule, please.")
    assert [v.number for v in story.train.versions()] == [0, 1, 2, 3]
    assert len(read_rules(LiveVersions(story.train).live().adapter)) == 5


async def test_a_copy_that_a_crash_cut_short_is_made_again(tmp_path: Path) -> None:
    source = await trained(tmp_path / "first")
    half = tmp_path / "second" / "versions" / "000001"
    half.mkdir(parents=True)
    (half / "half").write_text("of a copy")
    story = Story(tmp_path / "second", resume=source)
    await story.loop.tick()
    assert story.folders() == ["000001"]
    assert not (half / "half").exists()


async def test_what_cannot_be_gone_on_from_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = await trained(tmp_path / "first")
    with pytest.raises(ConfigError, match=r"was trained on 'fake', not on 'qwen'; set policy.model to its base"):
        Story(tmp_path / "a", resume=source, base="qwen")
    with pytest.raises(ConfigError, match=r"there is no manifest.json in it; give the directory of a version"):
        Story(tmp_path / "b", resume=tmp_path)
    (source / "manifest.json").write_text('{"base": "fa')
    with pytest.raises(ConfigError, match=r"manifest.json is damaged: .*; take another version's directory"):
        Story(tmp_path / "c", resume=source)
    (source / "manifest.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"manifest.json is damaged: it holds no object"):
        Story(tmp_path / "d", resume=source)
    with LedgerReader(tmp_path / "a" / "ledger.db") as ledger:
        assert ledger.versions() == []


async def test_versions_have_names_that_say_their_step_and_the_live_one_is_the_latest(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for rule in rules(2):
        await story.learn(rule)
    both = {"checkpoint-1": "000001", "checkpoint-2": "000002"}
    assert story.names() == {**both, "checkpoint-latest": "000002"}
    VersionManager(story.train).roll_back(1, "on request")
    story.loop = story.begin()
    await story.loop.tick()
    assert story.names() == {**both, "checkpoint-latest": "000001"}


async def test_a_run_goes_on_from_its_own_latest_checkpoint_and_says_how_to_go_back_to_another(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for rule in rules(2):
        await story.learn(rule)
    story.loop = story.begin(resume=tmp_path / "versions" / "checkpoint-latest")
    await story.learn("A third rule, please.")
    assert [v.number for v in story.train.versions()] == [0, 1, 2, 3]
    with pytest.raises(
        ConfigError, match="that is version 1 of this run, which has gone on to version 3; 'openclaw-rl"
    ):
        story.begin(resume=tmp_path / "versions" / "checkpoint-1")


async def test_another_run_goes_on_from_a_named_checkpoint(tmp_path: Path) -> None:
    await trained(tmp_path / "first")
    story = Story(tmp_path / "second", resume=tmp_path / "first" / "versions" / "checkpoint-latest")
    await story.loop.tick()
    assert len(read_rules(LiveVersions(story.train).live().adapter)) == len(
        read_rules(tmp_path / "first" / "versions" / "checkpoint-latest")
    )


def test_a_save_dir_belongs_to_one_run_and_another_is_told_whose_it_is(tmp_path: Path) -> None:
    first, second, saves = tmp_path / "first", tmp_path / "second", tmp_path / "saves"
    for _ in range(2):
        checkpoints.claim(saves, run=first, known=())
    checkpoints.claim(saves, run=second, known=())  # nothing lies there yet
    checkpoints.claim(saves, run=first, known=())
    (saves / "000001").mkdir()
    with pytest.raises(ConfigError, match=f"holds the versions of the run in {first}; go on with that run"):
        checkpoints.claim(saves, run=second, known=())
    moved = Version(number=1, parent=0, base="fake", adapter=str(saves / "000001"))
    checkpoints.claim(saves, run=second, known=(moved,))
    assert (saves / ".run").read_text() == f"{second}\n"


async def test_a_run_with_versions_of_its_own_is_not_given_anothers(tmp_path: Path) -> None:
    source = await trained(tmp_path / "first")
    story = Story(tmp_path / "second")
    await story.learn("Rule of its own, please.")
    with pytest.raises(ConfigError, match=r"has versions of its own already, up to 1; begin a new run directory"):
        story.begin(resume=source)
    manifest = json.loads((source / "manifest.json").read_text())
    assert manifest["step"] == 3


async def test_a_request_for_deleted_weights_is_told_so_and_the_live_version_goes_on(tmp_path: Path) -> None:
    await trained(tmp_path, 2)
    shutil.rmtree(tmp_path / "versions" / "000001")
    settings = [
        f"run.dir={tmp_path}",
        "policy.backend=fake",
        "policy.model=fake",
        "train.backend=fake",
        "gate.mode=off",
    ]
    app = App(load(environ={}, sets=[*settings, "judge.kind=rules"]).config)
    transport = httpx2.ASGITransport(app=app.api)
    async with app.started(), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for model, status in (("fake@1", 404), ("fake@2", 200), ("fake", 200), ("fake@9", 404)):
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            done = await client.post("/v1/chat/completions", json=body)
            assert done.status_code == status, done.text
            if model == "fake@1":
                assert done.json()["error"]["message"] == "the weights of version 1 are no longer kept"
