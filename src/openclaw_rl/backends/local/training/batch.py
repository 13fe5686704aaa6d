"""From a batch to a loss's inputs, and back to the student's gradient.

All samples' `N` reply tokens in sequence, `S` samples, `H` hints, `K` top-k ids, `d` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.hf.batches import TrainBatch
from openclaw_rl.backends.local.training import head as train_head
from openclaw_rl.backends.local.training.forward import hidden
from openclaw_rl.backends.local.training.head import BaseOutputs, Divergence, Head, VocabularyScan
from openclaw_rl.backends.local.training.ranks import Ranks
from openclaw_rl.backends.local.training.references import (
    IDLE,
    ComputedTokens,
    DistillationTeacher,
    Net,
    References,
    TeacherOutputs,
    hidden_states,
    pieces,
)
from openclaw_rl.losses import LossFunction, LossInputs
from openclaw_rl.losses.tree import PackedTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """Values that carry the gradient between a loss and the student: log-probs at ids [N, G], and the KL [N] or None.

    The columns of ``ids`` are the sampled token, Sq (K columns), and Sp of each hint (K each). ``distillation`` [N] is
    the KL to the teacher with the note.
    """

    ids: Tensor
    at: Tensor
    kl: Tensor | None
    distillation: Tensor | None = None

    def gradients(self, loss: Tensor) -> Leaves:
        """Return the loss's gradient by each value, None if the loss does not depend on it."""
        leaves = {name: leaf for name in ("at", "kl", "distillation") if (leaf := getattr(self, name)) is not None}
        slopes = dict(zip(leaves, torch.autograd.grad(loss, [*leaves.values()], allow_unused=True), strict=True))
        at = slopes["at"] if slopes["at"] is not None else torch.zeros_like(self.at)
        return Leaves(ids=self.ids, at=at, kl=slopes.get("kl"), distillation=slopes.get("distillation"))

    def of(self, token: Tensor, *, heard: bool) -> Leaves:
        """Select these tokens [n]; return zeros if not ``heard``."""
        kl, distillation = (None if value is None else value[token] * heard for value in (self.kl, self.distillation))
        return Leaves(ids=self.ids[token], at=self.at[token] * heard, kl=kl, distillation=distillation)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """The nets' values at each of N reply tokens, without gradients. See `LossInputs`.

    ``values`` [N, G] are the student's log-probs at ``ids`` [N, G], see `Leaves`; ``width`` is K.
    """

    ids: Tensor
    values: Tensor
    width: int
    teacher_ids: Tensor
    teacher: Tensor
    has_teacher: Tensor
    student_teacher: Tensor
    teacher_top: Tensor
    kl: Tensor | None = None
    reference: Tensor | None = None
    served: Tensor | None = None
    distillation: Tensor | None = None


_BY_HINT = ("teacher_ids", "teacher", "has_teacher", "student_teacher", "teacher_top")
"""fields of `TokenScores` that start with [H, N]; the others start with [N]"""


def score(
    batch: TrainBatch, student: Tensor, head: Head, references: References, *, k: int, alone: bool = False
) -> tuple[TokenScores, Divergence | None]:
    """Read the vocabulary at the student's hidden states [N, d]; return the scores and the result of
    `train_head.divergence`.

    With ``alone``, the batch has only prompt distillation replies: there is no top-k set, and the vocabulary is read
    once.
    """
    distilled = references.distillation
    apart = None if distilled is None else _divergence(batch, student, head, distilled)
    apart_at = {} if distilled is None or apart is None else _spread(batch, distilled, kl=apart.kl, norm=apart.norm)
    if alone and apart_at:
        nothing = batch.tokens.new_zeros(len(batch.tokens), 0)
        scan = VocabularyScan(norm=apart_at["norm"], ids=nothing, top=nothing)
    else:
        scan = train_head.scan(student, head, batch.temperature, k=k, base=references.base)
    n, width = scan.ids.shape
    teacher_ids, teacher = _teacher_values(batch, references.teacher, scan.ids)
    ids = torch.cat([batch.tokens[:, None], scan.ids, teacher_ids.permute(1, 0, 2).reshape(n, -1)], 1)
    scores = TokenScores(
        ids=ids,
        values=train_head.at(student, head, batch.temperature, scan.norm, ids),
        width=width,
        teacher_ids=teacher_ids,
        kl=scan.kl,
        reference=_reference(batch, references.base, scan.base_norm),
        served=references.served,
        distillation=apart_at.get("kl"),
        **teacher,
    )
    return scores, apart


