"""An engine started here: its process, its log, and a readable reason when it does not start."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from openclaw_rl import files
from openclaw_rl.errors import BackendError, ModelRefused

GRACE: Final = 15.0
"""seconds an engine has to end before it is killed"""
_TAIL: Final = 20_000
_TIED: Final = (
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 15)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
"""starts a program that ends with this process, however it ends"""
_CAUSES: Final[Sequence[tuple[str, str, str]]] = (
    (
        r"No module named '?(\w+)'?",
        "its Python has no package {0!r}",
        "install the engine there, or name another Python with --engine-python (scripts/vllm-env.sh sets one up)",
    ),
    (
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|sgl_kernel.*has no attribute",
        "it finds no GPU, and this build of it cannot do without",
        "use a machine with a GPU, or vLLM's CPU build, which scripts/vllm-env.sh sets up",
    ),
    (
        r"(\S+\.so\S*): (?:cannot open shared object file|undefined symbol)",
        "a library of its environment does not fit: {0}",
        "install the engine anew, in a virtual environment of its own",
    ),
    (
        r"[Aa]ddress already in use|Errno 98|error while attempting to bind",
        "its port is taken",
        "end what listens there, or set policy.url to another port",
    ),
    (
        r"out of memory|OutOfMemoryError|No available memory for the cache|Free memory on device|Cannot allocate mem",
        "there is too little memory",
        "lower policy.memory_share or policy.context, choose a smaller model, or close other programs",
    ),
    (
        r"max_model_len \((\d+)\)|maximum sequence length|larger than the maximum number of tokens",
        "its KV cache does not hold one conversation of the model's length",
        "set policy.context to a smaller number",
    ),
    (
        r"unrecognized arguments: (.+)",
        "this release of it does not know {0}",
        "take it out of policy.engine_flags, or use the release that docs/engines.md names",
    ),
    (
        r"(?:Model architectures?|architecture) \[?'?(\w+)'?\]?.*not supported",
        "it cannot serve a {0}",
        "use a newer release of the engine, or another model",
    ),
)
"""log patterns for a failed start: the pattern, its meaning, the remedy"""


def free_port() -> int:
    """Return a free port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LaunchedEngine:
    """One engine process, its output in ``log``. ``progress`` receives messages for a waiting user."""

    def __init__(self, name: str, command: Sequence[str], log: Path, progress: Callable[[str], None]) -> None:
        self.name, self._command, self._log = name, command, log
        self._progress = progress
        self._process: asyncio.subprocess.Process | None = None
        self._read_to = 0

    @property
    def pid(self) -> int | None:
        """Return the process id; None if no process runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the process; it answers some time later."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._read_to = output.tell()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    _TIED,
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise ModelRefused(
                    f"{self.name} cannot be started: {error}", remedy="see policy.engine_python"
                ) from error

    async def wait(self) -> int:
        """Wait for the process to end and return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End the process and its children. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def failure(self) -> BackendError:
        """Return the reason why it ended before it answered, read from its log."""
        text = self._text()
        for pattern, what, remedy in _CAUSES:
            match = re.search(pattern, text)
            if match:
                words = what.format(*(group or "" for group in match.groups()))
                return ModelRefused(f"{self.name} did not start: {words} (log: {self._log})", remedy=remedy)
        errors = [line.strip() for line in text.splitlines() if re.search(r"error|exception", line, re.IGNORECASE)]
        last = (errors or text.strip().splitlines() or ["its log is empty"])[-1][:300]
        return ModelRefused(f"{self.name} did not start: {last}", remedy=f"see its log, {self._log}")

    def _text(self) -> str:
        """Return the end of this process's output."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._read_to, size - _TAIL))
            return file.read().decode(errors="replace")


# The address of a run's engine: written to the run directory by the process that started it, so that other processes
# use that engine instead of starting a second one.

log = logging.getLogger(__name__)

FILE: Final = "engine.json"


def remember(run_dir: Path, *, engine: str, url: str) -> None:
    """Record the address of this process's engine; if the disk refuses, log a warning and continue serving."""
    try:
        files.write(run_dir / FILE, json.dumps({"engine": engine, "url": url, "pid": os.getpid()}) + "\n", mode=0o600)
    except OSError as error:
        log.warning("the engine's address could not be written to %s: %s", run_dir / FILE, error)


def forget(run_dir: Path) -> None:
    """Remove the recorded address if it belongs to this process."""
    record = _read(run_dir)
    if record is not None and record[2] == os.getpid():
        (run_dir / FILE).unlink(missing_ok=True)


def remembered(run_dir: Path, *, engine: str) -> str | None:
    """Return the address of the engine that another process in this run started and watches; None if there is none."""
    record = _read(run_dir)
    if record is None or record[0] != engine or record[2] == os.getpid() or not is_running(record[2]):
        return None
    return record[1]


def _read(run_dir: Path) -> tuple[str, str, int] | None:
    try:
        record = json.loads((run_dir / FILE).read_text("utf-8"))
        return str(record["engine"]), str(record["url"]), int(record["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_running(pid: int) -> bool:
    """Return True if a process with this id exists."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
