"""Where a deployment ends: users who talk, against the service times that were measured, until something queues.

    python benchmarks/scale.py --gpus 8                     the knee, and which part is the bottleneck there
    python benchmarks/scale.py --gpus 8 --users 2000        one run: waits, lags and how busy each part is
    python benchmarks/scale.py --table                      1, 8 and 64 GPUs, as docs/scale.md has them

A trace of that many users is replayed event by event. Each asks, reads, thinks and asks again; a reply goes through a
gateway, an engine's sequence slot and the ledger, and then, with nobody waiting, through collect, judge and trainer.
The knee is the largest number of users at which 95 % of replies begin within ``--patience`` seconds and no queue behind
them grows. Service times are those of benchmarks/RESULTS.md; give your own with ``--set NAME=NUMBER``.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True)
class Figures:
    """What was measured, each for one unit of its kind, and what a user does."""

    prompt: float = 11_000.0
    """tokens of a request: an OpenClaw call"""
    new: float = 1_100.0
    """of them unseen since the request before, which the prefix cache does not hold"""
    reply: float = 600.0
    think: float = 60.0
    """seconds between a reply and the next request, on average"""
    active: float = 0.05
    """share of the users who are in a conversation at the busiest time"""
    gateway: float = 0.00025
    """seconds of a core for a token of a reply, over an engine's HTTP (gateway.py, 64 streams)"""
    prefill: float = 25_400.0
    """tokens a second of one GPU (engine.py, 4B shape on an H200)"""
    slots: float = 64.0
    ledger: float = 821.0
    """turns a second that PostgreSQL takes from four gateways (ledger.py --postgres); SQLite: 743 from one"""
    bytes: float = 6.3
    """on disk for each token of a turn; SQLite 4.7"""
    collect: float = 0.00046
    judge: float = 0.3
    """seconds of a core for a message, by the reader that ships"""
    signal: float = 0.3
    """share of the turns that have something to teach"""
    train: float = 34_000.0
    """distinct tokens a second of one GPU (train.py, 4B shape, LoRA, three hinted views)"""
    train_tokens: float = 4_000.0
    """distinct tokens of a turn with its views: what is new in it, its reply under three hints, the base"""


DECODE = ((1, 158.0), (4, 428.0), (16, 1_354.0), (64, 3_368.0))
"""sequences at once and tokens a second of all of them, one H200, 4B shape (engine.py)"""


def decode_rate(at_once: float) -> float:
    """Tokens a second of one sequence among so many on the same GPU."""
    low = max((pair for pair in DECODE if pair[0] <= max(at_once, 1)), key=lambda pair: pair[0])
    high = min((pair for pair in DECODE if pair[0] >= min(at_once, DECODE[-1][0])), key=lambda pair: pair[0])
    share = 0.0 if high[0] == low[0] else (at_once - low[0]) / (high[0] - low[0])
    return (low[1] + share * (high[1] - low[1])) / max(at_once, 1.0)


