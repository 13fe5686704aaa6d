"""The writer that deletes a session or a note."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from openclaw_rl.errors import InvalidValue, NotInLedger
from openclaw_rl.store.connection import SharedWriter
from openclaw_rl.store.database import Access
from openclaw_rl.store.deletions import insert_deletion, purge, purge_note, purge_session
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.types import Deletion


class DeletionLedger(SharedWriter, LedgerReader):
    """The ledger as a person deletes from it, in any process, beside a run or without one."""

    access: ClassVar[Access] = "add"

    def delete_session(self, session: str, user: str, *, by: str) -> Deletion:
        """Delete a user's session with everything of it, whole or not at all.

        One that was deleted before, and has no turn since, is told as it was. Raises NotInLedger where there was none.
        """
        with self.writing(alone="deletion") as db:
            turns = self.turns_of(session, user)
            if not turns:
                return self._deleted_before(session, user)
            done = replace(self.deletable(turns, user), at=time.time())
            purge(db, turns)
            purge_session(db, session, user)
            insert_deletion(db, session, user, by=by, done=done)
        self.db.shred()
        return done

    def forget_note(self, number: int) -> int:
        """Delete a note that was made by hand, its text out of every row; the number of prompts that it was in.

        For a note that is gone it takes out of prompts what a request under way has written since. Raises NotInLedger
        for a number that no note ever had, InvalidValue for a note that came of a conversation.
        """
        with self.writing(alone="notes") as db:
            note = db.row("SELECT turn FROM notes WHERE number = ?", (number,))
            if note is None and number > db.last_number("notes", "number"):
                raise NotInLedger(f"there is no note {number}", remedy="'openclaw-rl notes --all' lists them")
            if note is not None and note["turn"] is not None:
                what = f"note {number} came of turn {note['turn']}, whose conversation holds its words"
                raise InvalidValue("number", what, remedy="delete the session: its notes go with it")
            prompts = purge_note(db, number)
        self.db.shred()
        return prompts

    def _deleted_before(self, session: str, user: str) -> Deletion:
        found = self.deletion(session, user)
        if found is None:
            raise NotInLedger(f"{user} has no session {session!r}", remedy="'openclaw-rl show' lists the newest")
        return found
