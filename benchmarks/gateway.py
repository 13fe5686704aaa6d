"""What the gateway costs over the engine that it stands before: requests per second, first token, time per token.

    python benchmarks/gateway.py --python "$(scripts/vllm-env.sh)"    start the real vLLM on the embedded model
    python benchmarks/gateway.py --url http://127.0.0.1:8000 --model Qwen/Qwen3-4B    one that runs already
    python benchmarks/gateway.py --fake [--rate 50]    a contract fake, so many tokens a second on each stream

                                 [--streams 1,16,64] [--requests 8,2,1] [--tokens 32] [--rounds 4] [--json]

The same greedy chat goes to the engine itself and to `openclaw-rl serve` before it, in turn, ``--rounds`` times each;
``--requests`` are those of each stream, a number for each level. Each server is a process of its own, clients are plain
sockets here. A ratio of 1 means that the gateway costs nothing; it keeps every turn in its ledger meanwhile. The CPU
time that its process takes for a token is what it costs on a machine that others use too.

The goals: requests per second at least 0.95 of the engine's, the first token at most 10 ms later, tokens at most 0.5 ms
further apart. A goal is missed where the figure is beyond it by more than rounds of the same way differ; what lies
between is said to be in the noise. The exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.backends.engines.http import EngineAnswer, EngineHttp
from openclaw_rl.config import load

GOALS = {"ratio": 0.95, "first_added_ms": 10.0, "between_added_ms": 0.5}
"""at least, at most, at most"""
WORDS = ["tea", "rain", "bread", "clocks", "rivers", "trains", "glass", "paper", "salt", "stars", "roads", "wool"]


@dataclass
class Load:
    """What one load gave: seconds to the first token and between tokens, seconds in all, tokens."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0


async def one(http: EngineHttp, model: str, tokens: int, at: int) -> tuple[list[float], float]:
    """The moments at which text came, and when the request was sent."""
    text = f"Tell me something about {WORDS[at % len(WORDS)]}, number {at}."
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "temperature": 0,
        "max_tokens": tokens,
    }
    began, moments = time.perf_counter(), []
    async for event in http.stream("/v1/chat/completions", body):
        assert not isinstance(event, EngineAnswer), event
        choices = json.loads(event).get("choices")
        if choices and choices[0]["delta"].get("content"):
            moments.append(time.perf_counter())
    return moments, began


async def loaded(url: str, model: str, *, streams: int, requests: int, tokens: int, offset: int) -> Load:
    http, found = EngineHttp(url), Load()

    async def stream(number: int) -> None:
        for turn in range(requests):
            moments, began = await one(http, model, tokens, offset + number * requests + turn)
            found.first.append(moments[0] - began)
            found.between.append((moments[-1] - moments[0]) / max(1, len(moments) - 1))
            found.requests += 1
            found.tokens += len(moments)

    began = time.perf_counter()
    await asyncio.gather(*(stream(number) for number in range(streams)))
    found.seconds = time.perf_counter() - began
    http.close()
    return found


