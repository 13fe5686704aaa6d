"""GraphedRunner passes for a GPU: a pass over single tokens is launched as one graph instead of hundreds of kernels.

Graphs have fixed shapes, so batches and pasts are rounded up; the rows that pad them belong to nobody.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from openclaw_rl.backends.local.engine.attention import DecodeLayout, Layout
from openclaw_rl.backends.local.engine.kv_cache import KVCache
from openclaw_rl.backends.local.engine.model_runner import ModelRunner

logger = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
SHORTEST = 512


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    logits: torch.Tensor


class GraphedRunner:
    """A `ModelRunner` that replays recordings of another where it can, and calls it where it cannot."""

    def __init__(self, runner: ModelRunner, kv_cache: KVCache) -> None:
        self._runner = runner
        self._kv_cache = kv_cache
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._able = True

    def __call__(self, tokens: torch.Tensor, layout: Layout, keep: torch.Tensor) -> torch.Tensor:
        if not (self._able and layout.single and len(keep) == len(tokens) <= SIZES[-1]):
            return self._runner(tokens, layout, keep)
        size = next(size for size in SIZES if size >= len(tokens))
        length = max(SHORTEST, 1 << (layout.longest - 1).bit_length())
        graph = self._graphs.get((size, length)) or self._capture(size, length)
        if graph is None:
            return self._runner(tokens, layout, keep)
        graph.inputs[:, : len(tokens)] = torch.stack((tokens, layout.rows - layout.positions, layout.positions))
        graph.inputs[:, len(tokens) :] = self._padding(graph.inputs.device)
        graph.graph.replay()
        return graph.logits[: len(tokens)]

    def _padding(self, device: torch.device) -> torch.Tensor:
        """A token that writes to the spare rows behind the kv_cache and sees only itself."""
        return torch.tensor([[0], [self._kv_cache.rows], [0]], device=device)

    def _capture(self, size: int, length: int) -> _Graph | None:
        device = self._kv_cache.data.device
        inputs = self._padding(device).expand(3, size).contiguous()

        def action() -> torch.Tensor:
            # everything but the inputs is made inside, so that it lives in the memory of the graph
            tokens, starts, positions = inputs
            keep = torch.arange(size, device=device)
            return self._runner(tokens, DecodeLayout(self._kv_cache, starts, positions, length), keep)

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
        self._graphs[size, length] = _Graph(graph, inputs, logits)
        return self._graphs[size, length]
