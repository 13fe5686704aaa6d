"""Conversion between ledger rows and the package's types, and their column lists.

Each list names its columns with a prefix (``turn_id``, ``outcome_at``), so that one query may join several tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.store import codec
from openclaw_rl.store.database import Database, Row
from openclaw_rl.store.results import ReadTurn
from openclaw_rl.types import (
    ENVIRONMENT,
    Completion,
    Drop,
    Feedback,
    ImportRecord,
    Outcome,
    PromptNote,
    SessionReward,
    Turn,
    UnreadableTurn,
    Verdict,
    Version,
    rules,
)

Noun = TypeVar("Noun")

_AT_ONCE = 500


def _columns(table: str, prefix: str, names: str) -> str:
    return ", ".join(f"{table}.{name} AS {prefix}_{name}" for name in names.split())


TURN = _columns(
    "t",
    "turn",
    "id session user grp client declared done trainable at version finish scored"
    " prompt reply prompt_tokens reply_tokens logprobs note",
)
OUTCOME = _columns("o", "outcome", "turn session kind kind_reason confidence idx parent next_state ended evidence at")
VERDICT = _columns("v", "verdict", "turn score source votes hints judge prompt_version seconds note step at")
VERSION = (
    "v.number, v.parent, v.base, v.adapter, v.step, v.note, v.origin, v.source, v.request, v.at,"
    " (SELECT state FROM states s WHERE s.version = v.number ORDER BY s.seq DESC LIMIT 1) AS state"
)
FEEDBACK = "seq, turn, score, hint, edit, source, at"

SETTLED = "SELECT t.id, t.seq FROM outcomes o CROSS JOIN turns t WHERE t.id = o.turn AND o.session = ?1 AND t.user = ?2"
"""the turns in a user's session that have an outcome; CROSS: SQLite then begins with the session's, not the user's"""

UNTRAINED = (
    "v.seq > ? AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
    " AND NOT EXISTS (SELECT 1 FROM trained x WHERE x.turn = v.turn)"
    " AND NOT EXISTS (SELECT 1 FROM drops d WHERE d.turn = v.turn AND d.verdict >= v.seq)"
)
"""verdicts after a low-water mark that are in force and were neither trained nor dropped"""

_OF_AN_ENVIRONMENT = f"substr(t.user, 1, {len(ENVIRONMENT)}) = '{ENVIRONMENT}'"  # LIKE: SQLite accepts Env: too
OF_A_PERSON = f"NOT {_OF_AN_ENVIRONMENT}"
"""turns that no environment requested"""
NEWEST_REWARD = "(SELECT max(r.seq) FROM session_rewards r WHERE r.session = t.session AND r.user = t.user)"
OUTCOME_AWAITED = (
    f"({_OF_AN_ENVIRONMENT} OR t.grp IS NOT NULL) AND t.session IS NOT NULL AND CASE WHEN {NEWEST_REWARD} IS NULL"
    " THEN (SELECT max(n.at) FROM turns n WHERE n.session = t.session AND n.user = t.user) > ?"
    " AND NOT EXISTS (SELECT 1 FROM endings e WHERE e.session = t.session AND e.user = t.user)"
    f" ELSE {NEWEST_REWARD} > v.reward_seen END"
)
"""steps of an episode that may still get a reward, or whose verdict has not read its newest reward; a turn in a group
is a step of an episode, whichever client plays it"""


def deleted(db: Database, turns: Iterable[str]) -> set[str]:
    """Return the turns among these that were deleted: no row may be written about them."""
    gone: set[str] = set()
    if db.row("SELECT 1 FROM deleted_turns LIMIT 1") is None:
        return gone
    for batch in batched(turns):
        marks = ", ".join("?" * len(batch))
        gone |= {row["turn"] for row in db.rows(f"SELECT turn FROM deleted_turns WHERE turn IN ({marks})", batch)}
    return gone


def batched(values: Iterable[str]) -> Iterator[list[str]]:
    """Yield values in batches, for statements that list each of them."""
    remaining = list(values)
    for start in range(0, len(remaining), _AT_ONCE):
        yield remaining[start : start + _AT_ONCE]


