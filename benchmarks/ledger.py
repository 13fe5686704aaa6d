"""How long it takes to add a turn, alone and in company, early and late in a ledger's life.

    python benchmarks/ledger.py                  # 1,000 against 200,000 turns of history; about 3 GB of disk
    python benchmarks/ledger.py --history 20000  # smaller

A turn has 4,000 tokens (3,500 of prompt, 500 of reply) and about 14 kB of text. Three other processes read and write
the same ledger all the while: collect, judge and train, each as its own writer. The named alternative is the same rows
written as one JSON text per turn, as peers log them; bytes and times of both are from this run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

from openclaw_rl.ports import Case
from openclaw_rl.store import CollectLedger, JudgeLedger, ServeLedger, TrainLedger
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


def company(path: str, role: str, stop: Event) -> None:
    """Another loop at work on the same ledger."""
    opened: dict[str, Callable[[], Callable[[], None]]] = {
        "collect": lambda: partial(_collect, CollectLedger(path)),
        "judge": lambda: partial(_judge, JudgeLedger(path)),
        "train": lambda: partial(_train, TrainLedger(path, sync="full")),
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


def fill(path: Path, turns: int, rng: random.Random) -> None:
    """Give the ledger a history, all of it settled, judged and dropped, many rows to a transaction."""
    packed = [turn_row(make_turn(rng)) for _ in range(16)]
    with ServeLedger(path, sync="normal") as ledger:
        for at in range(0, turns, 500):
            with ledger.writing() as db:
                for i in range(min(500, turns - at)):
                    db.insert("turns", packed[i % 16] | {"id": new_id()})
    _settle(path, turns)


def _settle(path: Path, turns: int) -> None:
    """Bring the loops behind the history up to date by SQL: what is measured starts after it."""
    with CollectLedger(path) as ledger, ledger.writing() as db:
        db.execute(
            "INSERT INTO outcomes (turn, session, kind, kind_reason, confidence, idx, next_state, evidence, at)"
            " SELECT id, 's' || (seq / 20), 'main', 'declared', 1, 0, x'', '[]', at FROM turns"
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


def in_company(path: Path, templates: list[Turn], count: int) -> list[float]:
    """Time adds while the three other loops work on the same file."""
    stop = mp.Event()
    others = [mp.Process(target=company, args=(str(path), role, stop)) for role in ("collect", "judge", "train")]
    with ServeLedger(path, sync="full") as ledger:
        for other in others:
            other.start()
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


def report(name: str, taken: list[float]) -> float:
    """Print and return the median in milliseconds."""
    median = statistics.median(taken) * 1e3
    tail = statistics.quantiles(taken, n=100)[98] * 1e3
    print(f"{name:<44} median {median:7.3f} ms   p99 {tail:8.3f} ms")
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=200_000)
    parser.add_argument("--count", type=int, default=1000, help="turns timed in each setting")
    options = parser.parse_args()
    rng = random.Random(7)
    templates = [make_turn(rng) for _ in range(16)]
    root = Path(tempfile.mkdtemp(prefix="openclaw-ledger-"))
    try:
        fill(root / "early.db", 1000, rng)
        print(f"filling {options.history:,} turns of history ...", flush=True)
        fill(root / "late.db", options.history, rng)
        early, late = [], []
        for _ in range(2):  # in turns, so that what else the machine does falls on both
            early += in_company(root / "early.db", templates, options.count // 2)
            late += in_company(root / "late.db", templates, options.count // 2)
        lines = as_json_lines(root / "turns.jsonl", templates, options.count // 2)
        before = report("add a turn, 1,000 turns of history", early)
        after = report(f"add a turn, {options.history:,} turns of history", late)
        plain_ms = report("the same as JSON lines, alone", lines)
        size = (root / "late.db").stat().st_size / (options.history + options.count + 100)
        line_size = (root / "turns.jsonl").stat().st_size / (options.count // 2)
        print(f"late / early            {after / before:5.2f}   (goal: at most 1.3)")
        print(f"ledger / JSON lines     {after / plain_ms:5.2f}   with three other processes at work")
        tokens = PROMPT + REPLY
        print(f"bytes per token         {size / tokens:5.2f}   against {line_size / tokens:.2f} as JSON lines")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
