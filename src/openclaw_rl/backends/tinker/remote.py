"""Where a version's weights lie at the service: a file in the version's own directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from openclaw_rl.errors import BackendError, ModelRefused

FILE: Final = "tinker.json"
SCHEME: Final = "tinker://"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWeights:
    """Addresses of weights to sample from, and of weights with optimizer state to go on from; past gradient norms."""

    sampler: str
    state: str
    norms: tuple[float, ...] = field(default=())


def write_remote(directory: Path, remote: RemoteWeights) -> None:
    """Put the addresses beside a version's manifest."""
    (directory / FILE).write_text(json.dumps(asdict(remote), indent=2) + "\n")


def read_remote(directory: Path) -> RemoteWeights:
    """What `write_remote` wrote; raises BackendError where it cannot be read."""
    try:
        found: Mapping[str, Any] = json.loads((directory / FILE).read_text())
        return RemoteWeights(
            sampler=str(found["sampler"]), state=str(found["state"]), norms=tuple(map(float, found["norms"]))
        )
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(
            f"{directory} does not say where its weights are: {type(error).__name__}: {error}",
            remedy=f"versions of the service have a {FILE}; set policy.backend to what served this one",
        ) from error


def sampler_path(adapter: str) -> str:
    """The address to sample a version's weights from; raises ModelRefused where its directory has none."""
    if adapter.startswith(SCHEME):
        return adapter
    try:
        return read_remote(Path(adapter)).sampler
    except BackendError as error:
        raise ModelRefused(error.what, remedy=error.remedy) from error
