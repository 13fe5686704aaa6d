"""What the student is compared with: the teacher under each hint, the teacher with the note, the base, what is served.

`N` reply tokens of all samples one after another, `H` hints, `K` top-k ids, `d` hidden width.
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
    """Weights that can run: a Hugging Face model, its head, and the context that a pass of it runs in."""

    model: Any
    head: Head
    tree: bool
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    ranks: Ranks = ALONE
    """those that its layers are sharded over: all of them run it equally often"""


(IDLE,) = pack([TokenPath(tokens=(0, 0), reply=1)])
"""what a rank runs along on when it has nothing left to run"""


def pieces(net: Net, paths: Sequence[TokenPath], budget: int | None) -> tuple[PackedTree, ...]:
    """The packed trees that are run one after another; each is one call of the model where layers are sharded."""
    single = net.ranks.mesh is not None and not net.tree
    return pack(paths, budget=1 if single else budget, share=net.tree)


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
    trees = pieces(net, paths, budget)
    count.add(trees, paths)
    found: dict[int, Tensor] = {}
    idle = net.ranks.most(len(trees)) - len(trees)
    with net.context():
        for packed in trees:
            rows = torch.cat(packed.rows).to(net.head.weight.device)  # before the pass, or the host would wait for it
            out = hidden(net.model, packed, tree=net.tree)[rows]
            found |= zip(packed.members, torch.split(out, [len(part) for part in packed.rows]), strict=True)
        for _ in range(idle):
            hidden(net.model, IDLE, tree=net.tree)
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
class RehearsalTeacher:
    """The teacher that has the note: its outputs [M] at the rehearsed tokens [M], and the row of each token [N] or -1.

    ``forward``: it comes first in the KL.
    """

    outputs: BaseOutputs
    token: Tensor
    row: Tensor
    forward: bool

    def at(self, rows: Tensor) -> BaseOutputs:
        return BaseOutputs(hidden=self.outputs.hidden[rows], head=self.outputs.head)


def rehearsal_teacher(batch: TrainBatch, found: list[Tensor], head: Head, *, forward: bool) -> RehearsalTeacher:
    """From the hidden states of each of ``batch.noted``."""
    device = batch.tokens.device
    spans = [batch.spans[s] for s, _ in batch.noted]
    token = torch.cat([torch.arange(span.start, span.stop, device=device) for span in spans])
    row = torch.full_like(batch.tokens, -1).index_copy_(0, token, torch.arange(len(token), device=device))
    outputs = BaseOutputs(hidden=torch.cat(found), head=head)
    return RehearsalTeacher(outputs=outputs, token=token, row=row, forward=forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """What the step compares the student with: the teacher's views, the base, and log-probs [N] of what is served.

    Each is None where it was not wanted.
    """

    teacher: TeacherOutputs | None
    base: BaseOutputs | None
    served: Tensor | None = None
    rehearsal: RehearsalTeacher | None = None


def run_references(
    batch: TrainBatch,
    teacher: Net,
    base: Net | None,
    served: Net | None = None,
    rehearsal: tuple[Net, bool] | None = None,
    *,
    k: int,
    budget: int | None,
    count: ComputedTokens,
) -> References:
    """One pass through the teacher for all hinted views, one through the base and one through ``served`` for the rest.

    Those that are the same weights make a single pass: their prompts share their beginnings too. ``rehearsal`` is the
    teacher that has the note, and whether it comes first in the KL.
    """
    views, noted = [path for _, _, path in batch.hinted], [path for _, path in batch.noted]
    net = rehearsal[0] if rehearsal is not None else teacher
    wanted = [(teacher, views), (net, noted), (base or teacher, list(batch.plain) if base is not None else [])]
    for_views, for_notes, for_plain = _by_net(wanted, budget, count)
    return References(
        teacher=_hinted(batch, for_views, teacher.head, k) if views else None,
        base=BaseOutputs(hidden=torch.cat(for_plain), head=base.head) if base is not None else None,
        served=_sampled(batch, served, budget, count) if served is not None else None,
        rehearsal=rehearsal_teacher(batch, for_notes, net.head, forward=rehearsal[1]) if noted and rehearsal else None,
    )


def _by_net(
    wanted: Sequence[tuple[Net, Sequence[TokenPath]]], budget: int | None, count: ComputedTokens
) -> list[list[Tensor]]:
    """The hidden states that each of these wants, in one pass through each net."""
    found: list[list[Tensor]] = [[] for _ in wanted]
    for net in {id(net): net for net, _ in wanted}.values():
        mine = [at for at, (other, _) in enumerate(wanted) if other is net]
        states = iter(hidden_states(net, [path for at in mine for path in wanted[at][1]], budget, count))
        for at in mine:
            found[at] = [next(states) for _ in wanted[at][1]]
    return found


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
