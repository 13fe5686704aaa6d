"""Whether a model writes text or tells classes apart, read from its config.json alone: no weights, no torch."""

from __future__ import annotations

import json
from pathlib import Path

from openclaw_rl.backends.hf.finding import on_hub
from openclaw_rl.errors import ModelRefused

_CLASSIFIES = "ForSequenceClassification"


def is_classifier(model: str) -> bool:
    """Whether a folder or Hugging Face id holds a sequence-classification model; anything else is taken to chat.

    Raises ModelRefused for an id that cannot be looked up. What is no model at all is refused by whoever loads it.
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
        found = folder / "config.json"
        return found if found.is_file() else None
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
