"""Deletions: the only way for facts to leave the ledger, and the traces that they leave.

All rows with a session's content are deleted in one transaction, which also writes the tombstones: a row in `deletions`
(the user, the author, the extent, the versions that had learned from it; the session's name as a digest) and its turns'
ids in `deleted_turns`. After a crash all of it is done or nothing. A loop at work on one of these turns finds its id
there and writes nothing: a request being answered, an outcome, a verdict, a step, a note, the gate's examples. Turns
that steps used stay in `trained`, as ids, so that a step's record of its turns stays complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from openclaw_rl.store import codec
from openclaw_rl.store.connection import LedgerConnection
from openclaw_rl.store.database import Database
from openclaw_rl.store.rows import SETTLED, VERSION, batched, to_version
from openclaw_rl.types import Deletion, Version, new_id

_OF_TURN = ("feedback", "outcomes", "verdicts", "drops", "records", "requests")
_COUNTED = frozenset({"turns", "feedback", "endings", "outcomes", "verdicts", "drops"})


FORGOTTEN = "(a forgotten note)"
"""replacement for a deleted note's text"""


def digest(session: str) -> str:
    """Return a session's name as it is kept after its deletion: enough to recognise it, unreadable otherwise."""
    return hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class DeletionQueries(LedgerConnection):
    """Queries for a session's deletion, before and after."""

    def deletion(self, session: str, user: str) -> Deletion | None:
        """Return the newest deletion of a user's session, None if it was never deleted."""
        row = self.row(
            "SELECT turns, notes, trained, versions, at FROM deletions WHERE session = ? AND user = ?"
            " ORDER BY seq DESC LIMIT 1",
            digest(session),
            user,
        )
        return _to_deletion(row) if row else None

    def was_deleted(self, turn: str) -> bool:
        """Check if a turn was deleted with its session."""
        return self.row("SELECT 1 FROM deleted_turns WHERE turn = ?", turn) is not None

    def turns_of(self, session: str, user: str) -> list[str]:
        """Return the ids of the turns deleted with a session; an unassigned turn is its own session, by its id."""
        rows = self.rows(
            f"{SETTLED} UNION SELECT t.id, t.seq FROM turns t WHERE t.session = ?1 AND t.user = ?2"
            " UNION SELECT t.id, t.seq FROM turns t WHERE t.id = ?1 AND t.user = ?2 AND t.session IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.turn = t.id) ORDER BY seq",
            session,
            user,
        )
        return [row["id"] for row in rows]

    def deletable(self, turns: Sequence[str], user: str) -> Deletion:
        """Return the extent of a deletion of these turns of a user."""
        notes = self._of(turns, "SELECT number FROM notes WHERE turn IN ({marks})", "number")
        steps = self._of(turns, "SELECT step FROM trained WHERE turn IN ({marks})", "step")
        rows = self.rows(f"SELECT {VERSION} FROM versions v ORDER BY v.number")
        versions = [to_version(row, self.root) for row in rows]
        learned = learned_from({*steps, *self._distilled(turns, notes, user)}, versions)
        return Deletion(
            turns=len(turns),
            notes=len(notes),
            trained=len(steps),
            versions=tuple(learned),
            clean=_clean(versions, learned) if learned else None,
        )

    def _of(self, turns: Sequence[str], sql: str, column: str) -> list[int]:
        values: list[int] = []
        for batch in batched(turns):
            values += [row[column] for row in self.rows(sql.format(marks=", ".join("?" * len(batch))), *batch)]
        return values

    def _distilled(self, turns: Sequence[str], notes: Sequence[int], user: str) -> Iterator[int]:
        """Yield the steps that distilled these notes, or any of the user's on prompts that may be from these turns."""
        first = self.row("SELECT at FROM turns WHERE id = ?", turns[0]) if turns else None
        user_notes = {row["number"] for row in self.rows("SELECT number FROM notes WHERE user = ?", user)}
        for row in self.rows("SELECT note, step, evidence, at FROM rehearsals ORDER BY seq"):
            evidence = json.loads(row["evidence"])
            trained_notes = {row["note"], *evidence.get("replayed_notes", ())}
            may_have_prompts = bool(evidence.get("own_prompts")) and first is not None and row["at"] > first["at"]
            if not trained_notes.isdisjoint(notes) or (may_have_prompts and not trained_notes.isdisjoint(user_notes)):
                yield row["step"]


def learned_from(steps: Collection[int], versions: Sequence[Version]) -> list[int]:
    """Return the versions, oldest first, that these steps made, and their descendants."""
    learned: list[int] = []
    for version in versions:
        if version.step in steps or version.parent in learned:
            learned.append(version.number)
    return learned


def _clean(versions: Sequence[Version], learned: Collection[int]) -> int | None:
    """Return the newest version before them that has learned nothing from it, as a rollback target."""
    clean = [version.number for version in versions if version.number not in learned and version.state == "live"]
    return max((number for number in clean if number < min(learned)), default=None)


def _to_deletion(row: Mapping[str, Any]) -> Deletion:
    return Deletion(**(dict(row) | {name: _number(value) for name, value in json.loads(row["versions"]).items()}))


