"""Exports learned weights as files for other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from openclaw_rl import plugins
from openclaw_rl.app.application import ledger_place
from openclaw_rl.app.factories import default_sampling
from openclaw_rl.config import Config
from openclaw_rl.config.sources import cache_dir
from openclaw_rl.errors import ConfigError, NotInLedger
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions

FORMS: Final = ("peft", "gguf", "merged", "ollama")
_SUFFIXES: Final = {"gguf": "-lora.gguf", "merged": ".gguf"}
_EXPORT: Final = "openclaw_rl.backends.hf.weights_export:export_weights"


def export_version(
    config: Config, name: str, form: str, target: Path | None, *, progress: Callable[[str], None]
) -> Path:
    """Write a version ("live" or its number) in one of `FORMS`; return the path.

    Raises NotInLedger for a missing version, ConfigError if ``target`` exists.
    """
    version = _version(config, name)
    place = target or Path(f"openclaw-rl-v{version.number}{_SUFFIXES.get(form, f'-{form}')}")
    if place.exists():
        raise ConfigError(f"{place} exists", remedy="name another place with --output, or remove it")
    sampling = default_sampling(config)
    plugins.load("policy", _EXPORT)(
        form,
        place,
        model=config.policy.model,
        version=version.adapter,
        cache_dir=cache_dir(),
        sampling={"temperature": sampling.temperature, "top_p": sampling.top_p},
        progress=progress,
    )
    return place


def _version(config: Config, name: str) -> Version:
    if name != "live" and not (name.isdecimal() and len(name) < 19):
        raise ConfigError(f"{name!r} is no version", remedy="give a number that 'openclaw-rl versions' lists, or live")
    with LedgerReader(ledger_place(config)) as ledger:
        versions = LiveVersions(ledger)
        version = versions.live() if name == "live" else versions.kept(int(name))
    if version is None:
        raise NotInLedger("no version is live yet", remedy="start 'openclaw-rl up' first")
    return version
