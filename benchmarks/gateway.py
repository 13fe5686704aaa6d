"""What the gateway costs over the engine that it stands before: requests per second, first token, time per token.

    python benchmarks/gateway.py --python "$(scripts/vllm-env.sh)"    start the real vLLM on the embedded model
    python benchmarks/gateway.py --url http://127.0.0.1:8000 --model Qwen/Qwen3-4B    one that runs already
    python benchmarks/gateway.py --fake [--rate 50]    a contract fake, so many steps a second

                                 [--streams 1,16,64] [--requests 4,2,1] [--tokens 32,32,12] [--rounds 3]
                                 [--apart] [--unpaced] [--json]

The same greedy chat goes to the engine itself, to the engine with the token ids and log-probs that the gateway needs
(which the engine has to compute), and to `openclaw-rl serve` before it, in turn, ``--rounds`` times each.
``--requests`` are those of each stream and ``--tokens`` those of a reply, a number for each level. Each server is a
process of its own, clients are plain sockets here. A ratio of 1 means that the gateway costs nothing; it keeps every
turn in its ledger meanwhile.

An engine that computes on the processor and the gateway take cores from each other. Three things tell the gateway's
own share from that: the CPU time that its process takes for a token; ``--apart``, by which the engine that is started
here has all cores but the last, and the gateway and the clients have that one; and after the real engine the same
loads over a fake that steps at the rate which the engine had. It answers at once, so the first token shows what a
request costs; a step's tokens leave it at known moments, so how late each of them comes is measured through the
gateway and without it. ``--unpaced`` leaves that out.

The goals: requests per second at least 0.95 of the engine's, the first token at most 10 ms later, tokens at most 0.5 ms
further apart. A goal is missed where the figure is beyond it by more than rounds of the same way differ; what lies
between is said to be in the noise. The exit code is 1 where a goal is missed over the engine that was named.
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
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openclaw_rl.backends.engines.http import EngineAnswer, EngineHttp
from openclaw_rl.config import load

GOALS = {"ratio": 0.95, "first_added_ms": 10.0, "between_added_ms": 0.5}
"""at least, at most, at most"""
CAPTURE = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
"""what makes an engine say all that the gateway keeps"""
FAKES = Path(__file__).parents[1] / "tests"
WORDS = ["tea", "rain", "bread", "clocks", "rivers", "trains", "glass", "paper", "salt", "stars", "roads", "wool"]


@dataclass(frozen=True)
class Way:
    """One way to the engine: an address, the model's name there, and what a request says beside the chat."""

    url: str
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Level:
    """Streams at once, requests of each, tokens of a reply; ``step`` is a fake's, 0 where nobody knows it."""

    streams: int
    requests: int
    tokens: int
    step: float = 0.0


