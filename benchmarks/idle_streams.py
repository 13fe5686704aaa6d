"""What idle streams cost a server: memory of each, and the latency of a fresh chat beside them.

    python benchmarks/idle_streams.py [--streams 10000] [--chats 200] [--seconds 25] [--json]

The API server runs in a process of its own with the limits that it is shipped with and its ledger on disk. Its policy
answers a chat at once, and a stream that asks for silence with one word and then nothing. Each 200 streams are of one
key. They stay open for ``--seconds``, in which each gets a keep-alive comment, while one chat after another is sent by
a key of its own. Then all callers hang up at once, and the server is watched until it has let go of every stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.machine import raise_open_files
from openclaw_rl.ports import Delta, Stream
from openclaw_rl.serve.loop import RESERVED_FILES, HttpServer
from openclaw_rl.store import ServeLedger
from openclaw_rl.testing import fake_api, request_limits
from openclaw_rl.types import Prompt, Sampling

SILENT = "be silent"
STREAMS_PER_KEY = 200
AT_ONCE = 200
"""connections that are opened at the same time"""
FRESH = "key-fresh"


class SilentPolicy(FakePolicy):
    """Begins its reply to `SILENT` and never goes on."""

    async def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        if prompt.messages[-1].content == SILENT:
            yield Delta(text="Well", pieces=())
            await asyncio.Event().wait()
        async for item in super().generate(prompt, sampling, version=version):
            yield item


def serve(descriptor: int, streams: int, folder: Path) -> None:
    """Run the server on a socket that is bound already, until the process is ended."""
    keys = {FRESH: "fresh"} | {f"key-{at}": f"user-{at}" for at in range(math.ceil(streams / STREAMS_PER_KEY))}
    api = fake_api(SilentPolicy(), ServeLedger(folder / "ledger.db", sync="full"), keys=keys)
    limits = request_limits()
    listener = socket.socket(fileno=descriptor)

    async def run() -> None:
        server = HttpServer(
            api,
            listener,
            grace=1.0,
            head_seconds=limits.read_seconds,
            head_bytes=limits.header_bytes,
            connections=raise_open_files() - RESERVED_FILES,
        )
        await server.begin()
        await asyncio.Event().wait()

    asyncio.run(run())


@dataclass(frozen=True)
class Server:
    """A server in its own process."""

    port: int
    pid: int

    def memory(self) -> float:
        """Resident memory in MiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def files(self) -> int:
        """Open files."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def until_released(self, files: int) -> None:
        """Return once it has no more open files than that, or raise after two minutes."""
        end = time.monotonic() + 120
        while self.files() > files:
            if time.monotonic() > end:
                raise SystemExit(f"{self.files():,} files are open, {files:,} were expected: streams are held")
            time.sleep(0.02)


@contextmanager
def running(streams: int) -> Iterator[Server]:
    """A server that listens for the length of the block."""
    with socket.socket() as listener, tempfile.TemporaryDirectory() as folder:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        command = [sys.executable, __file__, "--serve", folder, "--fd", str(listener.fileno())]
        process = subprocess.Popen([*command, "--streams", str(streams)], pass_fds=[listener.fileno()])
        try:
            yield Server(listener.getsockname()[1], process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


def request(content: str, *, key: str, stream: bool) -> bytes:
    """A chat request as it goes over the wire."""
    message = {"role": "user", "content": content}
    raw = json.dumps({"model": "fake", "stream": stream, "messages": [message]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


@dataclass(slots=True)
class OpenStream:
    """A stream whose head and first word have come."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0


async def open_stream(port: int, at: int, gate: asyncio.Semaphore) -> OpenStream:
    """Open a stream that stays silent."""
    async with gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
        writer.write(request(SILENT, key=f"key-{at // STREAMS_PER_KEY}", stream=True))
        line = await reader.readline()
        opened = OpenStream(reader, writer, int(line.split()[1]) if line else 0)
        while opened.status == 200 and b"Well" not in line:
            line = await reader.readline()
        return opened


