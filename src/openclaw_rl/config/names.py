"""Setting names: dotted paths, the flags and environment names in common use, and the accepted values.

`SETTINGS` is derived from the tree in `settings`; `FLAGS` and `ENVIRONMENT` are tables that refer to it. This module
reads neither the environment nor a file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from openclaw_rl.config.settings import Config
from openclaw_rl.config.values import Section

Kind = Literal["switch", "whole", "number", "choice", "text", "path", "secret", "list", "table", "gpus"]

_KINDS: Final[Mapping[Any, Kind]] = {
    bool: "switch",
    int: "whole",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret",
    tuple: "list",
    Literal: "choice",
}
_WORDS: Final[Mapping[Kind, str]] = {
    "switch": "true or false",
    "whole": "a whole number",
    "number": "a number",
    "choice": "one of",
    "text": "text",
    "path": "a path",
    "secret": "text",
    "list": "a list of text",
    "table": "a table",
    "gpus": "a count or a list of device numbers",
}


@dataclass(frozen=True)
class Setting:
    """One setting: its place in the tree and its declaration."""

    path: str
    section: type[Section]
    name: str
    field: FieldInfo

    @cached_property
    def annotation(self) -> Any:
        """Return the type without None and without validators; several types stay a tuple."""
        parts = [part for part in get_args(self.field.annotation) if part is not NoneType]
        optional = NoneType in get_args(self.field.annotation)
        bare = [_bare(part) for part in (parts if optional else [self.field.annotation])]
        return bare[0] if len(bare) == 1 else tuple(bare)

    @cached_property
    def kind(self) -> Kind:
        annotation = self.annotation
        if isinstance(annotation, tuple):
            return "gpus"
        return _KINDS.get(get_origin(annotation) or annotation, "table")

    @property
    def description(self) -> str:
        return self.field.description or ""

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True, validated_data={})

    @property
    def optional(self) -> bool:
        return NoneType in get_args(self.field.annotation)

    @property
    def holds_paths(self) -> bool:
        """Return True if the value is a path or a list of paths."""
        return self.kind == "path" or (self.kind == "list" and _bare(get_args(self.annotation)[0]) is Path)

    @property
    def hidden(self) -> bool:
        """Return True if a refused value may be a secret, which no message may show."""
        return self.kind == "secret" or self.name == "api_key_env"

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the accepted words for a choice or a list of choices; else an empty tuple."""
        if self.kind == "choice":
            return get_args(self.annotation)
        inner = get_args(self.annotation)[0] if self.kind == "list" else None
        return get_args(inner) if get_origin(inner) is Literal else ()

    @property
    def expects(self) -> str:
        """Return a description of the accepted values with their range: ``a whole number from 0 to 65535``."""
        words = _WORDS[self.kind]
        if self.choices:
            listed = ", ".join(self.choices)
            words = f"one of {listed}" if self.kind == "choice" else f"a list of any of {listed}"
        limits = _limits(self.field)
        return f"{words} {limits}" if limits else words


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _limits(field: FieldInfo) -> str:
    bounds = {name: getattr(rule, name) for rule in field.metadata for name in _LIMITS if hasattr(rule, name)}
    if {"ge", "le"} <= bounds.keys():
        return f"from {bounds['ge']} to {bounds['le']}"
    return " and ".join(words.format(bounds[name]) for name, words in _LIMITS.items() if name in bounds)


_LIMITS: Final[Mapping[str, str]] = {
    "ge": "of at least {}",
    "gt": "above {}",
    "le": "of at most {}",
    "lt": "below {}",
    "min_length": "of at least {} character",
}


def _walk(section: type[Section], prefix: str) -> Iterator[tuple[str, Setting | type[Section]]]:
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield prefix + name, inner
            yield from _walk(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, Setting(prefix + name, section, name, field)


_TREE: Final = dict(_walk(Config, ""))
SETTINGS: Final[Mapping[str, Setting]] = {path: node for path, node in _TREE.items() if isinstance(node, Setting)}
SECTIONS: Final[Mapping[str, type[Section]]] = {p: node for p, node in _TREE.items() if not isinstance(node, Setting)}


FIRST: Final = (
    "policy.model",
    "run.dir",
    "serve.host",
    "serve.port",
    "serve.api_key",
    "judge.kind",
    "judge.llm.base_url",
    "train.method",
    "train.optim.lr",
    "gate.mode",
)
"""the ten settings that users set first; they are listed first"""


@dataclass(frozen=True)
class Flag:
    """A command line flag and its setting."""

    name: str
    path: str

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.path]

    @property
    def negative(self) -> str | None:
        """Return the flag that switches it off; None for flags with a value."""
        return f"--no-{self.name.removeprefix('--')}" if self.setting.kind == "switch" else None

    @property
    def type(self) -> type[bool] | type[int] | type[float] | type[str]:
        """Return the type for its value on a command line; a list is text with commas."""
        return {"switch": bool, "whole": int, "number": float}.get(self.setting.kind, str)

    @property
    def help(self) -> str:
        return f"{self.setting.description} ({self.path})"


def _flags(table: Mapping[str, str]) -> Mapping[str, Flag]:
    return {name: Flag(name, path) for name, path in table.items()}


