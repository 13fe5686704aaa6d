"""Display for settings: the table for a run, the same as JSON, and the commented file that `init` writes.

A secret appears as ``(set)``, never as its value; so does a plugin option whose name marks it as a secret.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import SecretStr
from pydantic_core import to_json

from openclaw_rl.config.names import FIRST, SECTIONS, SETTINGS, Setting
from openclaw_rl.config.settings import Config

_SECRET_NAME: Final = re.compile(
    r"(^|[ ._-]|(?<=[a-z])(?=[A-Z]))(?i:(api_?|access_?)?keys?|secrets?|token|pass(word|wd|phrase|code)?|pwd|pin"
    r"|auth(orization|entication)?|bearer|basic_?auth|cookies?|credentials?|login|dsn|signature|session_?id)$"
)
_LOGIN: Final = re.compile(r"//[^/\s]*@")
_WIDTH: Final = 110
_HEAD: Final = """\
# OpenClaw-RL: the settings.
#
# Each setting has its description, its range, and its default behind a #: remove the # to set it.
# Rank: defaults < preset < known environment names < this file < OPENCLAW_RL__SECTION__SETTING < --set and flags.
# A setting that is "not set" is the empty text. A relative path starts at the working directory.
# A plugin is named module:attribute or file.py:attribute.
# Settings have their full names; TOML allows no [section] heading after them, so write new settings the same way.
# `openclaw-rl config` shows the values for a run, with the source of each.
"""
BEGIN: Final = "the ten to begin with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The settings for a run, the source of each by dotted path, and notes on the sources for the user."""

    config: Config
    sources: Mapping[str, str]
    notes: tuple[str, ...]


class Row(NamedTuple):
    """One line in `openclaw-rl config`; ``value`` is TOML, with secrets masked."""

    path: str
    value: str
    source: str


def get(config: Config, path: str) -> Any:
    """Return a setting's value by its dotted path."""
    return reduce(getattr, path.split("."), config)


def literal(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, str | Path):
        quoted = to_json(str(value).encode("utf-8", "backslashreplace").decode()).decode()
        return quoted.replace("\x7f", "\\u007F")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{literal(str(name))} = {literal(item)}" for name, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return '""' if value is None else str(value)


def brief(value: Any) -> str:
    """Return a refused value for a message: shortened, and without the login in an address."""
    text = _LOGIN.sub("//(hidden)@", literal(_masked(value)))
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def grouped() -> Iterator[tuple[str, tuple[Setting, ...]]]:
    """Yield every setting once, under headings: the first ten, then the others by section."""
    yield BEGIN, tuple(SETTINGS[path] for path in FIRST)
    for section, kind in SECTIONS.items():
        inside = [setting for path, setting in SETTINGS.items() if path.rpartition(".")[0] == section]
        yield f"{section}: {kind.__doc__}", tuple(setting for setting in inside if setting.path not in FIRST)


def render(resolved: Resolved) -> Mapping[str, tuple[Row, ...]]:
    """Return every setting with its value and source, under headings."""
    return {
        heading: tuple(row for setting in settings for row in _rows(setting, resolved))
        for heading, settings in grouped()
    }


def _rows(setting: Setting, resolved: Resolved) -> Iterator[Row]:
    value = public(setting, get(resolved.config, setting.path))
    if setting.kind == "table" and value:
        for name, item in value.items():
            path = f"{setting.path}.{name}"
            yield Row(path, literal(item), resolved.sources[path])
    else:
        bare = value if setting.kind == "secret" and value else literal(value)
        yield Row(setting.path, "(not set)" if value is None else bare, resolved.sources[setting.path])


def as_json(resolved: Resolved) -> dict[str, Any]:
    """Return the settings as plain JSON values under ``config``, with their ``sources`` and the ``notes``."""
    tree: dict[str, Any] = {}
    for path, setting in SETTINGS.items():
        *sections, name = path.split(".")
        place = reduce(lambda table, section: table.setdefault(section, {}), sections, tree)
        value = public(setting, get(resolved.config, path))
        place[name] = _plain(value)
    return {"config": tree, "sources": dict(resolved.sources), "notes": list(resolved.notes)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def public(setting: Setting, value: Any) -> Any:
    """Return a setting's value without its secrets."""
    return _masked(value) if setting.kind in ("table", "secret") else value


def _masked(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return "(set)"
    if isinstance(value, Mapping):
        return {name: "(set)" if _SECRET_NAME.search(str(name)) else _masked(item) for name, item in value.items()}
    if isinstance(value, str):
        return _LOGIN.sub("//(hidden)@", value)
    return [_masked(item) for item in value] if isinstance(value, list | tuple) else value


def template() -> str:
    """Return a commented file with every setting at its default; loading it changes nothing."""
    blocks = (f"# --- {heading}\n\n" + "\n".join(map(_entry, settings)) for heading, settings in grouped())
    return "\n".join([_HEAD, *blocks])


def _entry(setting: Setting) -> str:
    unset = setting.default is None
    value = literal(_homely(setting.default))
    expected = f"{setting.expects}; default: {'not set' if unset else value}"
    return f"{_comment(setting.description)}\n{_comment(expected)}\n#{setting.path} = {value}\n"


def _homely(value: Any) -> Any:
    """Return a path inside the home folder in ``~`` form, so that the file fits another machine."""
    if isinstance(value, Path) and value.is_relative_to(Path.home()):
        return f"~/{value.relative_to(Path.home()).as_posix()}"
    return value


@cache
def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, _WIDTH))
