"""Verdicts become steps, steps become versions, each turn once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from training import Story

from openclaw_rl.app.operations import roll_back_now
from openclaw_rl.backends.fake import FakeTrainer, read_rules
from openclaw_rl.config import load
from openclaw_rl.errors import LedgerDown, LedgerError, NotInLedger
from openclaw_rl.ports import Decision, GateDecision, StepResult
from openclaw_rl.store import submit_request
from openclaw_rl.types import Sample, Version
from openclaw_rl.versions import LiveVersions, VersionManager

pytestmark = pytest.mark.anyio


async def test_a_full_batch_becomes_a_version_that_is_live(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert await story.loop.tick() == 0
    first = story.said(-1.0, "Be brief, please.")
    assert await story.loop.tick() == 0
    second = story.said(1.0)
    assert await story.loop.tick() == 2
    assert story.train.step(1).turns == tuple(sorted((first, second)))
    live = LiveVersions(story.train).live()
    assert (live.number, live.parent, live.step) == (1, 0, 1)
    assert read_rules(live.adapter) == ("Be brief, please.",)
    assert await story.loop.tick() == 0


async def test_a_user_who_stops_talking_still_gets_what_was_learned(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.said(-1.0, "Be brief, please.")
    assert await story.loop.tick() == 0
    story.now += 61
    assert await story.loop.tick() == 1
    assert LiveVersions(story.train).live().number == 1


async def test_a_turn_without_signal_is_dropped_with_a_reason_and_counted(tmp_path: Path) -> None:
    story = Story(tmp_path)
    turn = story.said(None)
    assert await story.loop.tick() == 1
    assert story.train.dropped(turn).reason == "no signal"
    assert story.train.drop_counts() == {"no signal": 1}
    assert await story.loop.tick() == 0


async def test_baselines_go_on_after_a_restart(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.said(1.0), story.said(1.0)
    await story.loop.tick()
    assert story.train.step(1).baselines["u1"].mean == pytest.approx(0.0975)
    loop = story.begin(FakeTrainer())
    story.said(1.0), story.said(1.0)
    await loop.tick()
    assert story.train.step(2).baselines["u1"].mean == pytest.approx(0.0975 * 0.95**2 + 0.0975)


class Failing:
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        Path(target).mkdir(parents=True)
        raise RuntimeError("out of memory")


async def test_a_step_that_fails_uses_up_no_turn_and_is_tried_again(tmp_path: Path) -> None:
    story = Story(tmp_path, Failing())
    story.said(1.0), story.said(-1.0)
    with pytest.raises(RuntimeError):
        await story.loop.tick()
    assert story.train.last_step() is None
    assert await story.begin(FakeTrainer()).tick() == 2
    assert LiveVersions(story.train).live().number == 1


class Alarmed(Failing):
    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        return StepResult(adapter=None, metrics={"gap": 0.2}, seconds=0.1, skipped="gap mean 0.2 > 0.05")


async def test_a_skipped_step_is_written_with_its_reason_and_makes_no_version(tmp_path: Path) -> None:
    story = Story(tmp_path, Alarmed())
    story.said(1.0), story.said(-1.0)
    assert await story.loop.tick() == 2
    assert story.train.step(1).skipped == "gap mean 0.2 > 0.05"
    assert [v.number for v in story.train.versions()] == [0]


async def test_a_candidate_that_a_crash_left_undecided_is_promoted_at_the_next_start(tmp_path: Path) -> None:
    story = Story(tmp_path)
    await story.loop.tick()
    story.train.add_version(Version(number=1, parent=0, base="fake", adapter=str(tmp_path / "a"), step=None))
    assert LiveVersions(story.train).live().number == 0
    await story.begin(FakeTrainer()).tick()
    assert LiveVersions(story.train).live().number == 1


async def test_a_run_of_other_weights_is_refused_with_the_remedy(tmp_path: Path) -> None:
    story = Story(tmp_path)
    await story.loop.tick()
    with pytest.raises(LedgerError, match="trained on 'fake', not on 'qwen'; set policy.model back"):
        await story.begin(FakeTrainer(), base="qwen").tick()


async def test_who_asks_for_a_rollback_is_told_of_it_and_not_of_a_version_that_goes_live_meanwhile(
    tmp_path: Path,
) -> None:
    story = Story(tmp_path)
    await story.loop.tick()
    story.train.add_version(Version(number=1, parent=0, base="fake", adapter="/one", state="live", note="step 1"))
    config = load(sets=[f"run.dir={tmp_path}", "policy.backend=fake", "policy.model=fake"]).config
    asked = asyncio.ensure_future(roll_back_now(config, to=None, why="too terse", patience=10.0))
    while not (requests := story.train.new_requests(1)):
        await asyncio.sleep(0.01)
    story.train.add_version(Version(number=2, parent=1, base="fake", adapter="/two", state="live", note="step 2"))
    await asyncio.sleep(0.3)
    assert not asked.done()
    VersionManager(story.train).roll_back(None, "too terse", request=requests[0].seq)
    story.train.done_requests(requests[0].seq)
    assert (await asked).note == "rollback from 2 to 1: too terse"


async def test_a_rollback_does_not_wait_for_a_step_and_what_the_step_makes_is_not_served(tmp_path: Path) -> None:
    class Slow(FakeTrainer):
        """Takes its second step when it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
            if number == 2:
                self.begun.set()
                await self.go_on.wait()
            return await super().step(samples, number=number, parent=parent, target=target)

    slow = Slow()
    story = Story(tmp_path, slow)
    story.said(-1.0, "Rule one, please."), story.said(-1.0, "Rule one, please.")
    await story.loop.tick()
    story.said(-1.0, "Rule two, please."), story.said(-1.0, "Rule two, please.")
    tick = asyncio.ensure_future(story.loop.tick())
    await slow.begun.wait()
    request = submit_request(tmp_path / "ledger.db", "rollback", reason="too terse")
    while not story.train.carried_out(request):
        await asyncio.sleep(0.01)
    assert not tick.done()
    live = LiveVersions(story.train).live()
    assert (live.number, live.adapter, live.note) == (2, None, "rollback from 1 to 0: too terse")
    slow.go_on.set()
    await tick
    assert LiveVersions(story.train).live() == live
    assert (story.train.version(3).parent, story.train.version(3).state) == (1, "refused")


