"""Where the server of a run listens: kept in the run directory while it does, so that other commands find it."""

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
"""what listens on every address is reached from this machine by these"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Host and port as they were bound, the model's name as clients see it, the process.

    No key of anybody is kept but ``env_key``, made anew at each start: who may read the run directory may act as its
    environment.
    """

    host: str
    port: int
    model: str
    pid: int
    env_key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, host: str, port: int, *, model: str, env_key: str | None = None) -> Self:
        """The address of a server in this process."""
        return cls(host=host, port=port, model=model, pid=os.getpid(), env_key=env_key)

    @property
    def url(self) -> str:
        """As a client on this machine writes it, up to /v1."""
        return url_of(self.host, self.port)

    @property
    def listens(self) -> bool:
        """Whether something takes connections there now."""
        try:
            socket.create_connection((_ANYWHERE.get(self.host, self.host), self.port), _CONNECT_SECONDS).close()
        except OSError:
            return False
        return True


def url_of(host: str, port: int) -> str:
    """The address of an API that listens at host and port, as a client on this machine writes it."""
    host = _ANYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def write(run_dir: Path, address: ServerAddress) -> None:
    """Keep the address, whole or not at all; a disk that takes nothing is no reason not to serve."""
    try:
        files.write(run_dir / FILE, json.dumps(asdict(address)) + "\n", mode=0o600)
    except OSError as error:
        log.warning("the address of this server could not be written to %s: %s", run_dir / FILE, error)


def remove(run_dir: Path) -> None:
    """Forget the address of this process; that of another one stays."""
    address = read(run_dir)
    if address is not None and address.pid == os.getpid():
        (run_dir / FILE).unlink(missing_ok=True)


def read(run_dir: Path) -> ServerAddress | None:
    """The address that was written last and not removed; None if there is none, or none that can be read."""
    try:
        kept = json.loads((run_dir / FILE).read_text("utf-8"))
        return ServerAddress(
            host=kept["host"],
            port=int(kept["port"]),
            model=kept["model"],
            pid=int(kept["pid"]),
            env_key=kept.get("env_key"),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_url(resolved: Resolved) -> str:
    """Where to reach the server of these settings' run.

    The address in its directory comes first; then the one of the settings, unless they name a run and no address:
    another run may listen there. Raises BackendDown where nothing listens.
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
    return f"start it with: openclaw-rl up --run-dir {run_dir}, or say where it is with --url http://HOST:PORT/v1"
