"""What a model's folder may hold. A folder is data from a stranger: it names no other file, and its sizes are true."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from openclaw_rl.errors import ModelRefused, OpenClawError

LARGEST: Final = 100_000_000
"""bytes of a table in JSON: as many as safetensors allows a header"""
_PACKED: Final = 16
"""parameters that one number of a file may hold: eight of four bits, and twice that to be sure"""
_FEW: Final = 256
"""layers that are built in no time; some models use the weights of one block for all of theirs"""
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_WIDTHS: Final = ("hidden_size", "n_embd", "d_model")
_LENGTHS: Final = ("vocab_size", "intermediate_size", "n_inner", "moe_intermediate_size", "hidden_size")
"""sizes of which each makes a matrix with the width"""
_AGAIN: Final = "download the model again, from where you trust it"


def read_table(file: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ModelRefused where it is none, or too large to be one of a model."""
    if file.stat().st_size > LARGEST:
        raise ModelRefused(f"{file} is larger than {LARGEST:,} bytes", remedy=_AGAIN)
    return table(file.read_bytes(), file)


def table(text: bytes, file: Path) -> dict[str, Any]:
    """A JSON object that was read from a file."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{file} has no readable header or table", remedy=_AGAIN) from error
    if not isinstance(found, dict):
        raise ModelRefused(f"{file} holds no JSON object", remedy=_AGAIN)
    return found


def refuse_links(folder: Path) -> None:
    """Raise ModelRefused for a link that leads out of the folder, or out of its model's folder in the hub's cache."""
    home = folder.resolve()
    inside = home.parents[1] if home.parent.name == "snapshots" else home
    for file in folder.iterdir():
        if file.is_symlink() and not file.resolve().is_relative_to(inside):
            raise ModelRefused(
                f"{file} is a link to {file.resolve()}, out of the model's folder",
                remedy="copy the file into the folder if it belongs to the model",
            )


def shard_names(index: Path) -> list[str]:
    """The files that an index of weights names, each a file of safetensors beside it."""
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
    """Raise ModelRefused where a config.json claims more than the weights beside it hold.

    A model is built as its config says before any weight is read: a billion layers would take all memory first.
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
    """A config and those inside it, such as the one of the text of a model that also sees."""
    yield config
    yield from (part for part in config.values() if isinstance(part, dict))


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0


def _untrue(file: Path, name: str, value: Any, but: str) -> ModelRefused:
    return ModelRefused(f"{file} says {name} = {str(value)[:40]}, but {but}", remedy=_AGAIN)


@contextmanager
def loading(what: object) -> Iterator[None]:
    """Whatever a library raises while it reads a model's files, as ModelRefused with its words."""
    try:
        yield
    except (OpenClawError, ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:  # the files are anybody's, and so is what a reader of them fails with
        said = " ".join(str(error).split())[:300]
        if "trust_remote_code" in str(error):
            raise ModelRefused(
                f"{what} brings Python code of its own, which is never run",
                remedy="choose a model whose architecture transformers has",
            ) from error
        raise ModelRefused(f"{what} cannot be loaded: {type(error).__name__}: {said}", remedy=_AGAIN) from error
