"""Rows of the ledger to nouns and back, and the column lists that belong to them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.store import codec
from openclaw_rl.types import Completion, Drop, Feedback, ImportRecord, Outcome, Turn, UnreadableTurn, Verdict, Version

Noun = TypeVar("Noun")

TURN = (
    "t.id, t.session, t.user, t.grp, t.client, t.declared, t.done, t.trainable, t.at, t.version, t.finish, t.scored,"
    " t.prompt, t.reply, t.prompt_tokens, t.reply_tokens, t.logprobs"
)
OUTCOME = (
    "o.turn, o.session, o.kind, o.kind_reason, o.confidence, o.idx, o.parent, o.next_state, o.ended, o.evidence, o.at"
)
VERDICT = "v.turn, v.score, v.source, v.votes, v.hints, v.judge, v.prompt_version, v.seconds, v.note, v.at"
VERSION = (
    "v.number, v.parent, v.base, v.adapter, v.step, v.note, v.at,"
    " (SELECT state FROM states s WHERE s.version = v.number ORDER BY s.seq DESC LIMIT 1)"
)


UNTRAINED = (
    "v.seq > ? AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
    " AND NOT EXISTS (SELECT 1 FROM trained x WHERE x.turn = v.turn)"
    " AND NOT EXISTS (SELECT 1 FROM drops d WHERE d.turn = v.turn AND d.verdict >= v.seq)"
)
"""verdicts after a low-water mark that are in force and were neither trained nor dropped"""


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> int:
    marks = ", ".join("?" * len(row))
    done = db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    return done.lastrowid or 0


def insert_drops(db: sqlite3.Connection, drops: Sequence[Drop]) -> None:
    db.executemany(
        "INSERT INTO drops (turn, stage, reason, detail, at, verdict)"
        " VALUES (?, ?, ?, ?, ?, (SELECT max(seq) FROM verdicts WHERE turn = ?))",
        [(drop.turn, drop.stage, drop.reason, drop.detail, drop.at, drop.turn) for drop in drops],
    )


def insert_version(db: sqlite3.Connection, version: Version, root: Path) -> None:
    row = {name: getattr(version, name) for name in ("number", "parent", "base", "step", "note", "at")}
    insert(db, "versions", row | {"adapter": _inside(version.adapter, root)})
    insert(db, "states", {"version": version.number, "state": version.state, "reason": version.note, "at": version.at})


def whole(read: Callable[[], Noun], *, turn: str) -> Noun | UnreadableTurn:
    """What ``read`` decodes; where it cannot, the turn and the reason, so that one damaged row costs itself alone."""
    try:
        return read()
    except Exception as error:  # damaged bytes raise whatever the decoder happens to meet
        return UnreadableTurn(turn=turn, why=f"{type(error).__name__}: {error}"[:200])


def turn_row(turn: Turn) -> dict[str, Any]:
    done = turn.completion
    reply = {"reply": codec.plain(done.reply), "sampling": codec.plain(done.sampling), "flaws": list(done.flaws)}
    return {
        "id": turn.id,
        "session": turn.session,
        "user": turn.user,
        "grp": turn.group,
        "client": turn.client,
        "declared": turn.declared,
        "done": turn.done,
        "trainable": turn.trainable,
        "at": turn.at,
        "version": done.version,
        "finish": done.finish,
        "scored": done.scored,
        "prompt": codec.pack_json(codec.plain(turn.prompt)),
        "reply": codec.pack_json(reply),
        "prompt_tokens": codec.pack_tokens(done.prompt_tokens),
        "reply_tokens": codec.pack_tokens(done.reply_tokens),
        "logprobs": codec.pack_logprobs(done.logprobs),
    }


def to_turn(row: Sequence[Any]) -> Turn:
    reply = codec.unpack_json(row[13])
    completion = Completion(
        reply=codec.message(reply["reply"]),
        sampling=codec.sampling(reply["sampling"]),
        flaws=tuple(reply["flaws"]),
        prompt_tokens=codec.unpack_tokens(row[14]),
        reply_tokens=codec.unpack_tokens(row[15]),
        logprobs=codec.unpack_logprobs(row[16]),
        version=row[9],
        finish=row[10],
        scored=bool(row[11]),
    )
    return Turn(
        id=row[0],
        session=row[1],
        user=row[2],
        group=row[3],
        client=row[4],
        declared=row[5],
        done=bool(row[6]),
        trainable=bool(row[7]),
        at=row[8],
        prompt=codec.prompt(codec.unpack_json(row[12])),
        completion=completion,
    )


def to_feedback(row: Sequence[Any]) -> Feedback:
    return Feedback(turn=row[0], score=row[1], hint=row[2], edit=row[3], source=row[4], at=row[5])


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    return {
        "turn": outcome.turn,
        "session": outcome.session,
        "kind": outcome.kind,
        "kind_reason": outcome.kind_reason,
        "confidence": outcome.confidence,
        "idx": outcome.index,
        "parent": outcome.parent,
        "next_state": codec.pack_json(codec.plain(outcome.next_state)),
        "ended": outcome.ended,
        "evidence": json.dumps(outcome.evidence),
        "at": outcome.at,
    }


def to_outcome(row: Sequence[Any]) -> Outcome:
    return Outcome(
        turn=row[0],
        session=row[1],
        kind=row[2],
        kind_reason=row[3],
        confidence=row[4],
        index=row[5],
        parent=row[6],
        next_state=codec.messages(codec.unpack_json(row[7])),
        ended=row[8],
        evidence=tuple(json.loads(row[9])),
        at=row[10],
    )


def to_settled(row: Sequence[Any]) -> tuple[Turn, Outcome]:
    """A turn and its outcome of a row with the columns of both, the outcome's first."""
    return to_turn(row[11:]), to_outcome(row[:11])


def to_recorded(row: Sequence[Any]) -> ImportRecord:
    return ImportRecord(
        turn=row[0],
        session=row[1],
        index=row[2],
        kind=row[3],
        next_state=codec.messages(codec.unpack_json(row[4])),
        trainable=bool(row[5]),
        extra=codec.unpack_json(row[6]),
    )


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    return {
        "turn": verdict.turn,
        "score": verdict.score,
        "source": verdict.source,
        "votes": json.dumps(verdict.votes),
        "hints": json.dumps(codec.plain(verdict.hints), ensure_ascii=False),
        "judge": verdict.judge,
        "prompt_version": verdict.prompt_version,
        "seconds": verdict.seconds,
        "note": verdict.note,
        "at": verdict.at,
    }


def to_verdict(row: Sequence[Any]) -> Verdict:
    return Verdict(
        turn=row[0],
        score=row[1],
        source=row[2],
        votes=tuple(json.loads(row[3])),
        hints=codec.hints(json.loads(row[4])),
        judge=row[5],
        prompt_version=row[6],
        seconds=row[7],
        note=row[8],
        at=row[9],
    )


def to_version(row: Sequence[Any], root: Path) -> Version:
    return Version(
        number=row[0],
        parent=row[1],
        base=row[2],
        adapter=str(root / row[3]) if row[3] else None,
        step=row[4],
        note=row[5],
        at=row[6],
        state=row[7],
    )


def _inside(adapter: str | None, root: Path) -> str | None:
    """An adapter's place relative to the ledger's folder where it lies inside, so that a run can be moved."""
    if adapter is not None and Path(adapter).is_relative_to(root):
        return str(Path(adapter).relative_to(root))
    return adapter
