"""From a name to a model's folder: the embedded one, a Hugging Face id, a folder, a GGUF file. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.backends.hf.embedded import embedded_file
from openclaw_rl.backends.hf.folder_checks import LARGEST, check_sizes, refuse_links, shard_names, table
from openclaw_rl.errors import ModelRefused

# GGUF files, converted once to a folder of safetensors: quantised layouts are slow and cannot be trained.


def gguf_folder(file: Path, *, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the folder converted from ``file``; the first call creates it atomically."""
    with file.open("rb") as stream:
        digest = hashlib.sha256(stream.read(1 << 20) + str(file.stat().st_size).encode()).hexdigest()[:10]
    target = cache_dir / "models" / f"{file.stem}-{digest}"
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    progress(f"converting {file.name} to safetensors, once ({file.stat().st_size / 1e6:,.0f} MB)")
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        _convert(file, fresh, progress)
        _settle(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    progress(f"converted: {target.name}")
    return target


def _convert(file: Path, target: Path, progress: Callable[[str], None]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        progress("reading the tokenizer (1 of 3)")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        progress("reading the weights (2 of 3)")
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
    except (ValueError, OSError, KeyError, NotImplementedError, struct.error) as error:  # from its GGUF readers
        raise ModelRefused(
            f"{file} cannot be converted: {error}",
            remedy="give the original model by its Hugging Face id or folder instead",
        ) from error
    progress("writing safetensors (3 of 3)")
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _settle(fresh: Path, target: Path) -> None:
    """Move the finished folder into place; if another process was first, its folder is equivalent."""
    try:
        fresh.rename(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise


# Facts about a weights folder, from its headers alone: completeness, size and identity.

_BLOCK_WEIGHT = re.compile(r"\.\d+\..*?(\w+)\.weight$")
_NUMBER = re.compile(r"\.(\d{1,6})\.")
EDGE = 1 << 16
"""bytes at both ends of a file that enter its identity: fine-tunes share names, sizes and headers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """Total parameters, and a short hash that identifies the weights."""

    parameters: int
    identity: str
    linear: tuple[str, ...] = ()
    """linear layers' names inside the blocks, such as ``q_proj``; without the head"""


def inspect(folder: Path) -> WeightFiles:
    """Read the headers in ``folder``; raise `ModelRefused` naming a missing or truncated file."""
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
    """Yield the two-dimensional weights' names inside numbered blocks."""
    for name, entry in header.items():
        match = _BLOCK_WEIGHT.search(name)
        if match and len(entry["shape"]) == 2:
            yield match[1]


def _blocks(header: Mapping[str, Any]) -> int:
    """Count the distinct block numbers in the tensors' names."""
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
    """Read the tensor table; raise `ModelRefused` if the file is shorter than the table requires."""
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
    """Count the numbers in these tensors. MXFP4 packs two into a byte of ``*_blocks``; ``*_scales`` are not counted."""
    count = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind = name.rpartition("_")[2] if entry["dtype"] == "U8" else None
        count += math.prod(entry["shape"]) * {"blocks": 2, "scales": 0}.get(kind or "", 1)
    return count


def _edges(file: Path) -> bytes:
    with file.open("rb") as stream:
        first = stream.read(EDGE)
        stream.seek(max(file.stat().st_size - EDGE, 0))
        return first + stream.read(EDGE)


log = logging.getLogger(__name__)

EMBEDDED = "embedded"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
MARKS = (
    ("harmony", ("<|channel|>",)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>", "[func_name1(")),
    ("llama", ("<|python_tag|>", "Environment: ipython")),
)
"""marks in a chat template that reveal its tool call format; the first match counts"""

_WORDS = ("*.json", "*.jinja", "tokenizer*", "*.model", "*.txt")
"""a model's files except its weights"""

ProgressCallback = Callable[[str], None]


def find(model: str, *, cache_dir: Path, progress: ProgressCallback) -> tuple[Path, str]:
    """Return a model's folder and the name that clients see."""
    if model == EMBEDDED:
        return _converted(embedded_file(cache_dir=cache_dir, progress=progress), cache_dir, progress), EMBEDDED_NAME
    path = Path(model).expanduser()
    if path.is_file() and path.suffix.lower() == ".gguf":
        return _converted(path, cache_dir, progress), path.stem
    if path.is_dir():
        return path, path.resolve().name
    if not on_hub(model):
        raise _nothing_at(model)
    return _download(model, progress), model


def find_tokenizer(model: str, *, cache_dir: Path) -> Path:
    """Return a model's tokenizer folder; from the hub, download only the tokenizer's files."""
    if on_hub(model):
        return _download(model, log.info, wanted=_WORDS)
    return find(model, cache_dir=cache_dir, progress=log.info)[0]


def on_hub(model: str) -> bool:
    """Return True if a name can only be an id on the model hub, because no local path has it."""
    path = Path(model).expanduser()
    here = path.exists() or path.is_absolute() or model.startswith((".", "~"))
    return not here and model.count("/") == 1


def refuse_nowhere(model: str) -> None:
    """Raise `ModelRefused` for a local path without a loadable model; hub ids are not looked up."""
    path = Path(model).expanduser()
    if path.is_dir():
        inspect(path)
    elif model != EMBEDDED and not on_hub(model) and not (path.is_file() and path.suffix.lower() == ".gguf"):
        raise _nothing_at(model)


def _nothing_at(model: str) -> ModelRefused:
    return ModelRefused(
        f"no model at {model!r}",
        remedy="give 'embedded', a Hugging Face id such as Qwen/Qwen3-0.6B, a folder, or a .gguf file",
    )


def _converted(file: Path, cache_dir: Path, progress: ProgressCallback) -> Path:

    return gguf_folder(file, cache_dir=cache_dir, progress=progress)


def _download(model: str, progress: ProgressCallback, wanted: Sequence[str] = (*_WORDS, "*.safetensors")) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=list(wanted), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        progress(f"downloading {model}")
    try:
        return Path(snapshot_download(model, allow_patterns=list(wanted)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelRefused(
            f"cannot download {model!r}: {error}",
            remedy="check the name and the network (a gated model needs a Hugging Face login), or give a local folder",
        ) from error


def format_of(template: str) -> str:
    """Return the tool call format that this chat template implies."""
    for name, marks in MARKS:
        if any(mark in template for mark in marks):
            return name
    return "none"


def settings_of(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON file in a model's folder; return an empty table if it is absent."""
    file = folder / name
    settings: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return settings


def ends_in(folder: Path) -> tuple[int, ...]:
    """Return every token that ends a reply by the settings in a model's folder."""
    tokens: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = settings_of(folder, name).get("eos_token_id")
        tokens.extend(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(dict.fromkeys(tokens))


# Text model or classifier, from config.json alone: no weights, no torch.

_CLASSIFIES = "ForSequenceClassification"


def is_classifier(model: str) -> bool:
    """Return True if a folder or Hugging Face id is a sequence-classification model; others are assumed to chat.

    Raise `ModelRefused` for an id that cannot be looked up. A path without a model is refused when it is loaded.
    """
    file = _config_file(model)
    if file is None:
        return False
    try:
        architectures = json.loads(file.read_text("utf-8")).get("architectures") or ()
    except (ValueError, AttributeError) as error:
        raise ModelRefused(f"{file} is no readable JSON object", remedy="download the model again") from error
    return any(str(name).endswith(_CLASSIFIES) for name in architectures)


def _config_file(model: str) -> Path | None:
    folder = Path(model).expanduser()
    if folder.is_dir():
        file = folder / "config.json"
        return file if file.is_file() else None
    return _downloaded(model) if on_hub(model) else None


def _downloaded(model: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, "config.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelRefused(
            f"cannot look up {model!r}: {error}",
            remedy="check the name and the network (a gated model needs a Hugging Face login), or give a local folder",
        ) from error
