"""From samples to the inputs of a loss: one batch, its passes through student, teacher and base, and its gradient.

`N` reply tokens of all samples one after another, `S` samples, `H` hints, `K` top-k ids, `d` hidden width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.local.training import head as train_head
from openclaw_rl.backends.local.training.forward import hidden
from openclaw_rl.backends.local.training.head import BaseOutputs, Head, VocabularyScan
from openclaw_rl.losses import LossInputs
from openclaw_rl.losses.tree import PackedTree, TokenPath, pack
from openclaw_rl.types import Sample, Tokens

LossFunction = Callable[[LossInputs], tuple[Tensor, Mapping[str, float]]]
Views = Sequence[Sequence[Tokens | None]]
"""for each sample, the ids of each hinted prompt; None where it could not be rendered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """Weights that can run: a Hugging Face model, its head, and the context that a pass of it runs in."""

    model: Any
    head: Head
    tree: bool
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """Samples as flat tensors; ``spans[s]`` are sample s's tokens among the N."""

    tokens: Tensor
    sample: Tensor
    mask: Tensor
    old: Tensor
    recorded: Tensor
    """[N] bool: False where the reply was sampled under another prompt, so that ``old`` is the student's own"""
    same_weights: Tensor
    temperature: Tensor
    advantage: Tensor
    has_advantage: Tensor
    spans: tuple[slice, ...]
    plain: tuple[TokenPath, ...]
    hinted: tuple[tuple[int, int, TokenPath], ...]
    """(hint, sample, path) of every teacher view"""
    hints: int


def collate(
    samples: Sequence[Sample], views: Views, *, version: int, device: torch.device, wide: torch.dtype
) -> TrainBatch:
    """Flatten samples; a temperature of 0 counts as 1. ``version`` is the one whose weights stand now."""
    lengths = [len(sample.reply_tokens) for sample in samples]
    starts = [sum(lengths[:at]) for at in range(len(lengths))]

    def flat(rows: Iterator[Sequence[Any]], dtype: torch.dtype) -> Tensor:
        return torch.tensor([value for row in rows for value in row], dtype=dtype, device=device)

    def each(value: Callable[[Sample], Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor([value(sample) for sample in samples], dtype=dtype, device=device)

    sample = flat(([at] * length for at, length in enumerate(lengths)), torch.int64)
    return TrainBatch(
        tokens=flat((one.reply_tokens for one in samples), torch.int64),
        sample=sample,
        mask=flat((one.mask for one in samples), torch.bool),
        old=flat((one.logprobs or (math.nan,) * len(one.reply_tokens) for one in samples), wide),
        recorded=each(lambda one: one.logprobs is not None, torch.bool)[sample],
        same_weights=each(lambda one: one.logprobs is not None and one.version == version, torch.bool)[sample],
        temperature=each(lambda one: one.temperature or 1.0, wide)[sample],
        advantage=each(lambda one: one.advantage or 0.0, wide),
        has_advantage=each(lambda one: one.advantage is not None, torch.bool),
        spans=tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True)),
        plain=tuple(_path(one.prompt_tokens or (), one.reply_tokens) for one in samples),
        hinted=tuple(
            (h, s, _path(prompt, samples[s].reply_tokens))
            for s, view in enumerate(views)
            for h, prompt in enumerate(view)
            if prompt is not None
        ),
        hints=max((len(view) for view in views), default=0),
    )


def _path(prompt: Tokens, reply: Tokens) -> TokenPath:
    return TokenPath(tokens=(*prompt, *reply), reply=len(reply))


@dataclass(slots=True)
class ComputedTokens:
    """What was computed: packed tokens, the tokens of the same sequences one by one, forward passes."""

    packed: int = 0
    sequential: int = 0
    passes: int = 0

    def add(self, trees: Sequence[PackedTree], paths: Sequence[TokenPath]) -> None:
        self.packed += sum(packed.size for packed in trees)
        self.sequential += sum(len(path.tokens) - 1 for path in paths)
        self.passes += len(trees)