@dataclass(frozen=True)
class Deployment:
    """How many of each there are."""

    engines: int
    trainers: int
    gateways: int
    judges: int
    gpus: int

    @property
    def split(self) -> str:
        """Who has which GPUs, in words."""
        return "one GPU serves and trains" if self.gpus == 1 else f"{self.engines} GPUs serve, {self.trainers} train"

    @classmethod
    def of(cls, gpus: int, figures: Figures) -> Deployment:
        """GPUs divided by what a turn costs on each side; a single one does both."""
        serving, training = gpu_seconds(figures)
        trainers = max(1, -(-int(gpus * training / (serving + training) * 100) // 100))
        engines = max(1, gpus - trainers)
        turns = engines / serving
        gateways = max(1, -(-int(turns * figures.gateway * figures.reply * 100) // 80))
        return cls(engines, trainers, gateways, max(1, -(-int(turns * figures.judge * 100) // 80)), gpus)


def gpu_seconds(f: Figures) -> tuple[float, float]:
    """Of one turn: to serve it on a full GPU, and to train it."""
    return f.new / f.prefill + f.reply / DECODE[-1][1], f.signal * f.train_tokens / f.train


@dataclass
class Part:
    """A queue before so many servers; first come, first served."""

    servers: int
    free: list[float] = field(default_factory=list)
    busy: float = 0.0
    waits: list[float] = field(default_factory=list)

    def serve(self, now: float, seconds: float) -> float:
        """When it is done with a turn that arrives now."""
        start = now if self.at_work(now) < self.servers else heapq.heappop(self.free)
        heapq.heappush(self.free, start + seconds)
        self.busy += seconds
        self.waits.append(start - now)
        return start + seconds

    def at_work(self, now: float) -> int:
        while self.free and self.free[0] <= now:
            heapq.heappop(self.free)
        return len(self.free)


@dataclass(frozen=True)
class Outcome:
    """Of one replay: 95th percentiles of waits in seconds, and how busy each part was."""

    users: int
    turns: float
    """a second"""
    first_token: float
    lag: float
    """from a reply to its training, queues alone"""
    busy: dict[str, float]

    @property
    def bottleneck(self) -> str:
        return max(self.busy, key=lambda name: self.busy[name])


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def replay(users: int, there: Deployment, f: Figures, *, seconds: float, seed: int) -> Outcome:
    """So many users for so long; the first fifth only fills the queues."""
    make = random.Random(seed)
    parts = {
        "gateway": Part(there.gateways),
        "engine": Part(there.engines * int(f.slots)),
        "ledger": Part(1),
        "collect": Part(1),
        "judge": Part(there.judges),
        "trainer": Part(1),
    }
    talking = max(1, round(users * f.active))
    events = [(make.random() * f.think, user) for user in range(talking)]
    heapq.heapify(events)
    begun, turns, first, lags = seconds / 5, 0, list[float](), list[float]()
    behind: list[tuple[float, float]] = []
    while events and events[0][0] < seconds:
        now, user = heapq.heappop(events)
        in_gateway = parts["gateway"].serve(now, f.gateway * f.reply)
        rate = decode_rate(parts["engine"].at_work(in_gateway) / there.engines + 1)
        done = parts["engine"].serve(in_gateway, f.new / f.prefill + f.reply / rate)
        begins = done - f.reply / rate
        kept = parts["ledger"].serve(done, 1 / f.ledger)
        heapq.heappush(events, (kept + make.expovariate(1 / f.think), user))
        behind.append((kept, make.random()))
        if now >= begun:
            turns += 1
            first.append(begins - now)
    for kept, chance in sorted(behind):
        judged = parts["judge"].serve(parts["collect"].serve(kept, f.collect), f.judge)
        if chance < f.signal:
            trained = parts["trainer"].serve(judged, f.train_tokens / f.train / there.trainers)
            lags.append(trained - kept)
    over = {name: part.busy / (part.servers * seconds) for name, part in parts.items()}
    if there.gpus == 1:  # the two share it
        over["engine"] += over["trainer"]
    return Outcome(users, turns / (seconds - begun), percentile(first, 0.95), percentile(lags, 0.95), over)


def holds(found: Outcome, patience: float) -> bool:
    return found.first_token <= patience and all(share < 0.97 for share in found.busy.values())


def knee(run: Callable[[int], Outcome], patience: float) -> Outcome:
    """The largest number of users that holds, to two per cent."""
    low, high = 1, 20
    while holds(run(high), patience) and high < 10_000_000:
        low, high = high, high * 2
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(run(middle), patience) else (low, middle)
    return run(low)


def told(found: Outcome, there: Deployment, f: Figures) -> None:
    daily = found.turns * 86_400 * f.active  # the busiest time is not the whole day
    disk = daily * (f.prompt + f.reply) * f.bytes / 1e9
    print(f"{there.split}; {there.gateways} gateways, {there.judges} judge workers")
    print(f"{found.users:,} users, {found.turns:.1f} turns a second; first token within {found.first_token:.1f} s,")
    print(f"a turn is trained {found.lag:.1f} s after its reply; about {disk:,.0f} GB of ledger a day")
    print("busy: " + ", ".join(f"{name} {share:.0%}" for name, share in found.busy.items()))
    print(f"next bottleneck: {found.bottleneck}")


def changed(figures: Figures, sets: Sequence[str]) -> Figures:
    known = {each.name for each in fields(Figures)}
    for one in sets:
        name, _, value = one.partition("=")
        if name not in known:
            raise SystemExit(f"--set {one}: no figure called {name!r}; known: {', '.join(sorted(known))}")
        figures = replace(figures, **{name: float(value)})
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--users", type=int, default=None, help="replay so many and look for no knee")
    parser.add_argument("--patience", type=float, default=2.0, help="seconds until a reply must begin")
    parser.add_argument("--seconds", type=float, default=600.0, help="simulated time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="another figure")
    parser.add_argument("--table", action="store_true", help="the knee at 1, 8 and 64 GPUs")
    args = parser.parse_args()
    figures = changed(Figures(), args.set)
    serving, training = gpu_seconds(figures)
    print(f"a turn: {serving:.3f} GPU seconds to serve, {training:.3f} to train")
    for gpus in (1, 8, 64) if args.table else (args.gpus,):
        there = Deployment.of(gpus, figures)

        def run(users: int, there: Deployment = there) -> Outcome:
            return replay(users, there, figures, seconds=args.seconds, seed=args.seed)

        found = run(args.users) if args.users else knee(run, args.patience)
        print(f"\n{gpus} GPUs")
        told(found, there, figures)


if __name__ == "__main__":
    main()
