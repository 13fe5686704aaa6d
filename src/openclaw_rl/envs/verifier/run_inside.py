"""Run pytest, or a script that runs it, in a child process and report from the parent.

The text of this file runs in a sandbox, without the rest of the package:

python -I FILE SETTINGS [PYTEST ARGUMENTS ...]

SETTINGS is JSON: `site` lists folders that contain pytest, `path` folders from which tests may import, and `here` adds
their own folder; `report` is the output file; `script` is a command to run in place of pytest, `runs` the socket to
which its pytest runs report, `rewards` the files for its score, `watched` folders to which only the script may add
files, and `kept` folders whose files must not change; `cwd` and `env` apply to the child; `sealed` reads a key from
stdin and prints a signature of the report to stdout.

Code under test shares the child's process: it can end it, print, write files and start other processes. The parent
therefore imports none of it, is unreadable for other processes, receives its key after the fork, counts a run as
complete only if the child has reported its end, and signs after all of the child's descendants are dead. Each pytest
run of a script reports through a socket, one after the other; the parent checks the script's own files and scores
before the script continues. A file that code under test wrote there, or a second report at the same time, counts as
forged.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import pathlib
import select
import signal
import socket
import stat
import sys
import tempfile
from typing import Any

BROKEN_OFF = 70
"""exit code of an incomplete pytest run"""
REPORT = "OPENCLAW_RL_REPORT"
SHOWN = 30_000
LARGEST = 65_536
EQUAL = "EqualToEverything"
"""name of the exception that a control raises if an object equals anything"""
_SET_DUMPABLE, _SET_SUBREAPER = 4, 36


class Writer:
    """A pytest plugin that writes one line per verdict, immediately."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write a verdict for the test's own run, and for a setup or teardown that does not pass."""
        if report.when == "call" or report.outcome != "passed":
            self.write([report.nodeid, self._outcome(report)])

    def _outcome(self, report: Any) -> str:
        if hasattr(report, "wasxfail"):
            return "xfailed"
        if report.outcome == "failed" and EQUAL in str(report.longrepr):
            return "equal"
        return str(report.outcome)

    def pytest_collectreport(self, report: Any) -> None:
        """Write a failure for a file that cannot be loaded."""
        if report.outcome == "failed":
            self.write([report.nodeid, "failed"])

    def write(self, verdict: Any) -> None:
        line = json.dumps(verdict).encode() + b"\n"
        while line:
            line = line[os.write(self._pipe, line) :]


class CtrfReport:
    """The part of the plugin pytest-json-ctrf's `--ctrf FILE` that scripts use."""

    def __init__(self) -> None:
        self._tests: dict[str, str] = {}
        self._place = ""

    def pytest_addoption(self, parser: Any) -> None:
        with contextlib.suppress(ValueError):  # the plugin itself is installed
            parser.addoption("--ctrf", default="")

    def pytest_configure(self, config: Any) -> None:
        self._place = config.getoption("--ctrf", default="")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._tests[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        if self._place:
            tests = [{"name": name, "status": status} for name, status in self._tests.items()]
            counts = {each: list(self._tests.values()).count(each) for each in ("passed", "failed", "skipped")}
            results = {"tool": {"name": "pytest"}, "summary": {"tests": len(tests), **counts}, "tests": tests}
            place = pathlib.Path(self._place)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps({"results": results}))


