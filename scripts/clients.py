"""Runs real clients, one after another, against the real embedded model behind the real command, and checks the ledger.

    scripts/clients.sh [CLIENT ...] [--folder DIR] [--keep DIR] [--json]

Each client talks twice in one conversation. It passes if it ended well and got its replies, if the server answered none
of its calls with 4xx or 5xx, and if the ledger holds its turns with their tokens, in one session where the client names
one, main and side told apart, and the second thing said is known to have come after the first reply.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Outcome, Turn

ROOT = Path(__file__).resolve().parents[1]
KEY = "clients-check"
MODEL = "embedded"
SAYS = ("What is tea?", "Please answer in under ten words.")
SHORT = 256
"""reply tokens at most; `one_sentence` ends nearly every reply before that"""
PATIENCE = 240.0
"""seconds a client may take"""
CONTEXT = 8192


@dataclass(frozen=True)
class Place:
    """Where a client runs: a home and a working folder of its own, and the address it is pointed at."""

    home: Path
    work: Path
    folder: Path
    url: str

    def program(self, name: str) -> str:
        return str(self.folder / "node_modules" / ".bin" / name)

    def env(self, **more: str) -> dict[str, str]:
        """A bare environment: nothing of the caller's own settings for these clients gets in."""
        path = f"{self.folder / 'venv' / 'bin'}:{os.environ.get('PATH', '')}"
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb", **more}

    def run(self, *command: str, **env: str) -> str:
        """What a command prints; raises CalledProcessError if it fails and TimeoutExpired if it takes too long."""
        done = subprocess.run(
            command,
            env=self.env(**env),
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        return done.stdout


Talk = Callable[[Place], Sequence[str]]


@dataclass(frozen=True)
class Client:
    """A client and what must come of it. ``package`` is where its version is read."""

    name: str
    package: str
    talk: Talk
    main: int
    side: int = 0
    names_session: bool = False
    answered: int = 1
    """of how many main turns it is known what was said next"""


# --- how each client talks --------------------------------------------------------------------------------------------


def openai_python(place: Place) -> list[str]:
    out = place.run(str(place.folder / "venv/bin/python"), str(ROOT / "examples/client_openai.py"), **_openai(place))
    return _after(out, "tea:", "shorter:", "tool:", "responses:")


def anthropic_python(place: Place) -> list[str]:
    example = str(ROOT / "examples/client_anthropic.py")
    out = place.run(str(place.folder / "venv/bin/python"), example, **_anthropic(place))
    return _after(out, "tokens:", "tea:", "shorter:")


def openai_node(place: Place) -> list[str]:
    shutil.copy(ROOT / "examples/client_openai.ts", place.work)
    (place.work / "node_modules").symlink_to(place.folder / "node_modules")
    out = place.run(str(place.folder / "venv/bin/node"), "client_openai.ts", **_openai(place))
    return _after(out, "tea:", "shorter:")


def claude_code(place: Place) -> list[str]:
    settings = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(SHORT)}
    asking = (place.program("claude"), "--model", MODEL, "--output-format", "json")
    first = json.loads(place.run(*asking, "-p", SAYS[0], **_anthropic(place), **settings))
    again = (*asking, "--resume", first["session_id"], "-p", SAYS[1])
    second = json.loads(place.run(*again, **_anthropic(place), **settings))
    return [first["result"], second["result"]]


def codex(place: Place) -> list[str]:
    home = place.home / "codex"
    home.mkdir()
    (home / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "mine"\n'
        f'[model_providers.mine]\nname = "mine"\nbase_url = "{place.url}/v1"\nwire_api = "responses"\n'
        'env_key = "MY_KEY"\n'
    )
    env = {"CODEX_HOME": str(home), "MY_KEY": KEY}
    command = (place.program("codex"), "exec", "--json", "--skip-git-repo-check")
    first = place.run(*command, SAYS[0], **env)
    thread = next(event["thread_id"] for event in _lines(first) if event["type"] == "thread.started")
    second = place.run(*command, "resume", thread, SAYS[1], **env)
    return [_codex_said(first), _codex_said(second)]


def _codex_said(out: str) -> str:
    items = [event["item"] for event in _lines(out) if event["type"] == "item.completed"]
    return "".join(item["text"] for item in items if item["type"] == "agent_message")


def opencode(place: Place) -> list[str]:
    model = {"name": MODEL, "limit": {"context": CONTEXT, "output": SHORT}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "mine",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": KEY},
        "models": {MODEL: model},
    }
    settings = {"provider": {"mine": provider}, "model": f"mine/{MODEL}", "autoupdate": False, "share": "disabled"}
    (place.work / "opencode.json").write_text(json.dumps(settings))
    first = place.run(place.program("opencode"), "run", "--format", "json", SAYS[0])
    session = next(event["sessionID"] for event in _lines(first))
    second = place.run(place.program("opencode"), "run", "--format", "json", "--session", session, SAYS[1])
    return [_opencode_said(first), _opencode_said(second)]


