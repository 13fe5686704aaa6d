"""Groups of episodes: which of their turns are settled, and what each step was worth."""

from __future__ import annotations

from openclaw_rl.store import codec
from openclaw_rl.store.connection import LedgerConnection
from openclaw_rl.store.database import Row
from openclaw_rl.store.rows import NEWEST_REWARD, OUTCOME_AWAITED
from openclaw_rl.types import GroupKey, GroupProgress, PlayedStep

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
    """How far a group is, and the ids of its turns that wait to be trained.

    ``before``: a session that has said nothing since then is paid no more.
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
    """Whether a turn is a step that was paid. Failed episodes have no score, side turns no place."""
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
