"""The server address of a run, stored in its directory while it listens, so that other commands can find it."""

from __future__ import annotations

import json
import logging
import os
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from openclaw_rl import files
from openclaw_rl.config import Config, Resolved
from openclaw_rl.errors import BackendDown

log = logging.getLogger(__name__)

FILE: Final = "server.json"
_CONNECT_SECONDS: Final = 2.0
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""loopback addresses for servers that listen on every address"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Bound host and port, the model's name for clients, the process.

    No user's key is stored, except ``env_key``, which is new at each start: read access to the run directory suffices
    to act as its environment.
    """

    host: str
    port: int
    model: str
    pid: int
    env_key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, host: str, port: int, *, model: str, env_key: str | None = None) -> Self:
        """Return the address of a server in this process."""
        return cls(host=host, port=port, model=model, pid=os.getpid(), env_key=env_key)

    @property
    def url(self) -> str:
        """Return the address for a client on this machine, up to /v1."""
        return url_of(self.host, self.port)

    @property
    def listens(self) -> bool:
        """Return True if the address accepts connections now."""
        try:
            socket.create_connection((_ANYWHERE.get(self.host, self.host), self.port), _CONNECT_SECONDS).close()
        except OSError:
            return False
        return True


def url_of(host: str, port: int) -> str:
    """Return the address for a client on this machine of an API that listens at host and port."""
    host = _ANYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def write(run_dir: Path, address: ServerAddress) -> None:
    """Write the address atomically; on a disk error log a warning, and continue to serve."""
    try:
        files.write(run_dir / FILE, json.dumps(asdict(address)) + "\n", mode=0o600)
    except OSError as error:
        log.warning("the address of this server could not be written to %s: %s", run_dir / FILE, error)


def remove(run_dir: Path) -> None:
    """Delete this process's address; another process's address stays."""
    address = read(run_dir)
    if address is not None and address.pid == os.getpid():
        (run_dir / FILE).unlink(missing_ok=True)


def read(run_dir: Path) -> ServerAddress | None:
    """Return the stored address; None if there is none or it cannot be read."""
    try:
        stored = json.loads((run_dir / FILE).read_text("utf-8"))
        return ServerAddress(
            host=stored["host"],
            port=int(stored["port"]),
            model=stored["model"],
            pid=int(stored["pid"]),
            env_key=stored.get("env_key"),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_url(resolved: Resolved) -> str:
    """Return the address of the server for these settings' run.

    The address in its directory has priority; then the one in the settings, unless they name a run and no address:
    another run may listen there. Raises BackendDown if nothing listens.
    """
    config = resolved.config
    address = read(config.run.dir)
    if address is None:
        return _configured(
            config, named=_given(resolved, "run.dir") and not _given(resolved, "serve.host", "serve.port")
        )
    if not address.listens:
        raise BackendDown(
            f"nothing listens at {address.url}, where the run in {config.run.dir} was served last",
            remedy=_start(config.run.dir),
        )
    return address.url


def _configured(config: Config, *, named: bool) -> str:
    if named:
        raise BackendDown(f"no server runs on {config.run.dir}", remedy=_start(config.run.dir))
    return url_of(config.serve.host, config.serve.port)


def _given(resolved: Resolved, *paths: str) -> bool:
    return any(resolved.sources[path] != "default" for path in paths)


def _start(run_dir: Path) -> str:
    return f"start it with: openclaw-rl up --run-dir {run_dir}, or give its address with --url http://HOST:PORT/v1"
