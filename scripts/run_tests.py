"""The test suite in several processes at once, told as one.

    python scripts/run_tests.py [-j N] [--record] [what pytest takes ...]     in the root of the project

Each process runs one of N parts of about equal length (`tests/shards.py`). Progress is shown as it comes, with the
number of its part; what a part has to say of failures comes whole when the part is done; the last line counts
everything. The exit status is 0 only if all is well. Ctrl-C and SIGTERM end all processes.

Where a file or a debugger is asked for, there is one process, and everything is as pytest itself does it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openclaw_rl.machine import GIB, total_memory

MEASURED = Path("tests/durations.json")
PASSED, INTERRUPTED, NOTHING_RAN = 0, 2, 5
"""exit statuses of pytest"""
ALONE = ("--pdb", "--trace", "-s", "--capture=no", "--collect-only", "--co", "--help", "-h")
MEMORY = 5 * GIB
"""what a part may take with the models that it starts"""
PATIENCE = 20.0
"""seconds that a part has to end what it started, once it is told to end"""
REPORT = re.compile(r"=+ (?!test session starts)\S")
COUNTED = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?)\b")
LAST = re.compile(rf"(?:=+ )?(?:{COUNTED.pattern}|no tests ran).* in [\d.]+s")


class Part:
    """One pytest process, and what it said."""

    def __init__(self, command: Sequence[str], name: str, lock: threading.Lock) -> None:
        self.name, self.report, self.counts = name, list[str](), Counter[str]()
        self._lock = lock
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if LAST.match(line):
                self.counts.update({kind.rstrip("s"): int(count) for count, kind in COUNTED.findall(line)})
            elif self.report or REPORT.match(line):
                self.report.append(line)
            else:
                self._show(f"{self.name} {line}")
        self._show(self._told())

    def _told(self) -> str:
        code = self.process.wait()
        if code in (PASSED, NOTHING_RAN) or self.counts:
            how = ""
        else:
            how = f"ended with status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        head = f"---- part {self.name} {how}".rstrip() + "\n"
        return head + "".join(self.report) if how or self.report else ""

    def _show(self, text: str) -> None:
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()

    def end(self) -> None:
        """Have pytest clean up, as after Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """It, and what it started in its own process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", type=int, metavar="N", default=None, help="processes (default: as the machine allows)")
    parser.add_argument("--record", action="store_true", help=f"write what each file took to {MEASURED}")
    known, rest = parser.parse_known_args(words)
    if any(word in ALONE or _is_path(word) for word in rest):
        return subprocess.call([*pytest(), *rest])
    with tempfile.TemporaryDirectory() as place:
        begun = time.monotonic()
        count = known.j or default_parts()
        parts, status = run(count, rest, Path(place))
        if known.record and status == PASSED:
            record(Path(place))
    print(summary(parts, time.monotonic() - begun, status))
    return status


def pytest() -> list[str]:
    return [sys.executable, "-m", "pytest"]


def _is_path(word: str) -> bool:
    return not word.startswith("-") and Path(word.split("::")[0]).exists()


def default_parts() -> int:
    """One for each core, as far as memory allows: some tests wait, others compute with two threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, (total_memory() or MEMORY) // MEMORY, 8))


def run(count: int, words: Sequence[str], place: Path) -> tuple[list[Part], int]:
    """All parts at once, to their end; after the first that fails where ``-x`` is among the words."""
    lock = threading.Lock()
    parts = list[Part]()
    with interruptible():
        try:
            for number in range(1, count + 1):
                own = ["--shard", f"{number}/{count}", "--durations-to", str(place / f"{number}.json")]
                parts.append(Part([*pytest(), *own, *words], f"{number}/{count}", lock))
            _wait(parts, impatient={"-x", "--exitfirst"} & set(words) != set())
        except KeyboardInterrupt:
            print("\nending all parts", flush=True)
            end(parts)
            return parts, INTERRUPTED
    return parts, status_of([part.process.returncode for part in parts])


def _wait(parts: Sequence[Part], *, impatient: bool) -> None:
    while any(part._reader.is_alive() for part in parts):
        time.sleep(0.1)
        if impatient and any(part.process.poll() not in (None, PASSED, NOTHING_RAN) for part in parts):
            end(parts)


def end(parts: Sequence[Part]) -> None:
    """Let all clean up for a while, then kill."""
    for part in parts:
        part.end()
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and any(part.process.poll() is None for part in parts):
        time.sleep(0.05)
    for part in parts:
        part.kill()


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is as Ctrl-C."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def status_of(codes: Sequence[int]) -> int:
    """The first that is not well; nothing ran only where nothing ran in any part."""
    bad = [code for code in codes if code not in (PASSED, NOTHING_RAN)]
    if bad:
        return bad[0] if bad[0] > 0 else 1
    return PASSED if PASSED in codes else NOTHING_RAN


def summary(parts: Sequence[Part], seconds: float, status: int) -> str:
    total = sum((part.counts for part in parts), Counter[str]())
    counts = ", ".join(f"{total[kind]:,} {kind}" for kind in ("failed", "error", "passed", "skipped") if total[kind])
    word = {PASSED: "", INTERRUPTED: "interrupted: ", NOTHING_RAN: "no tests ran"}.get(status, "FAILED: ")
    cpu = sum(os.times()[2:4])
    return f"==== {word}{counts} in {seconds:.0f} s, {cpu:.0f} s of CPU, {len(parts)} processes"


def record(place: Path) -> None:
    """What each file took, into the table that the parts are made from."""
    took: dict[str, list[float]] = {}
    for file in place.glob("*.json"):
        took |= json.loads(file.read_text())
    rows = (f'"{name}": {json.dumps(seconds)}' for name, seconds in sorted(took.items()))
    MEASURED.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