def _number(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def purge(db: Database, turns: Sequence[str]) -> None:
    """Delete every row of some turns and keep their ids; inside a transaction that is alone as ``deletion``."""
    _redact_examples(db, frozenset(turns))
    for batch in batched(turns):
        marks = ", ".join("?" * len(batch))
        _forget_drops(db, batch, marks)
        notes = f"(SELECT number FROM notes WHERE turn IN ({marks}))"
        db.execute(f"DELETE FROM note_changes WHERE note IN {notes}", batch)
        db.execute(f"DELETE FROM notes WHERE turn IN ({marks})", batch)
        of_turns = f"(SELECT seq FROM turns WHERE id IN ({marks}))"
        db.execute(f"DELETE FROM open_turns WHERE turn_seq IN {of_turns}", batch)
        for table in _OF_TURN:
            _delete(db, table, f"turn IN ({marks})", batch)
        _delete(db, "turns", f"id IN ({marks})", batch)
        db.executemany(
            "INSERT INTO deleted_turns (turn) VALUES (?) ON CONFLICT DO NOTHING", [(turn,) for turn in batch]
        )


def purge_session(db: Database, session: str, user: str) -> None:
    """Delete the rows that have only a session's name."""
    for table in ("endings", "session_rewards"):
        _delete(db, table, "session = ? AND user = ?", [session, user])


def purge_note(db: Database, number: int) -> int:
    """Delete a note and its text from every row; return the number of prompts that contained it.

    The tokens of such a prompt include the note's text, so one token replaces them all. Training does not need them: a
    turn with a note in its prompt is learned from the prompt as the user sent it.
    """
    db.execute("DELETE FROM note_changes WHERE note = ?", (number,))
    db.execute("DELETE FROM notes WHERE number = ?", (number,))
    for row in db.rows("SELECT seq, evidence FROM rehearsals WHERE note = ?", (number,)):
        evidence = json.loads(row["evidence"])
        if "practised" in evidence:
            written = json.dumps({**evidence, "practised": FORGOTTEN}, ensure_ascii=False)
            db.execute("UPDATE rehearsals SET evidence = ? WHERE seq = ?", (written, row["seq"]))
    prompted = [row for row in db.rows("SELECT seq, note FROM turns WHERE note IS NOT NULL") if _holds(row, number)]
    for row in prompted:
        remaining = [note_number for note_number in json.loads(row["note"])["notes"] if note_number != number]
        note = json.dumps({"text": FORGOTTEN, "notes": remaining})
        values = (note, codec.pack_tokens((0,)), row["seq"])
        db.execute("UPDATE turns SET note = ?, prompt_tokens = ? WHERE seq = ?", values)
    return len(prompted)


def _holds(row: Mapping[str, Any], number: int) -> bool:
    return number in json.loads(row["note"])["notes"]


def _delete(db: Database, table: str, where: str, values: Sequence[Any]) -> None:
    [row] = db.rows(f"SELECT count(*) AS n FROM {table} WHERE {where}", values)
    if row["n"]:
        db.execute(f"DELETE FROM {table} WHERE {where}", values)
        if table in _COUNTED:
            db.removed(table, row["n"])


def _forget_drops(db: Database, turns: Sequence[str], marks: str) -> None:
    """Delete turns' drops from the counts by reason."""
    counted = f"SELECT stage, reason, count(*) AS n FROM drops WHERE turn IN ({marks}) GROUP BY stage, reason"
    for row in db.rows(counted, turns):
        db.execute(
            "UPDATE tallies SET n = n - ? WHERE stage = ? AND reason = ?", (row["n"], row["stage"], row["reason"])
        )
    db.execute("DELETE FROM tallies WHERE n <= 0")


def _redact_examples(db: Database, turns: frozenset[str]) -> None:
    """Delete replayed answers to these turns from the gate's evidence."""
    of_turns = "SELECT seq, evidence FROM gate_decisions WHERE evidence LIKE ? OR evidence LIKE ?"
    for row in db.rows(of_turns, ('%"turn": "%', '%"leans": {"%')):
        evidence = json.loads(row["evidence"])
        redacted = without_turns(evidence, turns)
        if redacted != evidence:
            written = codec.json_text(redacted)
            db.execute("UPDATE gate_decisions SET evidence = ? WHERE seq = ?", (written, row["seq"]))


def turns_of(evidence: Mapping[str, Any]) -> list[str]:
    """Return the turns in the gate's evidence, from its examples and figures."""
    examples = [example["turn"] for example in evidence.get("examples", ()) if example.get("turn")]
    return [*examples, *evidence.get("best", {}).get("leans", ())]


def without_turns(evidence: Mapping[str, Any], turns: Collection[str]) -> dict[str, Any]:
    """Return the gate's evidence without the examples and figures from some turns."""
    redacted = dict(evidence)
    if "examples" in evidence:
        redacted["examples"] = [example for example in evidence["examples"] if example.get("turn") not in turns]
    if "best" in evidence:
        leans = {turn: lean for turn, lean in evidence["best"]["leans"].items() if turn not in turns}
        redacted["best"] = {**evidence["best"], "leans": leans}
    return redacted


def stragglers(db: Database, sessions: Mapping[str, str]) -> set[str]:
    """Return the turns, given with their sessions, whose session was deleted after the turns began.

    Imported turns are excluded: a person put them there.
    """
    if db.row("SELECT 1 FROM deletions LIMIT 1") is None:
        return set()
    late = (
        "SELECT 1 FROM turns t JOIN deletions d ON d.user = t.user AND d.id > t.id WHERE t.id = ? AND d.session = ?"
        " AND NOT EXISTS (SELECT 1 FROM records r WHERE r.turn = t.id)"
    )
    return {turn for turn, session in sessions.items() if db.row(late, (turn, digest(session))) is not None}


def insert_deletion(db: Database, session: str, user: str, *, by: str, done: Deletion) -> None:
    """Write the tombstone."""
    row = {"id": new_id(), "session": digest(session), "user": user, "author": by}
    counts = {"turns": done.turns, "notes": done.notes, "trained": done.trained}
    versions = json.dumps({"versions": done.versions, "clean": done.clean})
    db.insert("deletions", {**row, **counts, "versions": versions, "at": done.at})
