"""Releases of a package as the index has them: pip is asked, so that its settings and mirrors hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.errors import ConfigError

PIP_SECONDS = 300
_LIST = "Available versions:"


def versions(package: str) -> list[str]:
    """The released versions, newest first. Raises ConfigError where the index has none, or cannot be asked."""
    found = _pip("index", "versions", package)
    line = next((line for line in found.splitlines() if line.startswith(_LIST)), None)
    if line is None:
        raise ConfigError(f"pip knows no releases of {package}", remedy="look at the name, and at pip's index")
    return [version.strip() for version in line.removeprefix(_LIST).split(",")]


def source_archive(package: str, version: str, folder: Path) -> Path:
    """The source archive of a release, in ``folder``. Raises ConfigError where it has none."""
    _pip(
        *("download", "-q", "--no-deps", "--no-binary", package),
        *("-d", str(folder), f"{package}=={version}"),
    )
    found = next(iter(sorted(folder.glob("*.tar.gz"))), None)
    if found is None:
        raise ConfigError(f"{package} {version} has no source archive", remedy="take another release")
    return found


def _pip(*words: str) -> str:
    line = [sys.executable, "-m", "pip", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    if done.returncode != 0:
        raise ConfigError(f"pip {words[0]} failed: {_last(done.stderr)}", remedy="run it by hand to see why")
    return done.stdout


def _last(text: str) -> str:
    lines: Sequence[str] = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"
