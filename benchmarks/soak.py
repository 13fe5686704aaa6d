"""Thirty minutes of mixed load with faults against the real server, and an account of what came of it.

    python benchmarks/soak.py [--minutes 30] [--backend local|fake] [--clients 6] [--seed 1] [--dir DIR] [--json]

Clients of three users talk over chat completions, Responses and Anthropic messages, half of it streamed; some leave in
the middle of a stream, some give feedback, ask for a reply under a JSON schema, make and remove notes, or delete the
session they were in. Meanwhile commands are given at random (pause, resume, rollback, pin,
status), the engine and the trainer are killed, the whole server is killed and started again, and the disk is full for
some seconds (on a file system of its own: as root only; else that is left out, and said). ``local`` is the embedded
model; ``fake`` is a policy and a trainer without weights in the server's own process: a quick run of all the rest.

It passes (exit code 0) if every turn whose last byte reached a client is in the ledger, unless its session was deleted,
and then it is not; none was trained twice, notes are what was made of them, replies are of the format asked for, every
request that failed did so under a fault, commands did what they say, the server ended cleanly, and the memory of each
process is flat.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import secrets
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.soaking.clients import Failure, Seen, Talker
from benchmarks.soaking.system import Disk, Fault, System, cause, schedule

USERS = ("ann", "ben", "cho")
COMMANDS = ("pause", "resume", "status", "rollback", "pin")
NOTE_STATES = (
    "SELECT n.number, c.state FROM notes n JOIN note_changes c"
    " ON c.seq = (SELECT max(seq) FROM note_changes WHERE note = n.number)"
)
YOUNG = 20.0
"""seconds in which a process still loads: its memory is not looked at"""
ENOUGH = 60
"""samples that a quarter needs: fewer show how a process starts, not whether it grows"""
GROWTH, ROOM = 1.25, 96.0
"""memory counts as flat below this ratio of the last quarter to the first, or this many MB"""


class Memory(threading.Thread):
    """Reads how much memory each process has, once a second.

    An engine that holds two versions is larger than one that holds one, and a trainer grows by its first step: their
    samples are told apart by the versions held and by whether this process has taken a step, so that like is compared
    with like. The versions held a moment before and after must agree, or they are changing.
    """

    def __init__(self, system: System) -> None:
        super().__init__(daemon=True)
        self._system = system
        self._born: dict[int, tuple[float, int]] = {}
        self.samples: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(1.0):
            now = time.monotonic()
            before = self._system.versions_held()
            sizes = {(role, pid): _resident(pid) for role, pid in self._system.processes().items()}
            steps = self._steps()
            for (role, pid), size in sizes.items():
                born, taken = self._born.setdefault(pid, (now, steps))
                if now - born <= YOUNG or size is None:
                    continue
                if role == "trainer":
                    self.samples["trainer after its first step" if steps > taken else "trainer at rest"].append(
                        (now, size)
                    )
                elif role != "engine":
                    self.samples[role].append((now, size))
                elif before is not None and before == self._system.versions_held():
                    self.samples[f"engine with {before} trained versions"].append((now, size))

    def _steps(self) -> int:
        """Steps taken in all, of turns and of distillations; 0 while the ledger cannot be read."""
        try:
            [row] = ask(self._system.root, "SELECT (SELECT count(*) FROM steps) + (SELECT count(*) FROM rehearsals)")
        except sqlite3.DatabaseError:
            return 0
        return int(row[0])


def _resident(pid: int) -> float | None:
    """MB in memory, None when the process is gone."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