def insert_drops(db: Database, drops: Sequence[Drop]) -> None:
    gone = deleted(db, [drop.turn for drop in drops])
    drops = [drop for drop in drops if drop.turn not in gone]
    db.executemany(
        "INSERT INTO drops (turn, stage, reason, detail, at, verdict)"
        " VALUES (?, ?, ?, ?, ?, (SELECT max(seq) FROM verdicts WHERE turn = ?))",
        [(drop.turn, drop.stage, drop.reason, drop.detail, drop.at, drop.turn) for drop in drops],
    )


def insert_version(db: Database, version: Version, root: Path) -> None:
    names = ("number", "parent", "base", "step", "note", "origin", "source", "request", "at")
    row = {name: getattr(version, name) for name in names}
    db.insert("versions", row | {"adapter": _inside(version.adapter, root)})
    db.insert("states", {"version": version.number, "state": version.state, "reason": version.note, "at": version.at})


def decoded(read: Callable[[Row], Noun], row: Row, *, turn: str) -> Noun | UnreadableTurn:
    """Return the result of ``read`` on a row; on an error, the turn and its reason: other rows are unaffected."""
    try:
        return read(row)
    except Exception as error:  # damaged bytes raise any of the decoder's errors
        return UnreadableTurn(turn=turn, why=f"{type(error).__name__}: {error}"[:200])


def turn_row(turn: Turn) -> dict[str, Any]:
    completion = turn.completion
    reply = {
        "reply": codec.plain(completion.reply),
        "sampling": codec.plain(completion.sampling),
        "flaws": list(completion.flaws),
    }
    if completion.allowed is not None:
        reply["allowed"] = list(completion.allowed)
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
        "version": completion.version,
        "finish": completion.finish,
        "scored": completion.scored,
        "prompt": codec.pack_json(codec.plain(turn.prompt)),
        "reply": codec.pack_json(reply),
        "prompt_tokens": codec.pack_tokens(completion.prompt_tokens),
        "reply_tokens": codec.pack_tokens(completion.reply_tokens),
        "logprobs": codec.pack_logprobs(completion.logprobs),
        "note": None if turn.noted is None else codec.json_text(codec.plain(turn.noted)),
    }


def to_turn(row: Row) -> Turn:
    reply = codec.unpack_json(row["turn_reply"])
    completion = Completion(
        reply=codec.message(reply["reply"]),
        sampling=codec.sampling(reply["sampling"]),
        flaws=tuple(reply["flaws"]),
        allowed=tuple(reply["allowed"]) if "allowed" in reply else None,
        prompt_tokens=codec.unpack_tokens(row["turn_prompt_tokens"]),
        reply_tokens=codec.unpack_tokens(row["turn_reply_tokens"]),
        logprobs=codec.unpack_logprobs(row["turn_logprobs"]),
        version=row["turn_version"],
        finish=row["turn_finish"],
        scored=bool(row["turn_scored"]),
    )
    return Turn(
        id=row["turn_id"],
        session=row["turn_session"],
        user=row["turn_user"],
        group=row["turn_grp"],
        client=row["turn_client"],
        declared=row["turn_declared"],
        done=bool(row["turn_done"]),
        trainable=bool(row["turn_trainable"]),
        at=row["turn_at"],
        noted=_to_prompt_note(row["turn_note"]),
        prompt=codec.prompt(codec.unpack_json(row["turn_prompt"])),
        completion=completion,
    )


def _to_prompt_note(text: str | None) -> PromptNote | None:
    if text is None:
        return None
    written = json.loads(text)
    return PromptNote(text=written["text"], notes=tuple(written["notes"]))


def to_read_turn(row: Row) -> ReadTurn:
    """Return a turn with its place, from a row that has a column ``seq`` too."""
    return ReadTurn(seq=row["seq"], turn=decoded(to_turn, row, turn=row["turn_id"]))


def feedback_row(feedback: Feedback) -> dict[str, Any]:
    return {name: getattr(feedback, name) for name in ("turn", "score", "hint", "edit", "source", "at")}


