"""Task sets that others publish as packages: only where they lie is asked, their code is not imported for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from openclaw_rl.errors import ConfigError


def package_folder(package: str, distribution: str, folder: Path | None) -> Path:
    """Where a package lies: below ``folder`` where one is given, else where Python finds it.

    Raises ConfigError with the line that installs it, without what it would pull in.
    """
    if folder is not None:
        place = folder.expanduser() / package
        if not place.is_dir():
            raise ConfigError(
                f"env.folder: there is no {place}",
                remedy=f"pip install --no-deps --target {folder} {distribution}",
            )
        return place
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"these tasks are in the package {distribution}, which is not installed",
            remedy=f"pip install --no-deps --target FOLDER {distribution}, and --set env.folder=FOLDER",
        )
    return Path(next(iter(spec.submodule_search_locations)))
