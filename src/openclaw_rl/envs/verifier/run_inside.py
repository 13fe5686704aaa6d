"""Run pytest, or a script that runs it, in a child process and report from the parent. Its text runs in a sandbox,

python -I FILE SETTINGS [WORDS OF PYTEST ...]

where nothing of this package is. SETTINGS is JSON: `site` holds pytest, `path` is what the tests may import, and `here`
lets them import from their folder; `report` is the file to write; `script` the words of a command in place of pytest,
`runs` the socket to which pytest reports there, `rewards` files with its score, `watched` folders that nothing but the
script may add to, and `kept` those whose files none may change; `cwd` and `env` are the child's; `sealed`
reads a key from stdin, with which the report is signed on stdout.

Code under test shares the child's process: it can end it, print, write files, and start others. So the parent imports
none of it, cannot be read by other processes, gets its key after the fork, counts a run as whole only when the child
has reported its end, and signs after all processes that came of the child are dead. Of a script it hears each run of
pytest by a socket, one after the other, and looks at the script's own files and scores before the script goes on: what
code under test wrote there, or a second report at the same time, is forged.
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
"""exit code of a run of pytest that did not come to its end"""
REPORT = "OPENCLAW_RL_REPORT"
SHOWN = 30_000
LARGEST = 65_536
EQUAL = "EqualToEverything"
"""the name of what a control raises where an object equals anything"""
_SET_DUMPABLE, _SET_SUBREAPER = 4, 36


class Writer:
    """A plugin of pytest: one line to a verdict, as it comes."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test has passed when its own run has, or fails as expected; what goes wrong then is written after."""
        if report.when == "call" or report.outcome != "passed":
            self.write([report.nodeid, self._outcome(report)])

    def _outcome(self, report: Any) -> str:
        if hasattr(report, "wasxfail"):
            return "xfailed"
        if report.outcome == "failed" and EQUAL in str(report.longrepr):
            return "equal"
        return str(report.outcome)

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be loaded has no tests, and fails itself."""
        if report.outcome == "failed":
            self.write([report.nodeid, "failed"])

    def write(self, verdict: Any) -> None:
        line = json.dumps(verdict).encode() + b"\n"
        while line:
            line = line[os.write(self._pipe, line) :]


class CtrfReport:
    """`--ctrf FILE` of the plugin pytest-json-ctrf, as far as scripts read it."""

    def __init__(self) -> None:
        self._tests: dict[str, str] = {}
        self._place = ""

    def pytest_addoption(self, parser: Any) -> None:
        with contextlib.suppress(ValueError):  # the plugin itself is there
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
    """In the child. pytest is imported before anything that lies beside the code under test."""
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
    """In the child, which becomes the script."""
    os.set_inheritable(pipe, False)
    os.execvp(words[0], words)


def child(settings: dict[str, Any], words: list[str], pipe: int, go: int, output: int | None) -> None:
    """The process that code under test shares; it never returns."""
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
    except BaseException as error:  # whatever is raised, this process must not go on as the parent would
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    else:
        code = 0
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def hide() -> None:
    """Keep the memory and the files of this process from others, and get the children of those that end."""
    with contextlib.suppress(Exception):
        library = ctypes.CDLL(None)
        library.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        library.prctl(_SET_SUBREAPER, 1, 0, 0, 0)


class Runs:
    """Reports of the runs of pytest in a script. One that is broken off, or forged, counts as a run without an end."""

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
        """What has come by now."""
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
        """Code under test is dead, the script waits."""
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
        """The script has ended."""
        self.take()
        if self._line is not None:
            self._broken()
        self._listener.close()

    def rewards(self) -> dict[str, str | None]:
        """The scores that the script wrote itself: none that was there already when a run of pytest ended."""
        looks = {each: look_of(each) for each in self._rewards}
        return {each: text_of(each) if looks[each] != self._planted.get(each) else None for each in self._rewards}


def prints(folders: list[str]) -> dict[str, str]:
    """Digests of the files below these folders."""
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
    """What changes when a file is written."""
    try:
        seen = os.lstat(place)
    except OSError:
        return None
    return seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns


def until_end(pid: int, pipe: int, runs: Runs | None) -> tuple[bytes, int]:
    """What the child wrote until it ended, and how it ended: its exit code, or a signal as a negative number."""
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
    """Kill what the child left behind, until none has this process as its parent."""
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
    """The verdicts of a run of pytest, and whether it came to its end."""
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
    """What a file holds; None where it is none, or where a link leads to it."""
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 (a pipe must not block)
            plain = stat.S_ISREG(os.fstat(file.fileno()).st_mode) and os.path.realpath(place) == place
            return file.read(LARGEST).decode(errors="replace") if plain else None
    except OSError:
        return None


def connected(place: str) -> socket.socket | None:
    """The way to the process that counts the runs of a script; None where this is no run of one."""
    if not place:
        return None
    line = socket.socket(socket.AF_UNIX)
    line.connect(place)
    line.recv(1)  # the files of the script have been looked at
    return line


def show_end(output: Any) -> None:
    """The end of what the child printed."""
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
        os.ftruncate(0, 0)  # the sandbox's first process holds the same file
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
        line.recv(1)  # the script goes on when its files have been looked at
    return int(report["exit"]) if int(report["exit"]) >= 0 else 128 - int(report["exit"])


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
