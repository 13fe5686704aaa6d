"""A real PostgreSQL server for tests: Debian's programs, a data folder of its own, a loopback port, no root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "let me in"
_QUICK = ("-c", "fsync=off", "-c", "full_page_writes=off")  # a kill costs nothing; the machine itself is not tested


@cache
def programs() -> Path | None:
    """The folder of the newest server's programs, None where there is none."""
    if (found := shutil.which("postgres")) is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda place: float(place.parts[-3]))
    return places[-1].parent if places else None


def why_not() -> str | None:
    """Why no server can be started here, None if one can."""
    if programs() is None:
        return "no PostgreSQL server is installed: apt-get install postgresql"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'openclaw-rl[postgres]'"
    return None


needs_postgres = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class Server:
    """A server on loopback. ``kill`` ends it as a power cut does; ``start`` brings it back with what it had."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="openclaw-pg-"))
        self._user = pwd.getpwnam("nobody") if os.getuid() == 0 else None  # the server refuses to run as root
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        folder = ("-D", str(self.folder / "data"), "--pwfile", str(password))
        self._call("initdb", *folder, "-U", "ledger", "-A", "scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C")
        self.process: subprocess.Popen[bytes] | None = None

    def _who(self) -> dict[str, Any]:
        who = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return {**who, "cwd": self.folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def _call(self, program: str, *words: str) -> None:
        subprocess.run([str((programs() or Path()) / program), *words], check=True, **self._who())

    def start(self) -> None:
        """Begin it, and return when it takes connections."""
        words = ["-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]
        more = ["-c", "max_connections=60", "-c", "shared_buffers=16MB", *_QUICK]
        command = [str((programs() or Path()) / "postgres"), *words, *more]
        self.process = subprocess.Popen(command, start_new_session=True, **self._who())
        ready = [str((programs() or Path()) / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(400):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            assert self.process.poll() is None, "the server ended while it began"
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        raise AssertionError("the server does not take connections")

    def kill(self) -> None:
        """End every process of it at once."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End it for good."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", *, password: str = PASSWORD) -> str:
        return f"postgresql://ledger:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        name = f"run_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)
