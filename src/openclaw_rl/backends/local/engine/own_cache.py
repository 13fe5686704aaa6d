"""Models that do not share a pass: `transformers`' own forward, with the cache that the model makes for itself.

Recurrent layers, short convolutions, attention sinks and the like keep a state that cannot be cut into rows of keys and
values. So each sequence holds the model's own cache, is computed by itself, and starts anew: there is no prefix cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from openclaw_rl.backends.local.engine.attention import Span
from openclaw_rl.backends.local.engine.kv_cache import SequenceSlot

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
