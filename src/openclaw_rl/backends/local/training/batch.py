"""From a batch to the inputs of a loss, and back to the gradient of the student.

`N` reply tokens of all samples one after another, `S` samples, `H` hints, `K` top-k ids, `d` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.hf.collation import TrainBatch
from openclaw_rl.backends.local.training import head as train_head
from openclaw_rl.backends.local.training.forward import hidden
from openclaw_rl.backends.local.training.head import BaseOutputs, Head
from openclaw_rl.backends.local.training.references import (
    ComputedTokens,
    Net,
    References,
    RehearsalTeacher,
    TeacherOutputs,
    hidden_states,
)
from openclaw_rl.losses import LossFunction, LossInputs
from openclaw_rl.losses.tree import PackedTree, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """What carries the gradient between a loss and the student: log-probs at ids [N, G], and the KL [N] or None.

    The columns of ``ids`` are the sampled token, Sq (K of them), and Sp of each hint (K each). ``rehearsal`` is the
    KL to the teacher that has the note, at the rehearsed tokens [M], and ``slope`` [M, d] its gradient by their hidden
    states, None where that must be computed once the loss is known.
    """

    ids: Tensor
    at: Tensor
    kl: Tensor | None
    rehearsal: Tensor | None = None
    slope: Tensor | None = None

    def gradients(self, loss: Tensor) -> Leaves:
        """d loss by each of them, None where it has no say."""
        wanted = {name: leaf for name in ("at", "kl", "rehearsal") if (leaf := getattr(self, name)) is not None}
        found = dict(zip(wanted, torch.autograd.grad(loss, [*wanted.values()], allow_unused=True), strict=True))
        at = found["at"] if found["at"] is not None else torch.zeros_like(self.at)
        return Leaves(ids=self.ids, at=at, kl=found.get("kl"), rehearsal=found.get("rehearsal"), slope=self.slope)


def loss_inputs(
    batch: TrainBatch, student: Tensor, head: Head, references: References, *, k: int
) -> tuple[LossInputs, Leaves]:
    """Fill a loss's inputs from the student's hidden states [N, d] at all reply tokens.

    The proximal policy of the top-k sets is the student itself as it stands: there is one update for each batch. So is
    the behaviour policy of a reply that was sampled under another prompt: its ratio is 1.
    """
    seen = train_head.scan(student, head, batch.temperature, k=k, base=references.base)
    n, width = seen.ids.shape
    teacher_ids, teacher = _teacher_values(batch, references.teacher, seen.ids)
    ids = torch.cat([batch.tokens[:, None], seen.ids, teacher_ids.permute(1, 0, 2).reshape(n, -1)], 1)
    values = train_head.at(student, head, batch.temperature, seen.norm, ids)
    at = values.clone().requires_grad_()
    kl = None if seen.kl is None else seen.kl.clone().requires_grad_()
    rehearsal, slope = _divergence(batch, student, head, references.rehearsal)
    inputs = LossInputs(
        sample=batch.sample,
        mask=batch.mask,
        current=at[:, 0],
        old=torch.where(batch.recorded, batch.old, values[:, 0].to(batch.old.dtype)),
        same_weights=batch.same_weights,
        advantage=batch.advantage,
        has_advantage=batch.has_advantage,
        score=batch.score,
        student_ids=seen.ids,
        student_old=values[:, 1 : 1 + width],
        student_current=at[:, 1 : 1 + width],
        teacher_ids=teacher_ids,
        teacher_old=values[:, 1 + width :].view(n, -1, width).permute(1, 0, 2),
        teacher_current=at[:, 1 + width :].view(n, -1, width).permute(1, 0, 2),
        kl=kl,
        reference=_reference(batch, references.base, seen.base_norm),
        served=references.served,
        rehearsed=batch.rehearsed if rehearsal is not None else None,
        rehearsal=None if rehearsal is None else _spread(rehearsal, references.rehearsal, len(batch.tokens)),
        **teacher,
    )
    return inputs, Leaves(ids=ids, at=at, kl=kl, rehearsal=rehearsal, slope=slope)


def _divergence(
    batch: TrainBatch, student: Tensor, head: Head, teacher: RehearsalTeacher | None
) -> tuple[Tensor | None, Tensor | None]:
    if teacher is None:
        return None, None
    token = teacher.token
    found, slope = train_head.divergence(
        student[token], head, batch.temperature[token], other=teacher.outputs, forward=teacher.forward
    )
    return found.requires_grad_(), slope


def _spread(values: Tensor, teacher: RehearsalTeacher | None, count: int) -> Tensor:
    """[M] -> [N], 0 elsewhere."""
    assert teacher is not None
    return values.new_zeros(count).index_copy(0, teacher.token, values)


def _reference(batch: TrainBatch, base: BaseOutputs | None, norm: Tensor | None) -> Tensor | None:
    if base is None or norm is None:
        return None
    return train_head.at(base.hidden, base.head, batch.temperature, norm, batch.tokens[:, None])[:, 0]


def _teacher_values(
    batch: TrainBatch, views: TeacherOutputs | None, student_ids: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sp [H, N, K], and the teacher's log-probs of the sampled token, at Sq and at Sp; absent ones are NaN."""
    shape = (max(1, batch.hints), *student_ids.shape)
    nothing = torch.full(shape, torch.nan, dtype=batch.old.dtype, device=student_ids.device)
    ids, at_student, top = student_ids.new_zeros(shape), nothing.clone(), nothing.clone()
    sampled, present = nothing[..., 0].clone(), torch.zeros(shape[:2], dtype=torch.bool, device=student_ids.device)
    if views is not None:
        where, temperature = (views.hint, views.token), batch.temperature[views.token]
        ids_there = torch.cat([batch.tokens[views.token][:, None], student_ids[views.token]], 1)
        found = train_head.at(views.hidden, views.head, temperature, views.seen.norm, ids_there).to(nothing.dtype)
        sampled[where], at_student[where], present[where] = found[:, 0], found[:, 1:], True
        ids[where], top[where] = views.seen.ids, views.seen.top.to(nothing.dtype)
    return ids, {"teacher": sampled, "has_teacher": present, "student_teacher": at_student, "teacher_top": top}


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """The policy in training: its net, and how it is put into training mode for a pass with gradients."""

    net: Net
    training: Callable[[], AbstractContextManager[Any]] = nullcontext
    two_passes: bool = False
    """compute the loss without dropout first, then run again for the gradient"""


