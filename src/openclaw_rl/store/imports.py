"""The rows that an import writes: recorded turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from openclaw_rl.store.connection import DurableWriter
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.roles import Writer
from openclaw_rl.store.rows import recorded_row, turn_row
from openclaw_rl.types import ImportRecord, Turn


class ImportLedger(DurableWriter, LedgerReader):
    """The ledger as an import writes it."""

    writer: ClassVar[Writer | None] = "import"

    def add_recorded(self, turns: Sequence[tuple[Turn, ImportRecord]]) -> None:
        """Write one imported conversation, whole or not at all."""
        with self.writing() as db:
            for turn, recorded in turns:
                db.execute("DELETE FROM deleted_turns WHERE turn = ?", (turn.id,))  # who imports it again wants it
                db.insert("turns", turn_row(turn))
                db.insert("records", recorded_row(recorded))
