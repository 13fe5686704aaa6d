"""The service's own SDK: which releases of it we work with, and what we need of them."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from typing import Any, Final

from openclaw_rl.errors import MissingExtra, ModelRefused

log = logging.getLogger(__name__)

OLDEST: Final = (0, 25)
"""the first release that speaks today's protocol"""
NEWEST: Final = (0, 36)
"""the newest one that this release was tried with"""
_UNTRIED: Final = (NEWEST[0], NEWEST[1] + 1)
_NEEDED: Final = {
    "ServiceClient": (
        "create_lora_training_client",
        "create_training_client_from_state_with_optimizer",
        "create_sampling_client",
        "get_server_capabilities",
    ),
    "TrainingClient": ("forward", "forward_backward", "optim_step", "save_state", "save_weights_for_sampler"),
    "SamplingClient": ("sample",),
    "types": ("AdamParams", "Datum", "ModelInput", "SamplingParams", "TensorData"),
}


def load_sdk() -> Any:
    """The package `tinker`; raises MissingExtra without it and ModelRefused for a release we cannot work with."""
    try:
        sdk = importlib.import_module("tinker")
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "tinker") from error
    version = installed_version()
    if fault := fault_of(version, sdk):
        raise ModelRefused(fault, remedy=f"pip install 'tinker>={_text(OLDEST)},<{_text(_UNTRIED)}'")
    if _numbers(version) > NEWEST:
        log.warning("tinker %s is newer than %s, the newest that was tried", version, _text(NEWEST))
    logging.getLogger("tinker").setLevel(logging.WARNING)  # below, it logs whole requests
    return sdk


def installed_version() -> str:
    """The release of the SDK that is installed; empty where there is none."""
    try:
        return importlib.metadata.version("tinker")
    except importlib.metadata.PackageNotFoundError:
        return ""


def fault_of(version: str, sdk: Any) -> str | None:
    """What keeps us from working with an SDK; None where nothing does."""
    if _numbers(version) < OLDEST:
        return f"tinker {version} is refused: it speaks an older protocol than {_text(OLDEST)}"
    missing = [
        f"{owner}.{name}"
        for owner, names in _NEEDED.items()
        for name in names
        if not hasattr(getattr(sdk, owner, None), name)
    ]
    return f"tinker {version} is refused: it has no {', '.join(missing)}" if missing else None


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else (0, 0)


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
