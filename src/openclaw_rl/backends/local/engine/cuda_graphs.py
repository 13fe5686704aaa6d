"""Recorded passes for a GPU: a pass over single tokens is launched as one graph instead of hundreds of kernels.

Graphs have fixed shapes, so batches and pasts are rounded up; the rows that pad them belong to nobody.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from openclaw_rl.backends.local.engine.attention import Layout, Singles
from openclaw_rl.backends.local.engine.kv_cache import Arena
from openclaw_rl.backends.local.engine.model_runner import Brain

logger = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
SHORTEST = 512


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    logits: torch.Tensor


class Recorded:
    """A `Brain` that replays recordings of another where it can, and calls it where it cannot."""

    def __init__(self, brain: Brain, arena: Arena) -> None:
        self._brain = brain
        self._arena = arena
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._able = True

    def __call__(self, tokens: torch.Tensor, layout: Layout, keep: torch.Tensor) -> torch.Tensor:
        if not (self._able and layout.single and len(keep) == len(tokens) <= SIZES[-1]):
            return self._brain(tokens, layout, keep)
        size = next(size for size in SIZES if size >= len(tokens))
        length = max(SHORTEST, 1 << (layout.longest - 1).bit_length())
        recording = self._recordings.get((size, length)) or self._record(size, length)
        if recording is None:
            return self._brain(tokens, layout, keep)
        recording.inputs[:, : len(tokens)] = torch.stack((tokens, layout.rows - layout.positions, layout.positions))
        recording.inputs[:, len(tokens) :] = self._padding(recording.inputs.device)
        recording.graph.replay()
        return recording.logits[: len(tokens)]

    def _padding(self, device: torch.device) -> torch.Tensor:
        """A token that writes to the spare rows behind the arena and sees only itself."""
        return torch.tensor([[0], [self._arena.rows], [0]], device=device)

    def _record(self, size: int, length: int) -> _Recording | None:
        device = self._arena.data.device
        inputs = self._padding(device).expand(3, size).contiguous()

        def action() -> torch.Tensor:
            # everything but the inputs is made inside, so that it lives in the memory of the graph
            tokens, starts, positions = inputs
            keep = torch.arange(size, device=device)
            return self._brain(tokens, Singles(self._arena, starts, positions, length), keep)

        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                action()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # other threads may be loading a version meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                logits = action()
        except RuntimeError as error:  # a model that looks at its inputs from the CPU cannot be recorded, only run
            logger.warning("engine.graphs off error=%s", error)
            self._able = False
            return None
        self._recordings[size, length] = _Recording(graph, inputs, logits)
        return self._recordings[size, length]
