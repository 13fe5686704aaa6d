"""The manifest of a version on disk: what lies beside it, in words and numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.errors import BackendError

MANIFEST = "manifest.json"
STATE = "trainer.pt"
ADAPTER = "adapter_model.safetensors"
MODEL = "model.safetensors"
FORMAT = 1


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write what lies beside it."""
    text = json.dumps({"format": FORMAT, **manifest}, indent=2, sort_keys=True, allow_nan=False)
    (directory / MANIFEST).write_text(text + "\n")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """What `write_manifest` wrote, None for a directory of another origin; raises BackendError when it is damaged."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BackendError(f"{path} is not readable: {error}", remedy="restore it or train from its parent") from error
    if found.get("format") != FORMAT:
        raise BackendError(f"{path} has format {found.get('format')!r}, this release reads {FORMAT}")
    return dict(found)
