"""What stories about settings share: a file of them, a refusal, all that is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import settings

from openclaw_rl import config
from openclaw_rl.config import Resolved, load
from openclaw_rl.errors import ConfigError

UNHURRIED = settings(deadline=None, max_examples=50)


def refused(**sources: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**{"environ": {}, **sources})  # type: ignore[arg-type]
    return str(caught.value)


def in_full(value: object) -> object:
    """A path as the settings keep it."""
    if isinstance(value, tuple):
        return tuple(in_full(each) for each in value)
    return value.absolute() if isinstance(value, Path) else value


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def shown_rows(resolved: Resolved) -> list[config.Row]:
    return [row for rows in config.render(resolved).values() for row in rows]


def everything_shown(resolved: Resolved) -> str:
    """All that a user, a log or a file may get to see."""
    rows = "\n".join(" ".join(row) for row in shown_rows(resolved))
    return "\n".join(
        [rows, json.dumps(config.as_json(resolved)), repr(resolved), str(resolved.config), config.template()]
    )
