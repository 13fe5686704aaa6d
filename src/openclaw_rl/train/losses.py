"""The losses: tensors in, a scalar and plain metrics out.

Letters: `N` reply tokens of the batch, one after another; `S` samples; `K` top-k ids; `H` hints, at least 1 (a batch
without any hint has one row that ``has_teacher`` nowhere).
Every log-prob is a log-softmax over the whole vocabulary of logits divided by that sample's own temperature.

    >>> import torch
    >>> from openclaw_rl.train import losses
    >>> round(float(losses.pg(torch.tensor([0.5]).log(), torch.tensor([-1.0]))), 3)
    0.8

A custom loss is a function of the same `LossInputs`: ``my_loss(inputs) -> (scalar, {"name": number})``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from openclaw_rl.errors import ConfigError, InvalidValue

Entry = TypeVar("Entry")

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """All that a loss may look at. ``current``, ``student_current``, ``teacher_current`` and ``kl`` carry the gradient.

    Values under a False in ``mask`` or ``has_teacher`` are never read: they may hold anything.
    """

    sample: Tensor
    """[N] int64: the sample of each token, 0 .. S-1"""
    mask: Tensor
    """[N] bool: False keeps a token out of every part"""
    current: Tensor
    """[N] l_cur of the sampled token"""
    old: Tensor
    """[N] l_old of the sampled token, as recorded while it was sampled"""
    same_weights: Tensor
    """[N] bool: sampled by the very weights that ``current`` comes from, so that both should be equal"""
    advantage: Tensor
    """[S] the scalar branch's A"""
    has_advantage: Tensor
    """[S] bool: False where the scalar branch has no signal"""
    teacher: Tensor
    """[H, N] l_T of the sampled token under each hint, shortest hint first"""
    has_teacher: Tensor
    """[H, N] bool"""
    student_ids: Tensor
    """[N, K] Sq, the top-k of the proximal policy"""
    student_old: Tensor
    """[N, K] l_old at Sq"""
    student_current: Tensor
    """[N, K] l_cur at Sq"""
    student_teacher: Tensor
    """[H, N, K] l_T at Sq"""
    teacher_ids: Tensor
    """[H, N, K] Sp, the teacher's top-k under each hint"""
    teacher_top: Tensor
    """[H, N, K] l_T at Sp"""
    teacher_old: Tensor
    """[H, N, K] l_old at Sp"""
    teacher_current: Tensor
    """[H, N, K] l_cur at Sp"""
    kl: Tensor | None = None
    """[N] KL(current || base) over the whole vocabulary, None where it was not computed"""
    reference: Tensor | None = None
    """[N] l_ref of the sampled token under the base, None where it was not computed"""

    def __post_init__(self) -> None:
        n, s, h, k = len(self.sample), len(self.advantage), len(self.teacher), self.student_ids.shape[-1]
        if h < 1:
            raise InvalidValue("teacher", "no row", remedy="give one row and let has_teacher be False")
        for names, shape in (
            ("mask current old same_weights kl reference", (n,)),
            ("has_advantage", (s,)),
            ("teacher has_teacher", (h, n)),
            ("student_ids student_old student_current", (n, k)),
            ("student_teacher teacher_ids teacher_top teacher_old teacher_current", (h, n, k)),
        ):
            for name in names.split():
                value = getattr(self, name)
                if value is not None and tuple(value.shape) != shape:
                    raise InvalidValue(name, f"shape {tuple(value.shape)}, but the other inputs ask for {shape}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The dials of the built-in losses; defaults are METHODS's."""

    method: str = "topk"
    """binary, opd, distill, combine or topk"""
    w_rl: float = 1.0
    """weight of the scalar branch in combine and topk; 0 is OPD only"""
    w_opd: float = 1.0
    """weight of the hinted branch in combine and topk; 0 is GRPO only"""
    clip: float = 1.0
    """C, the bound of l_T - l_old; 0 or less: no bound"""
    eps_low: float = 0.2
    eps_high: float = 0.28
    hint_selection: str = "sequence_optimal"
    """sequence_optimal, token_optimal or shortest"""
    subset: str = "student"
    """student, teacher or overlap"""
    kl: str = "full"
    """full (exact, over the vocabulary) or k3 (from the sampled token alone)"""
    kl_coef: float = 0.05
    """weight of the pull to the base; 0 switches it off"""
    max_mismatch: float = 2.0
    """mask a token whose ratio of trainer to engine at equal weights is outside [1/this, this]; at least 1"""
    aggregate: str = "token"
    """token (one count per part) or sample (mean within a sample, then over samples)"""

    def __post_init__(self) -> None:
        for name, table in (
            ("method", METHODS),
            ("hint_selection", HINTS),
            ("subset", SUBSETS),
            ("kl", KLS),
            ("aggregate", AGGREGATES),
        ):
            look_up(table, getattr(self, name), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One term of a loss: a value for each token [N], the tokens it speaks of [N], its weight."""

    name: str
    values: Tensor
    mask: Tensor
    weight: float = 1.0
    clipped: Tensor | None = None


def look_up(table: Mapping[str, Entry], name: str, dial: str) -> Entry:
    """The entry called ``name``; raises ConfigError that lists the known ones."""
    if name not in table:
        raise ConfigError(f"no {dial} called {name!r}", remedy=f"known: {', '.join(table)}")
    return table[name]


# --- arithmetic ------------------------------------------------------------------------------------


def ratio(current: Tensor, old: Tensor) -> Tensor:
    """exp(current - old), the log-ratio clamped to +-20 first. Any shape."""
    return (current - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def pg(log_ratio: Tensor, advantage: Tensor, *, eps_low: float = 0.2, eps_high: float = 0.28) -> Tensor:
    """PG(rho, A) = max(-A rho, -A clip(rho, 1-eps_low, 1+eps_high)), elementwise over any shape."""
    rho = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return torch.maximum(-advantage * rho, -advantage * rho.clamp(1 - eps_low, 1 + eps_high))


def is_clipped(log_ratio: Tensor, advantage: Tensor, *, eps_low: float = 0.2, eps_high: float = 0.28) -> Tensor:
    """Where `pg` is flat because the ratio has gone far enough: a bool of the same shape."""
    rho = log_ratio.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return ((advantage > 0) & (rho > 1 + eps_high)) | ((advantage < 0) & (rho < 1 - eps_low))


def bounded(difference: Tensor, clip: float) -> Tensor:
    """clamp(difference, +-clip); ``clip`` 0 or less leaves it as it is."""
    return difference.clamp(-clip, clip) if clip > 0 else difference


def k3(current: Tensor, old: Tensor, reference: Tensor) -> Tensor:
    """ratio * (exp(d) - 1 - d) with d = l_ref - l_cur, elementwise; the gradient runs through both factors."""
    d = (reference - current).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return ratio(current, old) * (d.exp() - 1 - d)


def full_kl(current: Tensor, reference: Tensor) -> Tensor:
    """KL(current || reference) over the last axis of two log-softmax tensors [..., V] -> [...]."""
    return (current.exp() * (current - reference)).sum(-1)


def with_tail(logprobs: Tensor) -> Tensor:
    """[..., K] log-probs of some ids -> [..., K+1]: one more bin, log(1 - sum exp), for all the others."""
    rest = 1 - logprobs.exp().sum(-1, keepdim=True)
    return torch.cat([logprobs, rest.clamp_min(torch.finfo(logprobs.dtype).eps).log()], -1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """sum_j exp(q_j)(q_j - p_j) over the teacher's ids [..., K] and a tail bin -> [...]; gradient through q alone."""
    q, p = with_tail(student), with_tail(teacher.detach())
    return (q.exp() * (q - p)).sum(-1)


def overlap(student_ids: Tensor, teacher_ids: Tensor) -> Tensor:
    """Which of Sq [N, K] is in Sp [H, N, K]: a bool [H, N, K] over the positions of Sq."""
    return (student_ids[None, :, :, None] == teacher_ids[:, :, None, :]).any(-1)


def topk_opd(
    current: Tensor, old: Tensor, teacher: Tensor, member: Tensor, *, clip: float, eps: tuple[float, float]
) -> Tensor:
    """L^OPD_t over the ids of S_t: all [N, K], ``member`` False where an id is not in S_t -> [N].

    An empty S_t gives 0 and no gradient at all.
    """
    weight, advantage = _opd_advantage(old, teacher, member, clip)
    log_ratio = torch.where(member, current - old.detach(), 0.0)
    values = pg(log_ratio, advantage * weight, eps_low=eps[0], eps_high=eps[1])
    return torch.where(member, values, 0.0).sum(-1)


def _opd_advantage(old: Tensor, teacher: Tensor, member: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    old, teacher = old.detach(), teacher.detach()
    weight = torch.where(member, old, -torch.inf).softmax(-1)
    weight = torch.where(member, weight, 0.0)  # a row without members is NaN up to here
    return weight, bounded(torch.where(member, teacher - old, 0.0), clip)


# --- choosing a hint -------------------------------------------------------------------------------


def _first_best(score: Tensor, present: Tensor) -> Tensor:
    """argmax over the first axis among those present; ties go to the lowest index, which `argmax` does not promise."""
    h = len(score)
    order = torch.arange(h - 1, -1, -1, device=score.device)[:, None]
    return torch.where(present, score * h + order, -1).argmax(0)


def sequence_optimal(count: Tensor, present: Tensor, sample: Tensor, samples: int) -> Tensor:
    """One hint for each sample: the largest sum of O over its tokens. ``count`` [H, N], ``present`` [H, N] -> [N]."""
    counted = torch.where(present, count, 0)
    total = counted.new_zeros(len(count), samples).index_add_(1, sample, counted)
    seen = counted.new_zeros(len(count), samples).index_add_(1, sample, present.to(counted.dtype))
    return _first_best(total, seen > 0)[sample]


def token_optimal(count: Tensor, present: Tensor, _sample: Tensor, _samples: int) -> Tensor:
    """One hint for each token: the largest O there."""
    return _first_best(count, present)


def shortest(count: Tensor, present: Tensor, sample: Tensor, samples: int) -> Tensor:
    """The first hint that a sample has, whatever the overlap."""
    return sequence_optimal(torch.zeros_like(count), present, sample, samples)


Select: TypeAlias = Callable[[Tensor, Tensor, Tensor, int], Tensor]
HINTS: Mapping[str, Select] = MappingProxyType(
    {"sequence_optimal": sequence_optimal, "token_optimal": token_optimal, "shortest": shortest}
)


def _at_hint(values: Tensor, hint: Tensor) -> Tensor:
    """values [H, N, ...] at hint [N] -> [N, ...]."""
    return values[hint, torch.arange(len(hint), device=hint.device)]


def choose(x: LossInputs, mask: Tensor, selection: str) -> tuple[Tensor, Tensor]:
    """h* for each token [N], and whether that hint has teacher values there [N]."""
    present = teacher_present(x) & mask
    count = overlap(x.student_ids, x.teacher_ids).sum(-1)
    hint = HINTS[selection](count, present, x.sample, len(x.advantage))
    return hint, _at_hint(present, hint)


def teacher_present(x: LossInputs) -> Tensor:
    """[H, N]: teacher values are there and finite; a broken teacher is a missing one."""
    finite = x.teacher.isfinite() & x.student_teacher.isfinite().all(-1) & x.teacher_top.isfinite().all(-1)
    return x.has_teacher & finite


# --- the vocabulary subsets ------------------------------------------------------------------------

Quad: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""current, old, teacher and membership, each [N, K]"""


def _student_subset(x: LossInputs, hint: Tensor) -> Quad:
    teacher = _at_hint(x.student_teacher, hint)
    return x.student_current, x.student_old, teacher, torch.ones_like(teacher, dtype=torch.bool)


def _teacher_subset(x: LossInputs, hint: Tensor) -> Quad:
    teacher = _at_hint(x.teacher_top, hint)
    member = torch.ones_like(teacher, dtype=torch.bool)
    return _at_hint(x.teacher_current, hint), _at_hint(x.teacher_old, hint), teacher, member


def _overlap_subset(x: LossInputs, hint: Tensor) -> Quad:
    current, old, teacher, _ = _student_subset(x, hint)
    return current, old, teacher, _at_hint(overlap(x.student_ids, x.teacher_ids), hint)


SUBSETS: Mapping[str, Callable[[LossInputs, Tensor], Quad]] = MappingProxyType(
    {"student": _student_subset, "teacher": _teacher_subset, "overlap": _overlap_subset}
)


# --- the methods: each turns inputs into parts -----------------------------------------------------


def _eps(s: LossSettings) -> dict[str, float]:
    return {"eps_low": s.eps_low, "eps_high": s.eps_high}


def _log_ratio(x: LossInputs, mask: Tensor) -> Tensor:
    return torch.where(mask, x.current - x.old, 0.0)


def _surrogate(name: str, x: LossInputs, advantage: Tensor, mask: Tensor, s: LossSettings, weight: float) -> Part:
    log_ratio, advantage = _log_ratio(x, mask), torch.where(mask, advantage, 0.0)
    values, clipped = pg(log_ratio, advantage, **_eps(s)), is_clipped(log_ratio, advantage, **_eps(s))
    return Part(name=name, values=values, mask=mask, weight=weight, clipped=clipped)


def _scalar(x: LossInputs, mask: Tensor, s: LossSettings, weight: float) -> Part:
    return _surrogate("rl", x, x.advantage[x.sample], mask & x.has_advantage[x.sample], s, weight)


def _token_gap(x: LossInputs, mask: Tensor, s: LossSettings) -> tuple[Tensor, Tensor]:
    """clamp(l_T - l_old, +-C) of the sampled token under the first hint [N], and where there is one [N]."""
    hint, present = choose(x, mask, "shortest")
    gap = _at_hint(x.teacher, hint).detach() - x.old
    return bounded(torch.where(present, gap, 0.0), s.clip), present


def binary(x: LossInputs, mask: Tensor, s: LossSettings) -> tuple[Part, ...]:
    """L_t = PG(exp(l_cur - l_old), A)."""
    return (_scalar(x, mask, s, 1.0),)


def opd(x: LossInputs, mask: Tensor, s: LossSettings) -> tuple[Part, ...]:
    """L_t = PG(rho_t, clamp(l_T - l_old, +-C)), under the first hint."""
    advantage, present = _token_gap(x, mask, s)
    return (_surrogate("opd", x, advantage, present, s, 1.0),)


def distill(x: LossInputs, mask: Tensor, _s: LossSettings) -> tuple[Part, ...]:
    """Reverse KL over the first hint's teacher top-k and a tail bin."""
    hint, present = choose(x, mask, "shortest")
    current, top = _at_hint(x.teacher_current, hint), _at_hint(x.teacher_top, hint)
    safe = torch.full_like(top, -1.0 - top.shape[-1])  # where no teacher is: any finite value will do
    values = reverse_kl(torch.where(present[:, None], current, safe), torch.where(present[:, None], top, safe))
    return (Part(name="opd", values=values, mask=present),)


def combine(x: LossInputs, mask: Tensor, s: LossSettings) -> tuple[Part, ...]:
    """One surrogate with A_t = w_opd clamp(l_T - l_old, +-C) + w_rl A; a branch without signal adds nothing."""
    gap, present = _token_gap(x, mask, s)
    scored = x.has_advantage[x.sample] & mask
    advantage = s.w_opd * gap + s.w_rl * torch.where(scored, x.advantage[x.sample], 0.0)
    return (_surrogate("combine", x, advantage, present | scored, s, 1.0),)


def topk(x: LossInputs, mask: Tensor, s: LossSettings) -> tuple[Part, ...]:
    """w_rl PG(rho_t, A) + w_opd L^OPD_t over the chosen hint and subset."""
    scalar = _scalar(x, mask, s, s.w_rl)
    hint, present = choose(x, mask, s.hint_selection)
    current, old, teacher, member = SUBSETS[s.subset](x, hint)
    member = member & present[:, None]
    values = topk_opd(current, old, teacher, member, clip=s.clip, eps=(s.eps_low, s.eps_high))
    return (scalar, Part(name="opd", values=values, mask=present, weight=s.w_opd))


@dataclass(frozen=True, slots=True)
class Method:
    """A method and what it looks at: the most hints (None: all), scores, and whether the two weights apply to it."""

    parts: Callable[[LossInputs, Tensor, LossSettings], tuple[Part, ...]]
    hints: int | None
    scores: bool
    weighted: bool = False


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "binary": Method(binary, 0, True),
        "opd": Method(opd, 1, False),
        "distill": Method(distill, 1, False),
        "combine": Method(combine, 1, True, True),
        "topk": Method(topk, None, True, True),
    }
)


def needs(s: LossSettings) -> tuple[int | None, bool]:
    """How many hints of a sample these dials look at (None: all), and whether they look at its score."""
    method = METHODS[s.method]
    hints = 0 if method.weighted and s.w_opd == 0 else method.hints
    return hints, method.scores and not (method.weighted and s.w_rl == 0)


def _kl_full(x: LossInputs, _mask: Tensor) -> Tensor:
    return _given(x.kl, "kl")


def _kl_k3(x: LossInputs, mask: Tensor) -> Tensor:
    current = torch.where(mask, x.current, 0.0)
    old, reference = torch.where(mask, x.old, 0.0), torch.where(mask, _given(x.reference, "reference"), 0.0)
    return k3(current, old, reference)


def _given(value: Tensor | None, name: str) -> Tensor:
    if value is None:
        raise InvalidValue(name, "this kl needs it", remedy="fill it in, or set kl_coef to 0")
    return value


KLS: Mapping[str, Callable[[LossInputs, Tensor], Tensor]] = MappingProxyType({"full": _kl_full, "k3": _kl_k3})


# --- aggregation, masks and metrics ----------------------------------------------------------------


def mean_token(values: Tensor, mask: Tensor, _sample: Tensor, _samples: int) -> Tensor:
    """The mean over the tokens in ``mask`` of the whole batch; 0 when there is none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def mean_sample(values: Tensor, mask: Tensor, sample: Tensor, samples: int) -> Tensor:
    """The mean within each sample that has tokens in ``mask``, then over those samples; 0 when there is none."""
    total = values.new_zeros(samples).index_add(0, sample, torch.where(mask, values, 0.0))
    count = values.new_zeros(samples).index_add(0, sample, mask.to(values.dtype))
    return (total / count.clamp_min(1)).sum() / (count > 0).sum().clamp_min(1)


Aggregate: TypeAlias = Callable[[Tensor, Tensor, Tensor, int], Tensor]
AGGREGATES: Mapping[str, Aggregate] = MappingProxyType({"token": mean_token, "sample": mean_sample})


def fit(x: LossInputs, max_mismatch: float = 2.0) -> dict[str, Tensor]:
    """Why tokens are kept out, each reason [N] bool and disjoint from those before it; ``kept`` is the rest."""
    finite = x.current.detach().isfinite() & x.old.isfinite()
    near = ((x.current.detach() - x.old).abs() <= math.log(max_mismatch)) | ~x.same_weights
    return {
        "masked_sample": ~x.mask,
        "masked_non_finite": x.mask & ~finite,
        "masked_off_policy": x.mask & finite & ~near,
        "kept": x.mask & finite & near,
    }


def health(x: LossInputs, max_mismatch: float = 2.0) -> dict[str, float]:
    """What tells a sound batch from a broken one: the gap to the engine, effective sample size, tokens by reason.

    The gap is |trainer - engine| at equal weights, before the off-policy mask; NaN where no token is comparable.
    """
    reasons = fit(x, max_mismatch)
    gap = (x.current.detach() - x.old).abs()[x.same_weights & (reasons["kept"] | reasons["masked_off_policy"])]
    weight = ratio(x.current.detach(), x.old)[reasons["kept"]]
    nothing = float("nan")
    return {
        "gap_mean": float(gap.mean()) if len(gap) else nothing,
        "gap_p99": float(gap.double().quantile(0.99)) if len(gap) else nothing,
        "ess": float(weight.sum() ** 2 / (len(weight) * (weight**2).sum())) if len(weight) else nothing,
        "masked_no_teacher": float((reasons["kept"] & ~teacher_present(x).any(0)).sum()),
        "tokens": float(len(x.mask)),
        **{name: float(where.sum()) for name, where in reasons.items()},
    }


def loss(x: LossInputs, settings: LossSettings | None = None) -> tuple[Tensor, dict[str, float]]:
    """The built-in loss: the method's parts and the pull to the base, each averaged over its own tokens.

    Metrics: ``loss``, and for each part ``loss_NAME`` (before its weight) and ``tokens_NAME``; ``clipped``; `health`.
    """
    s = settings or LossSettings()
    kept, metrics = fit(x, s.max_mismatch)["kept"], health(x, s.max_mismatch)
    parts = METHODS[s.method].parts(x, kept, s)
    if s.kl_coef:
        parts += (Part(name="kl", values=KLS[s.kl](x, kept), mask=kept, weight=s.kl_coef),)
    total = torch.where(kept, x.current, 0.0).sum() * 0.0  # a batch without any part still has a gradient: zero
    for part in parts:
        value = AGGREGATES[s.aggregate](part.values, part.mask, x.sample, len(x.advantage))
        total = total + part.weight * value
        metrics |= {f"loss_{part.name}": float(value.detach()), f"tokens_{part.name}": float(part.mask.sum())}
    return total, metrics | {"loss": float(total.detach()), "clipped": _clipped_share(parts)}


def _clipped_share(parts: tuple[Part, ...]) -> float:
    """Clipped tokens over tokens, of the parts that have a surrogate of the sampled token; 0 without any."""
    able = [(part.clipped & part.mask, part.mask) for part in parts if part.clipped is not None]
    return (
        float(sum(hit.sum() for hit, _ in able) / max(1.0, float(sum(mask.sum() for _, mask in able)))) if able else 0.0
    )


# --- from whole vocabularies: for a Python prompt, for tests, for small models ---------------------


def from_vocabulary(
    *,
    tokens: Tensor,
    current: Tensor,
    old: Tensor,
    teacher: Tensor,
    sample: Tensor,
    advantage: Tensor,
    k: int = 4,
    reference: Tensor | None = None,
    mask: Tensor | None = None,
    has_advantage: Tensor | None = None,
    has_teacher: Tensor | None = None,
    same_weights: Tensor | None = None,
) -> LossInputs:
    """Inputs from log-softmax tensors: tokens [N], current, old, reference [N, V], teacher [H, N, V], advantage [S].

    Left out: every token trains, every sample has its advantage and teachers, and nothing is said of equal weights.
    """
    k, truth = min(k, current.shape[-1]), torch.ones_like(tokens, dtype=torch.bool)
    ids, their = old.topk(k, -1).indices, teacher.topk(k, -1).indices
    wide = their.shape[:1] + old.shape
    return LossInputs(
        sample=sample,
        mask=truth if mask is None else mask,
        current=current.gather(-1, tokens[:, None])[:, 0],
        old=old.gather(-1, tokens[:, None])[:, 0],
        same_weights=~truth if same_weights is None else same_weights,
        advantage=advantage,
        has_advantage=torch.ones_like(advantage, dtype=torch.bool) if has_advantage is None else has_advantage,
        teacher=teacher.gather(-1, tokens[None, :, None].expand(len(teacher), -1, 1))[..., 0],
        has_teacher=truth.expand(len(teacher), -1) if has_teacher is None else has_teacher,
        student_ids=ids,
        student_old=old.gather(-1, ids),
        student_current=current.gather(-1, ids),
        student_teacher=teacher.gather(-1, ids.expand(len(teacher), -1, -1)),
        teacher_ids=their,
        teacher_top=teacher.gather(-1, their),
        teacher_old=old.expand(wide).gather(-1, their),
        teacher_current=current.expand(wide).gather(-1, their),
        kl=None if reference is None else full_kl(current, reference),
        reference=None if reference is None else reference.gather(-1, tokens[:, None])[:, 0],
    )