@torch.no_grad()
def hidden_states(net: Net, paths: Sequence[TokenPath], budget: int | None, count: ComputedTokens) -> list[Tensor]:
    """For each path the hidden states [R, d] that predict its reply, without a gradient."""
    trees = pack(paths, budget=budget, share=net.tree)
    count.add(trees, paths)
    found: dict[int, Tensor] = {}
    with net.context():
        for packed in trees:
            rows = torch.cat(packed.rows).to(net.head.weight.device)  # before the pass, or the host would wait for it
            out = hidden(net.model, packed, tree=net.tree)[rows]
            found |= zip(packed.members, torch.split(out, [len(part) for part in packed.rows]), strict=True)
    return [found[at] for at in range(len(paths))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherOutputs:
    """The teacher's side: hidden states [M, d] of every view's reply, and where each row belongs in [H, N]."""

    hidden: Tensor
    head: Head
    hint: Tensor
    token: Tensor
    seen: VocabularyScan


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """What the step compares the student with: the teacher's views, the base, and log-probs [N] of what is served.

    Each is None where it was not wanted.
    """

    teacher: TeacherOutputs | None
    base: BaseOutputs | None
    served: Tensor | None = None


def run_references(
    batch: TrainBatch,
    teacher: Net,
    base: Net | None,
    served: Net | None = None,
    *,
    k: int,
    budget: int | None,
    count: ComputedTokens,
) -> References:
    """One pass through the teacher for all hinted views, one through the base and one through ``served`` for the rest.

    Teacher and base make a single pass where they are the same weights: their prompts share their beginnings too.
    """
    views = [path for _, _, path in batch.hinted]
    plain = list(batch.plain) if base is not None else []
    if base is teacher:
        found = hidden_states(teacher, [*views, *plain], budget, count)
        for_views, for_plain = found[: len(views)], found[len(views) :]
    else:
        for_views = hidden_states(teacher, views, budget, count)
        for_plain = hidden_states(base, plain, budget, count) if base is not None else []
    return References(
        teacher=_hinted(batch, for_views, teacher.head, k) if views else None,
        base=BaseOutputs(hidden=torch.cat(for_plain), head=base.head) if base is not None else None,
        served=_sampled(batch, served, budget, count) if served is not None else None,
    )


def _sampled(batch: TrainBatch, net: Net, budget: int | None, count: ComputedTokens) -> Tensor:
    """The log-prob [N] of each sampled token."""
    found = torch.cat(hidden_states(net, batch.plain, budget, count))
    norm = train_head.scan(found, net.head, batch.temperature, k=1).norm
    return train_head.at(found, net.head, batch.temperature, norm, batch.tokens[:, None])[:, 0]


def _hinted(batch: TrainBatch, found: list[Tensor], head: Head, k: int) -> TeacherOutputs:
    device = batch.tokens.device
    rows = [torch.arange(batch.spans[s].start, batch.spans[s].stop, device=device) for _, s, _ in batch.hinted]
    hint = [torch.full_like(row, h) for row, (h, _, _) in zip(rows, batch.hinted, strict=True)]
    token, hidden_states = torch.cat(rows), torch.cat(found)
    return TeacherOutputs(
        hidden=hidden_states,
        head=head,
        hint=torch.cat(hint),
        token=token,
        seen=train_head.scan(hidden_states, head, batch.temperature[token], k=k),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """What carries the gradient between a loss and the student: log-probs at ids [N, G], and the KL [N] or None.

    The columns of ``ids`` are the sampled token, Sq (K of them), and Sp of each hint (K each).
    """

    ids: Tensor
    at: Tensor
    kl: Tensor | None

    def gradients(self, loss: Tensor) -> tuple[Tensor, Tensor | None]:
        """d loss / d at [N, G] and d loss / d kl [N]."""
        wanted = [self.at] if self.kl is None else [self.at, self.kl]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        kl = found[1] if len(found) > 1 else None
        return torch.zeros_like(self.at) if found[0] is None else found[0], kl


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
    inputs = LossInputs(
        sample=batch.sample,
        mask=batch.mask,
        current=at[:, 0],
        old=torch.where(batch.recorded, batch.old, values[:, 0].to(batch.old.dtype)),
        same_weights=batch.same_weights,
        advantage=batch.advantage,
        has_advantage=batch.has_advantage,
        student_ids=seen.ids,
        student_old=values[:, 1 : 1 + width],
        student_current=at[:, 1 : 1 + width],
        teacher_ids=teacher_ids,
        teacher_old=values[:, 1 + width :].view(n, -1, width).permute(1, 0, 2),
        teacher_current=at[:, 1 + width :].view(n, -1, width).permute(1, 0, 2),
        kl=kl,
        reference=_reference(batch, references.base, seen.base_norm),
        served=references.served,
        **teacher,
    )
    return inputs, Leaves(ids=ids, at=at, kl=kl)


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
    at, kl = leaves.gradients(total)
    for packed in trees:
        piece = alone or _run(batch, student, packed)
        _backward(batch, student, piece, references, leaves.ids, at, kl)
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


def _backward(
    batch: TrainBatch,
    student: Student,
    piece: StudentPass,
    references: References,
    ids: Tensor,
    at: Tensor,
    kl: Tensor | None,
) -> None:
    token, base = piece.token, references.base
    local = None if base is None or kl is None else BaseOutputs(hidden=base.hidden[token], head=base.head)
    back = train_head.backward_hidden(
        piece.hidden.detach(),
        student.net.head,
        batch.temperature[token],
        ids[token],
        at[token],
        kl=None if kl is None else kl[token],
        base=local,
    )
    with student.training():  # layers that are recomputed must find the model as it was
        torch.autograd.backward(piece.hidden, back)
