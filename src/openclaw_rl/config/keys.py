"""Bearer keys and their users: the single key in the settings, and the keys file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from openclaw_rl.config.settings import Config
from openclaw_rl.errors import ConfigError

_ONE_USER: Final = "default"


def api_keys(config: Config) -> Mapping[str, str]:
    """Return the user for each bearer key, from the settings and the keys file. Empty: no key is required."""
    keys: dict[str, str] = {}
    if config.serve.api_key is not None:
        keys[config.serve.api_key.get_secret_value()] = _ONE_USER
    if config.serve.keys_file is not None:
        entries = list(_read_keys(config.serve.keys_file))
        if not entries:
            raise ConfigError(
                f"serve.keys_file {config.serve.keys_file} holds no key, so that users cannot be distinguished",
                remedy='write one "user:key" to a line, or take serve.keys_file out',
            )
        for where, user, key in entries:
            if not (user and key):
                raise ConfigError(
                    f"keys file {where}: needs a user and a key",
                    remedy="write one user:key to a line, env:NAME:key for an environment",
                )
            if keys.setdefault(key, user) != user:
                raise ConfigError(f"keys file {where}: {user} and {keys[key]} have the same key")
    return keys


def _read_keys(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield place, user and key for each entry; no message shows a key."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"serve.keys_file {file} cannot be read: {reason}") from None
    if file.suffix == ".toml":
        yield from _read_toml_keys(file, text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            user, _, key = line.partition(":")
            if user.strip() == "env":  # an environment's name has two parts
                name, _, key = key.partition(":")
                user = f"env:{name.strip()}" if name.strip() else ""
            yield f"{file}, line {number}", user.strip(), key.strip()


def _read_toml_keys(file: Path, text: str) -> Iterator[tuple[str, str, str]]:
    try:
        users = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"keys file {file}: is not valid TOML: {error}") from None
    for user, keys in users.items():
        for key in keys if isinstance(keys, list) else [keys]:
            if not isinstance(key, str):
                raise ConfigError(f"keys file {file}: {user} must be a key or a list of keys, as text")
            yield f"{file}, {user}", user.strip(), key.strip()
