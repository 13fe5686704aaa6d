"""A real PostgreSQL server: the system's own programs, a data folder of its own, a loopback port, no root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

PASSWORD: Final = "let me in"
_QUICK: Final = ("-c", "fsync=off", "-c", "full_page_writes=off")  # a killed process loses nothing by it


@cache
def _programs() -> Path | None:
    """The folder of the newest server's programs, None where there is none."""
    if (found := shutil.which("postgres")) is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda place: float(place.parts[-3]))
    return places[-1].parent if places else None


class PostgresServer:
    """A server that is this process's own. ``kill`` ends it at once; ``start`` brings it back with what it had.

    ``durable`` True: a commit outlives a power cut, as it does on a server in use.

    >>> PostgresServer.missing() in (None, "no PostgreSQL server is installed: apt-get install postgresql")
    True
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="openclaw-rl-pg-"))
        self._durable = durable
        self._user = _somebody() if os.getuid() == 0 else None  # the server refuses to run as root
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        folder = ("-D", str(self.folder / "data"), "--pwfile", str(password), "--no-sync", "--no-instructions")
        self._call("initdb", *folder, "-U", "ledger", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C")
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str | None:
        """Why no server can be started here, None if one can."""
        if _programs() is None:
            return "no PostgreSQL server is installed: apt-get install postgresql"
        try:
            import psycopg  # noqa: F401 (it is there, or it is not)
        except ImportError:
            return "psycopg is not installed: pip install 'openclaw-rl[postgres]'"
        return None

    def _who(self) -> dict[str, Any]:
        who = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return {**who, "cwd": self.folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def _call(self, program: str, *words: str) -> None:
        subprocess.run([str((_programs() or Path()) / program), *words], check=True, **self._who())

    def start(self) -> None:
        """Begin it, and return when it takes connections."""
        words = ["-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]
        more = ["-c", "max_connections=60", "-c", "shared_buffers=16MB", *(() if self._durable else _QUICK)]
        command = [str((_programs() or Path()) / "postgres"), *words, *more]
        self._process = subprocess.Popen(command, start_new_session=True, **self._who())
        ready = [str((_programs() or Path()) / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(400):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            assert self._process.poll() is None, "the server ended while it began"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        raise AssertionError("the server does not take connections")

    def kill(self) -> None:
        """End every process of it at once."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End it for good, and delete what it had."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, database: str = "postgres", *, password: str = PASSWORD) -> str:
        """The address of a database, with its user and password."""
        return f"postgresql://ledger:{password.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The address of a new, empty database."""
        import psycopg

        name = f"run_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)


def _somebody() -> pwd.struct_passwd:
    """The user that Debian's package made; else nobody, whose processes a sandbox's limit counts as its own."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
