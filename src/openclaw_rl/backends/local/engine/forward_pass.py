"""One pass of the model over scheduled tokens: which of them need logits, and whose those are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from openclaw_rl.backends.local.engine.attention import Layout, Span
from openclaw_rl.backends.local.engine.kv_cache import KVCache, SequenceCache
from openclaw_rl.backends.local.engine.model_runner import ModelRunner
from openclaw_rl.backends.local.engine.scheduler import ScheduledTokens
from openclaw_rl.backends.local.engine.sequences import EngineJob, Generation, Scoring


@dataclass(frozen=True, slots=True)
class PassOutput:
    """Logits `[K, vocabulary]`, the job that each row belongs to, and the jobs whose known tokens are all computed."""

    logits: torch.Tensor
    owners: Sequence[EngineJob]
    finished: Sequence[EngineJob]
    tokens: int

    def generations(self) -> tuple[list[Generation], torch.Tensor]:
        """The replies that get a token, and their logits."""
        rows = [(row, job) for row, job in enumerate(self.owners) if isinstance(job, Generation)]
        whole = len(rows) in (0, len(self.owners))
        return [job for _, job in rows], self.logits if whole else self.logits[[row for row, _ in rows]]

    def scorings(self) -> list[tuple[Scoring, torch.Tensor]]:
        """The scores that get log-probs, and their logits, which lie one behind the other."""
        rows: dict[Scoring, list[int]] = {}
        for row, job in enumerate(self.owners):
            if isinstance(job, Scoring):
                rows.setdefault(job, []).append(row)
        return [(job, self.logits[found[0] : found[-1] + 1]) for job, found in rows.items()]


def run_pass(
    runner: ModelRunner,
    cache: SequenceCache,
    parts: Sequence[ScheduledTokens],
    device: torch.device,
    beat: Callable[[], None],
) -> PassOutput:
    """Compute the scheduled tokens, which are in the cache afterwards; ``beat`` is called as the layers pass.

    A runner that computes sequences alone gets bare spans.
    """
    spans = [Span(part.job.slot, part.count) for part in parts if part.job.slot is not None]
    chunks = [part.job.tokens[part.done : part.done + part.count] for part in parts]
    tokens = [token for chunk in chunks for token in chunk]
    kept, owners = _kept(parts)
    keep = torch.tensor(kept, dtype=torch.long, device=device)
    layout = Layout(cache, spans, beat=beat) if isinstance(cache, KVCache) else spans
    logits = runner(torch.tensor(tokens, device=device), layout, keep)
    finished = [part.job for part in parts if part.last]
    for span, chunk in zip(spans, chunks, strict=True):
        span.slot.tokens.extend(chunk)
    return PassOutput(logits, owners, finished, len(tokens))


def _kept(parts: Sequence[ScheduledTokens]) -> tuple[list[int], list[EngineJob]]:
    """Which tokens of the pass need logits, and whose each is."""
    kept: list[int] = []
    owners: list[EngineJob] = []
    at = 0
    for part in parts:
        if isinstance(part.job, Scoring):
            first = max(part.job.reusable - part.done, 0)
            rows = range(at + first, at + part.count)
        else:
            rows = range(at + part.count - 1, at + part.count) if part.last else range(0)
        kept.extend(rows)
        owners.extend(part.job for _ in rows)
        at += part.count
    return kept, owners
