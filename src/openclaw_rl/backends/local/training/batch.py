"""From a batch to the inputs of a loss, and back to the gradient of the student.

`N` reply tokens of all samples one after another, `S` samples, `H` hints, `K` top-k ids, `d` hidden width.
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
    Net,
    References,
    RehearsalTeacher,
    TeacherOutputs,
    hidden_states,
    pieces,
)
from openclaw_rl.losses import LossFunction, LossInputs
from openclaw_rl.losses.tree import PackedTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """What carries the gradient between a loss and the student: log-probs at ids [N, G], and the KL [N] or None.

    The columns of ``ids`` are the sampled token, Sq (K of them), and Sp of each hint (K each). ``rehearsal`` [N] is the
    KL to the teacher that has the note.
    """

    ids: Tensor
    at: Tensor
    kl: Tensor | None
    rehearsal: Tensor | None = None

    def gradients(self, loss: Tensor) -> Leaves:
        """d loss by each of them, None where it has no say."""
        wanted = {name: leaf for name in ("at", "kl", "rehearsal") if (leaf := getattr(self, name)) is not None}
        found = dict(zip(wanted, torch.autograd.grad(loss, [*wanted.values()], allow_unused=True), strict=True))
        at = found["at"] if found["at"] is not None else torch.zeros_like(self.at)
        return Leaves(ids=self.ids, at=at, kl=found.get("kl"), rehearsal=found.get("rehearsal"))

    def of(self, token: Tensor, *, heard: bool) -> Leaves:
        """Those of these tokens [n]; zeros where they are not ``heard``."""
        kl, rehearsal = (None if value is None else value[token] * heard for value in (self.kl, self.rehearsal))
        return Leaves(ids=self.ids[token], at=self.at[token] * heard, kl=kl, rehearsal=rehearsal)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What the nets found at each of N reply tokens, and nothing that carries a gradient. See `LossInputs`.

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
    rehearsal: Tensor | None = None


_BY_HINT = ("teacher_ids", "teacher", "has_teacher", "student_teacher", "teacher_top")
"""those of `TokenScores` that have [H, N] first; the others have [N]"""


def score(
    batch: TrainBatch, student: Tensor, head: Head, references: References, *, k: int, alone: bool = False
) -> tuple[TokenScores, Divergence | None]:
    """Read the vocabulary at the student's hidden states [N, d]; with it what `train_head.divergence` found.

    Where rehearsals are ``alone`` there is no top-k set, and the vocabulary is read just once.
    """
    rehearsed = references.rehearsal
    apart = None if rehearsed is None else _divergence(batch, student, head, rehearsed)
    apart_at = {} if rehearsed is None or apart is None else _spread(batch, rehearsed, kl=apart.kl, norm=apart.norm)
    if alone and apart_at:
        nothing = batch.tokens.new_zeros(len(batch.tokens), 0)
        seen = VocabularyScan(norm=apart_at["norm"], ids=nothing, top=nothing)
    else:
        seen = train_head.scan(student, head, batch.temperature, k=k, base=references.base)
    n, width = seen.ids.shape
    teacher_ids, teacher = _teacher_values(batch, references.teacher, seen.ids)
    ids = torch.cat([batch.tokens[:, None], seen.ids, teacher_ids.permute(1, 0, 2).reshape(n, -1)], 1)
    found = TokenScores(
        ids=ids,
        values=train_head.at(student, head, batch.temperature, seen.norm, ids),
        width=width,
        teacher_ids=teacher_ids,
        kl=seen.kl,
        reference=_reference(batch, references.base, seen.base_norm),
        served=references.served,
        rehearsal=apart_at.get("kl"),
        **teacher,
    )
    return found, apart


def joined(parts: Sequence[tuple[Tensor, TokenScores]], count: int) -> TokenScores:
    """The scores of shares of a batch as those of its ``count`` tokens; each comes with where its tokens stand [n]."""
    first = parts[0][1]
    found: dict[str, Any] = {"width": first.width}
    for name in (each.name for each in fields(TokenScores) if each.name != "width"):
        values = [(at, getattr(part, name)) for at, part in parts if getattr(part, name) is not None]
        if values:
            by_hint = name in _BY_HINT
            like = values[0][1]
            shape = (len(like), count, *like.shape[2:]) if by_hint else (count, *like.shape[1:])
            out = like.new_zeros(shape)
            for at, value in values:
                out[(slice(None), at) if by_hint else at] = value
            found[name] = out
    return TokenScores(**found)


def on_device(scores: TokenScores, device: torch.device) -> TokenScores:
    """The same there."""
    moved: dict[str, Any] = {}
    for name in (each.name for each in fields(TokenScores)):
        value = getattr(scores, name)
        moved[name] = value.to(device) if isinstance(value, Tensor) else value
    return TokenScores(**moved)


def loss_inputs(batch: TrainBatch, scores: TokenScores) -> tuple[LossInputs, Leaves]:
    """A loss's inputs, and what carries the gradient between the two.

    The proximal policy of the top-k sets is the student itself as it stands: there is one update for each batch. So is
    the behaviour policy of a reply that was sampled under another prompt: its ratio is 1.
    """
    n, width, values = len(batch.tokens), scores.width, scores.values
    at, kl, rehearsal = (
        None if value is None else value.clone().requires_grad_() for value in (values, scores.kl, scores.rehearsal)
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
        rehearsed=batch.rehearsed if rehearsal is not None else None,
        rehearsal=rehearsal,
    )
    return inputs, Leaves(ids=scores.ids, at=at, kl=kl, rehearsal=rehearsal)


def _divergence(batch: TrainBatch, student: Tensor, head: Head, teacher: RehearsalTeacher) -> Divergence:
    """Of the M rehearsed tokens; their log-probs have a gradient too where some of their replies are scored."""
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


def _spread(batch: TrainBatch, teacher: RehearsalTeacher, **known: Tensor) -> dict[str, Tensor]:
    """What is known of the M rehearsed tokens, at each of all N; 0 at the others."""
    count = len(batch.tokens)
    return {name: found.new_zeros(count).index_copy(0, teacher.token, found) for name, found in known.items()}


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
    sampled, present = (
        nothing.new_full(shape[:2], torch.nan),
        torch.zeros(shape[:2], dtype=torch.bool, device=ids.device),
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of a batch: the whole of it, and where the part's tokens [n] stand among its N.

    A rank for which there is no sample computes along on another's, as layers are gathered by all or by none; it is
    not ``heard``.
    """

    whole: TrainBatch
    at: Tensor
    heard: bool = True


