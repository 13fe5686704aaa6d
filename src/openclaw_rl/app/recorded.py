"""Recorded conversations for a run: the files, and the loop that reads them while the run serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from openclaw_rl.app.judges import hint_limits
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import Case
from openclaw_rl.store import ImportLedger, Place
from openclaw_rl.store.database import Sync
from openclaw_rl.types import ImportRecord, Turn
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views.transcripts import ImportReport, Scorer, Unread, read_conversations

log = logging.getLogger(__name__)

RECORDED_USER: Final = "default"
"""the user for conversations in ``train.data``"""
_SUFFIXES: Final = (".json", ".jsonl")


def data_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files in ``train.data``, a folder's files in order; raises ConfigError if there is none."""
    return [file for path in paths for file in _files(path)]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise ConfigError(
            f"train.data: there is no file {path}", remedy="give the path of a JSON or JSONL file, or a folder of them"
        )
    files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    if not files:
        raise ConfigError(
            f"train.data: the folder {path} holds no .json or .jsonl file", remedy="see docs/conversations.md"
        )
    yield from files


def unread_by_rules(config: Config) -> Unread:
    """Return a function that gives the reason why the rules find no verdict; a judge model may find one."""
    from openclaw_rl.collect.loop import from_record
    from openclaw_rl.judge.custom import reaction_of
    from openclaw_rl.judge.evidence import decide

    limits = hint_limits(config)

    def unread(turn: Turn, record: ImportRecord) -> str | None:
        case = Case(turn=turn, outcome=from_record(record, at=turn.at))
        if decide(case, limits=limits) is not None:
            return None
        reaction = reaction_of(case)
        return reaction.note if reaction.score is None and not reaction.hints else None

    return unread


def recorded_loop(config: Config, place: Place, policy: Scorer) -> RecordedLoop:
    """Return the loop that reads ``train.data``; raises ConfigError if that has no readable file."""
    files, unread = data_files(config.train.data), unread_by_rules(config)
    return RecordedLoop(place, files, policy, unread=unread, batch=config.train.batch_size, sync=config.store.sync)


class RecordedLoop:
    """Reads the files in ``train.data`` into the ledger while the other loops work: one conversation per tick.

    A batch is read after the previous one is trained or dropped, so that no turn is many versions old when it trains.
    Known turns are skipped. The ledger's import place is held only while there is something to read.
    """

    name = "recorded"

    def __init__(
        self, place: Place, files: Sequence[Path], policy: Scorer, *, unread: Unread, batch: int, sync: Sync
    ) -> None:
        self._place, self._files, self._policy, self._unread = place, files, policy, unread
        self._batch, self._sync = batch, sync
        self._reading = self._read()
        self._ended = False

    async def tick(self) -> int:
        """Read a conversation and return its new turns; 0 while a batch is untrained and after the last file."""
        try:
            return 0 if self._ended else await anext(self._reading)
        except StopAsyncIteration:
            self._ended = True
            return 0
        except BaseException:
            self._reading = self._read()  # from the beginning: known turns are skipped
            raise

    async def stop(self) -> None:
        """Release the ledger."""
        await self._reading.aclose()

    async def _read(self) -> AsyncGenerator[int, None]:
        with closing(ImportLedger(self._place, sync=self._sync)) as ledger:
            for file in self._files:
                report, read = ImportReport(), list[str]()
                async for new in read_conversations(
                    ledger, file, self._policy, report, user=RECORDED_USER, unread=self._unread
                ):
                    yield len(new)
                    read += new
                    if len(read) >= self._batch:
                        while await asyncio.to_thread(self._waits, ledger, read[-1]):
                            yield 0
                        read.clear()
                _log(file, report)
        log.info("recorded all of train.data is read")

    def _waits(self, ledger: ImportLedger, last: str) -> bool:
        """Return True while the loops work on the batch: its last turn, its training, serving its version."""
        unsettled = ledger.has_turn(last) and ledger.outcome(last) is None
        live = LiveVersions(ledger).live()
        unserved = live is not None and live.number != self._policy.live
        return unsettled or unserved or ledger.backlog() >= self._batch


def _log(file: Path, report: ImportReport) -> None:
    log.info(
        "recorded file=%s turns=%d known=%d refused=%d %s",
        *(file.name, report.turns, report.known, len(report.refused), report.verdicts),
    )
    for fault in report.refused:
        log.warning("recorded refused %s", fault)
