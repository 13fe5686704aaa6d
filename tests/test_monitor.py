"""The live monitor: a regression is found quickly, noise is not, and what it does is in the ledger."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from training import train_loop

from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.config import load
from openclaw_rl.gate.regression import MonitorRules, VersionMonitor, evidence, find_regression, is_new, lineage
from openclaw_rl.ports import Regression
from openclaw_rl.store import ScoredTurn, submit_request
from openclaw_rl.testing import TemporaryLedger, make_completion
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views import status as views

RULES = MonitorRules(**load(environ={}).config.monitor.model_dump(exclude={"mode"}))
BRIEF = "Please keep it under 30 words."


def seen(version: int, bad: int, good: int = 0, *, user: str = "u1", rule: str | None = None) -> list[ScoredTurn]:
    rules = (rule,) if rule else ()
    rows = [(-1.0, rules)] * bad + [(1.0, ())] * good
    return [ScoredTurn(turn=f"{version}", version=version, user=user, score=s, rules=r) for s, r in rows]


def chain(*states: str) -> list[Version]:
    """Version 0, 1, 2 ... each built on the one before."""
    return [
        Version(number=n, parent=n - 1 if n else None, base="b", adapter=f"/a{n}" if n else None, state=state)  # type: ignore[arg-type]
        for n, state in enumerate(states)
    ]


def regression_in(story: list[ScoredTurn], versions: list[Version]) -> Regression | None:
    """The regression where the newest of these versions that was not taken back is live."""
    live = next(version for version in reversed(versions) if version.state == "live")
    return find_regression(story, versions, live=live, rules=RULES)


def test_a_complaint_that_a_note_which_left_would_have_spared_says_nothing_of_the_version() -> None:
    """Version 0 was good with note 1 in its prompt; version 1 was to have learned it, and the note is gone."""
    plain, again = seen(0, 2, 18, rule=BRIEF), seen(1, 6, rule=BRIEF)
    helped, still = ([replace(one, noted=(1,)) for one in turns] for turns in (plain, again))
    versions, notes = chain("live", "live"), {1: "Please be brief."}

    def found(*story: ScoredTurn) -> Regression | None:
        return find_regression(story, versions, live=versions[-1], rules=RULES, notes=notes)

    assert found(*helped, *again) is None, "it is the note that is missed"
    assert found(*plain, *again) is not None, "nobody had a note: it is the version's doing"
    assert found(*helped, *seen(1, 6)) is not None, "a note does not explain replies that went bad without a word of it"
    assert found(*helped, *still) is not None, "nor complaints in spite of the note"


def test_the_ratio_by_hand() -> None:
    # 40 good turns before: the upper bound is under least = 0.2, which is then tolerated.
    # one bad turn: rates 0.2 + 0.8 * (.15 .3 .5 .7 .9) = .32 .44 .6 .76 .92, over 0.2: mean of 1.6 2.2 3 3.8 4.6 = 3.04
    assert evidence(seen(0, 0, 40), seen(1, 1), rules=RULES) == pytest.approx(3.04)
    # a good turn after it takes some of it away, but the largest on the way counts
    assert evidence(seen(0, 0, 40), seen(1, 1) + seen(1, 0, 5), rules=RULES) == pytest.approx(3.04)


def test_five_bad_turns_in_a_row_after_a_clean_record_are_a_regression_and_three_are_not() -> None:
    clean = seen(0, 2, 18)
    assert regression_in([*clean, *seen(1, 3)], chain("live", "live")) is None
    found = regression_in([*clean, *seen(1, 6)], chain("live", "live"))
    assert found is not None
    assert (found.version, found.to) == (1, 0)
    assert found.reason == "6 of 6 turns since version 1 were bad, 2 of 20 before it"


def test_a_user_who_was_never_content_cannot_become_less_so() -> None:
    assert regression_in([*seen(0, 20), *seen(1, 40)], chain("live", "live")) is None


def test_without_a_record_there_is_nothing_to_compare_with() -> None:
    assert regression_in([*seen(0, 0, 7), *seen(1, 40)], chain("live", "live")) is None


def test_each_user_is_compared_with_their_own_record() -> None:
    before = [*seen(0, 0, 15, user="u1"), *seen(0, 15, user="u2")]
    grumbler = regression_in([*before, *seen(1, 12, user="u2")], chain("live", "live"))
    assert grumbler is None, "u2 complained before as well"
    assert regression_in([*before, *seen(1, 12, user="u1")], chain("live", "live")) is not None


def test_a_newcomer_says_nothing_about_a_version_that_they_never_met() -> None:
    assert regression_in([*seen(0, 0, 20), *seen(1, 12, user="u9")], chain("live", "live")) is None


def test_a_preference_from_long_ago_is_still_known() -> None:
    story = [*seen(0, 3, rule=BRIEF), *seen(0, 0, 60), *seen(1, 10, rule=BRIEF)]
    assert regression_in(story, chain("live", "live")) is not None


def test_a_preference_that_the_user_never_had_before_says_nothing_about_the_version() -> None:
    clean = seen(0, 0, 20)
    assert regression_in([*clean, *seen(1, 12, rule=BRIEF)], chain("live", "live")) is None
    known = [*seen(0, 4, rule=BRIEF), *seen(0, 0, 20)]
    again = seen(1, 12, rule="Answer in fewer than 30 words.")
    assert regression_in([*known, *again], chain("live", "live")) is not None, "the old preference is no longer met"
    assert is_new(["Use a bulleted list."], [frozenset({"under", "30", "words"})])


def test_the_version_that_made_it_worse_is_blamed_not_those_around_it() -> None:
    story = [*seen(0, 0, 20), *seen(1, 1, 7), *seen(2, 4), *seen(3, 4)]
    found = regression_in(story, chain("live", "live", "live", "live"))
    assert found is not None
    assert (found.version, found.to) == (2, 1)


def test_what_was_taken_back_is_not_held_against_those_before_it() -> None:
    versions = [
        *chain("live", "live", "rolled back"),
        Version(number=3, parent=1, base="b", adapter="/a1", state="live"),
    ]
    assert lineage(versions[-1], versions) == {0: 0, 1: 1, 3: 1}
    assert regression_in([*seen(0, 0, 20), *seen(1, 0, 4), *seen(2, 12)], versions) is None


def test_a_version_that_a_person_brought_back_is_judged_anew() -> None:
    versions = [
        *chain("live", "rolled back"),
        Version(number=2, parent=0, base="b", adapter=None, state="live"),
        Version(number=3, parent=1, base="b", adapter="/a1", state="live"),
    ]
    story = [*seen(0, 0, 20), *seen(1, 12)]
    assert regression_in(story, versions) is None, "what was said of it before is over"
    found = regression_in([*story, *seen(3, 8)], versions)
    assert found is not None
    assert (found.version, found.to) == (3, 0)


def test_weights_that_are_no_longer_kept_are_passed_by() -> None:
    story = [*seen(0, 0, 20), *seen(1, 0, 4), *seen(2, 8)]
    found = regression_in(story, chain("live", "deleted", "live"))
    assert found is not None
    assert (found.version, found.to) == (2, 0)


def _alarms(old: float, new: float, *, trials: int, rules: MonitorRules, seed: int) -> tuple[float, float]:
    """The share of promotions that alarm, and how many turns that takes on average."""
    rng, found, turns = random.Random(seed), 0, 0
    for _ in range(trials):
        before = _sampled(rng, 0, rules.reference, old)
        after = _sampled(rng, 1, rules.window, new)
        if evidence(before, after, rules=rules) < 1 / rules.alpha:
            continue
        found += 1
        turns += (
            next(n for n in range(len(after)) if evidence(before, after[: n + 1], rules=rules) >= 1 / rules.alpha) + 1
        )
    return found / trials, turns / max(found, 1)


def _sampled(rng: random.Random, version: int, count: int, rate: float) -> list[ScoredTurn]:
    return [
        ScoredTurn(turn="t", version=version, user="u1", score=-1.0 if rng.random() < rate else 1.0)
        for _ in range(count)
    ]


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6])
def test_false_alarms_stay_under_the_stated_rate_however_often_one_looks(rate: float) -> None:
    share, _ = _alarms(rate, rate, trials=1000, rules=RULES, seed=1)
    assert share <= RULES.alpha, f"{share:.1%} of promotions without any change"


def test_a_real_drop_is_found_within_a_few_turns() -> None:
    share, turns = _alarms(0.1, 0.9, trials=100, rules=RULES, seed=2)
    assert share == 1.0
    assert turns < 9
    share, turns = _alarms(0.3, 0.95, trials=100, rules=RULES, seed=3)
    assert share > 0.95
    assert turns < 20


class Served(TemporaryLedger):
    """A ledger in which turns are written quickly, and the train loop with its monitor."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.loop = train_loop(self.train, FakeTrainer(), root, monitor=VersionMonitor(self.train, rules=RULES))

    def served(
        self, version: int, scores: Sequence[float], hint: str | None = None, *, trainable: bool = True
    ) -> list[str]:
        hints, completion = (hint,) if hint else (), make_completion(version=version)
        return [self.add(score, *hints, completion=completion, trainable=trainable).id for score in scores]