@dataclass(slots=True, kw_only=True)
class StudentPass:
    """One pass of the student over a packed, its graph alive: hidden states [n, d] of these reply tokens [n]."""

    hidden: Tensor
    token: Tensor = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Backward:
    """What the backward pass of each piece reads: the gradients of the leaves, and those [M, d] that are known."""

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
    """Add the batch's gradient to the student's parameters; the loss's metrics, and why it was not done or None.

    A batch that fits is one pass forward and back. A larger one is computed piece by piece first, so that the loss
    always sees the whole batch and does not depend on how it was cut; then each piece runs again, forward and back.
    ``stop`` sees the inputs before any backward pass and may give a reason to end it there.
    ``share`` says what ``batch`` is a part of: then ranks pass on what they found, and each computes the same loss.
    """
    net = student.net
    trees = pieces(net, batch.plain, budget)
    passes, alone = net.ranks.most(len(trees)), None
    if passes == 1 and not student.two_passes:
        alone = _run(batch, student, trees[0])
        count.add(trees, batch.plain)
        at_tokens = torch.empty_like(alone.hidden.detach()).index_copy_(0, alone.token, alone.hidden.detach())
    else:
        at_tokens = torch.cat(hidden_states(net, batch.plain, budget, count))
    whole = share.whole if share else batch
    scores, apart = score(batch, at_tokens, net.head, references, k=k, alone=_rehearses_alone(whole, references))
    inputs, leaves = loss_inputs(whole, _of_all(scores, share, net.ranks))
    why = stop(inputs)
    if why is not None:
        return {}, why
    total, metrics = loss(inputs)
    given = leaves.gradients(total)
    given = given if share is None else given.of(share.at, heard=share.heard)
    # with dropout the second pass differs from the first, in which these gradients were computed
    known = _Backward(batch, student, references, given, None if student.two_passes else apart)
    for packed in trees:
        _backward(known, alone or _run(batch, student, packed))
    for _ in range(passes - len(trees)):
        _idle(student)
    if alone is None:
        count.add(trees, batch.plain)
    return dict(metrics), None


def _rehearses_alone(whole: TrainBatch, references: References) -> bool:
    """Whether a batch has nothing but replies that are compared with a teacher that has the note."""
    return len(whole.noted) == len(whole.spans) and references.base is None


def _of_all(scores: TokenScores, share: Share | None, ranks: Ranks) -> TokenScores:
    """The scores of the whole batch, from those of each rank's share."""
    if share is None:
        return scores
    found = ranks.told((share.at.cpu(), on_device(scores, torch.device("cpu"))) if share.heard else None)
    whole = joined([part for part in found if part is not None], len(share.whole.tokens))
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
    """A pass forward and back that leaves no gradient, for ranks that have fewer of them than others."""
    with student.training():
        out = hidden(student.net.model, IDLE, tree=student.net.tree)
        torch.autograd.backward(out, torch.zeros_like(out))


def _backward(known: _Backward, piece: StudentPass) -> None:
    batch, references, given, token = known.batch, known.references, known.given, piece.token
    base, kl, at = references.base, given.kl, given.at[token]
    hidden_states, head = piece.hidden.detach(), known.student.net.head
    back = torch.zeros_like(hidden_states)
    pull = known.apart.pull if known.apart is not None and at.shape[1] == 1 else None
    if pull is not None and references.rehearsal is not None:
        back += pull[references.rehearsal.row[token]] * at.to(back.dtype)
    elif kl is not None or bool(at.any()):  # where only a KL to the teacher counts, the vocabulary is not read for it
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
        here = torch.nonzero(references.rehearsal.row[token] >= 0)[:, 0]
        back[here] += _backward_rehearsal(known, piece, references.rehearsal, given.rehearsal, here)
    with known.student.training():  # layers that are recomputed must find the model as it was
        torch.autograd.backward(piece.hidden, back)


def _backward_rehearsal(
    known: _Backward, piece: StudentPass, teacher: RehearsalTeacher, given: Tensor, here: Tensor
) -> Tensor:
    """The gradient of the hidden states of the rehearsed tokens, which are at ``here`` in the piece."""
    token = piece.token[here]
    row, wanted = teacher.row[token], given[token]
    if known.apart is not None and known.apart.slope is not None:
        return known.apart.slope[row] * wanted[:, None].to(known.apart.slope.dtype)
    return train_head.backward_divergence(
        piece.hidden.detach()[here],
        known.student.net.head,
        known.batch.temperature[token],
        wanted,
        other=teacher.at(row),
        forward=teacher.forward,
    )
