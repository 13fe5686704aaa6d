"""Never a pause: streamed requests while versions change, and the time between tokens while the trainer runs.

    python benchmarks/swaps.py [--requests 1000] [--versions 20] [--max-tokens 16] [--streams 8]
                               [--timed 120] [--timed-tokens 48] [--rescore 40] [--json]

The embedded model is served by `openclaw-rl serve` in its own process; clients are plain sockets in this one.
``training``: the time between two tokens of a stream, alone and while the local trainer takes one step after another
in its own process. ``swaps``: all requests go through while versions are published one after another; every reply
must name one version, in its head and in each of its events. Then some replies are scored again: under the version they
name, every token's log-prob must be what was recorded; under the version before, it must not.
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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.app.factories import build_policy, build_trainer
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.backends.local.training.trainer import LocalTrainer
from openclaw_rl.config import Config, cache_dir
from openclaw_rl.store import LedgerReader, TrainLedger
from openclaw_rl.types import Sample, Turn, Version

KEY = "swaps"
HINT = "Please answer in under 30 words."
THINGS = (
    "tea",
    "a comet",
    "bread",
    "the moon",
    "glass",
    "a river",
    "salt",
    "a violin",
    "ice",
    "a bee",
    "paper",
    "rain",
)
CACHE = cache_dir()


# --- the server -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[int]:
    """`openclaw-rl serve` with the embedded model for the length of the block; the port it listens on."""
    log = folder / "serve.log"
    command = [sys.executable, "-m", "openclaw_rl", "serve", "--port", "0", f"--set=run.dir={folder / 'run'}"]
    with log.open("wb") as sink:
        env = {**os.environ, "OPENCLAW_API_KEY": KEY}
        process = subprocess.Popen([*command, "--set=run.poll=0.05"], stdout=sink, stderr=sink, env=env)
        try:
            yield _port(log, process)
        finally:
            process.terminate()
            process.wait(timeout=60)


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    while process.poll() is None:
        found = re.search(r"listening on\s+http://127\.0\.0\.1:(\d+)", log.read_text())
        if found:
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit(f"the server ended:\n{log.read_text()[-2000:]}")


# --- the clients ------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What one stream's client saw. ``versions`` are all that were named, in the head and in the events."""

    id: str = ""
    whole: bool = False
    head: str = ""
    versions: set[str] = field(default_factory=set)
    gaps: list[float] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return self.whole and self.versions == {self.head}


def request(number: int, tokens: int) -> bytes:
    body = {
        "stream": True,
        "max_tokens": tokens,
        "seed": number,
        "messages": [{"role": "user", "content": f"What is {THINGS[number % len(THINGS)]}? ({number})"}],
    }
    raw = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", f"Authorization: Bearer {KEY}"]
    return "\r\n".join([*lines, f"Content-Length: {len(raw)}", "Connection: close", "\r\n"]).encode() + raw


async def one_stream(port: int, number: int, tokens: int) -> Seen:
    """One streamed request from its first byte to its last."""
    seen = Seen()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(request(number, tokens))
    ok = (await reader.readline()).startswith(b"HTTP/1.1 200")
    last = 0.0
    while line := await reader.readline():
        if line.lower().startswith(b"x-openclaw-rl-version:"):
            seen.head = line.split(b":")[1].strip().decode()
        elif line.startswith(b"data: {"):
            last = _event(seen, json.loads(line[6:]), last)
        elif line.startswith(b"data: [DONE]"):
            seen.whole = ok
            break
    writer.close()
    return seen


def _event(seen: Seen, event: dict[str, Any], last: float) -> float:
    """Takes in one event; when the newest token came."""
    seen.id = event["id"]
    seen.versions.add(event["system_fingerprint"].removeprefix("openclaw-rl-v"))
    if not event["choices"] or not event["choices"][0]["delta"].get("content"):
        return last
    now = time.perf_counter()
    if last:
        seen.gaps.append(now - last)
    return now


async def streams(
    port: int, numbers: Sequence[int], tokens: int, at_once: int, *, ended: Callable[[int], None] = lambda _: None
) -> list[Seen]:
    """Many streams, some at a time; ``ended`` is told how many have ended each time that one does."""
    left = iter(numbers)
    done: list[Seen] = []

    async def keep_asking() -> None:
        for number in left:
            done.append(await one_stream(port, number, tokens))
            ended(len(done))

    await asyncio.gather(*(keep_asking() for _ in range(at_once)))
    return done


# --- the trainer ------------------------------------------------------------------------------------------------------