async def test_a_rollback_does_not_wait_for_a_trainer_that_starts(tmp_path: Path) -> None:
    class Loading(FakeTrainer):
        """Starts when it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def start(self) -> None:
            self.begun.set()
            await self.go_on.wait()

    loading = Loading()
    story = Story(tmp_path, loading)
    tick = asyncio.ensure_future(story.loop.tick())
    await loading.begun.wait()
    story.train.add_version(Version(number=1, parent=0, base="fake", adapter="/one", state="live", note="step 1"))
    request = submit_request(tmp_path / "ledger.db", "rollback")
    while not story.train.carried_out(request):
        await asyncio.sleep(0.01)
    assert not tick.done()
    assert LiveVersions(story.train).live().adapter is None
    loading.go_on.set()
    await tick


async def test_a_rollback_during_an_examination_undoes_its_ruling(tmp_path: Path) -> None:
    class Thorough:
        """A gate that promotes what it examined, the second candidate when it is told to."""

        begun, go_on = asyncio.Event(), asyncio.Event()

        async def decide(self, candidate: Version, live: Version) -> GateDecision:
            if live.number:
                self.begun.set()
                await self.go_on.wait()
            return GateDecision(
                version=candidate.number, against=live.number, decision="promote", reason="", evidence={}
            )

    gate, story = Thorough(), Story(tmp_path)
    loop = story.begin(FakeTrainer(), gate=gate)
    for rule in ("Rule one, please.", "Rule two, please."):
        story.said(-1.0, rule), story.said(-1.0, rule)
        tick = asyncio.ensure_future(loop.tick())
        if rule == "Rule one, please.":
            await tick
    await gate.begun.wait()
    request = submit_request(tmp_path / "ledger.db", "rollback", reason="too terse")
    while not story.train.carried_out(request):
        await asyncio.sleep(0.01)
    gate.go_on.set()
    await tick
    await loop.tick()
    assert LiveVersions(story.train).live().note == "rollback from 1 to 0: too terse"
    assert story.train.version(2).state == "refused"


async def test_a_rollback_is_a_new_version_with_old_weights_and_a_second_one_goes_further_back(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for rule in ("Rule one, please.", "Rule two, please."):
        story.said(-1.0, rule), story.said(-1.0, rule)
        await story.loop.tick()
    one, two = story.train.version(1), story.train.version(2)
    submit_request(tmp_path / "ledger.db", "rollback", reason="too terse")
    assert await story.loop.tick() == 1
    live = LiveVersions(story.train).live()
    assert (live.number, live.adapter, live.note) == (3, one.adapter, "rollback from 2 to 1: too terse")
    assert story.train.version(2).state == "rolled back"
    assert story.train.version(2).adapter == two.adapter
    assert VersionManager(story.train).roll_back(None, "further").adapter is None
    with pytest.raises(NotInLedger, match="base model is live"):
        VersionManager(story.train).roll_back(None, "further")
    assert VersionManager(story.train).roll_back(2, "it was good after all").adapter == two.adapter


class Undecided:
    """A gate that lets the first version pass and cannot decide on any other."""

    async def decide(self, candidate: Version, live: Version) -> GateDecision:
        decision: Decision = "promote" if candidate.number == 1 else "hold"
        return GateDecision(
            version=candidate.number, against=live.number, decision=decision, reason="so it is", evidence={}
        )


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_held_version_is_refused_once_what_it_was_trained_from_is_rolled_back(
    tmp_path: Path, deleted: bool
) -> None:
    story = Story(tmp_path)
    loop = story.begin(FakeTrainer(), gate=Undecided())
    for rule in ("Rule one, please.", "Rule two, please."):
        story.said(-1.0, rule), story.said(-1.0, rule)
        await loop.tick()
    assert [story.train.version(n).state for n in (1, 2)] == ["live", "candidate"]
    VersionManager(story.train).roll_back(None, "too terse")
    if deleted:
        story.train.set_state(1, "deleted", "retention")
    await loop.tick()
    assert story.train.version(2).state == "refused"
    assert LiveVersions(story.train).live().number == 3


async def test_a_request_that_cannot_be_met_does_not_block_the_next(tmp_path: Path) -> None:
    story = Story(tmp_path)
    await story.loop.tick()
    submit_request(tmp_path / "ledger.db", "rollback", version=99)
    submit_request(tmp_path / "ledger.db", "rollback", version=0)
    assert await story.loop.tick() == 2
    assert LiveVersions(story.train).live().number == 1
    assert await story.loop.tick() == 0


async def test_three_alarms_in_a_row_pause_training_until_a_person_resumes_it(tmp_path: Path) -> None:
    story = Story(tmp_path, Alarmed())
    for _ in range(4):
        story.said(1.0), story.said(-1.0)
    assert await story.loop.tick() + await story.loop.tick() + await story.loop.tick() == 6
    assert await story.loop.tick() == 1, "the pause itself is taken note of"
    assert await story.loop.tick() == 0
    assert story.train.paused() == "3 alarms in a row, the last: gap mean 0.2 > 0.05"
    [alarm] = (await story.loop.status())["alarms"]
    assert "training is paused: 3 alarms" in alarm["what"]
    assert await story.begin(FakeTrainer()).tick() == 0, "a restart does not forget it"
    submit_request(tmp_path / "ledger.db", "resume")
    loop = story.begin(FakeTrainer())
    assert await loop.tick() == 3
    assert LiveVersions(story.train).live().number == 1


async def test_a_step_whose_commit_was_not_confirmed_is_decided_on_and_its_turns_train_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path)
    turns = [story.said(-1.0, "Be brief, please."), story.said(1.0)]
    write = story.train.add_step

    def cut_off(*args: Any) -> None:
        monkeypatch.undo()
        write(*args)
        raise LedgerDown("the server went away", why="the server went away")

    monkeypatch.setattr(story.train, "add_step", cut_off)
    with pytest.raises(LedgerDown):
        await story.loop.tick()
    assert LiveVersions(story.train).live().number == 0
    assert await story.loop.tick() == 0
    assert LiveVersions(story.train).live().number == 1, "it was offered again"
    assert story.train.counts()["steps"] == 1
    assert [story.train.trained_in(turn) for turn in turns] == [1, 1]
