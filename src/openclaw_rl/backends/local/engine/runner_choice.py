"""Which model runner a model gets: the fastest whose log-probs are those of the model's own pass, tried at start.

A model that shares passes is run by the fused pass or by `transformers`' layers over the engine's KV cache. One whose
past is more than keys and values, or that the probe finds wrong there, is run by `transformers` alone.
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

# Models that do not share a pass: `transformers`' own forward, with the cache that the model makes for itself.
#
# Recurrent layers, short convolutions, attention sinks and the like keep a state that cannot be cut into rows of keys
# and values. So each sequence holds the model's own cache, is computed by itself, and starts anew: there is no prefix
# cache.

Reading = Literal["chunks", "whole", "again"]
"""how a sequence is read: in chunks; its prompt whole and then token by token; all of it again for each token"""
CACHES = ("past_key_values", "cache_params")
"""what models call their cache, as an argument and as a result"""


@dataclass(eq=False, slots=True)
class StateSlot(SequenceSlot):
    """The computed tokens of one sequence and the model's own cache of them."""

    state: Any = None


class StateCache:
    """As many sequences as ``rows`` tokens allow, each with a state of its own; nothing is kept for later ones."""

    reuses = False

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._slots: list[SequenceSlot] = []

    @property
    def free(self) -> int:
        """Tokens that nobody has taken."""
        return self.rows - self.held

    @property
    def held(self) -> int:
        """Tokens that sequences have taken."""
        return sum(slot.room for slot in self._slots)

    def match(self, version: int, tokens: Sequence[int], *, scope: str = "") -> tuple[SequenceSlot | None, int]:
        """Nothing: a state holds all of its sequence or none."""
        return None, 0

    def open(self, version: int, tokens: Sequence[int], room: int, *, scope: str = "") -> SequenceSlot | None:
        """A new sequence with room for so many tokens; None when there is no place."""
        if room > self.free:
            return None
        slot = StateSlot(version=version, scope=scope, start=0, room=room)
        self._slots.append(slot)
        return slot

    def grow(self, slot: SequenceSlot, room: int) -> bool:
        """Take place for ``room`` tokens in all; False when there is none."""
        if room - slot.room > self.free:
            return False
        slot.room = max(slot.room, room)
        return True

    def close(self, slot: SequenceSlot) -> None:
        """The sequence is over."""
        self.drop(slot)

    def drop(self, slot: SequenceSlot) -> None:
        """Give its place back."""
        self._slots.remove(slot)

    def forget(self, version: int) -> None:
        """Nothing of a version stays behind its sequences."""


class OwnCacheRunner:
    """Any causal model of `transformers`, one sequence after another."""

    def __init__(self, model: Any, reading: Reading, *, why: str) -> None:
        """``why`` it does not share passes with other sequences."""
        self.model = model
        self.reading = reading
        self.why = why
        wanted = inspect.signature(model.forward).parameters
        self._cache = next((name for name in CACHES if name in wanted), None)
        self._keeps = "logits_to_keep" in wanted
        self._beats = False

    def before_each_layer(self, beat: Callable[[], None]) -> None:
        """Call ``beat`` before each layer of a pass: to read a long prompt whole takes minutes on a slow machine."""
        if self._beats:
            return
        self._beats = True
        for layers in (part for part in self.model.modules() if isinstance(part, torch.nn.ModuleList)):
            for layer in layers:
                layer.register_forward_pre_hook(lambda *_: beat())

    def __call__(self, tokens: torch.Tensor, layout: Sequence[Span], keep: torch.Tensor) -> torch.Tensor:
        rows, at, kept = [], 0, keep.tolist()
        for span in layout:
            own = [row - at for row in kept if at <= row < at + span.count]
            rows.append(self._logits(span.slot, tokens[at : at + span.count], own))
            at += span.count
        return torch.cat(rows)

    def _logits(self, slot: SequenceSlot, tokens: torch.Tensor, keep: list[int]) -> torch.Tensor:
        """Logits `[K, vocabulary]` of these tokens of one sequence, whose state goes on."""
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
        """The first pass of a sequence gets no cache: the model makes the kind that it needs."""
        if self.reading == "again":
            return {"use_cache": False}
        known = {} if slot.state is None else {str(self._cache): slot.state}
        return {"use_cache": True, **known}

    @torch.inference_mode()
    def state_bytes(self) -> tuple[int, int]:
        """Bytes that a sequence takes for each of its tokens, and for itself, as measured on a short one."""
        slot = StateSlot(version=0, scope="", start=0, room=0)
        sizes = []
        for count in (_SHORT, 1):
            ids = torch.ones(count, dtype=torch.long, device=self.model.device)
            self._logits(slot, ids, [])
            slot.tokens.extend(ids.tolist())
            sizes.append(sum({id(part): part.nbytes for part in _tensors(slot.state)}.values()))
        each = max(sizes[1] - sizes[0], 0)
        return each, max(sizes[0] - each * _SHORT, 0)


_SHORT = 16


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor that a cache holds, whatever its class."""
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
