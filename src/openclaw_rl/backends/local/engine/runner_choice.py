"""Which model runner a model gets: the fastest whose log-probs are those of the model's own pass, tried at start.

A model that shares passes is run by the fused pass or by `transformers`' layers over the engine's KV cache. One whose
past is more than keys and values, or that the probe finds wrong there, is run by `transformers` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from openclaw_rl.backends.hf.shapes import PROBE, own_state, probe_ids, window_of
from openclaw_rl.backends.local.engine.attention import NAME, Layout, Span
from openclaw_rl.backends.local.engine.model_runner import FusedRunner, ModelRunner, TransformersRunner, kv_cache_for
from openclaw_rl.backends.local.engine.own_cache import OwnCacheRunner, Reading, StateCache
from openclaw_rl.errors import ModelRefused

_CHUNKS = ((0, 10), (10, 23), (23, 24))
_WHOLE = ((0, 22), (22, 23), (23, 24))
_READINGS: tuple[Reading, ...] = ("chunks", "whole", "again")


def model_runner_of(model: Any, *, like: ModelRunner | None = None) -> ModelRunner:
    """The way to run ``model``: that of ``like``, or the fastest that agrees with the model's own pass.

    Raises ModelRefused for a model that no way can run rightly.
    """
    if isinstance(like, FusedRunner):
        return FusedRunner(model, like=like)
    if isinstance(like, OwnCacheRunner):
        return OwnCacheRunner(model, like.reading, why=like.why)
    if like is not None:
        return TransformersRunner(model)
    if model.config._attn_implementation == NAME:
        model.set_attn_implementation("sdpa")
    before = model.config._attn_implementation
    plain = _plain(model)
    shared = _shared(model, plain)
    if not isinstance(shared, str):
        return shared
    if model.config._attn_implementation != before:
        model.set_attn_implementation(before)
    return _own(model, plain, why=shared)


def runner_words(runner: ModelRunner) -> str:
    """How a model is run, for people; and why, where it does not share passes."""
    if isinstance(runner, OwnCacheRunner):
        read = {"chunks": "", "whole": ", prompts whole", "again": " and no cache at all"}[runner.reading]
        return f"plain transformers, one sequence at a time without a prefix cache{read}: {runner.why}"
    kind = "fused" if isinstance(runner, FusedRunner) else "transformers"
    return f"{kind} layers, batched, with a prefix cache"


def _shared(model: Any, plain: torch.Tensor) -> ModelRunner | str:
    """The runner whose passes many sequences share, or why there is none."""
    why = own_state(model)
    if why is not None:
        return why
    for way in (FusedRunner, TransformersRunner):
        if way is FusedRunner and not FusedRunner.fits(model):
            continue
        runner = way(model)
        gap = _checked(model, plain, lambda made=runner: _read_shared(made, model))  # type: ignore[misc]
        if gap is None:
            return runner
        why = f"{gap} in a shared pass"
    return str(why)


def _own(model: Any, plain: torch.Tensor, *, why: str) -> ModelRunner:
    failures = []
    for reading in _READINGS:
        runner = OwnCacheRunner(model, reading, why=why)
        gap = _checked(model, plain, lambda made=runner: _read_alone(made, model))  # type: ignore[misc]
        if gap is None:
            return runner
        failures.append(gap)
    kind = model.config.model_type
    raise ModelRefused(
        f"the local engine cannot run models of type {kind!r} ({why}; by itself: {'; '.join(dict.fromkeys(failures))})",
        remedy="serve it with vLLM or SGLang (--backend vllm, docs/engines.md), or choose another model",
    )


@torch.inference_mode()
def _plain(model: Any) -> torch.Tensor:
    """Log-probs after the probe, by the model's own pass over all of it."""
    tokens = torch.tensor([probe_ids(model)], device=model.device)
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits[0, -1].float()
    return logits.log_softmax(-1)


@torch.inference_mode()
def _checked(model: Any, plain: torch.Tensor, read: Callable[[], torch.Tensor]) -> str | None:
    """What is wrong with the logits that ``read`` finds after the probe; None when nothing is."""
    try:
        logits = read()
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        # any failure means the same: this way does not run this model
        return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    gap = float((logits.log_softmax(-1) - plain).abs().max())
    limit = 1e-2 if model.dtype == torch.float32 else 0.5
    return None if gap <= limit else f"its log-probs differ by {gap:.3g}"


class _WatchedLayout(Layout):
    """Notes the windows that a model's layers ask for."""

    windows: set[int | None]

    def attend(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, *, scale: float, window: int | None = None
    ) -> torch.Tensor:
        self.windows.add(window)
        return super().attend(layer, query, kv, scale=scale, window=window)


def _read_shared(runner: ModelRunner, model: Any) -> torch.Tensor:
    """The probe in two chunks and a single token. Raises ValueError where a window does not reach the attention."""
    kv_cache = kv_cache_for(model, rows=256)
    windows: set[int | None] = set()

    def layout(spans: Sequence[Span]) -> Layout:
        made = _WatchedLayout(kv_cache, spans)
        made.windows = windows
        return made

    slot = kv_cache.open(0, (), len(PROBE))
    logits = _read(runner, model, slot, _CHUNKS, layout)
    if (size := window_of(model)) is not None and size not in windows:
        raise ValueError(f"its window of {size} tokens does not reach the attention")
    return logits


def _read_alone(runner: OwnCacheRunner, model: Any) -> torch.Tensor:
    """The probe as the runner would read it."""
    slot = StateCache(len(PROBE)).open(0, (), len(PROBE))
    return _read(runner, model, slot, _CHUNKS if runner.reading == "chunks" else _WHOLE, list)


def _read(
    runner: ModelRunner,
    model: Any,
    slot: Any,
    cuts: Sequence[tuple[int, int]],
    layout: Callable[[Sequence[Span]], Any],
) -> torch.Tensor:
    ids = probe_ids(model)
    for begin, end in cuts:
        keep = torch.tensor([end - begin - 1], device=model.device)
        tokens = torch.tensor(ids[begin:end], device=model.device)
        logits = runner(tokens, layout([Span(slot, end - begin)]), keep)
        slot.tokens.extend(ids[begin:end])
    return logits[0]
