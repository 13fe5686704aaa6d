"""The gate's arithmetic, with numbers worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from openclaw_rl.config import load
from openclaw_rl.gate.checks import (
    Check,
    GateLimits,
    ProbeReply,
    check_ability,
    check_drift,
    check_entropy,
    check_flaws,
    check_kl,
    check_length,
    check_lost,
    check_pairs,
    check_relevance,
    check_tasks,
    check_verdicts,
    decide,
    flaw,
    hint_alignment,
    k3,
)
from openclaw_rl.gate.examiner import margin, quizzes, shared
from openclaw_rl.stats import difference, interval, sign_test, t_quantile, tail, wilson
from openclaw_rl.text import script

LIMITS = GateLimits(**load(environ={}).config.gate.limits.model_dump())


def replied(reply: str, *, probe: str = "p", tokens: int = 1, **more: object) -> ProbeReply:
    return ProbeReply(probe=probe, prompt="What is tea?", reply=reply, tokens=tokens, **more)  # type: ignore[arg-type]


def words(count: int) -> str:
    return " ".join(f"word{i}" for i in range(count))


@pytest.mark.parametrize(("freedom", "table"), [(2, 2.920), (3, 2.353), (5, 2.015), (30, 1.697)])
def test_the_quantiles_are_those_of_the_table(freedom: int, table: float) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(table, rel=0.01)


def test_an_interval_of_three_numbers_by_hand() -> None:
    found = interval([1.0, 2.0, 3.0], alpha=0.05)
    # mean 2, standard deviation 1, half width 2.92 / sqrt(3) = 1.686
    assert (found.mean, found.count) == (2.0, 3)
    assert found.high == pytest.approx(3.686, abs=0.01)
    assert interval([5.0, 5.0], alpha=0.05).high == math.inf, "two numbers do not say how far they vary"


def test_wilson_by_hand() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.490, abs=0.001), pytest.approx(0.943, abs=0.001))
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[0] == pytest.approx(0.0, abs=1e-12)


def test_five_losses_and_no_win_are_no_accident_but_four_are() -> None:
    assert sign_test(5, 0) == pytest.approx(1 / 32)
    assert sign_test(4, 0) == pytest.approx(1 / 16)
    assert sign_test(0, 0) == 1.0


def test_a_paired_difference_is_that_of_the_pairs_that_differ() -> None:
    first = [True] * 6 + [False] * 4
    second = [True] * 5 + [False] + [True] * 3 + [False]
    found = difference(first, second)
    # 3 won, 1 lost of 10: 0.2; spread sqrt(4 + 1 - 4/10) / 10 = 0.2145
    assert found.mean == pytest.approx(0.2)
    assert found.high == pytest.approx(0.2 + 1.96 * 0.21448, abs=1e-3)
    same = difference([True], [True])
    assert same.low < 0 < same.high, "one equal pair proves nothing"


def test_verdicts_that_contradict_the_user_are_found_out_with_two_but_not_with_one() -> None:
    # four in five agree by nature: one contradiction of one has chance 0.2, two of two 0.04
    assert check_verdicts(1, 1, limits=LIMITS).ok
    assert check_verdicts(2, 2, limits=LIMITS).ok is False
    assert check_verdicts(2, 4, limits=LIMITS).ok, "chance 0.18"
    assert check_verdicts(3, 4, limits=LIMITS).ok is False, "chance 0.027"
    assert check_verdicts(0, 0, limits=LIMITS).ok is None


def test_ability_is_counted_against_the_base_and_a_lost_seventh_is_too_much() -> None:
    base = [1.0] * 18 + [-1.0] * 2
    assert check_ability([1.0] * 15 + [-1.0] * 5, base, limits=LIMITS).ok, "90 % to 75 %"
    lost = check_ability([1.0] * 14 + [-1.0] * 6, base, limits=LIMITS)
    assert (lost.ok, lost.numbers) == (False, {"candidate": 0.7, "base": 0.9, "tasks": 20})
    assert check_ability([math.nan] * 20, base, limits=LIMITS).ok is False


def test_a_quiz_is_two_ends_of_one_answer() -> None:
    assert shared((5, 6, 7), (5, 6, 8)) == 2
    assert shared((5, 6), (5, 6)) == 1, "something is left to compare"
    assert shared((5,), (6, 7)) == 0
    found = [*quizzes()]
    assert len(found) == 20
    assert all(quiz.right != quiz.wrong for quiz in found)
    assert found[0].answers == ("The capital of France is Paris", "The capital of France is Madrid")
    assert margin(dict(zip(found[0].answers, (-1.0, -1.5), strict=True)), found[0]) == pytest.approx(0.5)


def test_a_loss_beyond_noise_refuses_and_the_same_mean_with_more_noise_does_not() -> None:
    steady = check_pairs("pinned", [-0.5, -0.52, -0.48], tolerated=0.3, what="pinned replies", limits=LIMITS)
    assert steady.ok is False
    noisy = check_pairs("pinned", [-1.5, 0.5, -0.5], tolerated=0.3, what="pinned replies", limits=LIMITS)
    assert noisy.ok
    assert check_pairs("pinned", [-9.0], tolerated=0.3, what="pinned replies", limits=LIMITS).ok, "one says too little"
    assert check_pairs("pinned", [], tolerated=0.3, what="pinned replies", limits=LIMITS).ok is None
    assert check_pairs("pinned", [math.nan], tolerated=0.3, what="pinned replies", limits=LIMITS).ok is False


def test_kl_by_hand() -> None:
    # d = ln 2: 2 - 1 - 0.693; d = 0: 0
    assert k3([-1.0, -1.0], [-1.0 + math.log(2), -1.0]) == pytest.approx((1 - math.log(2)) / 2)
    assert k3([0.0], [-1000.0]) == pytest.approx(19.0), "held at 20 nats"
    budget = replace(LIMITS, kl_budget=1.0)
    assert check_kl([replied("a", kl=0.5), replied("b", kl=1.5)], limits=budget).ok
    assert check_kl([replied("a", kl=0.6), replied("b", kl=1.5)], limits=budget).ok is False
    assert check_kl([replied("a", kl=math.nan)], limits=budget).ok is False
    assert check_kl([replied("a")], limits=budget).ok is None


def test_what_a_note_asks_for_may_be_far_from_the_base_model() -> None:
    """Seen of "answer in under 30 words": 2.2 nats per token, nearly all of them where a reply ends early."""
    budget, far = replace(LIMITS, kl_budget=1.5), [replied("a", kl=2.2)]
    found = check_kl(far, limits=budget, taught=0.06)
    assert found.ok
    assert found.detail == "2.20 nats per token from the base model, 0.06 from it with the note, 1.5 allowed"
    assert found.numbers["kl"] == 2.2, "general ability is measured by the whole way"
    assert check_kl(far, limits=budget, taught=1.6).ok is False
    assert check_kl([replied("a", kl=math.nan)], limits=budget, taught=0.06).ok is False


def test_one_short_reply_does_not_outweigh_the_rest() -> None:
    """Seen of lists: "* Antarctica * Australia" is 6 nats per token from the base, six others of it are 0.8."""
    said = [replied("a", kl=6.0, tokens=6), *(replied("b", kl=0.8, tokens=28) for _ in range(6))]
    found = check_kl(said, limits=replace(LIMITS, kl_budget=1.5))
    assert found.ok  # (6 * 6 + 6 * 28 * 0.8) / 174; 1.54 if each reply counted the same
    assert found.numbers["kl"] == pytest.approx(0.9793, abs=1e-4)
    chosen = check_entropy([replied("a", entropy=9.0), replied("b", entropy=0.5, tokens=16)], said, (), limits=LIMITS)
    assert chosen.ok is None, "the live version's was not measured"
    chosen = check_entropy(
        [replied("a", entropy=9.0), replied("b", entropy=0.5, tokens=16)],
        [replied("a", entropy=1.0)],
        (),
        limits=LIMITS,
    )
    assert chosen.numbers["candidate"] == 1.0


def test_entropy_may_neither_collapse_nor_dissolve() -> None:
    live = [replied("a", entropy=1.95)]
    verdicts = [check_entropy([replied("a", entropy=e)], live, (), limits=LIMITS).ok for e in (0.61, 0.62, 5.9, 6.0)]
    # (e + 0.05) / 2 within 1/3 .. 3: from 0.617 to 5.95
    assert verdicts == [False, True, True, False]


@pytest.mark.parametrize(
    ("live", "now", "fine"),
    [(30, 6, True), (30, 5, False), (100, 20, True), (100, 19, False), (4, 4, True), (4, 3, False)],
)
def test_replies_may_become_short_but_not_stumps(live: int, now: int, fine: bool) -> None:
    found = check_length([replied(words(now))], [replied(words(live))], limits=LIMITS)
    assert found.ok is fine, found.detail


def test_degenerate_replies_are_counted_beyond_those_of_the_live_version_and_the_base() -> None:
    good, bad = replied(words(9)), replied("", flaw="under 3 words")
    assert check_flaws([good] * 3 + [bad], [good] * 4, [good] * 4, limits=LIMITS).ok
    found = check_flaws([good] * 2 + [bad] * 2, [good] * 4, [good, bad], limits=LIMITS)
    assert (found.ok, found.detail) == (False, "2 of 4 replies degenerate (2 x under 3 words)")
    assert check_flaws([good] * 2 + [bad] * 2, [good, bad], [good, bad], limits=LIMITS).ok, "no other is better"
    drifted = check_flaws([good] * 2 + [bad] * 2, [good, bad], [good] * 4, limits=LIMITS)
    assert (drifted.ok, drifted.numbers["base"]) == (False, 0), "the live one is no better, but the base was"


def test_relevance_is_lost_when_five_of_six_replies_name_nothing() -> None:
    live = [replied("x", probe=str(i), relevant=True) for i in range(6)]
    now = [replied("x", probe=str(i), relevant=i >= 5) for i in range(6)]
    assert check_relevance(now, live, limits=LIMITS).ok is False
    now[4] = replied("x", probe="4", relevant=True)
    assert check_relevance(now, live, limits=LIMITS).ok, "four of six may be noise"


def test_held_out_tasks_are_lost_when_five_more_fail_and_none_is_won() -> None:
    live = {str(task): task < 8 for task in range(16)}
    worse = {str(task): 5 <= task < 8 for task in range(16)}
    found = check_tasks(worse, live, {}, limits=LIMITS)
    assert (found.ok, found.detail) == (False, "3 of 16 held-out tasks solved, 8 by the live version")
    assert check_tasks(worse | {"0": True}, live, {}, limits=LIMITS).ok, "four may be noise"
    assert check_tasks(worse | {str(task): True for task in range(8, 16)}, live, {}, limits=LIMITS).ok, (
        "it won eight others"
    )
    assert check_tasks({}, live, live, limits=LIMITS).ok is None


def test_a_distilled_version_may_miss_the_point_of_a_fifth_of_forty_prompts() -> None:
    def said(*relevant: bool) -> list[ProbeReply]:
        return [replied("", probe=str(at), relevant=one) for at, one in enumerate(relevant)]

    base = said(*[True] * 38, False, False)
    eight = check_lost(said(*[False] * 8, *[True] * 30, False, True), base, limits=LIMITS)
    # nine misses; one of them the base model has too; the one that it gained makes up for nothing
    assert (eight.ok, dict(eight.numbers)) == (True, {"candidate": 31, "lost": 8, "pairs": 40})
    nine = check_lost(said(*[False] * 9, *[True] * 31), base, limits=LIMITS)
    assert (nine.ok, nine.numbers["lost"]) == (False, 9)
    assert "9 of 40 replies no longer name what was asked about where the base model's do" in nine.detail
    unasked = check_lost(said(*[False] * 8, *[True] * 32), None, limits=LIMITS)
    assert (unasked.ok, unasked.numbers["lost"]) == (True, 8), "so few need no base model to compare with"
    assert check_lost(said(*[False] * 9, *[True] * 31), None, limits=LIMITS).ok is False
    assert check_lost([], base, limits=LIMITS).ok is None


def test_the_error_rates_of_that_by_hand() -> None:
    """Refused from 9 of 40 on. Short, as measured, loses 9 to 12 of 100 replies, a note that asks for one word 45."""
    chances = [tail(9, 40, rate) for rate in (0.065, 0.09, 0.115, 0.3, 0.45)]
    assert chances == pytest.approx([0.001, 0.008, 0.035, 0.889, 0.999], abs=0.001)


def test_relevance_lost_little_by_little_is_counted_from_the_base_model() -> None:
    base = [replied("x", probe=str(i), relevant=i < 11) for i in range(12)]
    now = [replied("x", probe=str(i), relevant=i >= 4) for i in range(12)]
    assert check_drift(now, base, limits=LIMITS).ok, "four lost, one won: a quarter"
    now[11] = replied("x", probe="11", relevant=False)
    found = check_drift(now, base, limits=LIMITS)
    assert (found.ok, found.detail) == (False, "7 of 12 replies name what was asked about, 11 of the base model's")
    assert check_drift([], base, limits=LIMITS).ok is None


@pytest.mark.parametrize(
    ("reply", "asked", "why"),
    [
        ("Tea is a warm drink.", "What is tea?", None),
        ("茶是一种用茶叶泡的热饮料。", "What is tea?", "CJK letters where LATIN ones were expected"),
        ("茶是 一种 用茶叶 泡的 热饮料。", "什么是茶，请告诉我？", None),
        ("tea tea tea tea tea tea tea tea tea", "What is tea?", "it repeats a phrase"),
        ("", "What is tea?", "under 3 words"),
        ("It is 42 by my count.", "12 + 30?", None),
    ],
)
def test_what_is_degenerate(reply: str, asked: str, why: str | None) -> None:
    assert flaw(reply, prompt=asked) == why


def test_a_call_needs_no_words_and_a_broken_one_is_a_flaw() -> None:
    assert flaw("", prompt="What is the weather?", calls=True) is None
    assert flaw("<tool_call>{", prompt="x", broken_call=True) == "a tool call that cannot be read"
    assert script("12 + 3") is None


def test_alignment_rewards_what_the_hint_wants_and_clips_it() -> None:
    # the hint likes the first token (+5, clipped to 1) and dislikes the second (-0.5)
    assert hint_alignment([5.0, -0.5], [-1.0, -2.0]) == pytest.approx((-1.0 + 1.0) / 2)
    assert hint_alignment([5.0, -0.5], [-0.5, -3.0]) > hint_alignment([5.0, -0.5], [-1.0, -2.0])


def test_one_failure_refuses_a_missing_answer_holds_and_all_else_is_promoted() -> None:
    good = [Check(name=name, ok=True, detail="fine") for name in ("ability", "kl", "flaws")]
    assert decide(good) == ("promote", "passed: ability, kl, flaws")
    assert decide([*good, Check(name="length", ok=False, detail="2 words")]) == ("refuse", "length: 2 words")
    assert decide([*good, Check(name="pinned", ok=None, detail="none")])[0] == "promote"
    assert decide(good[:2]) == ("hold", "not enough evidence: flaws could not be measured")