@dataclass
class Load:
    """What one load gave: seconds to the first token, between tokens, and after a fake's steps; tokens; seconds."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0


async def one(http: EngineHttp, way: Way, tokens: int, at: int) -> tuple[float, list[float], int]:
    """When a request was sent, the moments at which text came, and how many tokens that was."""
    text = f"Tell me something about {WORDS[at % len(WORDS)]}, number {at}."
    body = {
        "model": way.model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        **way.extra,
    }
    began, moments, count = time.monotonic(), [], 0
    async for events in http.stream("/v1/chat/completions", body):
        assert not isinstance(events, EngineAnswer), events
        now = time.monotonic()
        for event in map(json.loads, events):
            count = (event.get("usage") or {}).get("completion_tokens", count)
            if event.get("choices") and event["choices"][0]["delta"].get("content"):
                moments.append(now)
    return began, moments, count or len(moments)


async def loaded(way: Way, level: Level, offset: int) -> Load:
    http, found = EngineHttp(way.url), Load()

    async def stream(number: int) -> None:
        for turn in range(level.requests):
            began, moments, count = await one(http, way, level.tokens, offset + number * level.requests + turn)
            found.first.append(moments[0] - began)
            begin = 1 if level.step and len(moments) > 2 else 0  # a fake's first token comes before its first step
            found.between.append((moments[-1] - moments[begin]) / max(1, count - 1 - begin))
            found.late += [moment % level.step for moment in moments[1:]] if level.step else []
            found.requests += 1
            found.tokens += count

    began = time.monotonic()
    await asyncio.gather(*(stream(number) for number in range(level.streams)))
    found.seconds = time.monotonic() - began
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
def fake(step: float, folder: Path) -> Iterator[str]:
    """A contract fake of vLLM in a process of its own."""
    code = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[3]); from fakes import engines\n"
        "with engines.fake_engine('vllm', Path(sys.argv[1])) as engine:\n"
        "    engine.step = float(sys.argv[2]); print(engine.url, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(folder), str(step), str(FAKES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def vllm(python: str, folder: Path, *, apart: bool) -> AsyncIterator[str]:
    """The real engine, started as the policy starts it; ``apart``: on all cores but the last, which is left to us."""
    from openclaw_rl.app.factories import build_policy

    sets = ["policy.backend=vllm", f"policy.engine_python={python}", f"run.dir={folder / 'engine'}"]
    policy: Any = build_policy(load(environ={}, sets=[*sets, "policy.context=2048", "policy.max_batch=64"]).config)
    cores = sorted(os.sched_getaffinity(0)) if apart else []
    if cores:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores[:-1]))
        os.sched_setaffinity(0, cores[:-1])
    print("starting vLLM", file=sys.stderr)
    await policy.start()
    if cores:
        os.sched_setaffinity(0, cores[-1:])
    try:
        yield policy.health["url"]
    finally:
        await policy.stop()


async def measured(engine: str, levels: Sequence[Level], given: Any, folder: Path) -> list[dict[str, Any]]:
    """The figures of each level over one engine."""
    answer = (await EngineHttp(engine).get("/v1/models")).json()
    name = answer["data"][0]["id"]
    with gateway(engine, given.model, given.backend, folder) as (served, pid):
        ways = (Way(engine, name), Way(engine, name, CAPTURE), Way(served, given.model))
        for way in ways:  # nothing is cold when it counts
            await loaded(way, Level(2, 1, 4), 99_999)
        resting = await idle(pid)
        return [await compared(ways, level, pid, resting, given.rounds) for level in levels]


async def idle(pid: int, seconds: float = 3.0) -> float:
    """Seconds of CPU that a gateway takes in a second in which nobody asks for anything."""
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


async def compared(ways: Sequence[Way], level: Level, pid: int, resting: float, count: int) -> dict[str, Any]:
    rounds: list[list[Load]] = [[] for _ in ways]
    began, spent = time.perf_counter(), 0.0
    for turn in range(count):
        for at in range(len(ways)):  # none has the quieter moments, none the other's prompts
            which = (turn + at) % len(ways)
            before = cpu_seconds(pid)
            rounds[which].append(await loaded(ways[which], level, 10_000 * (len(ways) * turn + which)))
            if which == len(ways) - 1:
                spent += cpu_seconds(pid) - before - resting * rounds[which][-1].seconds
    cpu = {
        "gateway_cpu_ms_per_token": millis(spent / sum(load.tokens for load in rounds[-1])),
        "gateway_cpu_ms_per_idle_second": millis(resting),
    }
    made = row(level, *rounds) | cpu
    print(f"{time.perf_counter() - began:.0f} s {table([made]).splitlines()[-1]}", file=sys.stderr)
    return made


def levels_of(streams: str, requests: str, tokens: str) -> list[Level]:
    """A level for each number of streams; the last number of the others holds for all further levels."""
    counts, sizes = ([int(each) for each in given.split(",")] for given in (requests, tokens))
    return [
        Level(int(each), counts[min(at, len(counts) - 1)], sizes[min(at, len(sizes) - 1)])
        for at, each in enumerate(streams.split(","))
    ]


def millis(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far; it does not grow while others have the processor."""
    try:
        files = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9
    except OSError:  # no Linux
        return 0.0


def row(level: Level, direct: list[Load], captured: list[Load], through: list[Load]) -> dict[str, Any]:
    """One level: what each way gave over its rounds, and how far rounds of one way are apart."""
    ways = (direct, captured, through)
    rates = [[load.requests / load.seconds for load in way] for way in ways]
    first = [[statistics.median(load.first) * 1e3 for load in way] for way in ways]
    between = [[statistics.median(load.between) * 1e3 for load in way] for way in ways]
    mean = [[statistics.mean(way) for way in each] for each in (rates, first, between)]
    figures = {
        "streams": level.streams,
        "requests": sum(load.requests for load in direct),
        "tokens": [sum(load.tokens for load in way) for way in ways],
        "rps": [round(value, 3) for value in mean[0]],
        "ratio": round(mean[0][2] / mean[0][0], 3),
        "first_ms": [round(value, 2) for value in mean[1]],
        "first_added_ms": round(mean[1][2] - mean[1][0], 2),
        "between_ms": [round(value, 3) for value in mean[2]],
        "between_added_ms": round(mean[2][2] - mean[2][0], 3),
        "between_added_by_capture_ms": round(mean[2][1] - mean[2][0], 3),
        "noise": [
            round(noise(rates[0], rates[2]) / mean[0][0], 3),
            round(noise(first[0], first[2]), 2),
            round(noise(between[0], between[2]), 3),
        ],
        "late_ms": [lateness(way) for way in (direct, through)] if level.step else None,
    }
    return figures | {"goals": verdicts(figures)}