def to_feedback(row: Row) -> Feedback:
    return Feedback(
        turn=row["turn"],
        score=row["score"],
        hint=row["hint"],
        edit=row["edit"],
        source=row["source"],
        at=row["at"],
    )


def to_reward(row: Row) -> SessionReward:
    return SessionReward(**{name: row[name] for name in ("session", "user", "score", "failed", "at")})


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


def to_outcome(row: Row) -> Outcome:
    return Outcome(
        turn=row["outcome_turn"],
        session=row["outcome_session"],
        kind=row["outcome_kind"],
        kind_reason=row["outcome_kind_reason"],
        confidence=row["outcome_confidence"],
        index=row["outcome_idx"],
        parent=row["outcome_parent"],
        next_state=codec.messages(codec.unpack_json(row["outcome_next_state"])),
        ended=row["outcome_ended"],
        evidence=tuple(json.loads(row["outcome_evidence"])),
        at=row["outcome_at"],
    )


def recorded_row(recorded: ImportRecord) -> dict[str, Any]:
    return {
        "turn": recorded.turn,
        "session": recorded.session,
        "idx": recorded.index,
        "kind": recorded.kind,
        "next_state": codec.pack_json(codec.plain(recorded.next_state)),
        "trainable": recorded.trainable,
        "extra": codec.pack_json(recorded.extra),
    }


def to_recorded(row: Row) -> ImportRecord:
    return ImportRecord(
        turn=row["turn"],
        session=row["session"],
        index=row["idx"],
        kind=row["kind"],
        next_state=codec.messages(codec.unpack_json(row["next_state"])),
        trainable=bool(row["trainable"]),
        extra=codec.unpack_json(row["extra"]),
    )


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    return {
        "turn": verdict.turn,
        "score": verdict.score,
        "source": verdict.source,
        "votes": json.dumps(verdict.votes),
        "hints": codec.json_text(codec.plain(verdict.hints)),
        "judge": verdict.judge,
        "prompt_version": verdict.prompt_version,
        "seconds": verdict.seconds,
        "note": verdict.note,
        "step": verdict.step,
        "at": verdict.at,
    }


def to_verdict(row: Row) -> Verdict:
    return Verdict(
        turn=row["verdict_turn"],
        score=row["verdict_score"],
        source=row["verdict_source"],
        votes=tuple(json.loads(row["verdict_votes"])),
        hints=codec.hints(json.loads(row["verdict_hints"])),
        judge=row["verdict_judge"],
        prompt_version=row["verdict_prompt_version"],
        seconds=row["verdict_seconds"],
        note=row["verdict_note"],
        step=row["verdict_step"],
        at=row["verdict_at"],
    )


def rules_of(hints: str) -> tuple[str, ...]:
    """Return the rules among the hints in a verdict's row."""
    return rules(codec.hints(json.loads(hints)))


def to_version(row: Row, root: Path) -> Version:
    return Version(
        number=row["number"],
        parent=row["parent"],
        base=row["base"],
        adapter=_place(row["adapter"], root) if row["adapter"] else None,
        step=row["step"],
        note=row["note"],
        origin=row["origin"],
        source=row["source"],
        request=row["request"],
        at=row["at"],
        state=row["state"],
    )


def _place(adapter: str, root: Path) -> str:
    """Return an adapter's path.

    A run named by a relative path, such as ./runs/one, may have written runs/one/versions/000001, relative to its
    working directory instead of the ledger's folder: its path is then the part after the folder's name.
    """
    place, parts = root / adapter, Path(adapter).parts
    if root.name in parts and not place.exists():
        inside = root.joinpath(*parts[parts.index(root.name) + 1 :])
        return str(inside if inside.exists() else place)
    return str(place)


def _inside(adapter: str | None, root: Path) -> str | None:
    """Return an adapter's path relative to the ledger's folder if it is inside, so that a run can be moved."""
    if adapter is not None and Path(adapter).is_relative_to(root):
        return str(Path(adapter).relative_to(root))
    return adapter