# --- the run ----------------------------------------------------------------------------------------------------------


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole run; its account."""
    keys = {user: secrets.token_hex(8) for user in USERS}
    (folder / "keys").write_text("".join(f"{user}:{key}\n" for user, key in keys.items()))
    (folder / "keys").chmod(0o600)
    disk = Disk(folder / "run")
    disk.mount()
    system = System(root=folder / "run", log=folder / "server.log", keys=folder / "keys", backend=args.backend)
    try:
        return _run(args, system, disk, keys)
    finally:
        if system.process is not None and system.process.poll() is None:
            system.kill()
        disk.unmount()


def _run(args: argparse.Namespace, system: System, disk: Disk, keys: Mapping[str, str]) -> dict[str, Any]:
    seen, rng = Seen(), random.Random(args.seed)
    tell(f"ready after {system.start():.1f} s")
    tokens, pause = (48, 0.2) if args.backend == "local" else (200, 0.05)
    talkers = [
        Talker(
            f"c{i}",
            key=keys[USERS[i % len(USERS)]],
            port=system.port,
            seen=seen,
            tokens=tokens,
            pause=pause,
            holds=args.backend == "local",
        )
        for i in range(args.clients)
    ]
    memory = Memory(system)
    threads: list[Talker | Memory] = [*talkers, memory]
    for thread in threads:
        thread.start()
    _faults(args.minutes * 60, args.backend, system, disk, rng, seen)
    for thread in threads:
        thread.over.set()
    for thread in threads:
        thread.join(timeout=200)
    system.command("resume")
    waited = settled(system.root)
    code = system.end()
    return account(seen, system, memory, disk=disk.small) | {"settled": waited, "exit_code": code}


def _faults(seconds: float, backend: str, system: System, disk: Disk, rng: random.Random, seen: Seen) -> None:
    began = time.monotonic()
    for at, kind in schedule(rng, seconds=seconds, backend=backend, disk=disk.small):
        if (wait := began + at - time.monotonic()) > 0:
            time.sleep(wait)
        if time.monotonic() - began < seconds:
            cause(kind, system, disk, rng, turns=sorted(set(seen.answered) - seen.deleted - seen.unsure))
            fault = system.faults[-1]
            tell(f"{time.monotonic() - began:6.0f} s  {len(seen.answered):>6} answered  {fault.kind}  {fault.detail}")
    time.sleep(max(0.0, began + seconds - time.monotonic()))


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def settled(root: Path, patience: float = 180.0) -> bool:
    """Wait until all that was said is judged; training may take its time."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        unread = "SELECT count(*) FROM turns WHERE seq > coalesce((SELECT seq FROM cursors WHERE name = 'turns'), 0)"
        unjudged = "SELECT count(*) FROM outcomes WHERE turn NOT IN (SELECT turn FROM verdicts)"
        try:
            if [row[0] for query in (unread, unjudged) for row in ask(root, query)] == [0, 0]:
                return True
        except sqlite3.DatabaseError as error:
            tell(f"the ledger cannot be read: {error}")
            return False
        time.sleep(0.5)
    return False


def ask(root: Path, query: str) -> list[Any]:
    """Read from the ledger as a stranger would."""
    link = sqlite3.connect(f"file:{root / 'ledger.db'}?mode=ro", uri=True, timeout=30)
    try:
        return link.execute(query).fetchall()
    finally:
        link.close()


# --- the account ------------------------------------------------------------------------------------------------------


def account(seen: Seen, system: System, memory: Memory, *, disk: bool) -> dict[str, Any]:
    ledger = read(system.root)
    kept, states = ledger.pop("kept"), ledger.pop("notes")
    gone = seen.deleted | seen.unsure
    lost = sorted(set(seen.answered) - gone - kept, key=lambda turn: seen.answered[turn])
    told, open_failures = collections.Counter[str](), collections.Counter[str]()
    for one in seen.failures:
        why = under(one, system.faults)
        told[f"{one.kind}, {why or 'no fault'}"] += 1
        if why is None:
            open_failures[f"{one.kind}: {one.detail[:120]}"] += 1
    wrong = collections.Counter(
        f"{one.kind}: {one.detail}" for one in system.faults if one.kind in COMMANDS and one.detail
    )
    return {
        "begun": seen.begun,
        "answered": len(seen.answered),
        "left": seen.left,
        "feedback": seen.feedback,
        "formatted": seen.formatted,
        "off_format": seen.off_format[:5],
        "notes": len(seen.notes),
        "notes_removed": len(seen.removed),
        "notes_wrong": notes_wrong(seen, states),
        "deletions": seen.deletions,
        "undeleted": sorted(seen.deleted & kept),
        "turns": len(kept),
        "lost": len(lost),
        "lost_after": [before(seen.answered[turn], system.faults) for turn in lost[:5]],
        **ledger,
        "twice": twice(system.root),
        "faults": dict(collections.Counter(one.kind for one in system.faults)),
        "disk": disk,
        "failed": dict(told),
        "unexplained": dict(open_failures),
        "commands_failed": dict(wrong),
        "memory": {role: quarters(samples) for role, samples in memory.samples.items()},
        "errors_logged": errors(system.log),
    }


def read(root: Path) -> dict[str, Any]:
    """What is in the ledger: the turns' ids, counts, and damage."""
    try:
        return {
            "kept": {row[0] for row in ask(root, "SELECT id FROM turns")},
            "notes": dict(ask(root, NOTE_STATES)),
            "trained": ask(root, "SELECT count(*) FROM trained")[0][0],
            "steps": ask(root, "SELECT count(*) FROM steps")[0][0],
            "damage": [row[0] for row in ask(root, "PRAGMA integrity_check") if row[0] != "ok"],
        }
    except sqlite3.DatabaseError as error:
        return {"kept": set[str](), "notes": {}, "trained": 0, "steps": 0, "damage": [str(error)]}


def notes_wrong(seen: Seen, states: Mapping[int, str]) -> list[int]:
    """Notes that were made and are not there, that were removed and are in force, or that nobody removed and are."""
    gone = {number for number in seen.notes if states.get(number, "removed") == "removed"}
    return sorted((gone - seen.unsure_notes) ^ seen.removed)


