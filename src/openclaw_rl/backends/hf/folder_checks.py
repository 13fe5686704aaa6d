"""Checks of a model's folder, which is untrusted data: it may name no outside file, and its sizes must be true."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from openclaw_rl.errors import ModelRefused, OpenClawError

LARGEST: Final = 100_000_000
"""largest JSON table in bytes: safetensors' limit for a header"""
_PACKED: Final = 16
"""parameters that one stored number may contain: eight of four bits, doubled for safety"""
_FEW: Final = 256
"""layers that are built quickly; some models share one block's weights among all layers"""
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_WIDTHS: Final = ("hidden_size", "n_embd", "d_model")
_LENGTHS: Final = ("vocab_size", "intermediate_size", "n_inner", "moe_intermediate_size", "hidden_size")
"""sizes that each form a matrix with the width"""
_AGAIN: Final = "download the model again, from a trusted source"


def read_table(file: Path) -> dict[str, Any]:
    """Read the JSON object in a file; raise `ModelRefused` if it is not an object, or too large for a model's."""
    if file.stat().st_size > LARGEST:
        raise ModelRefused(f"{file} is larger than {LARGEST:,} bytes", remedy=_AGAIN)
    return table(file.read_bytes(), file)


def table(text: bytes, file: Path) -> dict[str, Any]:
    """Parse a file's contents as a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{file} has no readable header or table", remedy=_AGAIN) from error
    if not isinstance(value, dict):
        raise ModelRefused(f"{file} holds no JSON object", remedy=_AGAIN)
    return value


def refuse_links(folder: Path) -> None:
    """Raise `ModelRefused` for a link out of the folder, or out of the model's folder in the hub's cache."""
    home = folder.resolve()
    inside = home.parents[1] if home.parent.name == "snapshots" else home
    for file in folder.iterdir():
        if file.is_symlink() and not file.resolve().is_relative_to(inside):
            raise ModelRefused(
                f"{file} is a link to {file.resolve()}, out of the model's folder",
                remedy="copy the file into the folder if it belongs to the model",
            )


def shard_names(index: Path) -> list[str]:
    """Return the files in a weights index, each a safetensors file beside it."""
    listed = read_table(index).get("weight_map")
    names = set(listed.values()) if isinstance(listed, dict) and all(map(_is_text, listed.values())) else set()
    if not names:
        raise ModelRefused(f"{index} names no files (weight_map)", remedy=_AGAIN)
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelRefused(f"{index} names {name!r}, which is no safetensors file beside it", remedy=_AGAIN)
    return sorted(names)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def check_sizes(file: Path, *, parameters: int, blocks: int) -> None:
    """Raise `ModelRefused` if a config.json claims more than its weights contain.

    A model is built from its config before any weight is read: a billion layers would first take all memory.
    """
    for config in _tables(read_table(file)):
        for name in _LAYERS:
            if _size(config, name) > max(4 * blocks, _FEW):
                raise _untrue(file, name, config[name], f"the weights hold {blocks} blocks")
        width = max((_size(config, name) for name in _WIDTHS), default=0)
        for name in _LENGTHS:
            if width * _size(config, name) > _PACKED * parameters:
                raise _untrue(file, name, config[name], f"the weights hold {parameters:,} parameters in all")


def _tables(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a config and its nested configs, such as a vision model's text config."""
    yield config
    yield from (part for part in config.values() if isinstance(part, dict))


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0


def _untrue(file: Path, name: str, value: Any, but: str) -> ModelRefused:
    return ModelRefused(f"{file} says {name} = {str(value)[:40]}, but {but}", remedy=_AGAIN)


@contextmanager
def loading(what: object) -> Iterator[None]:
    """Convert a library's error while it reads a model's files into `ModelRefused` with its message."""
    try:
        yield
    except (OpenClawError, ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:  # the files are untrusted, so a library may fail with any error
        reason = " ".join(str(error).split())[:300]
        if "trust_remote_code" in str(error):
            raise ModelRefused(
                f"{what} brings Python code of its own, which is never run",
                remedy="choose a model whose architecture transformers has",
            ) from error
        raise ModelRefused(f"{what} cannot be loaded: {type(error).__name__}: {reason}", remedy=_AGAIN) from error