def run_pytest(settings: dict[str, Any], words: list[str], pipe: int) -> None:
    """Run in the child: import pytest before any file beside the code under test can shadow it."""
    sys.dont_write_bytecode = True
    sys.path[:0] = settings.get("site", [])
    import pytest

    path = [*settings.get("path", []), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [*([os.getcwd()] if settings.get("here") else []), *path, *sys.path]  # noqa: PTH109
    if path:
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.argv = ["pytest", *words]
    writer = Writer(pipe)
    writer.write({"end": int(pytest.main(words, plugins=[writer, CtrfReport()]))})


def run_script(words: list[str], pipe: int) -> None:
    """Run in the child, which becomes the script."""
    os.set_inheritable(pipe, False)
    os.execvp(words[0], words)


def child(settings: dict[str, Any], words: list[str], pipe: int, go: int, output: int | None) -> None:
    """Run the process that code under test shares; never return."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        os.read(go, 1)
        os.chdir(settings.get("cwd") or ".")
        os.environ.update(settings.get("env", {}))
        if settings.get("script"):
            run_script(settings["script"], pipe)
        else:
            run_pytest(settings, words, pipe)
    except BaseException as error:  # after any exception, this process must not continue as the parent
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    else:
        code = 0
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def hide() -> None:
    """Hide this process's memory and files from others, and adopt its orphaned descendants."""
    with contextlib.suppress(Exception):
        library = ctypes.CDLL(None)
        library.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        library.prctl(_SET_SUBREAPER, 1, 0, 0, 0)


class Runs:
    """Reports of the pytest runs in a script. An interrupted or forged run counts as one without an end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.found: list[Any] = []
        self._rewards: list[str] = settings.get("rewards", [])
        self._watched: list[str] = settings.get("watched", [])
        self._kept: list[str] = settings.get("kept", [])
        self._before = self._prints()
        self._planted: dict[str, Any] = {}
        self._line: socket.socket | None = None
        self._data = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(settings["runs"])
        self._listener.listen(64)
        self._listener.setblocking(False)

    def files(self) -> list[socket.socket]:
        return [self._listener, *([self._line] if self._line is not None else [])]

    def take(self) -> None:
        """Read the available reports and accept new runs."""
        self._read()
        with contextlib.suppress(BlockingIOError):
            while True:
                line, _ = self._listener.accept()
                if self._line is not None:
                    line.close()
                    self._broken()
                    continue
                self._line, self._data = line, b""
                self._before = self._prints()
                with contextlib.suppress(OSError):
                    line.send(b"!")
                line.setblocking(False)

    def _read(self) -> None:
        if self._line is None:
            return
        try:
            while part := self._line.recv(65536):
                self._data += part
        except BlockingIOError:
            if not self._data.endswith(b"\n"):
                return
        except OSError:
            self._data = b""
        self._over(self._line)

    def _over(self, line: socket.socket) -> None:
        """Record a finished run: its code under test is dead, and the script waits."""
        try:
            run = json.loads(self._data)
        except (ValueError, RecursionError):
            run = None
        self.found.append(run if isinstance(run, dict) else {"verdicts": [], "ended": False})
        now = self._prints()
        changed = any(now.get(place) != digest for place, digest in self._before.items())
        if changed or any(place not in self._before and not below(place, self._kept) for place in now):
            self._broken()
        self._planted = {each: look_of(each) for each in self._rewards}
        with contextlib.suppress(OSError):
            line.send(b"!")
        line.close()
        self._line = None

    def _prints(self) -> dict[str, str]:
        return prints([*self._watched, *self._kept])

    def _broken(self) -> None:
        self.found.append({"verdicts": [], "ended": False})

    def close(self) -> None:
        """Read the last reports after the script has ended."""
        self.take()
        if self._line is not None:
            self._broken()
        self._listener.close()

    def rewards(self) -> dict[str, str | None]:
        """Return the scores that the script wrote itself, without any already present when a pytest run ended."""
        looks = {each: look_of(each) for each in self._rewards}
        return {each: text_of(each) if looks[each] != self._planted.get(each) else None for each in self._rewards}


def prints(folders: list[str]) -> dict[str, str]:
    """Return digests of the files below these folders."""
    found = {}
    for folder in folders:
        for place in sorted(pathlib.Path(folder).rglob("*")):
            with contextlib.suppress(OSError):
                if place.is_symlink() or place.is_file():
                    data = os.fsencode(os.path.realpath(place)) + place.read_bytes()
                    found[str(place)] = hashlib.sha256(data).hexdigest()
    return found


def below(place: str, folders: list[str]) -> bool:
    return any(place.startswith(f"{folder}/") for folder in folders)


def look_of(place: str) -> Any:
    """Return metadata that changes when the file is written."""
    try:
        seen = os.lstat(place)
    except OSError:
        return None
    return seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns


def until_end(pid: int, pipe: int, runs: Runs | None) -> tuple[bytes, int]:
    """Return the child's output on the pipe, and its exit code, or a signal as a negative number."""
    os.set_blocking(pipe, False)
    parts: list[bytes] = []
    status = None
    while status is None:
        waited: list[int | socket.socket] = [pipe, *(runs.files() if runs else [])]
        select.select(waited, [], [], 0.05)
        parts.append(read_all(pipe))
        if runs:
            runs.take()
        ended, code = os.waitpid(pid, os.WNOHANG)
        status = code if ended else None
    parts.append(read_all(pipe))
    return b"".join(parts), os.waitstatus_to_exitcode(status)


def read_all(pipe: int) -> bytes:
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, 65536):
            parts.append(part)
        select.select([], [], [], 0.01)  # the other end is closed: wait for the process, without spinning
    return b"".join(parts)


