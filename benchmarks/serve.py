"""What the API server costs over the bare policy: time to the first token, time per token, requests per second, memory.

    python benchmarks/serve.py [--streams 200] [--tokens 200] [--rate 20] [--rounds 3] [--soak 50000]
                               [--sync full|normal] [--json]
    python benchmarks/serve.py --page 5 [--streams 20] [--rounds 3]

The fake policy answers behind two servers, each in its own process: this project's, with its ledger on disk, and a bare
Starlette app that only forwards the policy's text as events. Clients are plain sockets in a third process.
``paced`` draws ``--rate`` tokens a second per stream, to show what is added per token; ``flat out`` draws as fast
as it can, to show requests per second; ``soak`` answers many small requests and watches the server's memory.
``--page`` compares this project's server with itself while the page beside it is open in so many tabs, each of which
fetches its view every 2.5 s, as a browser does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.ports import Delta
from openclaw_rl.store import ServeLedger, Sync
from openclaw_rl.testing import fake_api, request_limits
from openclaw_rl.types import Message, Prompt, Sampling

BODY = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "Tell me something."}]}


# --- the two servers ------------------------------------------------------------------------------------------------


def bare_app(policy: FakePolicy) -> Starlette:
    """The least that streams a reply: parse, generate, forward."""

    async def answer(request: Request) -> StreamingResponse:
        body = await request.json()
        messages = tuple(Message(role=each["role"], content=each["content"]) for each in body["messages"])

        async def events() -> AsyncIterator[str]:
            async for item in policy.generate(Prompt(messages=messages), Sampling()):
                if isinstance(item, Delta):
                    chunk = {
                        "object": "chat.completion.chunk",
                        "choices": [{"index": 0, "delta": {"content": item.text}}],
                    }
                    yield f"data: {json.dumps(chunk)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])


def serve(kind: str, descriptor: int, tokens: int, rate: float | None, folder: str, sync: Sync) -> None:
    """Run one of the servers on a socket that is bound already, until the process is ended."""
    policy = FakePolicy(reply="x" * (tokens - 1), tokens_per_second=rate, chunk=1)
    if kind == "bare":
        app = bare_app(policy)
    else:
        limits = request_limits(streams_per_key=10_000, queue_per_key=10_000)
        app = fake_api(policy, ServeLedger(Path(folder) / "ledger.db", sync=sync), limits=limits)
    config = uvicorn.Config(app, log_config=None, access_log=False, loop="uvloop", http="httptools")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


@dataclass(frozen=True)
class Running:
    """A server in its own process."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path

    def memory(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@contextlib.contextmanager
def running(kind: str, tokens: int, rate: float | None, sync: Sync) -> Iterator[Running]:
    """A server that listens for the length of the block."""
    with socket.socket() as listener, tempfile.TemporaryDirectory() as folder:
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        listener.set_inheritable(True)
        what = ["--serve", kind, "--fd", str(listener.fileno()), "--tokens", str(tokens), "--folder", folder]
        what += ["--rate", str(rate or 0), "--sync", sync]
        process = subprocess.Popen([sys.executable, __file__, *what], pass_fds=[listener.fileno()])
        try:
            yield Running(listener.getsockname()[1], process, Path(folder))
        finally:
            process.terminate()
            process.wait(timeout=20)


VIEWS = ("learning", "talk", "versions", "curves", "sessions")
EVERY = 2.5


@contextlib.contextmanager
def page_open(folder: Path, tabs: int) -> Iterator[None]:
    """The page beside a server, as `up` starts it, looked at in so many tabs by another process."""
    command = ["nice", "-n", "5", sys.executable, "-m", "openclaw_rl", "page", "--run-dir", str(folder), "--port", "0"]
    page = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert page.stderr is not None
    address = next(line for line in page.stderr if line.startswith("page ")).split()[-1]
    looking = subprocess.Popen([sys.executable, __file__, "--look", address, "--page", str(tabs)])
    try:
        yield
    finally:
        for process in (looking, page):
            process.terminate()
            process.wait(timeout=20)
        page.stderr.close()


def look(address: str, tabs: int) -> None:
    """Fetch the views again and again, each tab its own, until this process is ended."""
    while True:
        for tab in range(tabs):
            urllib.request.urlopen(f"{address}{VIEWS[tab % len(VIEWS)]}", timeout=60).read()
            time.sleep(EVERY / tabs)


# --- the clients ----------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What one stream's client saw; times in seconds."""

    first: float = 0.0
    gaps: list[float] = field(default_factory=list)
    whole: bool = False


def request(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


async def one_stream(port: int, body: bytes) -> Seen:
    """One streamed request: when its first event came, and how far apart the others were."""
    seen = Seen()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    began = last = time.perf_counter()
    writer.write(body)
    ok = (await reader.readline()).startswith(b"HTTP/1.1 200")
    while line := await reader.readline():
        if line.startswith(b"data: {") and b'"delta"' in line and b'""' not in line and b'"delta":{}' not in line:
            now = time.perf_counter()
            if seen.first:
                seen.gaps.append(now - last)
            else:
                seen.first = now - began
            last = now
        elif line.startswith(b"data: [DONE]"):
            seen.whole = ok
            break
    writer.close()
    return seen


async def round_of(port: int, streams: int) -> tuple[float, list[Seen]]:
    body = request(BODY)
    began = time.perf_counter()
    seen = await asyncio.gather(*(one_stream(port, body) for _ in range(streams)))
    return time.perf_counter() - began, list(seen)


async def waited(port: int) -> None:
    """One answered request, so that starting is not measured."""
    assert (await one_stream(port, request(BODY))).whole


async def plain_requests(port: int, count: int, connections: int = 16) -> int:
    """Small whole requests over a few open connections; how many failed."""
    body = request({**BODY, "stream": False})
    left = iter(range(count))
    failed = 0

    async def keep_asking() -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            writer.write(body)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
            failed += not head.startswith(b"HTTP/1.1 200")
        writer.close()

    await asyncio.gather(*(keep_asking() for _ in range(connections)))
    return failed


# --- the measurements -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One server under one load; milliseconds, except requests per second."""

    errors: int
    first_p50: float
    first_p99: float
    gap_p50: float
    gap_p99: float
    per_second: float


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(
    kind: str, streams: int, tokens: int, rate: float | None, rounds: int, sync: Sync, tabs: int = 0
) -> Measured:
    with running(kind, tokens, rate, sync) as server, contextlib.ExitStack() as stack:
        asyncio.run(waited(server.port))
        if tabs:
            stack.enter_context(page_open(server.folder, tabs))
        found = [asyncio.run(round_of(server.port, streams)) for _ in range(rounds)]
    seen = [each for _, round_seen in found for each in round_seen]
    errors = sum(not each.whole or len(each.gaps) < tokens - 2 for each in seen)
    firsts = [each.first * 1000 for each in seen]
    gaps = [gap * 1000 for each in seen for gap in each.gaps]
    return Measured(
        errors=errors,
        first_p50=percentile(firsts, 0.5),
        first_p99=percentile(firsts, 0.99),
        gap_p50=percentile(gaps, 0.5),
        gap_p99=percentile(gaps, 0.99),
        per_second=statistics.median(streams / seconds for seconds, _ in found),
    )


def soak(count: int, sync: Sync) -> dict[str, float]:
    """Memory after a tenth of the requests, and after all of them."""
    with running("ours", 4, None, sync) as server:
        asyncio.run(waited(server.port))
        began = time.perf_counter()
        failed = asyncio.run(plain_requests(server.port, count // 10))
        early = server.memory()
        failed += asyncio.run(plain_requests(server.port, count - count // 10))
        late, seconds = server.memory(), time.perf_counter() - began
    return {"requests": count, "errors": failed, "per_second": count / seconds, "early_mib": early, "late_mib": late}


def show_page(tabs: int, alone: Measured, beside: Measured) -> None:
    print(f"the page open in {tabs} tabs: errors {beside.errors} (without it {alone.errors})")
    for label, key in (
        ("first token p50", "first_p50"),
        ("first token p99", "first_p99"),
        ("between tokens p50", "gap_p50"),
        ("between tokens p99", "gap_p99"),
    ):
        one, two = getattr(alone, key), getattr(beside, key)
        print(f"  {label:18} {one:9.2f} ms without {two:9.2f} ms with   ratio {two / one:5.2f}")


def show(name: str, bare: Measured, ours: Measured) -> None:
    print(f"{name}: errors {ours.errors} (bare {bare.errors})")
    for label, key in (("first token p50", "first_p50"), ("first token p99", "first_p99")):
        one, two = getattr(bare, key), getattr(ours, key)
        print(
            f"  {label:18} {one:9.2f} ms bare {two:9.2f} ms ours   added {two - one:8.2f} ms   ratio {two / one:5.2f}"
        )
    for label, key in (("between tokens p50", "gap_p50"), ("between tokens p99", "gap_p99")):
        one, two = getattr(bare, key), getattr(ours, key)
        print(f"  {label:18} {one:9.3f} ms bare {two:9.3f} ms ours   added {two - one:8.3f} ms")
    ratio = ours.per_second / bare.per_second
    print(
        f"  {'requests per second':18} {bare.per_second:8.1f} bare {ours.per_second:9.1f} ours      ratio {ratio:5.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens a second of each paced stream")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the flat-out load")
    parser.add_argument("--soak", type=int, default=50_000, help="small requests to answer while memory is watched")
    parser.add_argument("--sync", choices=["full", "normal"], default="full", help="full: each turn reaches the disk")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--page", type=int, default=0, metavar="TABS", help="compare with the page open in these")
    for hidden in ("--serve", "--fd", "--folder", "--look"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, int(args.fd), args.tokens, args.rate or None, args.folder, args.sync)
        return
    if args.look:
        look(args.look, args.page)
    shape = (args.streams, args.tokens)
    if args.page:
        both = [measure("ours", *shape, args.rate, args.rounds, args.sync, tabs) for tabs in (0, args.page)]
        show_page(args.page, *both)
        return
    paced = {kind: measure(kind, *shape, args.rate, 1, args.sync) for kind in ("bare", "ours")}
    flat = {kind: measure(kind, *shape, None, args.rounds, args.sync) for kind in ("bare", "ours")}
    memory = soak(args.soak, args.sync) if args.soak else None
    if args.json:
        report = {"paced": paced, "flat_out": flat, "soak": memory, "cores": os.cpu_count()}
        print(json.dumps(report, default=lambda each: each.__dict__))
        return
    print(f"{args.streams} streams of {args.tokens} tokens at once, {os.cpu_count()} cores")
    show(f"paced, {args.rate:g} tokens/s each", paced["bare"], paced["ours"])
    show("flat out", flat["bare"], flat["ours"])
    if memory:
        grown = memory["late_mib"] - memory["early_mib"]
        print(
            f"soak: {memory['requests']:.0f} requests, {memory['errors']:.0f} errors, {memory['per_second']:.0f}/s;",
            end=" ",
        )
        print(f"memory {memory['early_mib']:.1f} MiB after a tenth, {memory['late_mib']:.1f} at the end ({grown:+.1f})")


if __name__ == "__main__":
    main()
