"""From a name to the folder of a model: the embedded one, a Hugging Face id, a folder, a GGUF file. Needs no torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.backends.hf.embedded import embedded_file
from openclaw_rl.backends.hf.weights import inspect
from openclaw_rl.errors import ModelRefused

log = logging.getLogger(__name__)

EMBEDDED = "embedded"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
MARKS = (
    ("harmony", ("<|channel|>",)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>", "[func_name1(")),
    ("llama", ("<|python_tag|>", "Environment: ipython")),
)
"""how a chat template betrays the form of its tool calls; the first that fits"""

_WORDS = ("*.json", "*.jinja", "tokenizer*", "*.model", "*.txt")
"""the files of a model that are no weights"""

ProgressCallback = Callable[[str], None]


def find(model: str, *, cache_dir: Path, progress: ProgressCallback) -> tuple[Path, str]:
    """The folder of a model and the name that clients see."""
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
    """The folder of a model's tokenizer; of an id of the hub nothing but that is downloaded."""
    if on_hub(model):
        return _download(model, log.info, wanted=_WORDS)
    return find(model, cache_dir=cache_dir, progress=log.info)[0]


def on_hub(model: str) -> bool:
    """Whether a name can only be an id of the model hub: nothing of this disk is called so."""
    path = Path(model).expanduser()
    here = path.exists() or path.is_absolute() or model.startswith((".", "~"))
    return not here and model.count("/") == 1


def refuse_nowhere(model: str) -> None:
    """Raise ModelRefused for a place on this disk that no model can be loaded from; an id is not looked up."""
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
    from openclaw_rl.backends.hf.convert import gguf_folder

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
    """How a model with this chat template writes tool calls."""
    for name, marks in MARKS:
        if any(mark in template for mark in marks):
            return name
    return "none"


def settings_of(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a model's folder; empty where it is not there."""
    file = folder / name
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


def ends_in(folder: Path) -> tuple[int, ...]:
    """Every token that ends a reply by the settings in a model's folder."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = settings_of(folder, name).get("eos_token_id")
        found.extend(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(dict.fromkeys(found))
