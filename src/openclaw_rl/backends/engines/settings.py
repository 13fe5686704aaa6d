"""Settings for a policy on an engine, and the values derived from them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from openclaw_rl.backends.engines.dialect import Guidance, LaunchPlan
from openclaw_rl.backends.engines.launched import free_port
from openclaw_rl.backends.hf.guidance import HeldCalls, HeldReply, JsonPart, Part, held_calls, held_reply
from openclaw_rl.backends.hf.prompts import ModelFiles
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Prompt, Sampling

SMALL: Final = 1_000_000_000
"""parameter count below which `auto` is float32, as in the trainer: rounding would make their log-probs differ"""
_CACHE_GIB: Final = 2


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings from `policy` under their own names. ``url`` None: a free port on this machine.

    ``launch`` None: the engine is started here if there is no ``url``. ``gpus`` are the engine's GPUs, empty on a CPU.
    ``run_dir`` contains its log and the folders of loaded adapters. Without ``lora``, versions are whole models.
    ``turns``: it sleeps while the trainer has the GPU. ``follow``: another process in the run may have started the
    engine already.
    """

    model: str
    cache_dir: Path
    device: str
    dtype: str
    context: int | None
    max_batch: int
    chat_template: str | None
    tool_format: str | None
    url: str | None
    launch: bool | None
    key: str | None
    engine_python: str | None
    engine_flags: tuple[str, ...]
    memory_share: float | None
    gpus: tuple[int, ...]
    lora: bool
    lora_rank: int
    turns: bool
    follow: bool
    run_dir: Path

    def __post_init__(self) -> None:
        if self.launch is False and self.url is None:
            raise ConfigError("policy.launch is off and there is no policy.url", remedy="set one of them")

    @property
    def launched(self) -> bool:
        """Return True if this process starts the engine."""
        return self.url is None if self.launch is None else self.launch

    @property
    def follows(self) -> bool:
        """Return True if another process's engine may be used.

        Versions must be adapters, since two processes cannot change one engine's weights.
        """
        return self.follow and self.launched and self.lora

    @property
    def plan_python(self) -> str:
        """Return the path to the Python that starts the engine."""
        return self.engine_python or sys.executable

    @cached_property
    def address(self) -> str:
        """Return the engine's URL."""
        return self.url or f"http://127.0.0.1:{free_port()}"

    @property
    def log(self) -> Path:
        """Return the path to the log of an engine started here."""
        return self.run_dir / "engine.log"

    @property
    def folder(self) -> Path:
        """Return the parent folder for this process's loaded adapters; another process may have its own engine."""
        return self.run_dir / "engine-adapters" / str(os.getpid())

    def plan(self, model: ModelFiles) -> LaunchPlan:
        """Return the parameters for starting the engine."""
        refuse_uneven(len(self.gpus), model.heads)
        cpu = not self.gpus and self.device in ("auto", "cpu")
        small = model.parameters < SMALL
        return LaunchPlan(
            python=self.plan_python,
            folder=model.folder,
            port=int(self.address.rpartition(":")[2].partition("/")[0]),
            dtype=("float32" if small else "bfloat16") if self.dtype == "auto" else self.dtype,
            context=self.context,
            max_batch=self.max_batch,
            lora_rank=self.lora_rank if self.lora else None,
            lora_targets=model.linear,
            gpus=self.gpus,
            memory=None if cpu else self.memory_share,
            cache_gib=_CACHE_GIB if cpu else None,
            sleeps=self.turns,
            flags=self.engine_flags,
        )


def refuse_uneven(gpus: int, heads: int | None) -> None:
    """Raise ConfigError if a model's attention heads cannot be divided evenly over an engine's GPUs."""
    if not gpus or not heads or heads % gpus == 0:
        return
    fit = max(count for count in range(1, gpus) if heads % count == 0)
    raise ConfigError(
        f"gpus.rollout: the model's {heads} attention heads cannot be divided over {gpus} GPUs",
        remedy=f"ROLLOUT_GPUS={fit} fits",
    )


# The translation from a request's format to an engine's guided decoding. Pure functions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """The constraint on a reply: from its first token, or from the position at which ``trigger`` is written."""

    guidance: Guidance
    trigger: str | None = None

    def held(self, text: str) -> bool:
        """Return True if the constraint was active in a reply with this text; without it, sampling is unchanged."""
        return self.trigger is None or self.trigger in text


def guide_of(prompt: Prompt, sampling: Sampling, *, tool_format: str) -> Guide | None:
    """Return the schema for a reply, or a structural tag; None if the reply is unconstrained."""
    constraint = held_reply(prompt, sampling, tool_format=tool_format)
    if constraint:
        return Guide(guidance=_whole(constraint))
    calls = held_calls(prompt, sampling, tool_format=tool_format)
    return None if calls is None else Guide(guidance=_tag(_triggered(calls)), trigger=calls.trigger)


def _whole(held: HeldReply) -> Guidance:
    match held:
        case ((JsonPart(schema=schema),),):
            return "json", dict(schema)
    return _tag(_either([_sequence(parts) for parts in held]))


def _tag(form: dict[str, Any]) -> Guidance:
    return "structural_tag", {"type": "structural_tag", "format": form}


def _triggered(calls: HeldCalls) -> dict[str, Any]:
    """Return a format with free text in which a span that begins as a call must continue as one."""
    tags = []
    for before, arguments, end in calls.ways:
        assert isinstance(before, str)
        begin = calls.trigger + _spaced(before)
        tags.append({"type": "tag", "begin": begin, "content": _element(arguments), "end": end})
    return {"type": "triggered_tags", "triggers": [calls.trigger], "tags": tags}


def _sequence(parts: tuple[Part, ...]) -> dict[str, Any]:
    elements = [_element(part) for part in parts]
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _element(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "const_string", "value": _spaced(part)}
    return {"type": "json_schema", "json_schema": dict(part.schema)}


def _spaced(text: str) -> str:
    """Append a space after a final colon: models write one there, and a schema does not allow it before its value."""
    return f"{text} " if text.endswith(":") else text


def _either(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