def _opencode_said(out: str) -> str:
    return "".join(event["part"]["text"] for event in _lines(out) if event["type"] == "text")


def openclaw(place: Place) -> list[str]:
    """Its gateway, lean as small models need it; the talk goes through the gateway's own endpoint."""
    port = free_port()
    (place.home / "openclaw.json").write_text(json.dumps(_openclaw_settings(place, port)))
    env = place.env(
        OPENCLAW_STATE_DIR=str(place.home / "state"), OPENCLAW_CONFIG_PATH=str(place.home / "openclaw.json")
    )
    with running([place.program("openclaw"), "gateway", "run"], env, place.home / "gateway.log") as gateway:
        wait_for(f"http://127.0.0.1:{port}/healthz", gateway)
        return [_openclaw_says(port, text) for text in SAYS]


def _openclaw_settings(place: Place, port: int) -> dict[str, Any]:
    model = {"id": MODEL, "name": MODEL, "contextWindow": CONTEXT, "maxTokens": SHORT, "reasoning": False}
    provider = {
        "baseUrl": f"{place.url}/v1",
        "apiKey": KEY,
        "api": "openai-completions",
        "timeoutSeconds": int(PATIENCE),
        "models": [{**model, "input": ["text"], "compat": {"sendSessionAffinityHeaders": True}}],
    }
    gateway = {"mode": "local", "port": port, "bind": "loopback", "auth": {"mode": "token", "token": KEY}}
    return {
        "gateway": {**gateway, "http": {"endpoints": {"chatCompletions": {"enabled": True}}}},
        "models": {"providers": {"mine": provider}},
        "agents": {
            "defaults": {
                "model": {"primary": f"mine/{MODEL}"},
                "workspace": str(place.work),
                "contextInjection": "never",
                "skills": [],
                "heartbeat": {"every": "0m"},
            }
        },
        "tools": {"allow": ["read", "write", "edit", "exec"], "toolSearch": False},
    }


def _openclaw_says(port: int, text: str) -> str:
    body = {"model": "openclaw", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {KEY}", "x-openclaw-session-key": "agent:main:talk"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def _openai(place: Place) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{place.url}/v1", "OPENAI_API_KEY": KEY}


def _anthropic(place: Place) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": place.url, "ANTHROPIC_API_KEY": KEY}


def _after(out: str, *labels: str) -> list[str]:
    """What an example printed behind each of its labels."""
    ends = "|".join(map(re.escape, labels))
    found = [re.search(rf"(?ms)^{re.escape(label)}(.*?)(?=^(?:{ends})|\Z)", out) for label in labels]
    return [match[1].strip() if match else "" for match in found]


def _lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


CLIENTS = (
    Client("openai (Python)", "venv:openai", openai_python, main=4),
    Client("openai (TypeScript)", "npm:openai", openai_node, main=2),
    Client("anthropic (Python)", "venv:anthropic", anthropic_python, main=2),
    Client("claude-code", "npm:@anthropic-ai/claude-code", claude_code, main=2, names_session=True),
    Client("codex", "npm:@openai/codex", codex, main=2, names_session=True),
    Client("opencode", "npm:opencode-ai", opencode, main=2, side=1, names_session=True),
    Client("openclaw", "npm:openclaw", openclaw, main=2, names_session=True),
)


# --- the server -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of the block, ended properly after it."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,  # some clients go on in a child: the whole group is ended
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=40)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until ``url`` answers 200."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.3)
    raise RuntimeError(f"{url} did not answer; exit code {process.poll()}")


def ours(*words: str) -> list[str]:
    return [sys.executable, "-m", "openclaw_rl", *words]


