"""Recorded conversations of a run: which files they are, and the loop that reads them while the run serves."""

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
"""whose conversations the files of ``train.data`` are"""
_SUFFIXES: Final = (".json", ".jsonl")


def data_files(paths: Sequence[Path]) -> list[Path]:
    """The files that ``train.data`` names, those of a folder in order; raises ConfigError where there is none."""
    return [file for path in paths for file in _files(path)]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise ConfigError(
            f"train.data: there is no file {path}", remedy="give the path of a JSON or JSONL file, or a folder of them"
        )
    found = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
    if not found:
        raise ConfigError(
            f"train.data: the folder {path} holds no .json or .jsonl file", remedy="see docs/conversations.md"
        )
    yield from found


def unread_by_rules(config: Config) -> Unread:
    """Why a recorded turn gets no verdict from what it holds; a judge model may still read it."""
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
    """The loop that reads ``train.data``; raises ConfigError where that names nothing that can be read."""
    files, unread = data_files(config.train.data), unread_by_rules(config)
    return RecordedLoop(place, files, policy, unread=unread, batch=config.train.batch_size, sync=config.store.sync)


class RecordedLoop:
    """Reads the files of ``train.data`` into the ledger while the other loops work: a conversation for each tick.

    A batch is read when the one before it is trained or dropped, so that no turn is many versions old when it trains.
    Known turns are not taken again. The ledger's place for an import is held only while there is something to read.
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
        """Read a conversation; its new turns, 0 while a batch is not trained yet and after the last file."""
        try:
            return 0 if self._ended else await anext(self._reading)
        except StopAsyncIteration:
            self._ended = True
            return 0
        except BaseException:
            self._reading = self._read()  # from the beginning: what was read is known
            raise

    async def stop(self) -> None:
        """Let the ledger go."""
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
        """Whether the loops still work on the batch: on its last turn, on what is to train, on serving what it made."""
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
