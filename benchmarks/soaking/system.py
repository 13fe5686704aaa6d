"""The real server as a child process, and the faults: kills, commands, a full disk."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROLES = {"engine": "openclaw-engine", "trainer": "openclaw-train"}
PATIENCE = 240.0
"""seconds that the server may take to be ready again"""
SETTINGS = {
    "fake": (
        *("policy.backend=fake", "policy.model=fake", "policy.options.tokens_per_second=4000", "train.backend=fake"),
        *("train.batch_size=4", "train.options.seconds=0.05", "train.idle_wait=0.5", "run.poll=0.02"),
    ),
    "local": ("policy.max_batch=8",),
}
ALWAYS = ("judge.kind=rules", "monitor.mode=off", "serve.model_name=soak", "run.log_level=warning")


@dataclass
class Fault:
    """What was done and when; ``over`` is when all was well again."""

    kind: str
    at: float
    over: float = float("inf")
    detail: str = ""


@dataclass
class Disk:
    """The run directory on a small file system of its own, where we may make one; it can be full and freed."""

    place: Path
    room: str = "8g"
    small: bool = False

    def mount(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        if os.name == "posix" and os.getuid() == 0 and shutil.which("mount"):
            options = ["-t", "tmpfs", "-o", f"size={self.room},mode=0700", "tmpfs", str(self.place)]
            self.small = subprocess.run(["mount", *options], capture_output=True).returncode == 0

    def fill(self) -> None:
        """Leaves less than one page free."""
        taken = shutil.disk_usage(self.place).used
        self._resize(str(max(taken, 4096)))

    def free(self) -> None:
        self._resize(self.room)

    def unmount(self) -> None:
        if self.small:
            subprocess.run(["umount", "-l", str(self.place)], check=True)

    def _resize(self, size: str) -> None:
        for _ in range(20):  # what is written meanwhile makes a size too small to be taken
            options = ["mount", "-o", f"remount,size={size}", str(self.place)]
            done = subprocess.run(options, capture_output=True, text=True)
            if done.returncode == 0:
                return
            size = str(shutil.disk_usage(self.place).used + 65536)
        raise SystemExit(f"{self.place} could not be resized: {done.stderr}")


@dataclass
class System:
    """`openclaw-rl up` on one run directory, started again and again."""

    root: Path
    log: Path
    keys: Path
    backend: str
    port: int = 0
    faults: list[Fault] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until it is ready; the seconds that took."""
        began = time.monotonic()
        self.port = self.port or _free_port()
        words = ["up", "--port", str(self.port), *(["--preset", "cpu-demo"] if self.backend == "local" else [])]
        sets = (*SETTINGS[self.backend], *ALWAYS, f"serve.keys_file={self.keys}")
        command = [sys.executable, "-m", "openclaw_rl", *words, *self._where(), *(f"--set={one}" for one in sets)]
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
        self.wait_ready()
        return time.monotonic() - began

    def _where(self) -> Sequence[str]:
        return ("--rl-buffer-dir", str(self.root))

    def empty_log(self) -> None:
        """Clear the ledger's log, whose room would be written over instead of taking any."""
        with contextlib.closing(sqlite3.connect(self.root / "ledger.db", timeout=10.0)) as ledger:
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def wait_ready(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self.ready():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server is not ready:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False

    def versions_held(self) -> int | None:
        """How many versions the engine has in memory beside the base, by /metrics; None while it does not say."""
        headers = {"authorization": f"Bearer {self._key()}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                found = re.search(r'openclaw_rl_engine{figure="versions"} (\d+)', answer.read().decode())
        except (OSError, http.client.HTTPException):
            return None
        return int(found[1]) - 1 if found else None

    def _key(self) -> str:
        return self.keys.read_text().splitlines()[0].partition(":")[2]

    def wait_answered(self) -> None:
        """Wait until a request that begins now, or one after it, is answered."""
        body = {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 1}
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key()}"}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    answer.read()
                    return
            except (OSError, http.client.HTTPException):
                time.sleep(0.5)

    def kill(self) -> None:
        """The server and all that belongs to it, at once."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.kill()
            return -1

    def processes(self) -> dict[str, int]:
        """The server, the engine and the trainer, those that there are, by role."""
        if self.process is None or self.process.poll() is not None:
            return {}
        found = {"server": self.process.pid}
        for child in _children(self.process.pid):
            for role, name in ROLES.items():
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{child}/comm").read_text().strip() == name:
                        found[role] = child
        return found

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "openclaw_rl", *words, *self._where()]
        return subprocess.run(line, capture_output=True, text=True, timeout=120)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- faults -----------------------------------------------------------------------------------------------------------


def schedule(rng: random.Random, *, seconds: float, backend: str, disk: bool) -> list[tuple[float, str]]:
    """What is done when: commands all the time, kills now and then, a full disk and the worst kill a few times."""
    minutes = seconds / 60
    often = {"command": seconds / (6 if backend == "local" else 2.5), "kill server": max(2, minutes / 5)}
    if backend == "local":
        often |= {"kill engine": max(1, minutes / 2), "kill trainer": max(1, minutes / 2)}
    if disk:
        often["disk full"] = max(1, minutes / 8)
    begin, end = 0.05 * seconds, 0.85 * seconds
    return sorted((rng.uniform(begin, end), kind) for kind, count in often.items() for _ in range(round(count)))


def cause(kind: str, system: System, disk: Disk, rng: random.Random, *, turns: Sequence[str]) -> None:
    """Do it, see that all is well again, and write down both."""
    fault = Fault(kind=kind, at=time.monotonic())
    system.faults.append(fault)
    if kind == "command":
        fault.kind, fault.detail = _command(system, rng, turns)
    elif kind == "kill server":
        system.kill()
        fault.detail = f"ready again after {system.start():.1f} s"
    elif kind == "disk full":
        system.empty_log()
        disk.fill()
        time.sleep(rng.uniform(3.0, 6.0))
        fault.detail = f"ready while full: {system.ready()}"
        disk.free()
        system.wait_ready()
    else:
        pid = system.processes().get(kind.removeprefix("kill "))
        fault.detail = "there was none" if pid is None else ""
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            system.wait_answered()
            fault.detail = f"answers again after {time.monotonic() - fault.at:.1f} s"
    fault.over = time.monotonic()


def _command(system: System, rng: random.Random, turns: Sequence[str]) -> tuple[str, str]:
    """Any of the commands that steer or look at a run; its name, and what it said if it failed."""
    verb = rng.choice(("pause", "resume", "resume", "status", "rollback", "pin"))
    words = [verb, rng.choice(turns)] if verb == "pin" and turns else ["status" if verb == "pin" else verb]
    if verb == "rollback" and not _live(system):
        words = ["status"]
    done = system.command(*words)
    wrong = done.returncode != 0 and not any(words in done.stderr for words in _NO_FAULT)
    return words[0], (done.stderr.strip().splitlines() or ["no word"])[-1] if wrong else ""


_NO_FAULT = ("nothing to roll back", "was deleted with its session")


def _live(system: System) -> int:
    done = system.command("status", "--json")
    return int(json.loads(done.stdout).get("live") or 0) if done.returncode == 0 else 0