FLAGS: Final[Mapping[str, Flag]] = _flags(
    {
        "--host": "serve.host",
        "--port": "serve.port",
        "--enable-rl-intercept": "serve.intercept",
        "--run-dir": "run.dir",
        "--rl-buffer-dir": "run.dir",
        "--model": "policy.model",
        "--model-path": "policy.model",
        "--backend": "policy.backend",
        "--engine-url": "policy.url",
        "--engine-python": "policy.engine_python",
        "--engine-flags": "policy.engine_flags",
        "--method": "train.method",
        "--majority-vote-n": "judge.llm.votes",
        "--majority-vote-threshold": "judge.llm.threshold",
        "--num-judge-workers": "judge.workers",
        "--eps-clip": "train.loss.eps_low",
        "--eps-clip-high": "train.loss.eps_high",
        "--use-lora": "train.lora.enabled",
        "--lora-rank": "train.lora.rank",
        "--lora-alpha": "train.lora.alpha",
        "--lora-dropout": "train.lora.dropout",
        "--lr": "train.optim.lr",
        "--weight-decay": "train.optim.weight_decay",
        "--adam-beta1": "train.optim.adam_beta1",
        "--adam-beta2": "train.optim.adam_beta2",
        "--rollout-batch-size": "train.batch_size",
        "--num-rollouts-per-prompt": "train.num_rollouts_per_prompt",
        "--offload-optimizer-state": "train.local.offload_optimizer",
        "--save-interval": "train.save_interval",
        "--save-dir": "train.save_dir",
        "--resume-from-checkpoint": "train.resume",
        "--custom-loss-function-path": "train.loss.custom",
        "--rollout-function-path": "train.rollout",
        "--custom-generate-function-path": "policy.generate",
        "--custom-rm-path": "judge.custom",
        "--env": "env.type",
        "--gate": "gate.mode",
        "--eval-tasks": "eval.tasks",
    }
)

ALIASES: Final[Mapping[str, str]] = {"--rl-buffer-dir": "--run-dir", "--model-path": "--model"}
"""Flags that are another name for a flag: a command accepts both."""

ENVIRONMENT: Final[Mapping[str, str]] = {
    "MODEL_PATH": "policy.model",
    "BASE_MODEL_PATH": "policy.model",
    "HF_CKPT": "policy.model",
    "JUDGE_MODEL_PATH": "judge.models.hints",
    "PRM_MODEL_PATH": "judge.models.score",
    "PRM_TEACHER_HF": "train.loss.teacher_model",
    "PRM_TEACHER_LOAD": "train.loss.teacher_model",
    "CKPT_SAVE_DIR": "train.save_dir",
    "SAVE_CKPT": "train.save_dir",
    "RESUME_CKPT": "train.resume",
    "DATA_PATH": "train.data",
    "OPENCLAW_PORT": "serve.port",
    "OPENCLAW_HOST": "serve.host",
    "OPENCLAW_API_KEY": "serve.api_key",
    "MAJORITY_VOTE_N": "judge.llm.votes",
    "PRM_M": "judge.llm.votes",
    "MAJORITY_VOTE_THRESHOLD": "judge.llm.threshold",
    "OPENCLAW_TOPK_W_RL": "train.loss.w_rl",
    "OPENCLAW_TOPK_W_OPD": "train.loss.w_opd",
    "OPENCLAW_TOPK_K": "train.loss.k",
    "OPENCLAW_TOPK_MAX_CAND": "judge.max_hints",
    "OPENCLAW_TOPK_HINT_SELECTION": "train.loss.hint_selection",
    "OPENCLAW_TOPK_SUBSET_MODE": "train.loss.subset",
    "OPENCLAW_TOPK_ADV_DIFF_CLIP": "train.loss.clip",
    "OPENCLAW_RECORD_ENABLED": "run.record",
    "TRAIN_GPUS": "gpus.train",
    "ROLLOUT_GPUS": "gpus.rollout",
    "NUM_GPUS": "gpus.total",
    "ACTOR_GPUS": "gpus.train",
    "PRM_GPUS": "gpus.judge",
    "PRM_TEACHER_GPUS": "gpus.teacher",
    "TINKER_API_KEY": "cloud.tinker_api_key",
    "TINKER_ENDPOINT": "cloud.tinker_endpoint",
    "TINKER_BASE_URL": "cloud.tinker_endpoint",
    "ENV_TYPE": "env.type",
    "MAX_STEPS": "env.max_steps",
    "PARALLEL_ENVS": "env.parallel",
    "SCREENSHOT_BACKEND": "env.screenshot_backend",
    "TOOLS_CONFIG": "env.tools_config",
    "SWE_BENCH_PATH": "env.swe_bench_path",
}
"""Known environment names. If two names select one setting, the first listed has priority."""

FAMILIES: Final = ("OPENCLAW_TOPK_", "OPENCLAW_COMBINE_", "MAJORITY_VOTE_", "PRM_")
"""Prefixes used by known environment names alone: another name with such a prefix is misspelled."""

GROUPS: Final = ("CKPT_ARGS", "ROLLOUT_ARGS", "OPTIMIZER_ARGS", "LORA_ARGS")
"""Known environment names that hold several flags in shell syntax; they rank below the names above."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that was probably meant.

    A name with the same last part has priority, one in `FIRST` if ``name`` is a last part alone; else the closest in
    spelling.
    """
    candidates = list(known)
    section, _, leaf = name.rpartition(".")
    same = [candidate for candidate in candidates if candidate.rpartition(".")[2] == leaf]
    first = [] if section else [candidate for candidate in same if candidate in FIRST]
    alike = first or same or candidates
    return difflib.get_close_matches(name, alike, n=1, cutoff=0.0)[0]


def unknown(name: str, known: Iterable[str]) -> str:
    """``'serv.port' is not known; the nearest known name is 'serve.port'``"""
    return f"{name!r} is not known; the nearest known name is {nearest(name, known)!r}"
