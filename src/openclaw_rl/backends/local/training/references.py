"""The student's references: the teacher under each hint, the teacher with the note, the base, the served weights.

All samples' `N` reply tokens in sequence, `H` hints, `K` top-k ids, `d` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.hf.batches import TrainBatch
from openclaw_rl.backends.local.training import head as train_head
from openclaw_rl.backends.local.training.forward import hidden
from openclaw_rl.backends.local.training.head import BaseOutputs, Head, VocabularyScan
from openclaw_rl.backends.local.training.ranks import ALONE, Ranks
from openclaw_rl.losses.tree import PackedTree, TokenPath, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """Weights that can run: a Hugging Face model, its head, and the context of its passes."""

    model: Any
    head: Head
    tree: bool
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    ranks: Ranks = ALONE
    """ranks that its layers are sharded over: all of them run it equally often"""


(IDLE,) = pack([TokenPath(tokens=(0, 0), reply=1)])
"""filler for a rank that has no more passes to run"""


def pieces(net: Net, paths: Sequence[TokenPath], budget: int | None) -> tuple[PackedTree, ...]:
    """Pack paths into trees that run one after another; each is one model call if layers are sharded."""
    single = net.ranks.mesh is not None and not net.tree
    return pack(paths, budget=1 if single else budget, share=net.tree)


@dataclass(slots=True)
class ComputedTokens:
    """Totals: packed tokens, the tokens of the same sequences one by one, forward passes."""

    packed: int = 0
    sequential: int = 0
    passes: int = 0

    def add(self, trees: Sequence[PackedTree], paths: Sequence[TokenPath]) -> None:
        self.packed += sum(packed.size for packed in trees)
        self.sequential += sum(len(path.tokens) - 1 for path in paths)
        self.passes += len(trees)


@torch.no_grad()
def hidden_states(net: Net, paths: Sequence[TokenPath], budget: int | None, count: ComputedTokens) -> list[Tensor]:
    """Return for each path the hidden states [R, d] that predict its reply, without a gradient."""
    trees = pieces(net, paths, budget)
    count.add(trees, paths)
    states: dict[int, Tensor] = {}
    idle = net.ranks.most(len(trees)) - len(trees)
    with net.context():
        for packed in trees:
            rows = torch.cat(packed.rows).to(net.head.weight.device)  # before the pass, or the host would wait for it
            out = hidden(net.model, packed, tree=net.tree)[rows]
            states |= zip(packed.members, torch.split(out, [len(part) for part in packed.rows]), strict=True)
        for _ in range(idle):
            hidden(net.model, IDLE, tree=net.tree)
    return [states[at] for at in range(len(paths))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherOutputs:
    """The teacher's outputs: hidden states [M, d] for every view's reply, and each row's position in [H, N]."""

    hidden: Tensor
    head: Head
    hint: Tensor
    token: Tensor
    seen: VocabularyScan


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationTeacher:
    """The teacher with the note: outputs [M] at the distilled tokens [M], and each token's row [N], or -1.

    ``forward``: it is first in the KL.
    """

    outputs: BaseOutputs
    token: Tensor
    row: Tensor
    forward: bool

    def at(self, rows: Tensor) -> BaseOutputs:
        return BaseOutputs(hidden=self.outputs.hidden[rows], head=self.outputs.head)


def distillation_teacher(batch: TrainBatch, found: list[Tensor], head: Head, *, forward: bool) -> DistillationTeacher:
    """Build it from the hidden states for ``batch.noted``."""
    device = batch.tokens.device
    spans = [batch.spans[s] for s, _ in batch.noted]
    token = torch.cat([torch.arange(span.start, span.stop, device=device) for span in spans])
    row = torch.full_like(batch.tokens, -1).index_copy_(0, token, torch.arange(len(token), device=device))
    outputs = BaseOutputs(hidden=torch.cat(found), head=head)
    return DistillationTeacher(outputs=outputs, token=token, row=row, forward=forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The step's references for the student: the teacher's views, the base, and the served weights' log-probs [N].

    Each is None if not requested.
    """

    teacher: TeacherOutputs | None
    base: BaseOutputs | None
    served: Tensor | None = None
    distillation: DistillationTeacher | None = None


def run_references(
    batch: TrainBatch,
    teacher: Net,
    base: Net | None,
    served: Net | None = None,
    distillation: tuple[Net, bool] | None = None,
    *,
    k: int,
    budget: int | None,
    count: ComputedTokens,
) -> References:
    """Run one pass through the teacher for all hinted views, one through the base, and one through ``served``.

    Equal weights share a single pass, because their prompts share prefixes too. ``distillation`` is the teacher with
    the note, and whether it is first in the KL.
    """
    views, noted = [path for _, _, path in batch.hinted], [path for _, path in batch.noted]
    net = distillation[0] if distillation is not None else teacher
    requests = [(teacher, views), (net, noted), (base or teacher, list(batch.plain) if base is not None else [])]
    for_views, for_notes, for_plain = _by_net(requests, budget, count)
    return References(
        teacher=_hinted(batch, for_views, teacher.head, k) if views else None,
        base=BaseOutputs(hidden=torch.cat(for_plain), head=base.head) if base is not None else None,
        served=_sampled(batch, served, budget, count) if served is not None else None,
        distillation=distillation_teacher(batch, for_notes, net.head, forward=distillation[1])
        if noted and distillation
        else None,
    )


def _by_net(
    wanted: Sequence[tuple[Net, Sequence[TokenPath]]], budget: int | None, count: ComputedTokens
) -> list[list[Tensor]]:
    """Return the hidden states for each request, in one pass per net."""
    outputs: list[list[Tensor]] = [[] for _ in wanted]
    for net in {id(net): net for net, _ in wanted}.values():
        places = [at for at, (requested, _) in enumerate(wanted) if requested is net]
        states = iter(hidden_states(net, [path for at in places for path in wanted[at][1]], budget, count))
        for at in places:
            outputs[at] = [next(states) for _ in wanted[at][1]]
    return outputs


def _sampled(batch: TrainBatch, net: Net, budget: int | None, count: ComputedTokens) -> Tensor:
    """Return each sampled token's log-prob [N]."""
    states = torch.cat(hidden_states(net, batch.plain, budget, count))
    norm = train_head.scan(states, net.head, batch.temperature, k=1).norm
    return train_head.at(states, net.head, batch.temperature, norm, batch.tokens[:, None])[:, 0]


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