def joined(parts: Sequence[tuple[Tensor, TokenScores]], count: int) -> TokenScores:
    """Join the scores of a batch's shares into scores of its ``count`` tokens; each share has its tokens' positions
    [n]."""
    first = parts[0][1]
    merged: dict[str, Any] = {"width": first.width}
    for name in (item.name for item in fields(TokenScores) if item.name != "width"):
        values = [(at, getattr(part, name)) for at, part in parts if getattr(part, name) is not None]
        if values:
            by_hint = name in _BY_HINT
            like = values[0][1]
            shape = (len(like), count, *like.shape[2:]) if by_hint else (count, *like.shape[1:])
            out = like.new_zeros(shape)
            for at, value in values:
                out[(slice(None), at) if by_hint else at] = value
            merged[name] = out
    return TokenScores(**merged)


def on_device(scores: TokenScores, device: torch.device) -> TokenScores:
    """Move scores to ``device``."""
    moved: dict[str, Any] = {}
    for name in (item.name for item in fields(TokenScores)):
        value = getattr(scores, name)
        moved[name] = value.to(device) if isinstance(value, Tensor) else value
    return TokenScores(**moved)


def loss_inputs(batch: TrainBatch, scores: TokenScores) -> tuple[LossInputs, Leaves]:
    """Return a loss's inputs, and the values that carry its gradient.

    The proximal policy of the top-k sets is the current student, as each batch has one update. It is also the behaviour
    policy of a reply sampled under another prompt, whose ratio is 1.
    """
    n, width, values = len(batch.tokens), scores.width, scores.values
    at, kl, distillation = (
        None if value is None else value.clone().requires_grad_() for value in (values, scores.kl, scores.distillation)
    )
    assert at is not None
    inputs = LossInputs(
        sample=batch.sample,
        mask=batch.mask,
        current=at[:, 0],
        old=torch.where(batch.recorded, batch.old, values[:, 0].to(batch.old.dtype)),
        same_weights=batch.same_weights,
        advantage=batch.advantage,
        has_advantage=batch.has_advantage,
        score=batch.score,
        student_ids=scores.ids[:, 1 : 1 + width],
        student_old=values[:, 1 : 1 + width],
        student_current=at[:, 1 : 1 + width],
        teacher=scores.teacher,
        has_teacher=scores.has_teacher,
        student_teacher=scores.student_teacher,
        teacher_top=scores.teacher_top,
        teacher_ids=scores.teacher_ids,
        teacher_old=values[:, 1 + width :].view(n, max(1, batch.hints), width).permute(1, 0, 2),
        teacher_current=at[:, 1 + width :].view(n, max(1, batch.hints), width).permute(1, 0, 2),
        kl=kl,
        reference=scores.reference,
        served=scores.served,
        distilled=batch.distilled if distillation is not None else None,
        distillation=distillation,
    )
    return inputs, Leaves(ids=scores.ids, at=at, kl=kl, distillation=distillation)


def _divergence(batch: TrainBatch, student: Tensor, head: Head, teacher: DistillationTeacher) -> Divergence:
    """Return the divergence of the M distilled tokens; their log-probs have a gradient too if some of the replies are
    scored."""
    token = teacher.token
    scored = bool((batch.advantage * batch.has_advantage)[batch.sample[token]].any())
    return train_head.divergence(
        student[token],
        head,
        batch.temperature[token],
        other=teacher.outputs,
        forward=teacher.forward,
        tokens=batch.tokens[token] if scored else None,
    )