async def chat(port: int) -> float:
    """Seconds of a fresh chat, from its connection to its last byte."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("hi", key=FRESH, stream=True))
    text = b""
    while b"data: [DONE]" not in text:
        if not (part := await reader.read(2**16)):
            raise SystemExit(f"a fresh chat was not answered: {text[:300]!r}")
        text += part
    writer.close()
    return time.perf_counter() - began


def latency(seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and longest, in milliseconds."""
    ordered = sorted(1000 * each for each in seconds)
    return {"median": statistics.median(ordered), "p99": ordered[int(0.99 * (len(ordered) - 1))], "max": ordered[-1]}


async def keep_alives(streams: list[OpenStream]) -> int:
    """How many streams have a keep-alive comment among the bytes that came meanwhile."""
    seen = 0
    for stream in streams:
        try:
            async with asyncio.timeout(0.001):
                seen += b": keep-alive" in await stream.reader.read(2**12)
        except TimeoutError:
            continue
    return seen


async def measure(server: Server, count: int, chats: int, seconds: float) -> dict[str, Any]:
    """Figures without streams, with them, and after they were hung up."""
    await answering(server.port)
    alone = [await chat(server.port) for _ in range(chats)]
    before, gate = server.memory(), asyncio.Semaphore(AT_ONCE)
    began = time.perf_counter()
    streams = await asyncio.gather(*(open_stream(server.port, at, gate) for at in range(count)))
    opening = time.perf_counter() - began
    opened = [stream for stream in streams if stream.status == 200]
    began = time.perf_counter()
    beside: list[float] = []
    while time.perf_counter() - began < seconds or len(beside) < chats:
        beside.append(await chat(server.port))
        await asyncio.sleep(seconds / chats)
    memory, files = server.memory(), server.files()
    alive = await keep_alives(opened)
    for stream in streams:
        stream.writer.close()
    began = time.perf_counter()
    await asyncio.to_thread(server.until_released, files - len(opened))
    released = time.perf_counter() - began
    return {
        "streams": len(opened),
        "refused": {str(code): sum(each.status == code for each in streams) for code in (0, 429, 503)},
        "opening_s": opening,
        "kib_per_stream": (memory - before) * 1024 / max(1, len(opened)),
        "memory_mib": {"without": before, "with": memory, "after": server.memory()},
        "files": files,
        "kept_alive": alive,
        "released_s": released,
        "chat_ms": {"alone": latency(alone), "beside": latency(beside), "after": latency([await chat(server.port)])},
    }


async def answering(port: int) -> None:
    """Return once the server answers; its socket accepts before that."""
    async with asyncio.timeout(60):
        await chat(port)


def show(found: dict[str, Any]) -> None:
    """The figures for a person."""
    memory, times = found["memory_mib"], found["chat_ms"]
    print(f"{found['streams']:,} idle streams open in {found['opening_s']:.1f} s; refused: {found['refused']}")
    print(
        f"  memory      {memory['without']:.0f} -> {memory['with']:.0f} MiB, {found['kib_per_stream']:.1f} KiB each;",
        end=" ",
    )
    print(f"{memory['after']:.0f} MiB after all hung up")
    print(f"  open files  {found['files']:,}; all streams released {found['released_s']:.1f} s after they were hung up")
    print(f"  keep-alive  {found['kept_alive']:,} streams got a comment")
    for name in ("alone", "beside"):
        median, p99, longest = (f"{times[name][each]:.1f}" for each in ("median", "p99", "max"))
        print(f"  a fresh chat {name:6s}  median {median} ms, p99 {p99}, longest {longest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.fd, args.streams, args.serve)
        return
    files, needed = raise_open_files(), args.streams + 2 * RESERVED_FILES
    if files < needed:
        raise SystemExit(
            f"{args.streams:,} streams need {needed:,} open files and {files:,} are allowed; type: ulimit -n {needed}"
        )
    with running(args.streams) as server:
        found = asyncio.run(measure(server, args.streams, args.chats, args.seconds))
    print(json.dumps(found)) if args.json else show(found)


if __name__ == "__main__":
    main()
