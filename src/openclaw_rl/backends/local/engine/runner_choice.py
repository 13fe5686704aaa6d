"""Choice of the model runner at start: the fastest whose log-probs match the model's own pass.

A model that can share passes is run by the fused pass or by `transformers`' layers over the engine's KV cache.
`transformers` alone runs a model whose past is more than keys and values, or that fails the probe there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from openclaw_rl.backends.hf.models import PROBE, own_state, probe_ids, window_of
from openclaw_rl.backends.local.engine.attention import NAME, Layout, Span
from openclaw_rl.backends.local.engine.kv_cache import SequenceSlot
from openclaw_rl.backends.local.engine.model_runner import FusedRunner, ModelRunner, TransformersRunner, kv_cache_for
from openclaw_rl.errors import ModelRefused

# Models that do not share a pass: `transformers`' own forward, with the cache that the model creates.
#
# Recurrent layers, short convolutions, attention sinks and the like keep a state that cannot be split into rows of keys
# and values. So each sequence holds the model's own cache, is computed by itself and starts from nothing: there is no
# prefix cache.

Reading = Literal["chunks", "whole", "again"]
"""how a sequence is read: in chunks; its prompt whole, then token by token; or all of it again for each token"""
CACHES = ("past_key_values", "cache_params")
"""models' names for their cache, as an argument and as a result"""


@dataclass(eq=False, slots=True)
class StateSlot(SequenceSlot):
    """One sequence's computed tokens and the model's cache."""

    state: Any = None


class StateCache:
    """Sequences up to ``rows`` tokens in all, each with its own state; closed sequences are not reused."""

    reuses = False

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._slots: list[SequenceSlot] = []

    @property
    def free(self) -> int:
        """Unreserved tokens."""
        return self.rows - self.held

    @property
    def held(self) -> int:
        """Tokens reserved by sequences."""
        return sum(slot.room for slot in self._slots)

    def match(self, version: int, tokens: Sequence[int], *, scope: str = "") -> tuple[SequenceSlot | None, int]:
        """Return no match: a state covers its sequence entirely or not at all."""
        return None, 0

    def open(self, version: int, tokens: Sequence[int], room: int, *, scope: str = "") -> SequenceSlot | None:
        """Return a new sequence with room for ``room`` tokens; None if there is no space."""
        if room > self.free:
            return None
        slot = StateSlot(version=version, scope=scope, start=0, room=room)
        self._slots.append(slot)
        return slot

    def grow(self, slot: SequenceSlot, room: int) -> bool:
        """Reserve ``room`` tokens in all; return False if there is no space."""
        if room - slot.room > self.free:
            return False
        slot.room = max(slot.room, room)
        return True

    def close(self, slot: SequenceSlot) -> None:
        """End a sequence."""
        self.drop(slot)

    def drop(self, slot: SequenceSlot) -> None:
        """Release a sequence's space."""
        self._slots.remove(slot)

    def forget(self, version: int) -> None:
        """Do nothing: a closed sequence leaves no state."""


class OwnCacheRunner:
    """Any causal model of `transformers`, one sequence at a time."""

    def __init__(self, model: Any, reading: Reading, *, why: str) -> None:
        """``why`` is the reason that it does not share passes with other sequences."""
        self.model = model
        self.reading = reading
        self.why = why
        parameters = inspect.signature(model.forward).parameters
        self._cache = next((name for name in CACHES if name in parameters), None)
        self._keeps = "logits_to_keep" in parameters
        self._beats = False

    def before_each_layer(self, beat: Callable[[], None]) -> None:
        """Call ``beat`` before each layer of a pass: reading a long prompt whole takes minutes on a slow machine."""
        if self._beats:
            return
        self._beats = True
        for layers in (part for part in self.model.modules() if isinstance(part, torch.nn.ModuleList)):
            for layer in layers:
                layer.register_forward_pre_hook(lambda *_: beat())

    def __call__(self, tokens: torch.Tensor, layout: Sequence[Span], keep: torch.Tensor) -> torch.Tensor:
        rows, at, keep_rows = [], 0, keep.tolist()
        for span in layout:
            span_rows = [row - at for row in keep_rows if at <= row < at + span.count]
            rows.append(self._logits(span.slot, tokens[at : at + span.count], span_rows))
            at += span.count
        return torch.cat(rows)

    def _logits(self, slot: SequenceSlot, tokens: torch.Tensor, keep: list[int]) -> torch.Tensor:
        """Return the logits `[K, vocabulary]` of these tokens of one sequence, and advance its state."""
        assert isinstance(slot, StateSlot)
        if self.reading == "again":
            tokens = torch.cat((torch.tensor(slot.tokens, dtype=tokens.dtype, device=tokens.device), tokens))
            keep = [row + len(slot) for row in keep]
        index = torch.tensor(keep, dtype=torch.long, device=tokens.device)
        limit = {"logits_to_keep": index} if self._keeps else {}
        output = self.model(input_ids=tokens[None], **self._state(slot), **limit)
        if self.reading != "again":
            slot.state = getattr(output, str(self._cache))
        logits: torch.Tensor = output.logits[0] if self._keeps else output.logits[0, index]
        return logits.float()

    def _state(self, slot: StateSlot) -> dict[str, Any]:
        """Return the cache arguments; the first pass passes no cache, so that the model creates the right kind."""
        if self.reading == "again":
            return {"use_cache": False}
        cache = {} if slot.state is None else {str(self._cache): slot.state}
        return {"use_cache": True, **cache}

    @torch.inference_mode()
    def state_bytes(self) -> tuple[int, int]:
        """Return the bytes per token and per sequence, measured on a short sequence."""
        slot = StateSlot(version=0, scope="", start=0, room=0)
        sizes = []
        for count in (_SHORT, 1):
            ids = torch.ones(count, dtype=torch.long, device=self.model.device)
            self._logits(slot, ids, [])
            slot.tokens.extend(ids.tolist())
            sizes.append(sum({id(part): part.nbytes for part in _tensors(slot.state)}.values()))
        token_bytes = max(sizes[1] - sizes[0], 0)
        return token_bytes, max(sizes[0] - token_bytes * _SHORT, 0)