def samples(turns: Sequence[Turn]) -> list[Sample]:
    """Turns as the trainer takes them, each with a hint to distill."""
    return [
        Sample(
            turn=turn.id,
            user=turn.user,
            prompt=turn.prompt,
            prompt_tokens=turn.completion.prompt_tokens,
            reply_tokens=turn.completion.reply_tokens,
            logprobs=turn.completion.logprobs,
            mask=(True,) * len(turn.completion.reply_tokens),
            advantage=None,
            teachers=(turn.prompt.hinted(HINT),),
            temperature=turn.completion.sampling.temperature,
            version=turn.completion.version,
        )
        for turn in turns
    ]


@dataclass
class Effort:
    """What the trainer got done: whole steps, and seconds of processor time."""

    steps: int = 0
    cpu: float = 0.0


def cpu_seconds(process: int | None) -> float:
    """Processor time of a process so far; 0 where the system does not tell."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def training(batch: Sequence[Sample], folder: Path) -> AsyncIterator[Effort]:
    """The local trainer at work in its own process for the length of the block, and what it got done."""
    trainer = build_trainer(Config.model_validate({"train": {"method": "opd"}}))
    assert isinstance(trainer, LocalTrainer)
    base = Version(number=0, parent=None, base="embedded")
    effort = Effort()

    async def keep_training() -> None:
        for number in range(1, 10_000):
            done = await trainer.step(batch, number=number, parent=base, target=str(folder / f"step-{number}"))
            if done.skipped:
                raise SystemExit(f"the trainer takes no step: {done.skipped}")
            effort.steps += 1

    await trainer.start()
    before = cpu_seconds(trainer.process_id)
    task = asyncio.create_task(keep_training())
    try:
        yield effort
    finally:
        effort.cpu = cpu_seconds(trainer.process_id) - before
        failed = task.done() and task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await trainer.stop()
        if failed:
            raise failed


# --- the measurements -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaps:
    """Milliseconds between the tokens of a stream."""

    p50: float
    p99: float
    failures: int


def gaps_of(seen: Sequence[Seen]) -> Gaps:
    found = sorted(gap * 1000 for each in seen for gap in each.gaps)
    return Gaps(statistics.median(found), found[int(0.99 * len(found))], sum(not each.well for each in seen))


async def timed(port: int, numbers: range, args: argparse.Namespace) -> Gaps:
    return gaps_of(await streams(port, numbers, args.timed_tokens, args.streams))


async def with_and_without(port: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The time between tokens alone, while the trainer runs, and alone again."""
    await timed(port, range(args.streams), args)  # starting is not measured
    before = await timed(port, range(args.timed), args)
    with LedgerReader(folder / "run" / "ledger.db") as ledger:
        turns = [turn for _, turn in ledger.turns_after(0, args.batch) if isinstance(turn, Turn)]
    async with training(samples(turns), folder) as effort:
        during = await timed(port, range(args.timed, 2 * args.timed), args)
    after = await timed(port, range(2 * args.timed, 3 * args.timed), args)
    alone = Gaps((before.p50 + after.p50) / 2, (before.p99 + after.p99) / 2, before.failures + after.failures)
    ratios = {"p50": during.p50 / alone.p50, "p99": during.p99 / alone.p99}
    return {"alone": asdict(alone), "training": asdict(during), "ratio": ratios, **asdict(effort)}


def make_adapters(folder: Path, count: int) -> list[str]:
    """Small random adapters on every projection: enough to be told apart, not enough to spoil the words."""
    import torch
    from safetensors.torch import save_file

    from openclaw_rl.backends.hf.models import load

    model = load("embedded", cache_dir=CACHE, device="cpu", dtype="float32", progress=lambda _: None).model
    made = []
    for number in range(1, count + 1):
        torch.manual_seed(number)
        tensors: dict[str, torch.Tensor] = {}
        for name, part in model.named_modules():
            if isinstance(part, torch.nn.Linear) and ".layers." in name:
                key = f"base_model.model.{name}.lora_"
                tensors[f"{key}A.weight"] = torch.randn(8, part.in_features) * 0.02
                tensors[f"{key}B.weight"] = torch.randn(part.out_features, 8) * 0.02
        path = folder / f"adapter-{number}"
        path.mkdir()
        save_file(tensors, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16}))
        made.append(str(path))
    return made


