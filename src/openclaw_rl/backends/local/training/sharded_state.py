"""The trainer's state on disk where it is sharded: each rank writes its rows, and any number of ranks reads them again.

What is as large as the weights (moments, averages, master copy) goes, by torch.distributed.checkpoint, into a folder
beside ``trainer.pt``, which keeps the rest. A trainer that is alone keeps all in ``trainer.pt``, and reads both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.local.training.model import PolicyModel
from openclaw_rl.backends.local.training.ranks import Ranks
from openclaw_rl.backends.local.training.shards import local, on_all_ranks, rows_of

FOLDER = "trainer"
_WEIGHTS = ("ema", "master", "average")

Row = tuple[str, str, Tensor]
"""what it is, which parameter it is kept for, and this rank's rows"""


def to_cpu(value: Any) -> Any:
    """The same with every tensor in it in main memory."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: to_cpu(item) for key, item in value.items()}
    return [to_cpu(item) for item in value] if isinstance(value, list) else value


def write_sharded(directory: Path, state: Mapping[str, Any], policy: PolicyModel) -> dict[str, Any]:
    """Write this rank's rows of ``state`` into ``directory``; what is left of it, for the first rank to write."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = {
        f"{what}/{name}": on_all_ranks(policy.parameters[name], rows.detach(), policy.ranks)
        for what, name, rows in _rows(state, policy)
    }
    save(tensors, storage_writer=FileSystemWriter(directory / FOLDER), no_dist=policy.ranks.mesh is None)
    optimizer = dict(state["optimizer"] or {"state": {}})
    optimizer["state"] = {
        at: {key: value for key, value in kept.items() if not _large(value)} for at, kept in optimizer["state"].items()
    }
    rest = {name: value for name, value in state.items() if name not in _WEIGHTS}
    return dict(to_cpu({**rest, "optimizer": optimizer if state["optimizer"] else None}))


def _rows(state: Mapping[str, Any], policy: PolicyModel) -> Iterator[Row]:
    names = list(policy.parameters)
    for what in _WEIGHTS:
        for name, rows in (state[what] or {}).items():
            yield what, name, rows
    for at, kept in (state["optimizer"] or {"state": {}})["state"].items():
        for key, value in kept.items():
            if _large(value):
                yield f"optimizer.{key}", names[at], value


def _large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def read_sharded(directory: Path, kept: dict[str, Any], policy: PolicyModel) -> dict[str, Any]:
    """``kept``, which ``trainer.pt`` holds, with this rank's rows of all that is large."""
    if not (directory / FOLDER).is_dir():
        return _own_rows(kept, policy)
    names = {name: at for at, name in enumerate(policy.parameters)}
    state: dict[str, Any] = {**dict.fromkeys(_WEIGHTS), **kept}
    for key, rows in _load(directory / FOLDER, policy).items():
        what, _, name = key.partition("/")
        if what in _WEIGHTS:
            state[what] = {**(state[what] or {}), name: rows}
        else:
            state["optimizer"]["state"].setdefault(names[name], {})[what.removeprefix("optimizer.")] = rows
    return state


def _load(folder: Path, policy: PolicyModel) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader, ranks = FileSystemReader(folder), policy.ranks
    wanted = {
        key: _room(policy.parameters[key.partition("/")[2]], found, ranks)
        for key, found in reader.read_metadata().state_dict_metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a single process is told that it is one, though it said so
        load(wanted, storage_reader=reader, no_dist=ranks.mesh is None)
    return {key: local(value) for key, value in wanted.items()}


def _room(parameter: Tensor, found: Any, ranks: Ranks) -> Tensor:
    rows = torch.empty(local(parameter).shape, dtype=found.properties.dtype)
    return on_all_ranks(parameter, rows, ranks)


def _own_rows(kept: dict[str, Any], policy: PolicyModel) -> dict[str, Any]:
    """From whole tensors, which a trainer that was alone has written."""
    if policy.ranks.mesh is None:
        return kept
    parameters = list(policy.parameters.values())
    weights = {what: policy.rows(kept[what]) if kept[what] else kept[what] for what in _WEIGHTS}
    optimizer = kept["optimizer"]
    if optimizer is not None:
        state = {
            at: {key: rows_of(parameters[at], v, policy.ranks) if _large(v) else v for key, v in one.items()}
            for at, one in optimizer["state"].items()
        }
        optimizer = {**optimizer, "state": state}
    return {**kept, **weights, "optimizer": optimizer}
