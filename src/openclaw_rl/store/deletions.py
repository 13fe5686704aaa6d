"""Deletions: the only way in which facts leave the ledger, and what remains to say that they have.

Every row that holds something of a session goes in one transaction, which also writes the tombstones: a row of
`deletions` (whose, by whom, how much, which versions had learned from it; the session's name as a digest) and the ids
of its turns in `deleted_turns`. A crash leaves all of it or nothing. Whoever was at work on one of these turns finds
its id there and writes nothing: a request that was being answered, an outcome, a verdict, a step, a note, the gate's
examples. What steps used stays in `trained`, as ids, so that a step never claims less than it was made of.
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
"""what stands where the text of a note was"""


def digest(session: str) -> str:
    """A session's name as it is kept after its deletion: enough to know it again, and not to read it."""
    return hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class DeletionQueries(LedgerConnection):
    """What would go with a session, and what has gone."""

    def deletion(self, session: str, user: str) -> Deletion | None:
        """The newest deletion of a user's session, None if it was never deleted."""
        row = self.row(
            "SELECT turns, notes, trained, versions, at FROM deletions WHERE session = ? AND user = ?"
            " ORDER BY seq DESC LIMIT 1",
            digest(session),
            user,
        )
        return _to_deletion(row) if row else None

    def was_deleted(self, turn: str) -> bool:
        """Whether a turn was deleted with its session."""
        return self.row("SELECT 1 FROM deleted_turns WHERE turn = ?", turn) is not None

    def turns_of(self, session: str, user: str) -> list[str]:
        """The ids of the turns that a session is deleted with; one that belongs to none yet goes by its own id."""
        rows = self.rows(
            f"{SETTLED} UNION SELECT t.id, t.seq FROM turns t WHERE t.session = ?1 AND t.user = ?2"
            " UNION SELECT t.id, t.seq FROM turns t WHERE t.id = ?1 AND t.user = ?2 AND t.session IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.turn = t.id) ORDER BY seq",
            session,
            user,
        )
        return [row["id"] for row in rows]

    def deletable(self, turns: Sequence[str], user: str) -> Deletion:
        """What goes where these turns of a user are deleted."""
        notes = self._of(turns, "SELECT number FROM notes WHERE turn IN ({marks})", "number")
        steps = self._of(turns, "SELECT step FROM trained WHERE turn IN ({marks})", "step")
        rows = self.rows(f"SELECT {VERSION} FROM versions v ORDER BY v.number")
        versions = [to_version(row, self.root) for row in rows]
        learned = learned_from({*steps, *self._rehearsed(turns, notes, user)}, versions)
        return Deletion(
            turns=len(turns),
            notes=len(notes),
            trained=len(steps),
            versions=tuple(learned),
            clean=_clean(versions, learned) if learned else None,
        )

    def _of(self, turns: Sequence[str], sql: str, column: str) -> list[int]:
        found: list[int] = []
        for some in batched(turns):
            found += [row[column] for row in self.rows(sql.format(marks=", ".join("?" * len(some))), *some)]
        return found

    def _rehearsed(self, turns: Sequence[str], notes: Sequence[int], user: str) -> Iterator[int]:
        """The steps that rehearsed one of these notes, or any of the user's on prompts that may be of these turns."""
        first = self.row("SELECT at FROM turns WHERE id = ?", turns[0]) if turns else None
        own = {row["number"] for row in self.rows("SELECT number FROM notes WHERE user = ?", user)}
        for row in self.rows("SELECT note, step, evidence, at FROM rehearsals ORDER BY seq"):
            evidence = json.loads(row["evidence"])
            taught = {row["note"], *evidence.get("replayed_notes", ())}
            asked = bool(evidence.get("own_prompts")) and first is not None and row["at"] > first["at"]
            if not taught.isdisjoint(notes) or (asked and not taught.isdisjoint(own)):
                yield row["step"]


def learned_from(steps: Collection[int], versions: Sequence[Version]) -> list[int]:
    """The versions, oldest first, that one of these steps made, and those that come from them."""
    learned: list[int] = []
    for version in versions:
        if version.step in steps or version.parent in learned:
            learned.append(version.number)
    return learned