@dataclass(slots=True, kw_only=True)
class StudentPass:
    """One pass of the student over a packed, its graph alive: hidden states [n, d] of these reply tokens [n]."""

    hidden: Tensor
    token: Tensor = field(repr=False)


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
) -> tuple[dict[str, float], str | None]:
    """Add the batch's gradient to the student's parameters; the loss's metrics, and why it was not done or None.

    A batch that fits is one pass forward and back. A larger one is computed piece by piece first, so that the loss
    always sees the whole batch and does not depend on how it was cut; then each piece runs again, forward and back.
    ``stop`` sees the inputs before any backward pass and may give a reason to end it there.
    """
    trees = pack(batch.plain, budget=budget, share=student.net.tree)
    alone = None
    if len(trees) == 1 and not student.two_passes:
        alone = _run(batch, student, trees[0])
        count.add(trees, batch.plain)
        at_tokens = torch.empty_like(alone.hidden.detach()).index_copy_(0, alone.token, alone.hidden.detach())
    else:
        at_tokens = torch.cat(hidden_states(student.net, batch.plain, budget, count))
    inputs, leaves = loss_inputs(batch, at_tokens, student.net.head, references, k=k)
    why = stop(inputs)
    if why is not None:
        return {}, why
    total, metrics = loss(inputs)
    given = leaves.gradients(total)
    if student.two_passes:  # the second differs from the first, in which the slope was computed
        given = replace(given, slope=None)
    for packed in trees:
        piece = alone or _run(batch, student, packed)
        _backward(batch, student, piece, references, given)
    if alone is None:
        count.add(trees, batch.plain)
    return dict(metrics), None


def _run(batch: TrainBatch, student: Student, packed: PackedTree) -> StudentPass:
    device = batch.tokens.device
    rows = torch.cat(packed.rows).to(device)  # before the pass, or the host would wait for it
    spans = [batch.spans[member] for member in packed.members]
    token = torch.cat([torch.arange(span.start, span.stop) for span in spans]).to(device)
    with student.training():
        out = hidden(student.net.model, packed, tree=student.net.tree)
    return StudentPass(hidden=out[rows], token=token)


def _backward(batch: TrainBatch, student: Student, piece: StudentPass, references: References, given: Leaves) -> None:
    """``given`` are the gradients of the leaves."""
    token, base, kl, at = piece.token, references.base, given.kl, given.at[piece.token]
    hidden_states, head = piece.hidden.detach(), student.net.head
    back = torch.zeros_like(hidden_states)
    if kl is not None or bool(at.any()):  # where only rehearsals have a say, the vocabulary need not be read for it
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
    if references.rehearsal is not None and given.rehearsal is not None:
        row = references.rehearsal.row[token]
        here = torch.nonzero(row >= 0)[:, 0]
        back[here] += _backward_rehearsal(batch, student, piece, references.rehearsal, given, here)
    with student.training():  # layers that are recomputed must find the model as it was
        torch.autograd.backward(piece.hidden, back)


def _backward_rehearsal(
    batch: TrainBatch, student: Student, piece: StudentPass, teacher: RehearsalTeacher, given: Leaves, here: Tensor
) -> Tensor:
    """The gradient of the hidden states of the rehearsed tokens, which are at ``here`` in the piece."""
    assert given.rehearsal is not None
    token = piece.token[here]
    row = teacher.row[token]
    wanted = given.rehearsal[row]
    if given.slope is not None:
        return given.slope[row] * wanted[:, None].to(given.slope.dtype)
    return train_head.backward_divergence(
        piece.hidden.detach()[here],
        student.net.head,
        batch.temperature[token],
        wanted,
        other=teacher.at(row),
        forward=teacher.forward,
    )
