"""What a folder of weights holds, read from its headers alone: whether it is whole, how large, and which."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.backends.hf.folder_checks import LARGEST, check_sizes, refuse_links, shard_names, table
from openclaw_rl.errors import ModelRefused

_BLOCK_WEIGHT = re.compile(r"\.\d+\..*?(\w+)\.weight$")
_NUMBER = re.compile(r"\.(\d{1,6})\.")
EDGE = 1 << 16
"""bytes at both ends of a file that go into its identity: fine-tunes of one model share names, sizes and headers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """Parameters in all files, and a short hash that tells one set of weights from another."""

    parameters: int
    identity: str
    linear: tuple[str, ...] = ()
    """the names of the linear layers inside the blocks, such as ``q_proj``; the head is none of them"""


def inspect(folder: Path) -> WeightFiles:
    """Read the headers in ``folder``; raises ModelRefused naming what is missing or cut short."""
    if not (folder / "config.json").is_file():
        raise ModelRefused(f"{folder} has no config.json", remedy="is it the folder of a model? download it again")
    refuse_links(folder)
    digest = hashlib.sha256()
    parameters = blocks = 0
    linear: set[str] = set()
    for file in _files(folder):
        header = _header(file)
        parameters += _parameters(header)
        linear.update(_linear(header))
        blocks += _blocks(header)
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        digest.update(_edges(file))
    check_sizes(folder / "config.json", parameters=parameters, blocks=blocks)
    return WeightFiles(parameters=parameters, identity=digest.hexdigest()[:10], linear=tuple(sorted(linear)))


def _linear(header: dict[str, Any]) -> Iterator[str]:
    """Names of two-dimensional weights inside of numbered blocks."""
    for name, entry in header.items():
        found = _BLOCK_WEIGHT.search(name)
        if found and len(entry["shape"]) == 2:
            yield found[1]


def _blocks(header: Mapping[str, Any]) -> int:
    """How many numbers of blocks stand in the names of these tensors."""
    return len({number for name in header for number in _NUMBER.findall(name)})


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = shard_names(index)
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelRefused(
                f"{folder} is incomplete: {len(missing)} of {len(names)} files are missing ({', '.join(missing[:3])})",
                remedy="download the model again",
            )
        return [folder / name for name in names]
    if not (folder / "model.safetensors").is_file():
        raise ModelRefused(f"{folder} has no model.safetensors", remedy="convert the weights to safetensors first")
    return [folder / "model.safetensors"]


def _header(file: Path) -> dict[str, Any]:
    """The table of tensors; raises ModelRefused when the file is shorter than the table says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        text = stream.read(length) if length < min(size, LARGEST) else b""
    header = table(text, file)
    try:
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
        _parameters(header)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ModelRefused(f"{file} has no readable header", remedy="download the model again") from error
    if size != expected:
        raise ModelRefused(f"{file} is cut short: {size:,} of {expected:,} bytes", remedy="download the model again")
    return header


def _parameters(header: Mapping[str, Any]) -> int:
    """Numbers in these tensors. MXFP4 keeps two of them in a byte of ``*_blocks``; ``*_scales`` beside it are none."""
    found = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind = name.rpartition("_")[2] if entry["dtype"] == "U8" else None
        found += math.prod(entry["shape"]) * {"blocks": 2, "scales": 0}.get(kind or "", 1)
    return found


def _edges(file: Path) -> bytes:
    with file.open("rb") as stream:
        first = stream.read(EDGE)
        stream.seek(max(file.stat().st_size - EDGE, 0))
        return first + stream.read(EDGE)
