"""The losses, against numbers worked by hand and against finite differences."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from defaults import loss_settings
from torch import Tensor

from openclaw_rl import losses
from openclaw_rl.errors import ConfigError, InvalidValue
from openclaw_rl.losses import LossInputs, LossSettings
from openclaw_rl.losses.settings import KNOWN

LN2 = math.log(2)
EPS = {"eps_low": 0.2, "eps_high": 0.28}


def logs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def plain(**change: object) -> LossSettings:
    return loss_settings(**{"kl_coef": 0.0} | change)


def one(
    current: float, old: float, advantage: float | None = None, teachers: tuple[float, ...] = (), *, same: bool = False
) -> LossInputs:
    """One sample of one token with these probabilities, in a vocabulary of two."""
    hinted = logs(*([t, 1 - t] for t in teachers or (0.5,)))[:, None]
    return losses.from_vocabulary(
        tokens=torch.tensor([0]),
        current=logs([current, 1 - current]),
        old=logs([old, 1 - old]),
        teacher=hinted,
        sample=torch.tensor([0]),
        advantage=torch.tensor([advantage or 0.0], dtype=torch.float64),
        has_advantage=torch.tensor([advantage is not None]),
        has_teacher=torch.full((len(hinted), 1), bool(teachers)),
        same_weights=torch.tensor([same]),
        k=1,
    )


def value(x: LossInputs, settings: LossSettings) -> float:
    return float(losses.loss(x, settings)[0].detach())


# --- an engine that rounds otherwise


@pytest.mark.parametrize(("cap", "expected", "cut"), [(2.0, -1.5, 0.0), (1.25, -1.25, 1.0)])
def test_at_equal_weights_a_token_weighs_by_trainer_over_engine_up_to_a_cap(
    cap: float, expected: float, cut: float
) -> None:
    # the policy has not moved: rho is 1 and nothing is clipped; 0.75 / 0.5 = 1.5 is the engine's error alone
    x = one(0.75, 0.5, 1.0, same=True)
    total, metrics = losses.loss(x, plain(method="binary", importance_cap=cap))
    assert float(total.detach()) == pytest.approx(expected)
    assert (metrics["clipped"], metrics["truncated"]) == (0.0, cut)
    assert metrics["gap_mean"] == pytest.approx(math.log(1.5))


def test_other_weights_are_a_matter_of_the_ratio_alone() -> None:
    # sampled by an older version: 1.5 is how far the policy has moved, and the clip at 1.28 holds it
    total, metrics = losses.loss(one(0.75, 0.5, 1.0), plain(method="binary", importance_cap=1.25))
    assert float(total.detach()) == pytest.approx(-1.28)
    assert (metrics["clipped"], metrics["truncated"]) == (1.0, 0.0)


# --- the surrogate


@pytest.mark.parametrize(
    ("rho", "advantage", "expected"),
    [
        (1.0, 1.0, -1.0),
        (1.5, 1.0, -1.28),  # a good token, pushed far enough
        (0.5, 1.0, -0.5),  # a good token that lost weight: always pulled back
        (0.5, -1.0, 0.8),  # a bad token, pushed far enough
        (1.5, -2.0, 3.0),
        (1.2, 0.0, 0.0),
    ],
)
def test_the_clipped_surrogate_by_hand(rho: float, advantage: float, expected: float) -> None:
    got = losses.pg(torch.tensor([rho]).log(), torch.tensor([advantage]), **EPS)
    assert float(got.detach()) == pytest.approx(expected, abs=1e-6)


def test_a_log_ratio_beyond_twenty_is_cut_before_exp() -> None:
    assert float(losses.pg(torch.tensor([100.0]), torch.tensor([-1.0]), **EPS)) == pytest.approx(math.exp(20), rel=1e-5)


def test_only_the_flat_side_counts_as_clipped() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5]).log()
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert losses.is_clipped(log_ratio, advantage, **EPS).tolist() == [True, False, False, True]


# --- each method by hand


def test_binary_is_the_surrogate_of_the_score() -> None:
    assert value(one(0.5, 0.4, 2.0), plain(method="binary")) == pytest.approx(-2 * 1.25)
    assert value(one(0.8, 0.4, 2.0), plain(method="binary")) == pytest.approx(-2 * 1.28)


def test_opd_takes_its_advantage_from_the_teacher_and_bounds_it() -> None:
    # l_T - l_old = log(0.5 / 0.25) = 0.693; rho = 0.3 / 0.25 = 1.2
    assert value(one(0.3, 0.25, None, (0.5,)), plain(method="opd")) == pytest.approx(-LN2 * 1.2)
    # log(0.8 / 0.05) = 2.77 is bounded to C = 1, and C = 0 leaves it
    assert value(one(0.05, 0.05, None, (0.8,)), plain(method="opd")) == pytest.approx(-1.0)
    assert value(one(0.05, 0.05, None, (0.8,)), plain(method="opd", clip=0.0)) == pytest.approx(-4 * LN2)


def test_combine_adds_both_advantages_before_one_surrogate() -> None:
    # 0.5 * ln 2 + 2 * (-1) = -1.6534; rho = 1
    x = one(0.25, 0.25, -1.0, (0.5,))
    assert value(x, plain(method="combine", w_opd=0.5, w_rl=2.0)) == pytest.approx(2.0 - 0.5 * LN2)


def test_combine_without_a_teacher_keeps_the_score_alone() -> None:
    assert value(one(0.25, 0.25, -1.0), plain(method="combine")) == pytest.approx(1.0)
    assert value(one(0.25, 0.25, None, (0.5,)), plain(method="combine")) == pytest.approx(-LN2)


def test_distill_is_a_reverse_kl_over_the_teachers_best_and_a_tail() -> None:
    # teacher (1/2, 1/4, 1/4): best one is id 0, tail 1/2; student (1/4, ...): q = (1/4, 3/4)
    x = losses.from_vocabulary(
        tokens=torch.tensor([1]),
        current=logs([0.25, 0.5, 0.25]),
        old=logs([0.25, 0.5, 0.25]),
        teacher=logs([0.5, 0.25, 0.25])[None],
        sample=torch.tensor([0]),
        advantage=torch.zeros(1, dtype=torch.float64),
        k=1,
    )
    expected = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert value(x, plain(method="distill")) == pytest.approx(expected)
    assert expected == pytest.approx(0.130812, abs=1e-6)


def nine() -> LossInputs:
    """Three tokens of one sample; the second has its two hints the other way round. rho = 1 everywhere, k = 2.

    old (1/2, 1/4, 1/8, 1/8): Sq = {0, 1}. Teacher P (1/8, 1/8, 1/2, 1/4): Sp = {2, 3}, no overlap.
    Teacher Q (1/8, 1/2, 1/4, 1/8): Sp = {1, 2}, overlap {1}. Hints are (P, Q), (Q, P), (P, Q).
    """
    old = logs([1 / 2, 1 / 4, 1 / 8, 1 / 8]).expand(3, 4)
    p, q = logs([1 / 8, 1 / 8, 1 / 2, 1 / 4]), logs([1 / 8, 1 / 2, 1 / 4, 1 / 8])
    return losses.from_vocabulary(
        tokens=torch.tensor([0, 1, 2]),
        current=old,
        old=old,
        teacher=torch.stack([torch.cat([p, q, p]), torch.cat([q, p, q])]),
        sample=torch.zeros(3, dtype=torch.int64),
        advantage=torch.zeros(1, dtype=torch.float64),
        has_advantage=torch.tensor([False]),
        k=2,
    )


# one token's L^OPD under P and under Q, with C = 1:
#   student {0,1}, w (2/3, 1/3):  P: -(2/3 * -1 + 1/3 * -ln2)   Q: -(2/3 * -1 + 1/3 * ln2)
#   teacher:  P {2,3}, w (1/2, 1/2): -(1/2 * 1 + 1/2 * ln2)     Q {1,2}, w (2/3, 1/3): -(ln2)
#   overlap:  P {}: 0                                           Q {1}, w 1: -ln2
CELL = {
    "student": (2 / 3 + LN2 / 3, 2 / 3 - LN2 / 3),
    "teacher": (-0.5 - LN2 / 2, -LN2),
    "overlap": (0.0, -LN2),
}
# O: hint 0 has (0, 1, 0), hint 1 has (1, 0, 1): sequence takes hint 1 = (Q, P, Q), token the best = (Q, Q, Q),
# shortest hint 0 = (P, Q, P)
SHARE_OF_Q = {"sequence_optimal": 2 / 3, "token_optimal": 1.0, "shortest": 1 / 3}


@pytest.mark.parametrize(("hint", "subset"), list(product(SHARE_OF_Q, CELL)))
def test_each_of_the_nine_cells_by_hand(hint: str, subset: str) -> None:
    p, q = CELL[subset]
    share = SHARE_OF_Q[hint]
    got = value(nine(), plain(hint_selection=hint, subset=subset))
    assert got == pytest.approx(share * q + (1 - share) * p, abs=1e-12)


def test_the_nine_numbers_are_these() -> None:
    numbers = {
        (hint, subset): round(value(nine(), plain(hint_selection=hint, subset=subset)), 4)
        for hint, subset in product(SHARE_OF_Q, CELL)
    }
    assert list(numbers.values()) == [0.5897, -0.7443, -0.4621, 0.4356, -0.6931, -0.6931, 0.7437, -0.7954, -0.231]


def test_the_topk_surrogate_clips_each_id_by_its_own_global_ratio() -> None:
    # two ids with old 1/4, 1/4 (w = 1/2 each), teacher ln-gap +1 and -1, rho 1.5 and 0.5
    old = logs([0.25, 0.25])
    current, teacher = old + torch.tensor([[1.5, 0.5]]).log(), old + torch.tensor([[1.0, -1.0]])
    everyone = torch.ones(1, 2, dtype=torch.bool)
    got = losses.topk_opd(current, old, teacher, everyone, clip=1.0, eps=(0.2, 0.28))
    assert float(got.detach()) == pytest.approx(-0.5 * 1.28 + 0.5 * 0.8, abs=1e-7)


def test_topk_adds_the_scalar_branch_with_its_weight() -> None:
    x = one(0.25, 0.25, -1.0, (0.5,))  # top-1 of old is id 1: l_T - l_old = log(0.5 / 0.75)
    opd = -math.log(0.5 / 0.75)
    assert value(x, plain()) == pytest.approx(1.0 + opd)
    assert value(x, plain(w_rl=0.0)) == pytest.approx(opd)
    assert value(x, plain(w_opd=0.0)) == pytest.approx(1.0)


# --- the KL penalty to the base model


def test_full_kl_by_hand() -> None:
    got = losses.full_kl(logs([0.5, 0.5]), logs([0.25, 0.75]))
    assert float(got.detach()) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))


def test_k3_is_weighted_by_the_ratio() -> None:
    # ratio 0.5 / 0.25 = 2, d = log(0.25 / 0.5) = -ln 2: 2 * (0.5 - 1 + ln 2)
    got = losses.k3(logs([0.5]), logs([0.25]), logs([0.25]))
    assert float(got.detach()) == pytest.approx(2 * (LN2 - 0.5))


def test_the_pull_is_its_own_part_with_its_own_weight() -> None:
    current, base = logs([0.5, 0.5]), logs([0.25, 0.75])
    x = replace(one(0.5, 0.5, 1.0), kl=losses.full_kl(current, base), reference=base[:, 0])
    pull = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert value(x, plain(method="binary", kl_coef=0.1)) == pytest.approx(-1 + 0.1 * pull)
    third = LN2 - 0.5  # ratio 1, d = -ln 2
    assert value(x, plain(method="binary", kl_coef=0.1, kl="k3")) == pytest.approx(-1 + 0.1 * third)


def test_a_pull_without_its_numbers_is_refused() -> None:
    with pytest.raises(InvalidValue, match="kl_coef to 0"):
        losses.loss(one(0.5, 0.5, 1.0), loss_settings())


# --- aggregation


def two_samples(**change: object) -> LossInputs:
    """Sample 0 has three tokens with A = 1, sample 1 one token with A = -1; rho = 1."""
    old = logs(*([[0.5, 0.5]] * 4))
    x = losses.from_vocabulary(
        tokens=torch.zeros(4, dtype=torch.int64),
        current=old,
        old=old,
        teacher=old[None],
        sample=torch.tensor([0, 0, 0, 1]),
        advantage=torch.tensor([1.0, -1.0], dtype=torch.float64),
        has_teacher=torch.zeros(1, 4, dtype=torch.bool),
        k=1,
    )
    return replace(x, **change)


def test_tokens_are_averaged_over_the_batch_or_first_within_their_sample() -> None:
    binary = plain(method="binary")
    assert value(two_samples(), binary) == pytest.approx((-3 + 1) / 4)
    assert value(two_samples(), replace(binary, aggregate="sample")) == pytest.approx((-1 + 1) / 2)


@pytest.mark.parametrize("aggregate", ["token", "sample"])
def test_tokens_without_signal_are_in_no_denominator(aggregate: str) -> None:
    x = two_samples(has_advantage=torch.tensor([False, True]))
    got, metrics = losses.loss(x, plain(method="binary", aggregate=aggregate))
    assert float(got.detach()) == pytest.approx(1.0)
    assert metrics["tokens_rl"] == 1


def test_each_part_has_its_own_denominator() -> None:
    # four scored tokens, one of them hinted: the OPD part is that one token's, not a quarter of it
    x = two_samples(
        has_teacher=torch.tensor([[False, False, False, True]]),
        student_teacher=two_samples().student_old[None] + 0.5,
        teacher_top=two_samples().student_old[None] + 0.5,
    )
    got, metrics = losses.loss(x, plain())
    assert (metrics["tokens_rl"], metrics["tokens_opd"]) == (4, 1)
    assert float(got.detach()) == pytest.approx(-0.5 + -0.5)


# --- what is missing, masked or broken


@pytest.mark.parametrize("method", ["opd", "distill", "topk"])
def test_a_sample_without_a_hint_pulls_nothing_towards_anything(method: str) -> None:
    logits = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    x = losses.from_vocabulary(
        tokens=torch.tensor([0, 1]),
        current=logits.log_softmax(-1),
        old=logits.detach().log_softmax(-1),
        teacher=torch.full((1, 2, 5), math.nan, dtype=torch.float64),
        sample=torch.tensor([0, 0]),
        advantage=torch.zeros(1, dtype=torch.float64),
        has_advantage=torch.tensor([False]),
        has_teacher=torch.zeros(1, 2, dtype=torch.bool),
    )
    total, _ = losses.loss(x, plain(method=method))
    total.backward()
    assert float(total.detach()) == 0.0
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize("method", ["opd", "distill", "combine", "topk"])
def test_a_broken_teacher_is_a_missing_teacher_and_never_a_zero(method: str) -> None:
    whole = one(0.25, 0.25, 1.0, (0.5,))
    broken = replace(
        whole,
        teacher=torch.full_like(whole.teacher, math.nan),
        student_teacher=torch.full_like(whole.student_teacher, -math.inf),
        teacher_top=torch.full_like(whole.teacher_top, math.nan),
    )
    got, metrics = losses.loss(broken, plain(method=method))
    absent = replace(whole, has_teacher=torch.zeros_like(whole.has_teacher))
    assert float(got.detach()) == value(absent, plain(method=method))
    assert metrics["masked_no_teacher"] == 1


def test_a_non_finite_token_is_masked_counted_and_leaves_no_trace_in_the_gradient() -> None:
    current = torch.tensor([math.nan, -0.5], dtype=torch.float64, requires_grad=True)
    base = two_samples()
    x = LossInputs(
        **{
            name: getattr(base, name)[..., :2, :] if getattr(base, name).ndim > 1 else getattr(base, name)[:2]
            for name in ("sample", "mask", "old", "same_weights", "advantage", "has_advantage", "student_ids")
        },
        current=current,
        teacher=base.teacher[:, :2],
        has_teacher=base.has_teacher[:, :2],
        student_old=base.student_old[:2],
        student_current=base.student_current[:2],
        student_teacher=base.student_teacher[:, :2],
        teacher_ids=base.teacher_ids[:, :2],
        teacher_top=base.teacher_top[:, :2],
        teacher_old=base.teacher_old[:, :2],
        teacher_current=base.teacher_current[:, :2],
    )
    total, metrics = losses.loss(x, plain(method="binary"))
    total.backward()
    assert current.grad is not None
    assert metrics["masked_non_finite"] == 1
    assert current.grad.tolist() == [0.0, pytest.approx(-math.exp(-0.5 - math.log(0.5)))]


def test_an_empty_overlap_is_zero_with_exactly_zero_gradient() -> None:
    current = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log().requires_grad_()
    x = losses.from_vocabulary(
        tokens=torch.tensor([0]),
        current=current,
        old=logs([0.4, 0.3, 0.2, 0.1]),
        teacher=logs([0.1, 0.2, 0.3, 0.4])[None],
        sample=torch.tensor([0]),
        advantage=torch.zeros(1, dtype=torch.float64),
        has_advantage=torch.tensor([False]),
        k=2,
    )
    total, metrics = losses.loss(x, plain(subset="overlap"))
    total.backward()
    assert float(total.detach()) == 0.0
    assert current.grad is not None
    assert torch.equal(current.grad, torch.zeros_like(current))
    assert metrics["tokens_opd"] == 1


def test_duplicate_hints_choose_the_first_and_change_nothing() -> None:
    once = one(0.3, 0.25, None, (0.5,))
    twice = one(0.3, 0.25, None, (0.5, 0.5))
    for hint, subset in product(SHARE_OF_Q, CELL):
        settings = plain(hint_selection=hint, subset=subset)
        assert value(once, settings) == value(twice, settings)
    tie, _ = losses.choose(twice, twice.mask, "sequence_optimal")
    assert tie.tolist() == [0]


def test_a_hint_that_is_missing_for_a_sample_is_never_chosen() -> None:
    x = nine()
    x = replace(x, has_teacher=torch.tensor([[False] * 3, [True] * 3]))
    for name in SHARE_OF_Q:
        hint, present = losses.choose(x, x.mask, name)
        assert hint.tolist() == [1, 1, 1]
        assert present.all()


@pytest.mark.parametrize("subset", list(CELL))
def test_k_beyond_the_vocabulary_is_the_whole_vocabulary(subset: str) -> None:
    def build(k: int) -> LossInputs:
        return losses.from_vocabulary(
            tokens=torch.tensor([0]),
            current=logs([0.5, 0.3, 0.2]),
            old=logs([0.4, 0.4, 0.2]),
            teacher=logs([0.2, 0.2, 0.6])[None],
            sample=torch.tensor([0]),
            advantage=torch.zeros(1, dtype=torch.float64),
            k=k,
        )

    assert value(build(99), plain(subset=subset)) == pytest.approx(value(build(3), plain(subset=subset)))
    assert math.isfinite(value(build(99), plain(method="distill")))


def test_all_equal_rewards_have_no_gradient() -> None:
    current = torch.tensor([-0.5, -0.7, -0.9, -1.1], dtype=torch.float64, requires_grad=True)
    x = two_samples(current=current, advantage=torch.zeros(2, dtype=torch.float64))
    total, _ = losses.loss(x, plain())
    total.backward()
    assert current.grad is not None
    assert torch.equal(current.grad, torch.zeros(4, dtype=torch.float64))


def test_wrong_shapes_and_unknown_names_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidValue, match=r"old: shape \(3,\), but the other inputs require \(4,\)"):
        two_samples(old=torch.zeros(3))
    with pytest.raises(ConfigError, match="no method called 'ppo'; known: binary, opd, distill, combine, topk"):
        loss_settings(method="ppo")


# --- the gap to the engine


def test_a_token_twice_as_likely_as_the_engine_said_is_masked_only_at_equal_weights() -> None:
    far = one(0.9, 0.4, 1.0, same=True)
    assert losses.health(far, 2.0)["masked_off_policy"] == 1
    assert value(far, plain(method="binary")) == 0.0
    lagged = one(0.9, 0.4, 1.0, same=False)
    assert losses.health(lagged, 2.0)["masked_off_policy"] == 0
    assert value(lagged, plain(method="binary")) == pytest.approx(-1.28)


def test_the_gap_and_the_effective_sample_size_by_hand() -> None:
    old = two_samples().old
    x = two_samples(current=old + torch.tensor([0.0, 0.1, -0.2, LN2]), same_weights=torch.tensor([1, 1, 1, 0]).bool())
    health = losses.health(x, 2.0)
    assert health["gap_mean"] == pytest.approx(0.1)
    assert health["gap_p99"] == pytest.approx(0.198)
    weights = [1.0, math.exp(0.1), math.exp(-0.2), 2.0]
    assert health["ess"] == pytest.approx(sum(weights) ** 2 / (4 * sum(w * w for w in weights)))
    assert (health["kept"], health["tokens"]) == (4, 4)


def test_nothing_to_compare_is_not_a_gap_of_zero() -> None:
    assert math.isnan(losses.health(two_samples(), 2.0)["gap_mean"])


# --- gradients, against finite differences


def random_inputs(logits: Tensor, seed: int, h: int = 3) -> LossInputs:
    """Old near current, so that some ids are clipped and none sits on a kink."""
    make = torch.Generator().manual_seed(seed)
    n, v = logits.shape
    old = logits.detach() + 0.3 * torch.randn(n, v, generator=make, dtype=torch.float64)
    rand = torch.randn(h + 1, n, v, generator=make, dtype=torch.float64)
    current, sample = logits.log_softmax(-1), torch.tensor([0, 0, 1, 1, 2])[:n]
    return losses.from_vocabulary(
        tokens=torch.randint(0, v, (n,), generator=make),
        current=current,
        old=old.log_softmax(-1),
        teacher=rand[1:].log_softmax(-1),
        reference=rand[0].log_softmax(-1),
        sample=sample,
        advantage=torch.tensor([1.0, -0.7, 0.4], dtype=torch.float64),
        has_advantage=torch.tensor([True, True, False]),
        has_teacher=(sample != 1).expand(h, -1),
        k=3,
    )


ROADS = [
    *({"method": m, "kl": kl} for m in ("binary", "opd", "distill", "combine") for kl in ("full", "k3")),
    *({"hint_selection": h, "subset": s} for h, s in product(losses.HINTS, losses.SUBSETS)),
]


@pytest.mark.parametrize("road", ROADS, ids=lambda road: "-".join(road.values()))
@pytest.mark.parametrize("aggregate", ["token", "sample"])
@pytest.mark.parametrize("one_way", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["a way", "every entry"])
def test_gradients_agree_with_finite_differences(road: dict[str, str], aggregate: str, one_way: bool) -> None:
    """Along a way in which every entry moves at random, and one entry after another."""
    logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64, requires_grad=True)
    settings = loss_settings(kl_coef=0.3, aggregate=aggregate, **road)
    base = random_inputs(logits, 3)

    def scalar(z: Tensor) -> Tensor:
        # the sets and old values are fixed, as they are in a step: only the current policy moves
        moved = random_inputs(z, 3)
        fixed = {n: getattr(base, n) for n in ("old", "student_ids", "student_old", "teacher_old")}
        at = z.log_softmax(-1)
        wide = base.teacher_ids.shape[:2] + z.shape[-1:]
        return losses.loss(
            replace(
                moved,
                **fixed,
                student_current=at.gather(-1, base.student_ids),
                student_teacher=base.student_teacher,
                teacher_current=at.expand(wide).gather(-1, base.teacher_ids),
            ),
            settings,
        )[0]

    assert torch.autograd.gradcheck(scalar, (logits,), eps=1e-6, atol=1e-7, fast_mode=one_way)


def test_the_documentation_says_what_the_code_does() -> None:
    assert doctest.testmod(losses) == (0, 8)


# --- how much a sample has to say


@pytest.mark.parametrize(
    ("method", "settings", "hinted", "advantage", "expected"),
    [
        ("topk", {}, True, 0.1, 1.0),
        ("topk", {}, False, -0.4, 0.4),
        ("topk", {}, False, 2.5, 1.0),
        ("topk", {"w_rl": 0.1}, False, -0.5, 0.05),
        ("topk", {"w_rl": 0.1, "w_opd": 0.2}, True, None, 1.0),  # the scale of both is no signal
        ("topk", {"w_opd": 0.0, "w_rl": 0.3}, True, 0.5, 0.5),
        ("combine", {"w_rl": 2.0}, True, None, 0.5),
        ("binary", {"w_rl": 0.1}, True, 0.5, 0.5),  # its hint is not looked at, nor are weights
        ("opd", {}, False, 1.0, 0.0),
        ("distill", {}, True, None, 1.0),
    ],
)
def test_what_a_sample_has_to_say(
    method: str, settings: dict[str, float], hinted: bool, advantage: float | None, expected: float
) -> None:
    found = losses.weight_of(plain(method=method, **settings), hinted=hinted, advantage=advantage)
    assert found == pytest.approx(expected)


def test_a_hint_says_as_much_as_it_is_urgent() -> None:
    settings = plain(method="topk", w_rl=0.4)
    assert losses.weight_of(settings, hinted=True, advantage=0.1, urgency=0.25) == pytest.approx(0.25)
    assert losses.weight_of(settings, hinted=True, advantage=-1.8, urgency=0.25) == pytest.approx(0.4)  # the score's
    assert losses.weight_of(settings, hinted=True, advantage=None) == 1.0


def test_the_names_that_settings_may_have_are_those_of_the_tables() -> None:
    tables = (losses.METHODS, losses.HINTS, losses.SUBSETS, losses.KLS, losses.AGGREGATES)
    assert [tuple(table) for table in tables] == list(KNOWN.values())