async def swaps(port: int, folder: Path, args: argparse.Namespace) -> tuple[dict[str, Any], list[Seen]]:
    """All requests, and a new version after each equal share of them."""
    adapters = make_adapters(folder, args.versions)
    with TrainLedger(folder / "run" / "ledger.db", sync="full") as ledger:
        publish(ledger, 0, None)

        def ended(count: int) -> None:
            due = min(args.versions, count * (args.versions + 1) // args.requests)
            for number in range(len(ledger.versions()), due + 1):
                publish(ledger, number, adapters[number - 1])

        began = time.perf_counter()
        numbers = range(1_000_000, 1_000_000 + args.requests)
        seen = await streams(port, numbers, args.max_tokens, args.streams, ended=ended)
        seconds = time.perf_counter() - began
    told = {
        "requests": len(seen),
        "failures": sum(not each.whole for each in seen),
        "mixed": sum(each.versions != {each.head} for each in seen),
        "versions": len({each.head for each in seen}),
        "gaps": asdict(gaps_of(seen)),
        "per_second": len(seen) / seconds,
    }
    return told, seen


def publish(ledger: TrainLedger, number: int, adapter: str | None) -> None:
    """Write a version as the trainer does; the server takes it up by itself."""
    parent = number - 1 if number else None
    ledger.add_version(Version(number=number, parent=parent, base="embedded", adapter=adapter))
    ledger.set_state(number, "live", "a swap")


async def rescored(folder: Path, seen: Sequence[Seen], count: int) -> dict[str, float]:
    """How far recorded log-probs are from those of the version named, and of the version before it."""
    policy = build_policy(Config())
    assert isinstance(policy, LocalPolicy)
    await policy.start()
    chosen = [each for each in seen if each.well and each.head != "0"]
    chosen = chosen[:: max(1, len(chosen) // count)][:count]
    own: list[float] = []
    other: list[float] = []
    try:
        with LedgerReader(folder / "run" / "ledger.db") as ledger:
            for version in ledger.versions():
                policy.know(version)
            for each in chosen:
                done = ledger.turn(each.id).completion
                if str(done.version) != each.head:
                    raise SystemExit(f"turn {each.id} is kept as version {done.version}, its reply said {each.head}")
                own += await _distances(policy, ledger.turn(each.id), done.version)
                other += await _distances(policy, ledger.turn(each.id), done.version - 1)
    finally:
        await policy.stop()
    return {
        "replies": len(chosen),
        "own_largest": max(own),
        "own_mean": statistics.fmean(own),
        "other_mean": statistics.fmean(other),
    }


async def _distances(policy: LocalPolicy, turn: Turn, version: int) -> list[float]:
    done = turn.completion
    heat = done.sampling.temperature
    scores = await policy.score(done.prompt_tokens, done.reply_tokens, version=version, temperature=heat)
    return [abs(a - b) for a, b in zip(scores.logprobs, done.logprobs, strict=True)]


def show(told: dict[str, Any]) -> None:
    if found := told.get("training"):
        for name in ("alone", "training"):
            gaps = found[name]
            print(f"{name:9} between tokens: p50 {gaps['p50']:7.1f} ms   p99 {gaps['p99']:7.1f} ms", end="   ")
            print(f"failures {gaps['failures']}")
        ratio = found["ratio"]
        done = f"{found['steps']} steps and {found['cpu']:.0f} s of processor time meanwhile"
        print(f"ratio     p50 {ratio['p50']:.2f}   p99 {ratio['p99']:.2f}   (the trainer: {done})")
    if found := told.get("swaps"):
        print(
            f"swaps     {found['requests']} requests, {found['versions']} versions seen, {found['failures']} failures",
            end=", ",
        )
        print(f"{found['mixed']} mixed; {found['per_second']:.1f}/s, p99 between tokens {found['gaps']['p99']:.1f} ms")
        again = told["rescored"]
        print(
            f"rescored  {again['replies']} replies: under the version named, largest gap {again['own_largest']:.2g}",
            end=" ",
        )
        print(f"(mean {again['own_mean']:.2g}); under the version before it, mean {again['other_mean']:.2g}")


async def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    told: dict[str, Any] = {"cores": os.cpu_count()}
    seen: list[Seen] = []
    with serving(folder) as port:
        if args.timed:
            told["training"] = await with_and_without(port, folder, args)
        if args.requests:
            told["swaps"], seen = await swaps(port, folder, args)
    if seen:
        told["rescored"] = await rescored(folder, seen, args.rescore)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="streamed requests across the swaps; 0: none")
    parser.add_argument("--versions", type=int, default=20, help="how often the version changes")
    parser.add_argument("--max-tokens", type=int, default=16, help="tokens of each of those replies")
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--timed", type=int, default=120, help="requests timed with and without training; 0: none")
    parser.add_argument("--timed-tokens", type=int, default=48, help="tokens of each of those replies")
    parser.add_argument("--batch", type=int, default=4, help="turns in one training step")
    parser.add_argument("--rescore", type=int, default=40, help="replies scored again")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(measure(Path(folder), args))
    print(json.dumps(told)) if args.json else show(told)


if __name__ == "__main__":
    main()
