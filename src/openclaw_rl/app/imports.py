"""Files of recorded conversations: which they are, what is new in them, and what of them gets no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from openclaw_rl.app.application import ledger_place
from openclaw_rl.app.judge_settings import hint_limits
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import Case
from openclaw_rl.store import LedgerReader, exists
from openclaw_rl.types import ImportRecord, Turn
from openclaw_rl.views.transcripts import Unread, new_turns

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


def holds_something_new(config: Config, files: Sequence[Path], *, user: str) -> bool:
    """Whether any of the files has a turn that this run does not know yet."""
    place = ledger_place(config)
    if not exists(place):
        return True
    with LedgerReader(place) as ledger:
        return any(new_turns(ledger, file, user=user) for file in files)


def unread_by_rules(config: Config) -> Unread:
    """Why a recorded turn gets no verdict from what it holds; a judge model may still read it."""
    from openclaw_rl.collect.loop import from_record
    from openclaw_rl.judge.evidence import decide
    from openclaw_rl.judge.rules import reaction_of

    limits = hint_limits(config)

    def unread(turn: Turn, record: ImportRecord) -> str | None:
        case = Case(turn=turn, outcome=from_record(record, at=turn.at))
        if decide(case, limits=limits) is not None:
            return None
        reaction = reaction_of(case)
        return reaction.note if reaction.score is None and not reaction.hints else None

    return unread