@contextlib.contextmanager
def gateway(engine: str, model: str, backend: str, folder: Path) -> Iterator[tuple[str, int]]:
    """`openclaw-rl serve` before an engine; its address and its process."""
    command = [sys.executable, "-m", "openclaw_rl", "serve", "--backend", backend, "--engine-url", engine]
    command += ["--model", model, "--port", "0", "--run-dir", str(folder / "run"), "--set", "notes.enabled=off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                found = re.search(r"http://[\d.]+:\d+", line)
                if found and found[0] != engine:
                    yield found[0], process.pid
                    break
            else:
                raise SystemExit("the gateway did not start")
        finally:
            process.terminate()


@contextlib.contextmanager
def fake(rate: float, folder: Path) -> Iterator[str]:
    """A contract fake of vLLM in a process of its own."""
    code = (
        "import sys, time; from pathlib import Path; from openclaw_rl.testing import engines\n"
        "with engines.fake_engine('vllm', Path(sys.argv[1])) as engine:\n"
        "    engine.pause = 1 / float(sys.argv[2]); print(engine.url, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(folder), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def vllm(python: str, folder: Path) -> AsyncIterator[str]:
    """The real engine, started as the policy starts it."""
    from openclaw_rl.app.factories import build_policy

    sets = ["policy.backend=vllm", f"policy.engine_python={python}", f"run.dir={folder / 'engine'}"]
    policy: Any = build_policy(load(environ={}, sets=[*sets, "policy.context=2048"]).config)
    print("starting vLLM", file=sys.stderr)
    await policy.start()
    try:
        yield policy.health["url"]
    finally:
        await policy.stop()


async def compared(urls: tuple[str, str], names: tuple[str, str], pid: int, given: Any) -> list[dict[str, Any]]:
    rows, began = [], time.perf_counter()
    for streams, requests in levels(given.streams, given.requests):
        rounds: tuple[list[Load], list[Load]] = ([], [])
        spent = 0.0
        size = {"streams": streams, "requests": requests, "tokens": given.tokens}
        for turn in range(given.rounds):
            for which in (0, 1) if turn % 2 else (1, 0):  # none has the quieter moments, none the other's prompts
                before = cpu_seconds(pid)
                offset = 10_000 * (2 * turn + which)
                rounds[which].append(await loaded(urls[which], names[which], **size, offset=offset))
                spent += which * (cpu_seconds(pid) - before)
        through = sum(load.tokens for load in rounds[1])
        rows.append({**row(streams, *rounds), "gateway_cpu_ms_per_token": millis(spent / through)})
        print(f"{time.perf_counter() - began:.0f} s {table(rows[-1:]).splitlines()[-1]}", file=sys.stderr)
    return rows


def levels(streams: str, requests: str) -> list[tuple[int, int]]:
    """The streams of each level and the requests of each stream; the last number holds for all further levels."""
    counts = [int(each) for each in requests.split(",")]
    return [(int(each), counts[min(at, len(counts) - 1)]) for at, each in enumerate(streams.split(","))]


def millis(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far; it does not grow while others have the processor."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no Linux
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(streams: int, direct: list[Load], through: list[Load]) -> dict[str, Any]:
    """One level: what each way gave over its rounds, and how far rounds of one way are apart."""
    rates = [[load.requests / load.seconds for load in way] for way in (direct, through)]
    first = [[statistics.median(load.first) * 1e3 for load in way] for way in (direct, through)]
    between = [[statistics.median(load.between) * 1e3 for load in way] for way in (direct, through)]
    mean = [[statistics.mean(way) for way in each] for each in (rates, first, between)]
    figures = {
        "streams": streams,
        "requests": sum(load.requests for load in direct),
        "tokens": [sum(load.tokens for load in way) for way in (direct, through)],
        "direct_rps": round(mean[0][0], 3),
        "gateway_rps": round(mean[0][1], 3),
        "ratio": round(mean[0][1] / mean[0][0], 3),
        "first_ms": [round(value, 2) for value in mean[1]],
        "first_added_ms": round(mean[1][1] - mean[1][0], 2),
        "between_ms": [round(value, 3) for value in mean[2]],
        "between_added_ms": round(mean[2][1] - mean[2][0], 3),
        "noise": [round(noise(*rates) / mean[0][0], 3), round(noise(*first), 2), round(noise(*between), 3)],
    }
    return figures | {"goals": verdicts(figures)}


def noise(direct: list[float], through: list[float]) -> float:
    """How far the difference of two means of so many rounds may be off: two standard errors."""
    if len(direct) < 2:
        return 0.0
    return float(2 * ((statistics.variance(direct) + statistics.variance(through)) / len(direct)) ** 0.5)


def verdicts(figures: dict[str, Any]) -> dict[str, str]:
    """For each goal whether it is met, missed, or in the noise."""
    found = {}
    for (name, goal), doubt in zip(GOALS.items(), figures["noise"], strict=True):
        beyond = goal - figures[name] if name == "ratio" else figures[name] - goal
        found[name] = "met" if beyond <= 0 else "missed" if beyond > doubt else "in the noise"
    return found


def table(rows: list[dict[str, Any]]) -> str:
    names = (
        "streams",
        "requests/s engine",
        "gateway",
        "ratio",
        "first token, added",
        "between tokens, added",
        "CPU a token",
        "goals",
    )
    head = f"| {' | '.join(names)} |\n{'|---' * len(names)}|"
    lines = [
        f"| {r['streams']} | {r['direct_rps']} | {r['gateway_rps']} | {r['ratio']} ± {r['noise'][0]} | "
        f"{r['first_added_ms']:+} ± {r['noise'][1]} ms of {r['first_ms'][0]} | "
        f"{r['between_added_ms']:+} ± {r['noise'][2]} ms of {r['between_ms'][0]} | "
        f"{r['gateway_cpu_ms_per_token']} ms | {', '.join(r['goals'].values())} |"
        for r in rows
    ]
    return "\n".join([head, *lines])


async def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        async with contextlib.AsyncExitStack() as stack:
            if given.fake:
                from openclaw_rl.testing.engines import write_engine_model

                given.model = str(write_engine_model(folder / "toy"))
                engine = stack.enter_context(fake(given.rate, folder / "toy"))
            else:
                engine = given.url or await stack.enter_async_context(vllm(given.python, folder))
            answer = (await EngineHttp(engine).get("/v1/models")).json()
            names = (answer["data"][0]["id"], given.model)
            served, pid = stack.enter_context(gateway(engine, given.model, given.backend, folder))
            for url, model in zip((engine, served), names, strict=True):  # nothing is cold when it counts
                await loaded(url, model, streams=2, requests=1, tokens=4, offset=99_999)
            return await compared((engine, served), names, pid, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="Python of an environment with vLLM in it")
    parser.add_argument("--url", help="an engine that runs already")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second of a fake's stream")
    parser.add_argument("--backend", default="vllm")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--requests", default="8,2,1", help="of each stream, for each level")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.python or given.url or given.fake):
        parser.error("give --python, --url or --fake")
    rows = asyncio.run(measure(given))
    print(json.dumps(rows, indent=1) if given.json else table(rows))
    sys.exit(any("missed" in row["goals"].values() for row in rows))


if __name__ == "__main__":
    main()
