"""The real command in processes of its own, a client that talks to it, and a person who types commands beside it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

WISHES = ("Too long. Please keep it under 30 words.", "Please don't use bullet points.", "Thanks, that's perfect!")


class System:
    """The real command in a real process group."""

    def __init__(self, root: Path) -> None:
        self.root = root
        sets = [
            "policy.backend=fake",
            "policy.model=fake",
            "train.backend=fake",
            "train.batch_size=2",
            "run.poll=0.005",
        ]
        sets += ["judge.kind=rules", "train.idle_wait=0.2", "train.options.seconds=0.01", "run.log_level=error"]
        sets += ["monitor.mode=off"]  # who complains by chance gives it a false alarm now and then, and it goes back
        self.command = [sys.executable, "-m", "openclaw_rl", "up", "--port", "0", "--rl-buffer-dir", str(root)]
        for one in sets:
            self.command += ["--set", one]

    def start(self) -> str:
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, start_new_session=True)
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
        code = self.process.wait(timeout=60)
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
