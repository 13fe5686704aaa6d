"""How long it takes to add a turn, alone and in company, early and late in a ledger's life, in each of the stores.

    python benchmarks/ledger.py                  # 1,000 against 200,000 turns of history; about 3 GB of disk
    python benchmarks/ledger.py --history 20000  # smaller
    python benchmarks/ledger.py --postgres       # PostgreSQL beside SQLite: a server of its own, durable, on this disk

A turn has 4,000 tokens (3,500 of prompt, 500 of reply) and about 14 kB of text. Three other processes read and write
the same ledger all the while: collect, judge and train, each as its own writer. The named alternative is the same rows
written as one JSON text per turn, as peers log them; bytes and times of both are from this run. With --postgres several
gateways then write at once, each as fast as it can.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing as mp
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fakes.postgres import PostgresServer

from openclaw_rl.ports import Case
from openclaw_rl.store import CollectLedger, JudgeLedger, LedgerReader, Place, ServeLedger, ServerPlace, TrainLedger
from openclaw_rl.store.codec import plain
from openclaw_rl.store.rows import turn_row
from openclaw_rl.types import Completion, Drop, JudgedTurn, Message, Outcome, Prompt, Sampling, Turn, Verdict, new_id

PROMPT, REPLY, VOCABULARY = 3500, 500, 151_936
WORDS = ("agent", "reads", "file", "then", "writes", "another", "and", "says", "what", "it", "has", "done", "so", "far")


def make_turn(rng: random.Random) -> Turn:
    """A turn of the size that real agents produce."""
    text = " ".join(rng.choices(WORDS, k=2600))
    reply = " ".join(rng.choices(WORDS, k=380))
    completion = Completion(
        reply=Message(role="assistant", content=reply),
        prompt_tokens=tuple(rng.choices(range(VOCABULARY), k=PROMPT)),
        reply_tokens=tuple(rng.choices(range(VOCABULARY), k=REPLY)),
        logprobs=tuple(-rng.randrange(1 << 20) / (1 << 18) for _ in range(REPLY)),
        sampling=Sampling(temperature=0.7),
        finish="stop",
        version=0,
    )
    return Turn(prompt=Prompt(messages=(Message(role="user", content=text),)), completion=completion, user="u1")


def fresh(turn: Turn) -> Turn:
    """The same turn under a new id: making random text is not what is measured."""
    return Turn(prompt=turn.prompt, completion=turn.completion, user=turn.user, session=turn.session)


def company(place: Place, role: str, stop: Event) -> None:
    """Another loop at work on the same ledger."""
    opened: dict[str, Callable[[], Callable[[], None]]] = {
        "collect": lambda: partial(_collect, CollectLedger(place)),
        "judge": lambda: partial(_judge, JudgeLedger(place)),
        "train": lambda: partial(_train, TrainLedger(place, sync="full")),
    }
    work = opened[role]()
    while not stop.is_set():
        work()
        time.sleep(0.002)


def _collect(ledger: CollectLedger) -> None:
    if read := ledger.new_turns(16):
        outcomes = [
            Outcome(turn=t.id, session="s", kind="main", kind_reason="declared", index=0, next_state=t.prompt.messages)
            for _, t in read
            if isinstance(t, Turn)
        ]
        ledger.settle(outcomes, [], turns_read=read[-1][0])


def _judge(ledger: JudgeLedger) -> None:
    if cases := ledger.unjudged(16):
        ledger.add_verdicts(
            [Verdict(turn=case.turn.id, score=1.0, source="judge") for case in cases if isinstance(case, Case)]
        )


def _train(ledger: TrainLedger) -> None:
    if rows := ledger.untrained(16):
        ledger.add_drops(
            [Drop(turn=row.turn.id, stage="train", reason="no signal") for row in rows if isinstance(row, JudgedTurn)]
        )


def fill(place: Place, turns: int, rng: random.Random) -> None:
    """Give the ledger a history, all of it settled, judged and dropped, many rows to a transaction."""
    packed = [turn_row(make_turn(rng)) for _ in range(16)]
    with ServeLedger(place, sync="normal") as ledger:
        for at in range(0, turns, 500):
            with ledger.writing() as db:
                for i in range(min(500, turns - at)):
                    db.insert("turns", packed[i % 16] | {"id": new_id()})
    _settle(place, turns)


def _settle(place: Place, turns: int) -> None:
    """Bring the loops behind the history up to date by SQL: what is measured starts after it."""
    with CollectLedger(place) as ledger, ledger.writing() as db:
        db.execute(
            "INSERT INTO outcomes (turn, session, kind, kind_reason, confidence, idx, next_state, evidence, at)"
            " SELECT id, 's' || (seq / 20), 'main', 'declared', 1, 0, ?, '[]', at FROM turns",
            (b"",),
        )
        db.execute(
            "INSERT INTO verdicts (turn, score, source, votes, hints, judge, seconds, note, feedback_seen, at)"
            " SELECT id, 1, 'judge', '[]', '[]', '', 0, '', 0, at FROM turns"
        )
        db.execute("INSERT INTO trained (turn, step) SELECT id, 1 FROM turns")
        db.executemany(
            "INSERT INTO cursors (name, seq) VALUES (?, ?)", [(n, turns) for n in ("turns", "outcomes", "verdicts")]
        )


def timed(add: Callable[[Turn], None], templates: list[Turn], count: int) -> list[float]:
    """Seconds of each add, with a pause between, as turns really come."""
    taken = []
    for i in range(count):
        turn = fresh(templates[i % len(templates)])
        began = time.perf_counter()
        add(turn)
        taken.append(time.perf_counter() - began)
        time.sleep(0.003)
    return taken


def in_company(place: Place, templates: list[Turn], count: int) -> list[float]:
    """Time adds while the three other loops work on the same ledger."""
    stop = mp.Event()
    others = [mp.Process(target=company, args=(place, role, stop)) for role in ("collect", "judge", "train")]
    for other in others:
        other.start()
    with ServeLedger(place, sync="full") as ledger:
        timed(ledger.add_turn, templates, 50)
        taken = timed(ledger.add_turn, templates, count)
        stop.set()
        for other in others:
            other.join()
    return taken


def as_json_lines(path: Path, templates: list[Turn], count: int) -> list[float]:
    """The alternative: one JSON text per turn, synced."""
    import os

    with path.open("ab") as file:

        def add(turn: Turn) -> None:
            file.write(json.dumps(plain(turn)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

        return timed(add, templates, count)


def gateways(place: Place, number: int, templates: list[Turn], count: int) -> float:
    """Turns per second that so many gateways write at once."""
    ready = mp.Barrier(number + 1)
    words = (place, templates, count, ready)
    others = [mp.Process(target=_gateway, args=words) for _ in range(number)]
    for other in others:
        other.start()
    ready.wait()
    began = time.perf_counter()
    for other in others:
        other.join()
    return number * count / (time.perf_counter() - began)


def _gateway(place: Place, templates: list[Turn], count: int, ready: Barrier) -> None:
    turns = [fresh(templates[i % len(templates)]) for i in range(count)]
    with ServeLedger(place, sync="full") as ledger:
        ready.wait()
        for turn in turns:
            ledger.add_turn(turn)


def report(name: str, taken: list[float]) -> float:
    """Print and return the median in milliseconds."""
    median = statistics.median(taken) * 1e3
    tail = statistics.quantiles(taken, n=100)[98] * 1e3
    print(f"{name:<56} median {median:7.3f} ms   p99 {tail:8.3f} ms")
    return median


def compare(stores: dict[str, tuple[Place, Place]], options: argparse.Namespace, lines_at: Path) -> None:
    """Time every store, the stores and the ages in turns, so that what else the machine does falls on all."""
    rng = random.Random(7)
    templates = [make_turn(rng) for _ in range(16)]
    for early, late in stores.values():
        fill(early, 1000, rng)
        print(f"filling {options.history:,} turns of history ...", flush=True)
        fill(late, options.history, rng)
    taken: dict[tuple[str, int], list[float]] = {(name, age): [] for name in stores for age in (0, 1)}
    for _ in range(2):
        for name, age in taken:
            taken[name, age] += in_company(stores[name][age], templates, options.count // 2)
    plain_ms = report("the same as JSON lines, alone", as_json_lines(lines_at, templates, options.count // 2))
    tokens, line_size = PROMPT + REPLY, lines_at.stat().st_size / (options.count // 2)
    for name, (_, late) in stores.items():
        before = report(f"{name}: add a turn, 1,000 turns of history", taken[name, 0])
        after = report(f"{name}: add a turn, {options.history:,} turns of history", taken[name, 1])
        with LedgerReader(late) as ledger:
            size = ledger.size() / ledger.counts()["turns"]
        print(f"  late / early            {after / before:5.2f}   (goal: at most 1.3)")
        print(f"  ledger / JSON lines     {after / plain_ms:5.2f}   with three other processes at work")
        print(f"  bytes per token         {size / tokens:5.2f}   against {line_size / tokens:.2f} as JSON lines")
    for name, (early, _) in stores.items():
        for number in (1, 2, 4) if isinstance(early, ServerPlace) else (1,):
            rate = gateways(early, number, templates, options.count // 4)
            print(f"{name}: gateways that write at once: {number}, {rate:.0f} turns per second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=200_000)
    parser.add_argument("--count", type=int, default=1000, help="turns timed in each setting")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own beside SQLite")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openclaw-ledger-")))
        stores: dict[str, tuple[Place, Place]] = {"sqlite": (root / "early.db", root / "late.db")}
        if options.postgres:
            server = stack.enter_context(PostgresServer(durable=True))
            early, late = (ServerPlace(url=server.database(), root=root) for _ in range(2))
            stores["postgres"] = (early, late)
        compare(stores, options, root / "turns.jsonl")


if __name__ == "__main__":
    main()
