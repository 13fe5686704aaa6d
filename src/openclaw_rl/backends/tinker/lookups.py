"""The ids that a loss reads, with the log-probs by student, teacher and base: from samples to loss inputs.

`N` reply tokens of all samples concatenated, `S` samples, `H` hints, `K` top-k ids, `R` tokens in one reply.
The service returns log-probs for requested ids, at temperature 1. So its samplers provide the likeliest ids, and
terms over the full vocabulary have their own form:

    KL penalty to the base model   k3, from the sampled token alone
    prompt distillation's KL       over the WIDE likeliest ids under its first distribution, and one bin for all others
    another temperature than 1     log-probs at temperature 1; the trainer's own replace the recorded ones
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from openclaw_rl.backends.hf.batches import TrainBatch, collate
from openclaw_rl.backends.hf.detokenizer import WIDE
from openclaw_rl.backends.tinker.passes import TargetRows, TrainingPasses, placed
from openclaw_rl.backends.tinker.policy import score_reply
from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.backends.tinker.settings import TinkerTrainerSettings
from openclaw_rl.errors import BackendError
from openclaw_rl.losses import FORWARD, LossInputs, with_tail
from openclaw_rl.losses.tree import TokenPath
from openclaw_rl.types import Sample, Tokens

AT_ONCE = 16
"""concurrent requests to a sampler"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The required likeliest ids: ``student`` Sq, ``teacher`` Sp; ``forward``: the teacher's in prompt distillation."""

    student: bool
    teacher: bool
    forward: bool
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceWeights:
    """Weights at the service: the client for passes over them, and their sampling address (None: the base model)."""

    client: Any
    sampler: str | None


@dataclass(slots=True, kw_only=True)
class Lookup:
    """The values for a batch before the student's pass. ``rows`` are the student's, one for each sample."""

    batch: TrainBatch
    wanted: Wanted
    rows: list[TargetRows]
    teacher_ids: dict[tuple[int, int], Tensor]
    """Sp `[R, K]` by (hint, sample)"""
    teacher: dict[tuple[int, int], Tensor]
    """the teacher's log-probs `[R, 1 + K + K]` for the sampled token, Sq and Sp, by (hint, sample)"""
    noted: dict[int, Tensor]
    """log-probs `[R, WIDE]` by the teacher with the note in the prompt, by sample"""
    reference: list[Tensor] | None = field(default=None)
    """the base model's log-probs for the sampled tokens `[R, 1]`"""


def wanted(settings: TinkerTrainerSettings, samples: Sequence[Sample], hints: int) -> Wanted:
    """Return the top-k sets that the loss reads; a user's own loss may read all."""
    s, all_of_it = settings, settings.loss is not None
    chosen = s.method == "topk" and s.w_opd != 0
    compared = chosen and hints > 1 and s.hint_selection != "shortest"
    drawn = [sample.logprobs is not None for sample in samples if sample.distills is not None]
    return Wanted(
        student=hints > 0 and (all_of_it or compared or (chosen and s.subset != "teacher")),
        teacher=hints > 0 and (all_of_it or compared or s.method == "distill" or (chosen and s.subset != "student")),
        forward=FORWARD[s.distillation_loss] or not any(drawn),
        k=s.k,
    )