def test_turns_that_may_not_train_are_no_evidence(tmp_path: Path) -> None:
    story = Served(tmp_path)
    story.served(0, [1.0, -1.0])
    story.served(0, [-1.0], trainable=False)
    assert [one.score for one in story.train.scored(10)] == [1.0, -1.0]
    assert story.train.bad_rates() == {0: (1, 2)}


@pytest.mark.anyio
async def test_a_drop_rolls_back_automatically_pauses_training_and_says_so(tmp_path: Path) -> None:
    story = Served(tmp_path)
    story.served(0, [1.0] * 8 + [-1.0, 1.0])
    for _ in range(6):
        await story.loop.tick()
    before = LiveVersions(story.train).live()
    assert before is not None
    culprits = story.served(before.number, [1.0, 1.0], hint="Answer in one word.")
    await story.loop.tick()
    worse = LiveVersions(story.train).live()
    assert worse is not None
    assert worse.number == before.number + 1
    waiting = story.served(worse.number, [-1.0] * 8)
    for _ in range(4):
        await story.loop.tick()

    again = LiveVersions(story.train).live()
    assert again is not None
    assert again.adapter == before.adapter
    assert again.note.startswith(f"rollback from {worse.number} to {before.number}: automatic:")
    assert story.train.version(worse.number).state == "rolled back"
    assert story.train.failed_version(culprits[0]) == (worse.number, "rolled back")
    [alarm] = (await story.loop.status())["alarms"]
    assert "went back to" in alarm["what"]
    assert "turns since version" in alarm["what"]
    assert "resume" in alarm["remedy"]
    steps = story.train.last_step()
    assert steps is not None
    assert not set(waiting) & {turn for n in range(1, steps.number + 1) for turn in story.train.step(n).turns}

    submit_request(story.path, "resume")
    await story.loop.tick()
    assert story.train.dropped(waiting[0]).reason == "taken back"  # type: ignore[union-attr]
    assert views.status(story.train, starve_after=20)["turns"]["dropped"]["taken back"] == 8
    assert await story.loop.tick() == 0, "the same evidence does not roll back twice"
