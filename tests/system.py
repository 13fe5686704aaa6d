"""The real command in processes of its own, a client that talks to it, and a person who types commands beside it."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

WISHES = ("Too long. Please keep it under 30 words.", "Please don't use bullet points.", "Thanks, that's perfect!")


READ = ("openclaw_rl.app.application", "openclaw_rl.app.runner", "openclaw_rl.backends.fake")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*READ])
"""a process that has read the program once, and is copied for each start: reading it takes most of a start's time"""


def _command(words: list[str], said: Connection) -> None:
    """The command in a copy of that process, with a process group of its own."""
    from openclaw_rl.cli import main

    os.setsid()
    os.dup2(said.fileno(), 2)
    sys.argv = ["openclaw-rl", *words]
    main()


class Forked:
    """The command as `System` starts it, without the time that Python takes to read it anew."""

    def __init__(self, words: list[str]) -> None:
        reads, writes = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=_command, args=(words, writes))
        self._process.start()
        writes.close()
        self.pid = self._process.pid
        self.stderr = os.fdopen(os.dup(reads.fileno()), "r")
        reads.close()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)


class System:
    """The real command in a real process group."""

    def __init__(self, root: Path, *more: str, command: str = "up") -> None:
        """``more`` are further settings, as ``--set`` takes them."""
        self.root = root
        sets = [
            "policy.backend=fake",
            "policy.model=fake",
            "train.backend=fake",
            "train.batch_size=2",
            "run.poll=0.005",
        ]
        sets += ["judge.kind=rules", "train.idle_wait=0.2", "train.options.seconds=0.01", "run.log_level=error"]
        sets += ["page.enabled=false"]
        sets += ["monitor.mode=off"]  # who complains by chance gives it a false alarm now and then, and it goes back
        self.words = [command, "--port", "0", "--rl-buffer-dir", str(root)]
        for one in (*sets, *more):
            self.words += ["--set", one]

    def start(self, *, forked: bool = False) -> str:
        if forked:
            self.process: Any = Forked(self.words)
        else:
            command = [sys.executable, "-m", "openclaw_rl", *self.words]
            self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("listening on"):
                self._reading = threading.Thread(target=self.process.stderr.read, daemon=True)
                self._reading.start()
                return line.split()[-1]
        raise AssertionError("it ended before it listened: " + "".join(said))

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._close()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def interrupt(self) -> int:
        """As Ctrl-C at a terminal does: every process of it gets the signal."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self._ended()

    def _ended(self) -> int:
        code: int = self.process.wait(timeout=60)
        self._close()
        return code

    def _close(self) -> None:
        assert self.process.stderr is not None
        self._reading.join()
        self.process.stderr.close()


class Talker(threading.Thread):
    """A client that talks in sessions, half of them streamed, and notes each answer that reached it whole."""

    def __init__(self, name: str, answered: set[str]) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(name)
        self.label = name
        self.answered = answered
        self.url: str | None = None
        self.over = False

    def run(self) -> None:
        count = 0
        while not self.over:
            messages = [{"role": "user", "content": f"{self.label} asks about topic {count}"}]
            count += 1
            for _ in range(3):
                reply = self.ask(messages)
                if reply is None:
                    break
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": self.rng.choice(WISHES)},
                ]

    def ask(self, messages: list[dict[str, str]]) -> str | None:
        while (url := self.url) is None:  # read once: a kill takes it away at any time
            if self.over:
                return None
            time.sleep(0.005)
        stream = self.rng.random() < 0.5
        body = json.dumps({"model": "fake", "messages": messages, "stream": stream}).encode()
        request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                raw = answer.read().decode()
        except (OSError, urllib.error.URLError, ValueError, EOFError):
            return None
        except Exception as error:  # http.client's many ways to say that the other side is gone
            if type(error).__module__ != "http.client":
                raise
            return None
        return self.note(raw, stream=stream)

    def note(self, raw: str, *, stream: bool) -> str | None:
        if not stream:
            answer = json.loads(raw)
            self.answered.add(answer["id"])
            return str(answer["choices"][0]["message"]["content"])
        if "data: [DONE]" not in raw:
            return None
        events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
        self.answered.add(events[0]["id"])
        return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])


class Commander:
    """Commands typed one after another, in one process beside the system; ``failed`` are those that said an error."""

    CODE = """
import sys
from openclaw_rl.cli import cli
from openclaw_rl.errors import NotInLedger, OpenClawError
for line in sys.stdin:
    try:
        cli([*line.split(), "--rl-buffer-dir", sys.argv[1]], standalone_mode=False)
    except NotInLedger as error:
        print("no such thing:", error, file=sys.stderr)
    except OpenClawError as error:
        print("FAILED", line.strip(), type(error).__name__, error, file=sys.stderr, flush=True)
"""

    def __init__(self, root: Path) -> None:
        words = [sys.executable, "-c", self.CODE, str(root)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(words, text=True, **pipes)  # type: ignore[call-overload]

    def type(self, command: str) -> None:
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def end(self) -> list[str]:
        """Wait until all of them are carried out; what failed, in words."""
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        return [line for line in said.splitlines() if line.startswith("FAILED")]