def kill_descendants() -> None:
    """Kill the child's remaining descendants, until none has this process as its parent."""
    for _ in range(1000):
        left = [int(each.name) for each in pathlib.Path("/proc").glob("[0-9]*") if parent_of(each) == os.getpid()]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def parent_of(process: pathlib.Path) -> int:
    try:
        return int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def run_of(written: bytes, status: int) -> dict[str, Any]:
    """Return the verdicts of a pytest run, and True in ``ended`` if it is complete."""
    verdicts, end = [], None
    for line in written.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict):
                end = found.get("end")
            else:
                verdicts.append(found)
    ended = isinstance(end, int) and status == 0
    return {"verdicts": verdicts, "ended": ended, "exit": end if ended else BROKEN_OFF}


def text_of(place: str) -> str | None:
    """Return a file's text, or None if it is not a plain file or is reached through a link."""
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 (a pipe must not block)
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode) and os.path.realpath(place) == place
            return file.read(LARGEST).decode(errors="replace") if plain else None
    except OSError:
        return None


def connected(place: str) -> socket.socket | None:
    """Connect to the process that counts a script's runs; return None if this run belongs to no script."""
    if not place:
        return None
    line = socket.socket(socket.AF_UNIX)
    line.connect(place)
    line.recv(1)  # the parent has checked the script's files
    return line


def show_end(output: Any) -> None:
    """Print the end of the child's output."""
    output.flush()
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - SHOWN))
    sys.stdout.buffer.write(output.read() + b"\n")
    sys.stdout.flush()


def main(settings: dict[str, Any], words: list[str]) -> int:
    sealed, place = bool(settings.get("sealed")), settings.get("report") or os.environ.pop(REPORT, "")
    output = tempfile.TemporaryFile() if sealed else None  # noqa: SIM115
    line = connected(place) if not sealed else None
    runs = Runs(settings) if settings.get("script") else None
    reading, writing = os.pipe()
    waiting, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.close(go)
        for each in (*([line] if line else []), *(runs.files() if runs else [])):
            each.close()
        child(settings, words, writing, waiting, output.fileno() if output else None)
    os.close(writing)
    hide()
    key = sys.stdin.buffer.readline().strip() if sealed else b""
    with contextlib.suppress(OSError):
        os.ftruncate(0, 0)  # the sandbox's first process has the same file open
    os.write(go, b"!")
    written, status = until_end(pid, reading, runs)
    kill_descendants()
    run = run_of(written, status)
    report: dict[str, Any] = {"runs": [run], "exit": run["exit"]}
    if runs is not None:
        runs.close()
        report = {"runs": runs.found, "exit": status, "rewards": runs.rewards()}
    if output is not None:
        show_end(output)
        data = json.dumps(report).encode()
        pathlib.Path(place).write_bytes(data)
        print(hmac.new(key, data, hashlib.sha256).hexdigest(), flush=True)
    elif line is not None:
        line.sendall(json.dumps(run).encode() + b"\n")
        line.recv(1)  # the script continues after its files have been checked
    return int(report["exit"]) if int(report["exit"]) >= 0 else 128 - int(report["exit"])


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