def answered(url: str) -> dict[str, int]:
    """How many calls were answered with each status so far, those that only look left out."""
    request = urllib.request.Request(f"{url}/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        page = answer.read().decode()
    counts: dict[str, int] = {}
    for wire, status, count in re.findall(r'requests_total\{status="(\d+)",wire="(\w+)"\} ([\d.e+]+)', page):
        if status != "look":
            counts[wire] = counts.get(wire, 0) + int(float(count))
    return counts


# --- the check --------------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What one client did."""

    client: str
    version: str
    seconds: float = 0.0
    replies: list[str] = field(default_factory=list)
    trouble: str = ""
    calls: int = 0
    failed: int = 0
    turns: list[Turn] = field(default_factory=list)


def installed(folder: Path, package: str) -> str:
    where, name = package.split(":")
    if where == "npm":
        return str(json.loads((folder / "node_modules" / name / "package.json").read_text())["version"])
    found = next((folder / "venv/lib").glob(f"python*/site-packages/{name}-*.dist-info"))
    return found.name.removesuffix(".dist-info").split("-")[1]


def run_client(client: Client, folder: Path, base: Path, url: str, ledger: LedgerReader) -> Ran:
    """One client from its first call to its last; whatever goes wrong is its trouble and not that of the others."""
    home = base / re.sub(r"\W+", "-", client.name)
    place = Place(home=home, work=home / "work", folder=folder, url=url)
    place.work.mkdir(parents=True)
    ran = Ran(client.name, installed(folder, client.package))
    before, first, began = answered(url), ledger.newest("turns"), time.monotonic()
    try:
        ran.replies = list(client.talk(place))
    except subprocess.CalledProcessError as error:
        ran.trouble = f"exit code {error.returncode}: {(error.stderr or error.stdout or '').strip()[-300:]}"
    except Exception as error:  # a broken client must not keep the others from running
        ran.trouble = f"{type(error).__name__}: {error}"[:300]
    ran.seconds = time.monotonic() - began
    after = answered(url)
    spent = {status: after[status] - before.get(status, 0) for status in after}
    ran.calls, ran.failed = sum(spent.values()), sum(count for status, count in spent.items() if status >= "400")
    ran.turns = [turn for _, turn in ledger.turns_after(first, 1_000_000)]
    return ran


def troubles(client: Client, ran: Ran, outcomes: Mapping[str, Outcome]) -> list[str]:
    """What is not as it must be; empty if all is well."""
    if ran.trouble:
        return [ran.trouble]
    known = [turn for turn in ran.turns if turn.id in outcomes]
    kinds = [outcomes[turn.id].kind for turn in known]
    followed = sum(bool(outcomes[turn.id].next_state) for turn in known if outcomes[turn.id].kind == "main")
    sessions = {turn.session for turn in ran.turns}
    checks = (
        (bool(ran.replies) and all(ran.replies), f"a reply is empty: {ran.replies}"),
        (ran.failed == 0, f"{ran.failed} of {ran.calls} calls failed"),
        (kinds.count("main") == client.main, f"{kinds.count('main')} main turns, not {client.main}"),
        (kinds.count("side") == client.side, f"{kinds.count('side')} side turns, not {client.side}"),
        (all(turn.completion.reply_tokens for turn in ran.turns), "a turn without tokens"),
        (len(known) == len(ran.turns), f"{len(ran.turns) - len(known)} turns were dropped"),
        (followed == client.answered, f"what came next is known of {followed} turns, not {client.answered}"),
        (not client.names_session or (len(sessions) == 1 and None not in sessions), f"sessions {sessions}"),
    )
    return [what for well, what in checks if not well]


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def summary(client: Client, ran: Ran, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    kinds = [outcomes[turn.id].kind for turn in ran.turns if turn.id in outcomes]
    wrong = troubles(client, ran, outcomes)
    return {
        "client": ran.client,
        "version": ran.version,
        "calls": ran.calls,
        "failed": ran.failed,
        "main": kinds.count("main"),
        "side": kinds.count("side"),
        "prompt tokens": max((len(turn.completion.prompt_tokens) for turn in ran.turns), default=0),
        "seconds": round(ran.seconds, 1),
        "result": "; ".join(wrong) or "ok",
    }


def check(names: Sequence[str], folder: Path, base: Path) -> list[dict[str, Any]]:
    """Serve, let every client talk, settle the ledger, and say what came of each."""
    chosen = [client for client in CLIENTS if not names or client.name.split(" ")[0] in names]
    port, run = free_port(), base / "run"
    brief = f"{ROOT / 'scripts/one_sentence.py'}:generate"
    settings = [f"--set=run.dir={run}", f"--set=policy.sampling.max_tokens={SHORT}", f"--set=policy.generate={brief}"]
    env = {**os.environ, "OPENCLAW_API_KEY": KEY}
    url = f"http://127.0.0.1:{port}"
    with running(ours("serve", "--port", str(port), *settings), env, base / "serve.log") as server:
        wait_for(f"{url}/readyz", server)
        with LedgerReader(run / "ledger.db") as ledger:
            done = []
            for client in chosen:
                print(f"==> {client.name}", file=sys.stderr, flush=True)
                done.append((client, run_client(client, folder, base, url, ledger)))
    for more in ([], ["--set=collect.session_idle=0.001"]):  # first what followed what, then what nothing followed
        subprocess.run(ours("collect", "--once", *settings, *more), check=True, env=env, capture_output=True)
    with LedgerReader(run / "ledger.db") as ledger:
        found = {turn.id: ledger.outcome(turn.id) for _, ran in done for turn in ran.turns}
    outcomes = {turn: outcome for turn, outcome in found.items() if outcome is not None}
    return [summary(client, ran, outcomes) for client, ran in done]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(client.name.split(" ")[0] for client in CLIENTS))
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"{', '.join(names)}; none: all of them")
    parser.add_argument("--folder", type=Path, required=True, help="where the clients are installed")
    parser.add_argument("--keep", type=Path, help="an empty folder to leave ledger and logs in")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    args = parser.parse_args()
    unknown = set(args.clients) - set(names)
    if unknown:
        parser.error(f"no client called {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    with contextlib.ExitStack() as stack:
        base = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openclaw-rl-clients-")))
        base.mkdir(parents=True, exist_ok=True)
        rows = check(args.clients, args.folder.resolve(), base.resolve())
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        print(table([list(rows[0]), *([str(value) for value in row.values()] for row in rows)]))
    return 0 if all(row["result"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