_SHORT = 16


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield every tensor in a cache, whatever its class."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth > 6:
        return
    parts: Any = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for part in (*parts, *getattr(value, "__dict__", {}).values()):
        yield from _tensors(part, depth + 1)


_CHUNKS = ((0, 10), (10, 23), (23, 24))
_WHOLE = ((0, 22), (22, 23), (23, 24))
_READINGS: tuple[Reading, ...] = ("chunks", "whole", "again")


def model_runner_of(model: Any, *, like: ModelRunner | None = None) -> ModelRunner:
    """Return the runner for ``model``: like ``like``, or the fastest that matches the model's own pass.

    Raise `ModelRefused` if no runner computes the model correctly.
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
    """Describe a runner for people, with the reason if it does not share passes."""
    if isinstance(runner, OwnCacheRunner):
        read = {"chunks": "", "whole": ", prompts whole", "again": " and no cache at all"}[runner.reading]
        return f"plain transformers, one sequence at a time without a prefix cache{read}: {runner.why}"
    kind = "fused" if isinstance(runner, FusedRunner) else "transformers"
    return f"{kind} layers, batched, with a prefix cache"


def _shared(model: Any, plain: torch.Tensor) -> ModelRunner | str:
    """Return a runner whose passes sequences share, or the reason that none works."""
    why = own_state(model)
    if why is not None:
        return why
    for way in (FusedRunner, TransformersRunner):
        if way is FusedRunner and not FusedRunner.fits(model):
            continue
        runner = way(model)
        gap = _checked(model, plain, lambda candidate=runner: _read_shared(candidate, model))  # type: ignore[misc]
        if gap is None:
            return runner
        why = f"{gap} in a shared pass"
    return str(why)


def _own(model: Any, plain: torch.Tensor, *, why: str) -> ModelRunner:
    failures = []
    for reading in _READINGS:
        runner = OwnCacheRunner(model, reading, why=why)
        gap = _checked(model, plain, lambda candidate=runner: _read_alone(candidate, model))  # type: ignore[misc]
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
    """Return the log-probs after the probe, from the model's own pass over all of it."""
    tokens = torch.tensor([probe_ids(model)], device=model.device)
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits[0, -1].float()
    return logits.log_softmax(-1)


@torch.inference_mode()
def _checked(model: Any, plain: torch.Tensor, read: Callable[[], torch.Tensor]) -> str | None:
    """Return the fault in the logits that ``read`` returns after the probe, or None."""
    try:
        logits = read()
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        # every failure has one meaning: this runner does not run this model
        return str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    gap = float((logits.log_softmax(-1) - plain).abs().max())
    limit = 1e-2 if model.dtype == torch.float32 else 0.5
    return None if gap <= limit else f"its log-probs differ by {gap:.3g}"


class _WatchedLayout(Layout):
    """Records the windows that a model's layers request."""

    windows: set[int | None]

    def attend(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, *, scale: float, window: int | None = None
    ) -> torch.Tensor:
        self.windows.add(window)
        return super().attend(layer, query, kv, scale=scale, window=window)


def _read_shared(runner: ModelRunner, model: Any) -> torch.Tensor:
    """Read the probe in two chunks and a single token; raise `ValueError` if a window does not reach the attention."""
    kv_cache = kv_cache_for(model, rows=256)
    windows: set[int | None] = set()

    def layout(spans: Sequence[Span]) -> Layout:
        watched = _WatchedLayout(kv_cache, spans)
        watched.windows = windows
        return watched

    slot = kv_cache.open(0, (), len(PROBE))
    logits = _read(runner, model, slot, _CHUNKS, layout)
    if (size := window_of(model)) is not None and size not in windows:
        raise ValueError(f"its window of {size} tokens does not reach the attention")
    return logits


def _read_alone(runner: OwnCacheRunner, model: Any) -> torch.Tensor:
    """Read the probe as the runner would read it."""
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
