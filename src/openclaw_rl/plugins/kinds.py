"""The kinds of plugin, the port of each, and the names that a file of one is looked through for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from openclaw_rl import ports

Kind = Literal["policy", "trainer", "judge", "env", "rollout", "generate", "loss"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BUILT: tuple[Kind, ...] = ("policy", "trainer", "judge", "env")

PORTS: Mapping[Kind, type] = {
    "policy": ports.Policy,
    "trainer": ports.Trainer,
    "judge": ports.Judge,
    "env": ports.Env,
    "rollout": ports.Rollout,
    "generate": ports.Generate,
    "loss": ports.Loss,
}

PUBLISHED: Mapping[Kind, tuple[str, ...]] = {
    "policy": ("Policy",),
    "trainer": ("Trainer",),
    "judge": ("score", "get_reward_model", "Judge"),
    "env": ("Env", "make_env"),
    "rollout": ("rollout", "generate_rollout"),
    "generate": ("generate", "custom_generate"),
    "loss": ("loss", "compute_loss"),
}
"""what a bare file may call its plugin: ours and those that files of the field have"""
