"""Training's work list and rows: verdicts in; steps, versions, their states and the gate's decisions out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import ClassVar

from openclaw_rl.errors import DeletedMeanwhile
from openclaw_rl.ports import GateDecision
from openclaw_rl.store import codec
from openclaw_rl.store.connection import DurableWriter, LedgerConnection
from openclaw_rl.store.database import AnyPlace, Database, Row, Sync, Writer, place_of
from openclaw_rl.store.deletions import turns_of, without_turns
from openclaw_rl.store.notes import moment
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.rows import (
    NEWEST_REWARD,
    OUTCOME,
    OUTCOME_AWAITED,
    TURN,
    UNTRAINED,
    VERDICT,
    decoded,
    deleted,
    insert_drops,
    insert_version,
    to_outcome,
    to_turn,
    to_verdict,
)
from openclaw_rl.store.stores import open_database
from openclaw_rl.types import (
    Command,
    ControlRequest,
    Distillation,
    Drop,
    GroupKey,
    GroupProgress,
    JudgedTurn,
    PlayedStep,
    Step,
    UnreadableTurn,
    Version,
    VersionState,
    WaitingTurns,
)

# Users' requests to a run. Any process may write a request; the train loop carries it out.


def submit_request(
    place: AnyPlace, command: Command, *, version: int | None = None, turn: str | None = None, reason: str = ""
) -> int:
    """Write a request to a run, running or not; return its number."""
    with closing(open_database(place_of(place), "add")) as db, db.transaction():
        return insert_request(db, command, version=version, turn=turn, reason=reason)


def insert_request(
    db: Database, command: Command, *, version: int | None = None, turn: str | None = None, reason: str = ""
) -> int:
    row = {"command": command, "version": version, "turn": turn, "reason": reason or "on request", "at": time.time()}
    return db.insert_numbered("requests", row, key="seq")


# Groups of episodes: their settled turns, and each step's reward.

_STATE = (
    "CASE WHEN EXISTS (SELECT 1 FROM trained x WHERE x.turn = t.id) THEN 'trained'"
    " WHEN v.seq IS NULL AND EXISTS (SELECT 1 FROM drops d WHERE d.turn = t.id) THEN 'dropped'"
    f" WHEN v.seq IS NULL OR coalesce({NEWEST_REWARD}, 0) > v.reward_seen THEN 'unjudged'"
    " WHEN EXISTS (SELECT 1 FROM drops d WHERE d.turn = t.id AND d.verdict >= v.seq) THEN 'dropped'"
    f" WHEN {OUTCOME_AWAITED} THEN 'unpaid' ELSE 'waiting' END"
)
_DROPPED_WHOLE = "EXISTS (SELECT 1 FROM drops d WHERE d.turn = t.id AND d.reason IN ('alike', 'unjudged'))"
_GROUP = (
    f"SELECT {_STATE} AS state, {_DROPPED_WHOLE} AS dropped_whole, t.id, t.session, t.at, t.user, t.grp,"
    " t.trainable, t.finish, t.reply, t.reply_tokens, o.session AS thread, o.idx, o.kind, v.score, v.source, v.step"
    " FROM turns t LEFT JOIN outcomes o ON o.turn = t.id"
    " LEFT JOIN verdicts v ON v.seq = (SELECT max(w.seq) FROM verdicts w WHERE w.turn = t.id)"
    " WHERE t.user = ? AND t.grp = ? ORDER BY t.seq"
)


def read_group(ledger: LedgerConnection, key: GroupKey, *, before: float) -> tuple[GroupProgress, list[str]]:
    """Return a group's progress, and the ids of its turns that wait to be trained.

    ``before``: a session without a turn since then gets no further reward.
    """
    rows = ledger.rows(_GROUP, before, *key)
    progress = GroupProgress(
        plays=len({row["session"] or row["id"] for row in rows}),
        unsettled=sum(row["state"] in ("unjudged", "unpaid") for row in rows),
        unjudged=[row["id"] for row in rows if row["state"] == "unjudged"],
        closed=any(row["state"] == "trained" or row["dropped_whole"] for row in rows),
        newest_at=max((row["at"] for row in rows), default=0.0),
        steps={row["id"]: _step(row, key) for row in rows if _counts(row)},
    )
    return progress, [row["id"] for row in rows if row["state"] == "waiting"]


def _counts(row: Row) -> bool:
    """Check if a turn is a step with a reward. Failed episodes have no score, side turns no place."""
    return row["kind"] == "main" and row["source"] == "environment" and row["score"] is not None and row["trainable"]


def _step(row: Row, key: GroupKey) -> PlayedStep:
    tokens = len(codec.unpack_tokens(row["reply_tokens"]))
    room = tokens if row["finish"] == "length" else codec.unpack_json(row["reply"])["sampling"].get("max_tokens")
    return PlayedStep(
        episode=row["session"] or row["thread"],
        task=key.group,
        index=row["idx"],
        outcome=row["score"],
        vote=row["step"],
        tokens=tokens,
        room=room,
    )


_JUDGED = (
    f"SELECT {VERDICT}, {OUTCOME}, {TURN} FROM verdicts v JOIN outcomes o ON o.turn = v.turn"
    " JOIN turns t ON t.id = v.turn"
)


class TrainLedger(DurableWriter, LedgerReader):
    """The ledger's writer for training."""

    writer: ClassVar[Writer | None] = "train"

    def __init__(self, place: AnyPlace, *, sync: Sync, migrations: Sequence[str] | None = None) -> None:
        super().__init__(place, sync=sync, migrations=migrations)
        self.before_state: Callable[[Version, VersionState], None] | None = None
        """called before a version's row or state as live or deleted is written; an exception prevents the write"""

    def untrained(self, limit: int, *, patience: float = 0.0) -> list[JudgedTurn | UnreadableTurn]:
        """Return judged turns that were neither trained nor dropped since their newest verdict, oldest first.

        A step of an episode is excluded while the episode may still get a reward: until its session ends, or has had no
        turn for ``patience`` seconds.
        """
        with self.lock:
            rows = self._untrained(self._first_untrained(), limit, before=time.time() - patience)
        return [decoded(_judged, row, turn=row["turn_id"]) for row in rows]

    def waiting(self, limit: int, *, patience: float = 0.0) -> WaitingTurns:
        """Return the turns in `untrained`, with all waiting turns in their groups, and each group's progress.

        All of it is read at one moment: a verdict written meanwhile is in every part of it or in none.
        """
        before = time.time() - patience
        with self.lock:
            low = self._first_untrained()
            with self.db.snapshot():
                rows = self._untrained(low, limit, before=before)
                keys = dict.fromkeys(GroupKey(row["turn_user"], row["turn_grp"]) for row in rows if row["turn_grp"])
                groups = {key: read_group(self, key, before=before) for key in keys}
                read = {row["turn_id"] for row in rows}
                for turn in (turn for _, waiting in groups.values() for turn in waiting if turn not in read):
                    rows.append(self.one(f"{_JUDGED} WHERE {UNTRAINED} AND v.turn = ?", 0, turn))
        turns = [decoded(_judged, row, turn=row["turn_id"]) for row in rows]
        return WaitingTurns(turns=turns, groups={key: progress for key, (progress, _) in groups.items()})

    def _first_untrained(self) -> int:
        return self.advance("verdicts", f"SELECT min(v.seq) FROM verdicts v WHERE {UNTRAINED}")

    def _untrained(self, low: int, limit: int, *, before: float) -> list[Row]:
        condition = f"{UNTRAINED} AND NOT ({OUTCOME_AWAITED})"
        return self.rows(f"{_JUDGED} WHERE {condition} ORDER BY v.seq LIMIT ?", low, before, limit)

    def add_drops(self, drops: Sequence[Drop]) -> None:
        """Write why turns will not train."""
        with self.writing(alone="trained") as db:
            insert_drops(db, drops)
            self.save_cursors(db)

    def add_step(self, step: Step, version: Version | None, drops: Sequence[Drop] = ()) -> None:
        """Write a step, the turns it used up and the version it made, atomically: a turn trains once.

        Raises DeletedMeanwhile and writes nothing if one of them, or a turn whose hint taught it, was deleted.
        """
        recalled = [str(part["recalled"]) for part in step.parts.values() if "recalled" in part]
        with self.writing(alone="trained") as db:
            if gone := deleted(db, [*step.turns, *recalled]):
                raise DeletedMeanwhile(f"{len(gone)} turns of step {step.number} were deleted while it was taken")
            self._insert_step(db, step, version, drops)

    def add_distillation(self, distillation: Distillation, step: Step, version: Version, *, deletions: int = 0) -> None:
        """Write a prompt distillation with its step and the version it made, atomically.

        ``deletions``: the newest deletion when its prompts were read. Raises DeletedMeanwhile and writes nothing if
        there is a later one: the prompts may be from that session.
        """
        row = {name: getattr(distillation, name) for name in ("note", "step", "learned")}
        with self.writing(alone="trained") as db:
            if self.newest("deletions") != deletions:
                raise DeletedMeanwhile(f"a session was deleted while note {distillation.note} was distilled")
            self._insert_step(db, step, version, ())
            row |= {"at": moment(self, distillation.note, distillation.at)}
            db.insert("rehearsals", row | {"evidence": codec.json_text(dict(distillation.evidence))})

    def _insert_step(self, db: Database, step: Step, version: Version | None, drops: Sequence[Drop]) -> None:
        db.insert(
            "steps",
            {
                "number": step.number,
                "metrics": json.dumps(dict(step.metrics)),
                "seconds": step.seconds,
                "skipped": step.skipped,
                "baselines": json.dumps(dict(step.baselines)),
                "at": step.at,
            },
        )
        db.executemany(
            "INSERT INTO trained (turn, step, part) VALUES (?, ?, ?)",
            [(turn, step.number, json.dumps(dict(step.parts.get(turn, {})))) for turn in step.turns],
        )
        insert_drops(db, drops)
        if version is not None:
            insert_version(db, version, self.root)
        self.save_cursors(db)

    def add_version(self, version: Version) -> None:
        """Write a version that no step made: the base, or a rollback."""
        self._tell(version, version.state)
        with self.writing() as db:
            insert_version(db, version, self.root)

    def _tell(self, version: Version, state: VersionState) -> None:
        if self.before_state is not None and state in ("live", "deleted"):
            self.before_state(version, state)

    def set_state(self, version: int, state: VersionState, reason: str) -> None:
        """Write that a version became live, refused or rolled back, with the reason."""
        if self.before_state is not None:
            self._tell(self.version(version), state)
        with self.writing() as db:
            db.insert("states", {"version": version, "state": state, "reason": reason, "at": time.time()})

    def add_gate_decision(self, decision: GateDecision) -> None:
        """Write a gate decision with its numbers and examples, except those from turns deleted meanwhile."""
        row = {name: getattr(decision, name) for name in ("version", "against", "decision", "reason", "seconds", "at")}
        with self.writing(alone="trained") as db:
            evidence = without_turns(decision.evidence, deleted(db, turns_of(decision.evidence)))
            db.insert("gate_decisions", row | {"evidence": codec.json_text(evidence)})

    def new_requests(self, limit: int) -> list[ControlRequest]:
        """Return the requests that `done_requests` has not acknowledged, oldest first."""
        last_done = self.cursor("requests")
        rows = self.rows(
            "SELECT seq, command, version, turn, reason, at FROM requests WHERE seq > ? AND seq <= ?"
            " ORDER BY seq LIMIT ?",
            last_done,
            self.horizon("requests", last_done),
            limit,
        )
        return [ControlRequest(**dict(row)) for row in rows]

    def done_requests(self, seq: int) -> None:
        """Record that all requests up to ``seq`` are carried out."""
        with self.writing() as db:
            self.low["requests"] = seq
            self.save_cursors(db)

    def pause(self, why: str) -> None:
        """Stop training until a person resumes it."""
        with self.writing() as db:
            insert_request(db, "pause", reason=why)


def _judged(row: Row) -> JudgedTurn:
    return JudgedTurn(verdict=to_verdict(row), outcome=to_outcome(row), turn=to_turn(row))
