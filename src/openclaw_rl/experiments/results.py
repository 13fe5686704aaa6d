"""The JSON files of experiments: written whole, each part on a line; a benchmark goes on from its own file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl import files
from openclaw_rl.errors import ConfigError
from openclaw_rl.views.aliases import with_aliases

PACKAGE = Path(__file__).parents[1]
FORMER = {"prompted": "told", "relevance": "sense", "relevance_kept": "sense_kept", "teachable": "said"}
"""renamed fields of the files of `bench`, with their former names"""


def read(file: Path | None, start: Mapping[str, Any]) -> dict[str, Any]:
    """The results so far, or ``start`` where there are none.

    Raises ConfigError when the file was made with another setup, other settings or other code than ``start`` names.
    """
    if file is None or not file.exists():
        return {**start, "cells": {}, "summary": []}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if any(found.get(name) != start[name] for name in ("setup", "settings")):
        raise ConfigError(f"{file} holds results of other settings", remedy="give another --json, or the same settings")
    if found.get("code") != start["code"]:
        raise ConfigError(f"{file} holds results of other code", remedy="give another --json: users or gate may differ")
    return found


def code_digest(*roots: Path) -> str:
    """Digest the files of these folders: figures of two states of the code are not one benchmark."""
    found = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


def write(file: Path, report: Mapping[str, Any], *, former: Mapping[str, str] = FORMER) -> None:
    """Write a report whole or not at all; each part of a part, such as a cell, has a line to itself."""
    view = with_aliases(report, former)
    parts = ",\n".join(f"{_line(name)}: {_lines(part)}" for name, part in view.items())
    files.write(file, f"{{\n{parts}\n}}\n")


def _lines(part: object) -> str:
    if isinstance(part, Mapping) and part:
        return "{\n" + ",\n".join(f" {_line(name)}: {_line(one)}" for name, one in part.items()) + "\n}"
    if isinstance(part, list) and part:
        return "[\n" + ",\n".join(f" {_line(one)}" for one in part) + "\n]"
    return _line(part)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