def _spread(batch: TrainBatch, teacher: DistillationTeacher, **known: Tensor) -> dict[str, Tensor]:
    """Spread values of the M distilled tokens over all N; 0 at the others."""
    count = len(batch.tokens)
    return {name: values.new_zeros(count).index_copy(0, teacher.token, values) for name, values in known.items()}


def _reference(batch: TrainBatch, base: BaseOutputs | None, norm: Tensor | None) -> Tensor | None:
    if base is None or norm is None:
        return None
    return train_head.at(base.hidden, base.head, batch.temperature, norm, batch.tokens[:, None])[:, 0]


def _teacher_values(
    batch: TrainBatch, views: TeacherOutputs | None, student_ids: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return Sp [H, N, K], and the teacher's log-probs of the sampled token, at Sq and at Sp; absent values are NaN."""
    shape = (max(1, batch.hints), *student_ids.shape)
    nothing = torch.full(shape, torch.nan, dtype=batch.old.dtype, device=student_ids.device)
    ids, at_student, top = student_ids.new_zeros(shape), nothing.clone(), nothing.clone()
    sampled, present = (
        nothing.new_full(shape[:2], torch.nan),
        torch.zeros(shape[:2], dtype=torch.bool, device=ids.device),
    )
    if views is not None:
        where, temperature = (views.hint, views.token), batch.temperature[views.token]
        ids_there = torch.cat([batch.tokens[views.token][:, None], student_ids[views.token]], 1)
        logprobs = train_head.at(views.hidden, views.head, temperature, views.seen.norm, ids_there).to(nothing.dtype)
        sampled[where], at_student[where], present[where] = logprobs[:, 0], logprobs[:, 1:], True
        ids[where], top[where] = views.seen.ids, views.seen.top.to(nothing.dtype)
    return ids, {"teacher": sampled, "has_teacher": present, "student_teacher": at_student, "teacher_top": top}


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """The policy in training: its net, and the context that sets training mode for a pass with gradients."""

    net: Net
    training: Callable[[], AbstractContextManager[Any]] = nullcontext
    two_passes: bool = False
    """compute the loss without dropout first, then run again for the gradient"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of a batch: the whole batch, and the positions of the part's tokens [n] among its N.

    A rank without a sample runs another rank's sample, because all ranks must gather the layers; it is not ``heard``.
    """

    whole: TrainBatch
    at: Tensor
    heard: bool = True


@dataclass(slots=True, kw_only=True)
class StudentPass:
    """One student pass over a packed tree with its graph: hidden states [n, d] of these reply tokens [n]."""

    hidden: Tensor
    token: Tensor = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Backward:
    """Inputs of each piece's backward pass: the gradients of the leaves, and the gradients [M, d] that are already
    known."""

    batch: TrainBatch
    student: Student
    references: References
    given: Leaves
    apart: Divergence | None


def gradient(
    batch: TrainBatch,
    student: Student,
    references: References,
    loss: LossFunction,
    stop: Callable[[LossInputs], str | None],
    *,
    k: int,
    budget: int | None,
    count: ComputedTokens,
    share: Share | None = None,
) -> tuple[dict[str, float], str | None]:
    """Add the batch's gradient to the student's parameters; return the loss's metrics and a reason for stopping, or
    None.

    A batch that fits is one pass forward and back. A larger one is first computed piece by piece, so that the loss
    always sees the whole batch, however it was cut; then each piece runs again, forward and back. ``stop`` checks the
    inputs before any backward pass and may return a reason to stop there. ``share`` describes the batch that ``batch``
    is part of: ranks then exchange scores, and each computes the same loss.
    """
    net = student.net
    trees = pieces(net, batch.plain, budget)
    passes, single = net.ranks.most(len(trees)), None
    if passes == 1 and not student.two_passes:
        single = _run(batch, student, trees[0])
        count.add(trees, batch.plain)
        at_tokens = torch.empty_like(single.hidden.detach()).index_copy_(0, single.token, single.hidden.detach())
    else:
        at_tokens = torch.cat(hidden_states(net, batch.plain, budget, count))
    whole = share.whole if share else batch
    scores, apart = score(batch, at_tokens, net.head, references, k=k, alone=_distils_alone(whole, references))
    inputs, leaves = loss_inputs(whole, _of_all(scores, share, net.ranks))
    why = stop(inputs)
    if why is not None:
        return {}, why
    total, metrics = loss(inputs)
    given = leaves.gradients(total)
    given = given if share is None else given.of(share.at, heard=share.heard)
    # with dropout the second pass differs from the first, where these gradients were computed
    inputs_back = _Backward(batch, student, references, given, None if student.two_passes else apart)
    for packed in trees:
        _backward(inputs_back, single or _run(batch, student, packed))
    for _ in range(passes - len(trees)):
        _idle(student)
    if single is None:
        count.add(trees, batch.plain)
    return dict(metrics), None


def _distils_alone(whole: TrainBatch, references: References) -> bool:
    """Return True if the batch has only prompt distillation replies, compared with a teacher that has the note."""
    return len(whole.noted) == len(whole.spans) and references.base is None


def _of_all(scores: TokenScores, share: Share | None, ranks: Ranks) -> TokenScores:
    """Return the whole batch's scores, from each rank's share."""
    if share is None:
        return scores
    shares = ranks.told((share.at.cpu(), on_device(scores, torch.device("cpu"))) if share.heard else None)
    whole = joined([part for part in shares if part is not None], len(share.whole.tokens))
    return on_device(whole, share.at.device)


def _run(batch: TrainBatch, student: Student, packed: PackedTree) -> StudentPass:
    device = batch.tokens.device
    rows = torch.cat(packed.rows).to(device)  # before the pass, or the host would wait for it
    spans = [batch.spans[member] for member in packed.members]
    token = torch.cat([torch.arange(span.start, span.stop) for span in spans]).to(device)
    with student.training():
        out = hidden(student.net.model, packed, tree=student.net.tree)
    return StudentPass(hidden=out[rows], token=token)


def _idle(student: Student) -> None:
    """Run a pass forward and back without a gradient, on a rank with fewer passes than others."""
    with student.training():
        out = hidden(student.net.model, IDLE, tree=student.net.tree)
        torch.autograd.backward(out, torch.zeros_like(out))


def _backward(known: _Backward, piece: StudentPass) -> None:
    batch, references, given, token = known.batch, known.references, known.given, piece.token
    base, kl, at = references.base, given.kl, given.at[token]
    hidden_states, head = piece.hidden.detach(), known.student.net.head
    back = torch.zeros_like(hidden_states)
    pull = known.apart.pull if known.apart is not None and at.shape[1] == 1 else None
    if pull is not None and references.distillation is not None:
        back += pull[references.distillation.row[token]] * at.to(back.dtype)
    elif kl is not None or bool(at.any()):  # if only a KL to the teacher counts, the vocabulary is not read for it
        local = None if base is None or kl is None else BaseOutputs(hidden=base.hidden[token], head=base.head)
        back = train_head.backward_hidden(
            hidden_states,
            head,
            batch.temperature[token],
            given.ids[token],
            at,
            kl=None if kl is None else kl[token],
            base=local,
        )
    if references.distillation is not None and given.distillation is not None:
        here = torch.nonzero(references.distillation.row[token] >= 0)[:, 0]
        back[here] += _backward_distillation(known, piece, references.distillation, given.distillation, here)
    with known.student.training():  # recomputed layers must see the same mode as before
        torch.autograd.backward(piece.hidden, back)


def _backward_distillation(
    known: _Backward, piece: StudentPass, teacher: DistillationTeacher, given: Tensor, here: Tensor
) -> Tensor:
    """Return the distilled tokens' hidden-state gradient, at positions ``here`` in the piece."""
    token = piece.token[here]
    row, weights = teacher.row[token], given[token]
    if known.apart is not None and known.apart.slope is not None:
        return known.apart.slope[row] * weights[:, None].to(known.apart.slope.dtype)
    return train_head.backward_divergence(
        piece.hidden.detach()[here],
        known.student.net.head,
        known.batch.temperature[token],
        weights,
        other=teacher.at(row),
        forward=teacher.forward,
    )