def under(failure: Failure, faults: Sequence[Fault]) -> str | None:
    """The fault under which a request failed: one that was not over when it began, and had come when it ended."""
    for one in faults:
        if one.kind not in COMMANDS and one.at <= failure.ended and failure.began <= one.over:
            return one.kind
    return None


def before(at: float, faults: Sequence[Fault]) -> str:
    """What was done last before then."""
    past = [one for one in faults if one.at <= at]
    return f"{at - past[-1].at:.1f} s after {past[-1].kind}" if past else "before any fault"


def twice(root: Path) -> list[str]:
    """Turns that two steps trained on, by the record that the trainer's loop keeps."""
    record = root / "record.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    seen = collections.Counter(line["turn"] for line in lines if line.get("kind") == "sample")
    return [turn for turn, count in seen.items() if count > 1]


def quarters(samples: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The middle of the first quarter of the samples against that of the last, in MB."""
    quarter = len(samples) // 4
    if quarter < ENOUGH:
        return {"samples": len(samples), "flat": None}
    first, last = (statistics.median(size for _, size in part) for part in (samples[:quarter], samples[-quarter:]))
    flat = last <= max(first * GROWTH, first + ROOM)
    return {"samples": len(samples), "first": round(first), "last": round(last), "flat": flat}


def errors(log: Path) -> dict[str, int]:
    """The commonest complaints of the server's log, numbers taken out."""
    lines = [
        line for line in log.read_text(errors="replace").splitlines() if re.search(r"(?i)\berror\b|malformed", line)
    ]
    found = collections.Counter(re.sub(r"\d+|[0-9a-f]{8,}", "#", line.strip())[-140:] for line in lines)
    return dict(found.most_common(8))


def verdict(view: Mapping[str, Any]) -> list[str]:
    """What speaks against it; nothing: it passes."""
    against = {
        f"{view['lost']} answered turns are not in the ledger": view["lost"],
        f"{len(view['twice'])} turns were trained twice": view["twice"],
        f"{len(view['undeleted'])} turns of deleted sessions are in the ledger": view["undeleted"],
        f"{len(view['notes_wrong'])} notes are not what their user made of them": view["notes_wrong"],
        f"{len(view['off_format'])} replies or more are not of their format: {view['off_format'][:1]}": view[
            "off_format"
        ],
        f"the ledger is damaged: {view['damage'][:1]}": view["damage"],
        f"{sum(view['unexplained'].values())} requests failed without a fault": view["unexplained"],
        f"{sum(view['commands_failed'].values())} commands failed": view["commands_failed"],
        "what was said was not judged in time": not view["settled"],
        f"the server ended with code {view['exit_code']}": view["exit_code"],
        "nothing was answered": not view["answered"],
    }
    grown = [f"the memory of the {role} grew" for role, one in view["memory"].items() if one["flat"] is False]
    return [what for what, wrong in against.items() if wrong] + grown


def show(view: Mapping[str, Any]) -> None:
    print(f"requests       {view['begun']} begun, {view['answered']} answered, {view['left']} left by the client")
    print(f"ledger         {view['turns']} turns; {view['lost']} answered turns missing {view['lost_after'] or ''}")
    print(
        f"formats        {view['formatted']} replies under a schema, {len(view['off_format'])} off it;"
        f" notes: {view['notes']} made, {view['notes_removed']} removed, {len(view['notes_wrong'])} wrong;"
        f" sessions: {view['deletions']} deleted, {len(view['undeleted'])} of their turns left"
    )
    print(f"training       {view['trained']} turns in {view['steps']} steps, {len(view['twice'])} trained twice")
    print(
        f"faults         {_counts(view['faults'])}"
        + ("" if view["disk"] else "; no full disk: only root may mount one")
    )
    for title, name in (("failed", "failed"), ("no reason", "unexplained"), ("commands", "commands_failed")):
        for what, count in view[name].items():
            print(f"{title:<14} {count} x {what}")
    for role, one in view["memory"].items():
        told = "too short to tell" if one["flat"] is None else f"{one['first']} -> {one['last']} MB"
        print(f"memory         {role}: {told} ({one['samples']} samples)")
    for what, count in view["errors_logged"].items():
        print(f"log            {count} x {what}")
    for what in view["against"]:
        print(f"AGAINST        {what}")
    print("PASS" if not view["against"] else "FAIL")


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(found.items())) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the load lasts")
    parser.add_argument("--backend", choices=("local", "fake"), default="local", help="the embedded model, or none")
    parser.add_argument("--clients", type=int, default=6, help="conversations at once")
    parser.add_argument("--seed", type=int, default=1, help="settles what is done when")
    parser.add_argument("--dir", type=Path, help="keep keys and the server's log here")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = args.dir or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        view = soak(args, place)
    view["against"] = verdict(view)
    print(json.dumps(view)) if args.json else show(view)
    raise SystemExit(1 if view["against"] else 0)


if __name__ == "__main__":
    main()
