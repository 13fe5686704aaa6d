"""What a judged turn teaches, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from training import sample_settings

from openclaw_rl.testing import make_completion, make_outcome, make_turn, make_verdict
from openclaw_rl.train.samples import (
    SampleSettings,
    TrainingBatch,
    next_batch,
    step_due,
    task_group,
    to_sample,
    with_advantages,
)
from openclaw_rl.types import Baseline, Drop, Hint, Message, Prompt, PromptNote, Sample, Sampling

RULE = Hint(text="Keep it under 30 words.")
SEEN = Prompt(messages=(Message(role="user", content="What is this?", images=("data:image/png;base64,AA==",)),))
FACT = Hint(text="The file is called b.txt.", kind="fact")


def sampled(
    score: float | None = 1.0,
    *,
    hints: tuple[Hint, ...] = (),
    settings: SampleSettings | None = None,
    live: int = 0,
    outcome: dict[str, Any] | None = None,
    source: str = "judge",
    turn: dict[str, Any] | None = None,
    **completion: Any,
) -> Sample | Drop:
    one = make_turn(completion=make_completion(**completion), **(turn or {}))
    return to_sample(
        one,
        make_outcome(one, **(outcome or {})),
        make_verdict(one, score, hints=hints, source=source),
        live=live,
        settings=settings or sample_settings(),
    )


def reason(found: Sample | Drop) -> str:
    assert isinstance(found, Drop), found
    return found.reason


@pytest.mark.parametrize(
    ("why", "case"),
    [
        ("side turn", {"outcome": {"kind": "side", "kind_reason": "title"}}),
        ("cannot be trained", {"turn": {"prompt": SEEN}}),
        ("no signal", {"score": None}),
        ("no signal", {"score": 0.0}),
        ("no signal", {"score": None, "hints": (FACT,)}),
        ("no signal", {"score": None, "hints": (Hint(text="wrong, again!", kind="complaint"),)}),
        ("stale", {"version": 1, "live": 6}),
        ("cut off", {"finish": "length"}),
        ("aborted", {"finish": "aborted"}),
        ("empty reply", {"reply_tokens": (), "logprobs": ()}),
        ("greedy", {"sampling": Sampling(temperature=0.0)}),
        ("opted out", {"turn": {"trainable": False}}),
    ],
)
def test_a_turn_that_cannot_train_is_dropped_with_its_reason(why: str, case: dict[str, Any]) -> None:
    assert reason(sampled(**case)) == why


def test_four_versions_of_lag_are_fresh_enough() -> None:
    assert isinstance(sampled(version=2, live=6), Sample)


def test_a_cut_off_reply_trains_when_asked_for() -> None:
    assert isinstance(sampled(finish="length", settings=sample_settings(train_truncated=True)), Sample)


def test_a_greedy_reply_still_learns_from_its_hint_but_not_from_its_score() -> None:
    found = sampled(1.0, hints=(RULE,), sampling=Sampling(temperature=0.0))
    assert isinstance(found, Sample)
    assert found.advantage is None
    assert len(found.teachers) == 1


def test_only_rules_become_teachers_and_at_most_as_many_as_allowed() -> None:
    more = tuple(Hint(text=f"Rule number {n}, keep to it.") for n in range(4))
    found = sampled(-1.0, hints=(FACT, RULE, *more), settings=sample_settings(max_hints=3))
    assert isinstance(found, Sample)
    said = [view.messages[-1].content for view in found.teachers]
    assert said == [f"hello\n\n{text}" for text in (RULE.text, more[0].text, more[1].text)]


def test_a_branch_without_weight_gives_no_signal() -> None:
    assert reason(sampled(1.0, settings=sample_settings(policy_gradient=False))) == "no signal"
    assert reason(sampled(None, hints=(RULE,), settings=sample_settings(distillation=False))) == "no signal"


def test_a_worlds_reward_of_zero_is_a_number() -> None:
    found = sampled(0.0, source="environment")
    assert isinstance(found, Sample)
    assert found.advantage == 0.0


def test_the_sample_carries_the_very_tokens_that_were_sampled() -> None:
    found = sampled(
        prompt_tokens=(5, 6), reply_tokens=(7, 8), logprobs=(-0.5, -0.25), sampling=Sampling(temperature=0.7)
    )
    assert isinstance(found, Sample)
    assert (found.prompt_tokens, found.reply_tokens, found.logprobs) == ((5, 6), (7, 8), (-0.5, -0.25))
    assert found.temperature == 0.7


def scored(*scores: float | None, user: str = "u1", groups: tuple[str | None, ...] = ()) -> list[Sample]:
    made = []
    for i, score in enumerate(scores):
        group = groups[i] if groups else None
        found = sampled(score, hints=(RULE,), turn={"user": user, "group": group})
        assert isinstance(found, Sample)
        made.append(found)
    return made


def advantages(batch: TrainingBatch) -> list[float | None]:
    return [None if s.advantage is None else round(s.advantage, 6) for s in batch.samples]


NOTED = PromptNote(text="Keep in mind: Keep it under 30 words.", notes=(1,))


def test_a_reply_under_a_note_is_taught_without_it_and_without_the_log_probs_it_was_sampled_with() -> None:
    found = sampled(1.0, hints=(RULE,), turn={"noted": NOTED})
    assert isinstance(found, Sample)
    assert (found.prompt_tokens, found.logprobs) == (None, None)
    assert found.reply_tokens == make_completion().reply_tokens
    assert [message.content for message in found.prompt.messages] == ["hello"]
    assert found.teachers[0].messages[-1].content == "hello\n\nKeep it under 30 words."


def test_a_reply_under_a_note_is_taught_where_it_was_liked_and_never_pushed_down() -> None:
    turn = {"noted": NOTED}
    made = [sampled(1.0, turn=turn), sampled(-1.0, turn=turn), sampled(-1.0, hints=(RULE,), turn=turn)]
    batch = with_advantages([one for one in made if isinstance(one, Sample)], baselines={}, settings=sample_settings())
    assert advantages(batch) == [1.0, 0.0, None]
    assert batch.baselines["u1"].mean == pytest.approx(0.95 * (0.95 * 0.05 - 0.05) - 0.05)  # all three scores count


def test_the_baseline_is_read_before_it_is_updated() -> None:
    batch = with_advantages(scored(1.0, 1.0, -1.0), baselines={}, settings=sample_settings())
    assert advantages(batch) == [1.0, 0.95, -1.0975]
    assert batch.baselines["u1"].mean == pytest.approx(0.95 * (0.95 * 0.05 + 0.05) - 0.05)


def test_each_user_has_a_baseline_of_their_own_and_it_goes_on_from_where_it_was() -> None:
    batch = with_advantages(
        [*scored(1.0), *scored(1.0, user="u2")], baselines={"u2": Baseline(0.5, 1.0)}, settings=sample_settings()
    )
    assert advantages(batch) == [1.0, 0.5]
    assert batch.baselines["u2"].mean == pytest.approx(0.525)


def test_a_turn_without_a_score_leaves_the_baseline_alone() -> None:
    batch = with_advantages(scored(None, 1.0), baselines={"u1": Baseline(0.2, 1.0)}, settings=sample_settings())
    assert advantages(batch) == [None, 0.8]


def test_raw_advantages_are_the_scores() -> None:
    assert advantages(
        with_advantages(
            scored(1.0, -1.0), baselines={"u1": Baseline(0.9, 1.0)}, settings=sample_settings(advantage="raw")
        )
    ) == [1.0, -1.0]


def test_a_group_is_measured_against_its_own_mean_and_spread() -> None:
    samples = scored(1.0, 0.5, -1.0, 1.0, groups=("a", "a", "b", "b"))
    plain = with_advantages(samples, baselines={}, settings=sample_settings(advantage="group"))
    assert advantages(plain) == [0.25, -0.25, -1.0, 1.0]
    even = with_advantages(samples, baselines={}, settings=sample_settings(advantage="group", normalize=True))
    assert advantages(even) == [1.0, -1.0, -1.0, 1.0]


def test_a_group_that_is_all_alike_teaches_nothing_and_divides_by_nothing() -> None:
    batch = with_advantages(
        scored(1.0, 1.0, groups=("a", "a")), baselines={}, settings=sample_settings(advantage="group", normalize=True)
    )
    assert advantages(batch) == [0.0, 0.0]


def test_a_batch_is_without_signal_only_without_any_advantage_and_any_hint() -> None:
    quiet = sampled(0.0, source="environment")
    assert isinstance(quiet, Sample)
    settings = sample_settings(advantage="raw")
    assert with_advantages([quiet], baselines={}, settings=settings).without_signal
    assert not with_advantages([quiet, *scored(None)], baselines={}, settings=settings).without_signal


@pytest.mark.parametrize(
    ("waiting", "oldest", "last_turn", "expected"),
    [
        (0, None, 0.0, False),
        (4, 999.0, 999.0, True),
        (3, 999.0, 999.0, False),
        (1, 400.0, 999.0, True),
        (1, 999.0, 880.0, True),
        (1, 999.0, 881.0, False),
    ],
)
def test_a_batch_is_ready_when_full_or_old_or_when_nobody_talks(
    waiting: int, oldest: float | None, last_turn: float, expected: bool
) -> None:
    assert (
        step_due(waiting, oldest=oldest, last_turn=last_turn, now=1000.0, batch_size=4, max_wait=600.0, idle=120.0)
        is expected
    )


def test_plays_of_one_task_are_measured_step_by_step_against_each_other() -> None:
    """Two steps of three plays: rewards 1, 0, 0.5 at step 0 and 3, 1 at step 1, where only two plays came to."""
    cells = [(1.0, 0), (0.0, 0), (0.5, 0), (3.0, 1), (1.0, 1)]
    samples = []
    for score, index in cells:
        found = sampled(score, source="environment", turn={"group": "g"}, outcome={"index": index})
        assert isinstance(found, Sample)
        samples.append(found)
    # step 0: mean 0.5, deviations 0.5, -0.5, 0; variance (0.25 + 0.25 + 0) / 3; step 1: mean 2, deviation 1
    plain = with_advantages(samples, baselines={}, settings=sample_settings(advantage="group"))
    assert advantages(plain) == [0.5, -0.5, 0.0, 1.0, -1.0]
    even = with_advantages(samples, baselines={}, settings=sample_settings(advantage="group", normalize=True))
    spread = (0.5 / 3) ** 0.5
    assert advantages(even) == [round(0.5 / spread, 6), round(-0.5 / spread, 6), 0.0, 1.0, -1.0]


def test_a_group_leaves_the_baselines_alone() -> None:
    batch = with_advantages(
        scored(1.0, 0.0, groups=("a", "a")),
        baselines={"u1": Baseline(0.3, 1.0)},
        settings=sample_settings(advantage="group"),
    )
    assert batch.baselines == {"u1": Baseline(0.3, 1.0)}


def drawn(groups: str, *, partial: str = "", size: int = 2, now: float = 1000.0, **more: Any) -> str:
    """The groups of the samples that are due, by their letters; ``.`` is a sample of no group. All judged at 1000."""
    waiting = []
    for group in groups:
        found = sampled(1.0, turn={"group": None if group == "." else group})
        assert isinstance(found, Sample)
        waiting.append((found, 1000.0))
    given = {"last_turn": now, "batch_size": size, "max_wait": 600.0, "idle": 60.0, "grouped": True, **more}
    chosen = next_batch(waiting, now=now, partial={("u1", group) for group in partial}, **given)
    return "".join((task_group(sample) or ("u1", "."))[1] for sample in chosen)


def test_a_group_trains_whole_even_if_the_batch_grows_a_little() -> None:
    assert drawn("aabab") == "aaa"
    assert drawn("aabab", size=4) == "aaabb"
    assert drawn(".aab") == ".aa"
    assert drawn("aabab", grouped=False) == "aa"


def test_a_group_that_is_still_played_or_judged_waits_and_holds_up_no_other() -> None:
    assert drawn("aabb", partial="a") == "bb"
    assert drawn("aab", partial="a") == "", "one whole sample is no batch of two"
    assert drawn("aaa", partial="a") == ""


def test_no_wait_and_no_silence_makes_a_group_train_in_parts() -> None:
    assert drawn("aaa", partial="a", now=1599.0) == ""
    assert drawn("aaa", partial="a", now=1e9) == ""
    assert drawn("aaa", partial="a", last_turn=940.0) == ""
    assert drawn("aab", partial="a", now=1600.0) == "b", "what is whole is late by itself"


def test_nothing_waits_nothing_is_due() -> None:
    assert drawn("") == ""
    assert drawn("", now=9999.0) == ""


def test_a_recalled_rule_teaches_in_place_of_the_turns_own() -> None:
    turn, earlier = make_turn(), make_turn()
    recalled = make_verdict(earlier, -1.0, hints=(Hint(text="Answer in one sentence."),))
    for verdict in (make_verdict(turn, 1.0), make_verdict(turn, -1.0, hints=(RULE,))):
        found = to_sample(turn, make_outcome(turn), verdict, live=0, settings=sample_settings(), recalled=recalled)
        assert isinstance(found, Sample)
        assert found.recalled == earlier.id
        assert found.teachers == (turn.prompt.hinted("Answer in one sentence."),)
    plain = to_sample(
        turn,
        make_outcome(turn),
        make_verdict(turn, 1.0),
        live=0,
        settings=sample_settings(distillation=False),
        recalled=recalled,
    )
    assert isinstance(plain, Sample)
    assert plain.recalled is None
    assert plain.teachers == ()


def test_rules_that_go_on_teaching_are_the_less_urgent_the_more_content_their_user_is() -> None:
    batch = with_advantages(
        scored(-1.0, 1.0, 1.0), baselines={"u1": Baseline(0.5, 1.0)}, settings=sample_settings(decay=0.5, remember=8)
    )
    assert [one.urgency for one in batch.samples] == pytest.approx([0.25, 1.0, 0.625**2])  # before: 0.5, -0.25, 0.375
    fresh = with_advantages(scored(-1.0, -1.0, 1.0, 1.0), baselines={}, settings=sample_settings(decay=0.5, remember=8))
    assert [one.urgency for one in fresh.samples] == pytest.approx(
        [1.0, 1.0, 1.0, (6 / 7) ** 2]
    )  # at first nobody was content
    happy = with_advantages(scored(1.0), baselines={"u1": Baseline(1.0, 1.0)}, settings=sample_settings(remember=8))
    assert happy.samples[0].urgency == 0.05, "never nothing: the teacher also mends what nobody complains of"
    plain = with_advantages(scored(1.0), baselines={"u1": Baseline(0.5, 1.0)}, settings=sample_settings())
    assert plain.samples[0].urgency == 1.0
