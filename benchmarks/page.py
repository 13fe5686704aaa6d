"""How long each view of the page takes on a large ledger.

    python benchmarks/page.py [--turns 200000] [--users 4] [--rounds 5] [--keep FOLDER] [--json]

A ledger of ``--turns`` turns in sessions of eight, all of them judged and some of them corrections that made notes,
with 400 steps and versions and the gate's decisions on them, and 2,000 episodes of an environment, is written once (to
``--keep``, where a second run finds it). Every view is then asked for as a browser does, by an admin, who sees
everybody, and by one user. The alternative is what `openclaw-rl status` reads of the same ledger. Beside the clock's
milliseconds stand those of the processor, which others who use the machine change less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

from openclaw_rl.app.page import page_app
from openclaw_rl.config import load
from openclaw_rl.page.door import MARK
from openclaw_rl.ports import GateDecision
from openclaw_rl.store import CollectLedger, JudgeLedger, LedgerReader, NotesLedger, ServeLedger, TrainLedger
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_prompt, make_turn, make_verdict
from openclaw_rl.types import Hint, Outcome, SessionReward, Step, Turn, Verdict, Version
from openclaw_rl.views.status import status

SESSION, BATCH, STEPS, EPISODES = 8, 2000, 400, 2000
WORDS = (
    *("tea", "rain", "snow", "honesty", "gravity", "bread", "music", "forest"),
    *("river", "clock", "paper", "winter", "garden", "bridge", "ocean"),
)
RULE = "Please keep it under 30 words."


def write_ledger(folder: Path, *, turns: int, users: int) -> None:
    """The ledger, as the loops write it."""
    rng, path = random.Random(0), folder / "ledger.db"
    names = [f"user{number}" for number in range(users)]
    trained: list[str] = []
    with ServeLedger(path, sync="normal") as serve, CollectLedger(path) as collect, JudgeLedger(path) as judge:
        batch: list[Turn] = []
        for turn in _talk(rng, turns, names):
            serve.add_turn(turn)
            batch.append(turn)
            if len(batch) == BATCH:
                _settle(collect, judge, batch, serve.newest("turns"))
                trained += [one.id for one in batch[:5]]
                batch = []
    with NotesLedger(path) as notes:
        for name in names:
            notes.atomically(
                lambda name=name: notes.insert_note(  # type: ignore[misc]
                    user=name, kind="rule", text=RULE, vague=False, turn=None, by="user", reason="by hand"
                )
            )
    _play(path, rng)
    _train(path, trained)


def _play(path: Path, rng: random.Random) -> None:
    """Episodes of 40 tasks, four steps each."""
    with ServeLedger(path, sync="normal") as serve, CollectLedger(path) as collect, JudgeLedger(path) as judge:
        for number in range(EPISODES):
            named = {"session": f"episode {number}", "user": "env:terminal", "group": f"task {number % 40}"}
            reply = make_completion("ls | wc -l", version=number * STEPS // EPISODES)
            turns = [make_turn(prompt=make_prompt("$ "), completion=reply, **named) for _ in range(4)]
            for turn in turns:
                serve.add_turn(turn)
            serve.add_reward(
                SessionReward(session=named["session"], user="env:terminal", score=rng.choice((-1.0, 1.0)))
            )
            _settle(collect, judge, turns, serve.newest("turns"))


def _talk(rng: random.Random, turns: int, users: list[str]) -> Iterator[Turn]:
    at = time.time() - turns
    for number in range(turns):
        session, place = divmod(number, SESSION)
        history = [f"Tell me about {rng.choice(WORDS)}." for _ in range(2 * min(place, 2) + 1)]
        reply = make_completion(
            " ".join(rng.choices(WORDS, k=40)), reply_tokens=tuple(range(60)), logprobs=(-0.5,) * 60
        )
        yield make_turn(
            prompt=make_prompt(*history),
            completion=reply,
            session=f"session {session}",
            user=users[session % len(users)],
            at=at + number,
        )


def _settle(collect: CollectLedger, judge: JudgeLedger, batch: list[Turn], read: int) -> None:
    outcomes: list[Outcome] = []
    verdicts: list[Verdict] = []
    for number, turn in enumerate(batch):
        bad = number % 10 == 0
        said = f"Too long. {RULE}" if bad else "And then?"
        state = (make_message("user", said),)
        outcomes.append(make_outcome(turn, session=str(turn.session), next_state=state, at=turn.at))
        hints = (Hint(text=RULE),) if number % 40 == 0 else ()
        verdicts.append(make_verdict(turn, -1.0 if bad else 1.0, hints=hints, votes=(1, 1, -1), at=turn.at))
    collect.settle(outcomes, [], turns_read=read)
    judge.add_verdicts(verdicts)


def _train(path: Path, turns: list[str]) -> None:
    checks = [{"name": "kl", "ok": True, "detail": "0.2 nats", "numbers": {"kl": 0.2, "budget": 1.5}}]
    with TrainLedger(path, sync="normal") as train:
        train.add_version(Version(number=0, parent=None, base="fake", state="live"))
        for number in range(1, STEPS + 1):
            used = tuple(turns[(number - 1) :: STEPS])
            examples = [
                {"prompt": "p", "turn": turn, "live": "x" * 200, "candidate": "y" * 200, "flaw": None} for turn in used
            ]
            metrics = {"loss": 1 / number, "gap_mean": 0.01, "ess": 0.9, "grad_norm": 0.3}
            made = Version(number=number, parent=number - 1, base="fake", adapter=str(path.parent / "a"), step=number)
            train.add_step(Step(number=number, turns=used, metrics=metrics, seconds=2.0), made)
            evidence = {"checks": checks, "examples": examples * 4}
            train.add_gate_decision(
                GateDecision(
                    version=number,
                    against=number - 1,
                    decision="promote",
                    reason="passed",
                    evidence=evidence,
                    seconds=2.0,
                )
            )
            train.set_state(number, "live", "passed")


@contextmanager
def ledger(keep: Path | None, *, turns: int, users: int) -> Iterator[Path]:
    """A folder with the ledger, written anew where there is none."""
    with tempfile.TemporaryDirectory() as own:
        folder = keep or Path(own)
        if not (folder / "ledger.db").exists():
            folder.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            write_ledger(folder, turns=turns, users=users)
            print(f"wrote {turns:,} turns in {time.monotonic() - began:.0f} s")
        yield folder


class Took:
    """Milliseconds of a block, by the clock and by the processor."""

    clock = cpu = 0.0

    def __enter__(self) -> Took:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        clock, cpu = self._began
        self.clock, self.cpu = 1000 * (time.perf_counter() - clock), 1000 * (time.process_time() - cpu)


def paths(folder: Path) -> Mapping[str, str]:
    """Every view, and the detailed ones of something in the middle of the ledger."""
    with LedgerReader(folder / "ledger.db") as reader:
        turn = reader.latest("user1", before=reader.newest("turns") // 2, limit=1)[0]
    return {
        "talk": "/talk",
        "learning": "/learning",
        "learning, older": f"/learning?before={turn.seq}",
        "one correction": f"/learning?turn={turn.id}",
        "versions": "/versions",
        "one version": f"/versions?version={STEPS // 2}",
        "curves": "/curves",
        "environments": "/environments",
        "episodes": "/environments?env=terminal&task=task+1",
        "one episode": "/environments?env=terminal&session=episode+41",
        "sessions": "/sessions",
        "sessions, searched": "/sessions?q=honesty%20winter%20ocean",
        "sessions, filtered": "/sessions?only=bad",
        "one session": f"/sessions?session={turn.session}&user=user1",
        "one turn": f"/sessions?turn={turn.id}",
    }


async def measure(folder: Path, *, rounds: int, key: str) -> dict[str, list[Took]]:
    """What each view took, as often as it was asked for."""
    keys = folder / "keys"
    keys.write_text("default:admin-key\nuser1:user-key\n")
    config = load(environ={}, sets=[f"run.dir={folder}", f"serve.keys_file={keys}"]).config
    transport = httpx2.ASGITransport(app=page_app(config))
    found: dict[str, list[Took]] = {}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as page:
        (await page.post("/do/login", json={"key": key}, headers={MARK: "1"})).raise_for_status()
        for name, path in paths(folder).items():
            for _ in range(rounds):
                with Took() as took:
                    shown = await page.get(path)
                assert shown.status_code == 200 or (key == "user-key" and "env=" in path), (name, shown.status_code)
                found.setdefault(name, []).append(took)
    return found


def status_ms(folder: Path, rounds: int) -> list[Took]:
    """The alternative: what `openclaw-rl status` reads."""
    found = []
    for _ in range(rounds):
        with Took() as took, LedgerReader(folder / "ledger.db") as reader:
            status(reader, starve_after=200)
        found.append(took)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200_000)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with ledger(given.keep, turns=given.turns, users=given.users) as folder:
        found = {who: asyncio.run(measure(folder, rounds=given.rounds, key=f"{who}-key")) for who in ("admin", "user")}
        found["openclaw-rl status"] = {"all of it": status_ms(folder, given.rounds)}
    if given.json:
        print(json.dumps(found, default=lambda took: {"clock": took.clock, "cpu": took.cpu}))
        return
    print(f"{'milliseconds':<42} {'median':>8} {'slowest':>8} {'processor':>10}")
    for who, views in found.items():
        for name, times in views.items():
            clock, cpu = [one.clock for one in times], statistics.median(one.cpu for one in times)
            print(f"{who + ': ' + name:<42} {statistics.median(clock):>8.0f} {max(clock):>8.0f} {cpu:>10.0f}")


if __name__ == "__main__":
    main()