def _clean(versions: Sequence[Version], learned: Collection[int]) -> int | None:
    """The newest version to roll back to that has learned nothing of it."""
    kept = [one.number for one in versions if one.number not in learned and one.state == "live"]
    return max((number for number in kept if number < min(learned)), default=None)


def _to_deletion(row: Mapping[str, Any]) -> Deletion:
    return Deletion(**(dict(row) | {name: _number(one) for name, one in json.loads(row["versions"]).items()}))


def _number(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def purge(db: Database, turns: Sequence[str]) -> None:
    """Delete every row of some turns, and leave their ids; inside a transaction that is alone as ``deletion``."""
    _redact_examples(db, frozenset(turns))
    for some in batched(turns):
        marks = ", ".join("?" * len(some))
        _forget_drops(db, some, marks)
        notes = f"(SELECT number FROM notes WHERE turn IN ({marks}))"
        db.execute(f"DELETE FROM note_changes WHERE note IN {notes}", some)
        db.execute(f"DELETE FROM notes WHERE turn IN ({marks})", some)
        of_turns = f"(SELECT seq FROM turns WHERE id IN ({marks}))"
        db.execute(f"DELETE FROM open_turns WHERE turn_seq IN {of_turns}", some)
        for table in _OF_TURN:
            _delete(db, table, f"turn IN ({marks})", some)
        _delete(db, "turns", f"id IN ({marks})", some)
        db.executemany("INSERT INTO deleted_turns (turn) VALUES (?) ON CONFLICT DO NOTHING", [(one,) for one in some])


def purge_session(db: Database, session: str, user: str) -> None:
    """Delete what is known of a session by its name alone."""
    for table in ("endings", "session_rewards"):
        _delete(db, table, "session = ? AND user = ?", [session, user])


def purge_note(db: Database, number: int) -> int:
    """Delete a note and its text from every row; the number of prompts that it is taken out of.

    The tokens of such a prompt spell the note, so one token stands for all of them. Training does not miss them: a turn
    with a note in its prompt is learned from the prompt as the user sent it.
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
        others = [other for other in json.loads(row["note"])["notes"] if other != number]
        note = json.dumps({"text": FORGOTTEN, "notes": others})
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
    """Drops that are deleted are not counted by their reason any more."""
    counted = f"SELECT stage, reason, count(*) AS n FROM drops WHERE turn IN ({marks}) GROUP BY stage, reason"
    for row in db.rows(counted, turns):
        db.execute(
            "UPDATE tallies SET n = n - ? WHERE stage = ? AND reason = ?", (row["n"], row["stage"], row["reason"])
        )
    db.execute("DELETE FROM tallies WHERE n <= 0")


def _redact_examples(db: Database, turns: frozenset[str]) -> None:
    """Take out of the gate's evidence how versions answered these turns again."""
    of_turns = "SELECT seq, evidence FROM gate_decisions WHERE evidence LIKE ? OR evidence LIKE ?"
    for row in db.rows(of_turns, ('%"turn": "%', '%"leans": {"%')):
        evidence = json.loads(row["evidence"])
        kept = without_turns(evidence, turns)
        if kept != evidence:
            written = codec.json_text(kept)
            db.execute("UPDATE gate_decisions SET evidence = ? WHERE seq = ?", (written, row["seq"]))


def turns_of(evidence: Mapping[str, Any]) -> list[str]:
    """The turns that the gate's evidence has examples or figures of."""
    examples = [one["turn"] for one in evidence.get("examples", ()) if one.get("turn")]
    return [*examples, *evidence.get("best", {}).get("leans", ())]


def without_turns(evidence: Mapping[str, Any], turns: Collection[str]) -> dict[str, Any]:
    """The gate's evidence without the examples and the figures that are of some turns."""
    kept = dict(evidence)
    if "examples" in evidence:
        kept["examples"] = [one for one in evidence["examples"] if one.get("turn") not in turns]
    if "best" in evidence:
        leans = {turn: lean for turn, lean in evidence["best"]["leans"].items() if turn not in turns}
        kept["best"] = {**evidence["best"], "leans": leans}
    return kept


def stragglers(db: Database, sessions: Mapping[str, str]) -> set[str]:
    """Those of some turns, by the session that each turned out to be of, that are of one deleted since they began.

    What was imported was put there by a person and is none.
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