def lateness(loads: Sequence[Load]) -> list[float]:
    """How long after its step a token comes: the median, and what nineteen in twenty stay below."""
    late = [value for load in loads for value in load.late]
    return [millis(statistics.median(late)), millis(statistics.quantiles(late, n=20)[-1])]


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


COLUMNS = (
    "streams",
    "requests/s engine",
    "gateway",
    "ratio",
    "first token, added",
    "between tokens, added",
    "of it ids and log-probs",
    "a token after its step (p95)",
    "CPU a token",
    "goals",
)


def table(rows: list[dict[str, Any]]) -> str:
    head = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
    lines = [
        f"| {r['streams']} | {r['rps'][0]} | {r['rps'][2]} | {r['ratio']} ± {r['noise'][0]} | "
        f"{r['first_added_ms']:+} ± {r['noise'][1]} ms of {r['first_ms'][0]} | "
        f"{r['between_added_ms']:+} ± {r['noise'][2]} ms of {r['between_ms'][0]} | "
        f"{r['between_added_by_capture_ms']:+} ms | {_late(r['late_ms'])} | "
        f"{r['gateway_cpu_ms_per_token']} ms | {', '.join(r['goals'].values())} |"
        for r in rows
    ]
    return "\n".join([head, *lines])


def _late(found: list[list[float]] | None) -> str:
    if found is None:
        return "-"
    (alone, worst), (through, worst_through) = found
    return f"{alone} ({worst}) ms, through {through} ({worst_through})"


async def over_fake(levels: Sequence[Level], step: float, given: Any, folder: Path) -> list[dict[str, Any]]:
    sys.path.insert(0, str(FAKES))
    from fakes.engines import write_engine_model

    model = str(write_engine_model(folder / "toy"))
    stepping = [replace(level, step=step) for level in levels]
    asked = argparse.Namespace(**{**vars(given), "model": model, "backend": "vllm"})
    with fake(step, folder / "toy") as engine:
        return await measured(engine, stepping, asked, folder)


async def measure(given: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    levels = levels_of(given.streams, given.requests, given.tokens)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if given.fake:
            return {"fake": await over_fake(levels, 1 / given.rate, given, folder)}
        async with contextlib.AsyncExitStack() as stack:
            engine = given.url or await stack.enter_async_context(vllm(given.python, folder, apart=given.apart))
            rows = await measured(engine, levels, given, folder)
        found = {"engine": rows, "fake at its rate": []}
        for level, real in zip(levels, () if given.unpaced else rows, strict=not given.unpaced):
            step, own = real["between_ms"][0] / 1e3, folder / f"paced-{level.streams}"
            found["fake at its rate"] += await over_fake([level], step, given, own)
        return {name: figures for name, figures in found.items() if figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="Python of an environment with vLLM in it")
    parser.add_argument("--url", help="an engine that runs already")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--rate", type=float, default=50.0, help="steps a second of a fake")
    parser.add_argument("--backend", default="vllm")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--requests", default="4,2,1", help="of each stream, for each level")
    parser.add_argument("--tokens", default="32,32,12", help="of a reply, for each level")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="the engine and the gateway on cores of their own")
    parser.add_argument("--unpaced", action="store_true", help="without the fake at the engine's rate")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.python or given.url or given.fake):
        parser.error("give --python, --url or --fake")
    found = asyncio.run(measure(given))
    print(json.dumps(found, indent=1) if given.json else "\n\n".join(f"{n}\n\n{table(r)}" for n, r in found.items()))
    sys.exit(any("missed" in row["goals"].values() for row in next(iter(found.values()))))


if __name__ == "__main__":
    main()
