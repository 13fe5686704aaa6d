"""A policy and a trainer at a server of Tinker's protocol, with the settings of a small story."""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from defaults import trainer_args
from fakes.tinker import KEY, TinkerServer
from tiny import save_tiny

from openclaw_rl.backends.tinker.policy import TinkerPolicy
from openclaw_rl.backends.tinker.settings import TinkerPolicySettings, TinkerTrainerSettings
from openclaw_rl.backends.tinker.trainer import TinkerTrainer
from openclaw_rl.types import Version

ROOM = 2048
LEAKS = (
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
)
"""marks for tests in which the SDK leaves sockets open"""
thorough = pytest.mark.skipif("OPENCLAW_RL_TINKER_ALL" not in os.environ, reason="make test-tinker runs it")
"""for tests that only `make test-tinker` runs: the whole suite takes the first case of each kind"""
BASE = Version(number=0, parent=None, base="tiny")


def first(cases: Sequence[Any], count: int = 1) -> list[Any]:
    """The parameters of a test, of which the whole suite runs the first ``count`` and `make test-tinker` all."""
    rest = [each if isinstance(each, tuple) else (each,) for each in cases[count:]]
    return [*cases[:count], *(pytest.param(*each, marks=thorough) for each in rest)]


def tiny_folder(folder: Path) -> Path:
    """A tiny model with room for what a check of promises asks."""
    save_tiny(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": ROOM}))
    return folder


def access(server: TinkerServer, root: Path) -> dict[str, Any]:
    return {
        "model": server.model,
        "cache_dir": root,
        "chat_template": None,
        "run_dir": root,
        "cloud_key": KEY,
        "cloud_url": server.url,
        "cloud_tokenizer": None,
        "cloud_prices": {"prefill": 1.0, "sample": 2.0, "train": 4.0},
        "cloud_budget": None,
        "patience": 20.0,
    }


def policy_at(server: TinkerServer, root: Path, **change: Any) -> TinkerPolicy:
    given = {**access(server, root), "context": None, "tool_format": None}
    return TinkerPolicy(TinkerPolicySettings(**(given | change)))


def trainer_at(server: TinkerServer, root: Path, **change: Any) -> TinkerTrainer:
    """With the settings of `test_local_trainer.worker`, but for the KL that the service cannot give."""
    local = trainer_args(model=server.model, cache_dir=root, seed=7, lr=5e-4, gap_alarm=99.0, ess_alarm=0.0)
    names = set(TinkerTrainerSettings.__dataclass_fields__)
    given = {name: getattr(local, name) for name in local.__dataclass_fields__ if name in names}
    given |= {**access(server, root), "cloud_download": False}
    return TinkerTrainer(TinkerTrainerSettings(**(given | change)))


@pytest.fixture(autouse=True, scope="module")
def sdk_leaves_sockets_open() -> Iterator[None]:
    """Collected here, where nobody minds."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