def comparable(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples; drop recorded log-probs whose temperature differs from a pass's."""
    return [sample if sample.temperature in (0.0, 1.0) else replace(sample, logprobs=None) for sample in samples]


async def look_up(
    session: TinkerSession,
    passes: TrainingPasses,
    settings: TinkerTrainerSettings,
    samples: Sequence[Sample],
    views: Sequence[Sequence[Tokens | None]],
    *,
    version: int,
    student: ServiceWeights,
    base: ServiceWeights,
) -> Lookup:
    """Request the likeliest ids from the samplers, and their log-probs from teacher and base."""
    batch = collate(comparable(samples), views, version=version, device=torch.device("cpu"), wide=torch.float32)
    want = wanted(settings, samples, batch.hints)
    teaching = base if settings.teacher == "base" else student
    sq, sp, distilled = await _likeliest(session, batch, want, student=student, teacher=teaching, base=base)
    lookup = Lookup(batch=batch, wanted=want, rows=[], teacher_ids=sp, teacher={}, noted={})
    hinted = {(h, s): _row(path, _sampled(batch, s), sq.get(s), sp.get((h, s))) for h, s, path in batch.hinted}
    noted = {s: TargetRows(tokens=path.tokens, ids=distilled[s]) for s, path in batch.noted}
    plain = [_row(path, _sampled(batch, s)) for s, path in enumerate(batch.plain)] if _compares(settings, batch) else []
    outputs = await passes.forward(
        base.client, [*plain, *noted.values(), *(hinted.values() if teaching is base else ())]
    )
    lookup.reference = outputs[: len(plain)] or None
    lookup.noted = dict(zip(noted, outputs[len(plain) :], strict=False))
    teacher_outputs = outputs[len(plain) + len(noted) :] or await passes.forward(teaching.client, list(hinted.values()))
    lookup.teacher = dict(zip(hinted, teacher_outputs, strict=True))
    lookup.rows = [_student_row(batch, s, sq, sp, distilled) for s in range(len(batch.plain))]
    return lookup


def _compares(settings: TinkerTrainerSettings, batch: TrainBatch) -> bool:
    return settings.compares_with_base and not bool(batch.distilled.all())


async def _likeliest(
    session: TinkerSession,
    batch: TrainBatch,
    want: Wanted,
    *,
    student: ServiceWeights,
    teacher: ServiceWeights,
    base: ServiceWeights,
) -> tuple[dict[int, Tensor], dict[tuple[int, int], Tensor], dict[int, Tensor]]:
    """Return Sq by sample, Sp by (hint, sample), and the WIDE likeliest ids for prompt distillation by sample."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def top(weights: ServiceWeights, path: TokenPath, k: int) -> Tensor:
        prompt, reply = path.tokens[: -path.reply], path.tokens[-path.reply :]
        async with gate:
            _, tops = await score_reply(session, weights.sampler, prompt, reply, top=k)
        if any(len(row) < k for row in tops):
            raise BackendError(f"the service gave fewer than {k} likeliest tokens at a position")
        return torch.tensor([[token for token, _ in row] for row in tops])

    in_turns = sorted({s for _, s, _ in batch.hinted}) if want.student else []
    jobs: dict[Any, Any] = {s: top(student, batch.plain[s], want.k) for s in in_turns}
    jobs |= {(h, s): top(teacher, path, want.k) for h, s, path in batch.hinted if want.teacher}
    jobs |= {
        ("note", s): top(base, path, WIDE) if want.forward else top(student, batch.plain[s], WIDE)
        for s, path in batch.noted
    }
    results = dict(zip(jobs, await asyncio.gather(*jobs.values()), strict=True))
    sq = {key: value for key, value in results.items() if isinstance(key, int)}
    notes = {key[1]: value for key, value in results.items() if isinstance(key, tuple) and key[0] == "note"}
    sp = {key: value for key, value in results.items() if isinstance(key, tuple) and key[0] != "note"}
    return sq, sp, notes


def _sampled(batch: TrainBatch, s: int) -> Tensor:
    return batch.tokens[batch.spans[s]][:, None]


def _row(path: TokenPath, *columns: Tensor | None) -> TargetRows:
    return TargetRows(tokens=path.tokens, ids=torch.cat([column for column in columns if column is not None], 1))


def _student_row(
    batch: TrainBatch,
    s: int,
    sq: Mapping[int, Tensor],
    sp: Mapping[tuple[int, int], Tensor],
    distilled: Mapping[int, Tensor],
) -> TargetRows:
    """Return the student's row: the sampled token, Sq, Sp for each hint; in prompt distillation also its ids."""
    hints = [sp[h, s] for h in range(batch.hints) if (h, s) in sp]
    return _row(batch.plain[s], _sampled(batch, s), sq.get(s), *hints, distilled.get(s))


# --- the inputs of a loss


def loss_inputs(found: Lookup, leaves: Sequence[Tensor]) -> LossInputs:
    """Fill a loss's inputs; ``leaves`` are the student's log-probs for `Lookup.rows`, which carry the gradient.

    The proximal policy for the top-k sets is the student's current state: there is one update for each batch.
    """
    batch, want = found.batch, found.wanted
    parts = [_student_parts(found, s, leaf) for s, leaf in enumerate(leaves)]
    current = torch.cat([part.sampled for part in parts])
    sq = torch.cat([part.student for part in parts])
    sp = torch.cat([part.teacher for part in parts], 1)
    has, teacher, at_student, top, ids = _teacher_parts(found, sq.shape)
    old = torch.where(batch.recorded, batch.old, current.detach())
    return LossInputs(
        sample=batch.sample,
        mask=batch.mask,
        current=current,
        old=old,
        same_weights=batch.same_weights,
        advantage=batch.advantage,
        has_advantage=batch.has_advantage,
        score=batch.score,
        teacher=teacher,
        has_teacher=has,
        student_ids=_student_ids(found, sq.shape[1]),
        student_old=sq.detach(),
        student_current=sq,
        student_teacher=at_student,
        teacher_ids=ids if want.teacher else torch.full_like(ids, -2),
        teacher_top=top,
        teacher_old=sp.detach(),
        teacher_current=sp,
        reference=None if found.reference is None else torch.cat([row[:, 0] for row in found.reference]),
        distilled=batch.distilled if found.noted else None,
        distillation=torch.cat([part.distillation for part in parts]) if found.noted else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StudentParts:
    """One sample's values: the sampled tokens `[R]`, Sq `[R, K]`, Sp `[H, R, K]`, prompt distillation's KL `[R]`."""

    sampled: Tensor
    student: Tensor
    teacher: Tensor
    distillation: Tensor


def _student_parts(found: Lookup, s: int, leaf: Tensor) -> _StudentParts:
    batch, want, (reply, k) = found.batch, found.wanted, (len(leaf), found.wanted.k)
    nothing = leaf.new_zeros(reply, k)
    hints = [h for h in range(max(1, batch.hints)) if (h, s) in found.teacher_ids]
    hinted = any(sample == s for _, sample, _ in batch.hinted)
    begin = 1 + (k if want.student and hinted else 0)
    places = {h: begin + at * k for at, h in enumerate(hints)}
    sp = [leaf[:, places[h] : places[h] + k] if h in places else nothing for h in range(max(1, batch.hints))]
    note = found.noted.get(s)
    return _StudentParts(
        sampled=leaf[:, 0],
        student=leaf[:, 1:begin] if begin > 1 else nothing,
        teacher=torch.stack(sp),
        distillation=leaf.new_zeros(reply) if note is None else _divergence(leaf[:, -WIDE:], note, want.forward),
    )


def _divergence(student: Tensor, teacher: Tensor, forward: bool) -> Tensor:
    """Return the KL over the ids `[R, WIDE]` and a tail bin; ``forward``: with the teacher first."""
    q, p = with_tail(student), with_tail(teacher)
    first, second = (p, q) if forward else (q, p)
    return (first.exp() * (first - second)).sum(-1)


def _student_ids(found: Lookup, k: int) -> Tensor:
    """Return Sq `[N, K]`; -1 where it was not looked up."""
    ids = torch.full((len(found.batch.tokens), k), -1)
    for s, row in enumerate(found.rows):
        if found.wanted.student and any(sample == s for _, sample, _ in found.batch.hinted):
            ids[found.batch.spans[s]] = row.ids[:, 1 : 1 + k]
    return ids


def _teacher_parts(found: Lookup, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return has_teacher and teacher `[H, N]`; l_T at Sq and at Sp, and Sp itself `[H, N, K]`."""
    batch, want, (n, k) = found.batch, found.wanted, shape
    hints = max(1, batch.hints)
    has, sampled = torch.zeros(hints, n, dtype=torch.bool), torch.full((hints, n), torch.nan)
    at_student, top, ids = torch.zeros(hints, n, k), torch.zeros(hints, n, k), torch.full((hints, n, k), -2)
    for (h, s), values in found.teacher.items():
        span = batch.spans[s]
        has[h, span], sampled[h, span] = True, values[:, 0]
        begin = 1 + (k if want.student else 0)
        at_student[h, span] = values[:, 1:begin] if want.student else 0.0
        if want.teacher:
            top[h, span], ids[h, span] = values[:, begin : begin + k], found.teacher_ids[h, s]
    return has, sampled, at_student, top, ids


# Scores alone, by the service's own clipped surrogate ("ppo"): one pass in place of two, if it is the same loss.
#
# The comparison needs the pass's log-probs: the losses differ if ours would mask a token, or would not clip one whose
# ratio at equal weights is outside the bounds; the step is then taken in two passes.

_TOLERANCE: Final = 1e-5
"""share of the largest gradient by a log-prob"""


def fits(settings: TinkerTrainerSettings, batch: TrainBatch) -> bool:
    """Return True if the service's own loss may fit the batch: scores alone, no KL penalty, every log-prob recorded."""
    s = settings
    scores_only = s.method == "binary" and s.loss is None and s.kl_coef == 0
    return scores_only and bool(batch.recorded.all()) and not bool(batch.distilled.any())


def token_advantages(batch: TrainBatch, aggregate: str) -> Tensor:
    """Return [N] advantages weighted by each token's share in the mean, as the service sums; 0 if uncounted."""
    counted = batch.mask & batch.has_advantage[batch.sample]
    if aggregate == "token":
        share = counted.float() / counted.sum().clamp_min(1)
    else:
        lengths = torch.zeros_like(batch.advantage).index_add(0, batch.sample, counted.float())
        share = counted / lengths.clamp_min(1)[batch.sample] / (lengths > 0).sum().clamp_min(1)
    return batch.advantage[batch.sample] * share


def surrogate_pass(session: TinkerSession, client: Any, settings: TinkerTrainerSettings, found: Lookup) -> Any:
    """Start the pass forward and back; return the service's future."""
    types, batch = session.sdk.types, found.batch
    advantages = token_advantages(batch, settings.aggregate)
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(list(row.tokens[:-1])),
            loss_fn_inputs={
                "target_tokens": placed(types, row, batch.tokens[span]),
                "logprobs": placed(types, row, batch.old[span]),
                "advantages": placed(types, row, advantages[span]),
            },
        )
        for row, span in zip(found.rows, batch.spans, strict=True)
    ]
    session.spending.add(train=sum(datum.model_input.length for datum in data))
    bounds = {"clip_low_threshold": 1 - settings.eps_low, "clip_high_threshold": 1 + settings.eps_high}
    return client.forward_backward(data, "ppo", bounds)


def same_gradient(
    settings: TinkerTrainerSettings, batch: TrainBatch, values: Sequence[Tensor], ours: Sequence[Tensor]
) -> bool:
    """Return True if the surrogate's gradient by these log-probs equals that of our loss."""
    advantage, ratio = token_advantages(batch, settings.aggregate), (torch.cat(list(values))[:, 0] - batch.old).exp()
    flat = ((advantage > 0) & (ratio > 1 + settings.eps_high)) | ((advantage < 0) & (ratio < 1 - settings.eps_low))
    surrogate = torch.where(flat, 0.0, -advantage * ratio)
    wanted = torch.cat(list(ours))[:, 0]
    return bool((surrogate - wanted).abs().max() <= _TOLERANCE * wanted.abs().max())
