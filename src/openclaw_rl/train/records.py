"""Training record: one JSON line per training sample, followed by one for the step.

The record is derived from the ledger: delete it and it is written again. Lines hold numbers and ids, no conversation
text; a turn's id leads to its text (``openclaw-rl show turn ID``). A step's lines are written in one call with the step
line last, so the newest step line marks the record's progress: a start cuts off anything that a crash left after it,
and no step appears twice.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.types import Json, Step, Turn, Verdict, Version

log = logging.getLogger(__name__)

_AT_ONCE = 64
_WINDOW = 1 << 16


class Sink(Protocol):
    """Receiver of a step's metrics, beside the record."""

    name: str

    def step(self, number: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class RecordLedger(Protocol):
    """Part of the ledger that the record is derived from."""

    def last_step(self) -> Step | None: ...
    def steps_after(self, number: int, limit: int) -> list[int]: ...
    def step(self, number: int) -> Step: ...
    def made_by(self, step: int) -> Version | None: ...
    def turn(self, turn: str) -> Turn: ...
    def verdict(self, turn: str) -> Verdict | None: ...
    def was_deleted(self, turn: str) -> bool: ...
    def newest(self, table: Any) -> int: ...


# --- the lines


def sample_line(step: Step, turn: Turn, verdict: Verdict | None) -> dict[str, Json]:
    """Return a training sample's line: its user, verdict and inputs to the step."""
    completion = turn.completion
    return {
        "kind": "sample",
        "step": step.number,
        "turn": turn.id,
        "user": turn.user,
        "group": turn.group,
        "version": completion.version,
        "score": verdict.score if verdict else None,
        "source": verdict.source if verdict else None,
        "prompt_tokens": len(completion.prompt_tokens),
        "reply_tokens": len(completion.reply_tokens),
        **_finite(step.parts.get(turn.id, {})),
    }


def deleted_line(step: int) -> dict[str, Json]:
    """Return the line of a training sample whose turn has been deleted; it holds only the step's number."""
    return {"kind": "deleted", "step": step}


def step_line(step: Step, made: Version | None) -> dict[str, Json]:
    """Return the line of one step: its metrics and the version that it made, if any."""
    return {
        "kind": "step",
        "step": step.number,
        "at": step.at,
        "seconds": step.seconds,
        "samples": len(step.turns),
        "skipped": step.skipped,
        "version": made.number if made else None,
        "parent": made.parent if made else None,
        "metrics": _finite(step.metrics),
    }


def _finite(values: Mapping[str, float | str]) -> dict[str, float | str | None]:
    """Replace NaN and infinity by None, since JSON has neither."""
    return {name: value if isinstance(value, str) or math.isfinite(value) else None for name, value in values.items()}


# --- the file


class RecordFile:
    """Record file, opened after its last complete step; ``last`` is the newest step in it, 0 before the first."""

    def __init__(self, path: Path, *, newest: int) -> None:
        """Cut off incomplete steps, and steps after ``newest``, the ledger's newest step."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        end, self.last = _whole(path, newest) if path.exists() else (0, 0)
        if path.exists() and path.stat().st_size > end:
            log.warning("record %s: cut back to step %d", path, self.last)
            os.truncate(path, end)

    def add(self, number: int, lines: Sequence[Mapping[str, Json]]) -> None:
        """Append one step's lines, the step line last; write all lines or, if the disk is full, none."""
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines).encode()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            before = os.fstat(file).st_size
            try:
                if os.write(file, text) < len(text):
                    raise OSError(f"{self.path}: only part of step {number} was written; free disk space")
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
        self.last = number


def _whole(path: Path, newest: int) -> tuple[int, int]:
    """Return the offset after the last known step's line and that step's number, reading backwards from the end."""
    size, window = path.stat().st_size, _WINDOW
    with path.open("rb") as file:
        while True:
            start = max(0, size - window)
            file.seek(start)
            step = _last_step(file.read(size - start), newest)
            if step is not None:
                return start + step[0], step[1]
            if start == 0:
                return 0, 0
            window *= 4


def _last_step(text: bytes, newest: int) -> tuple[int, int] | None:
    end = text.rfind(b"\n") + 1
    while end > 0:
        begin = text.rfind(b"\n", 0, end - 1) + 1
        line = _parsed(text[begin:end])
        if line.get("kind") == "step" and line["step"] <= newest:
            return end, int(line["step"])
        end = begin
    return None


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def read(path: Path) -> Iterator[dict[str, Json]]:
    """Yield each complete line of a record, also during writing; skip an unfinished last line."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and (row := _parsed(line)):
                yield row


def forget_samples(path: Path, gone: Callable[[str], bool]) -> int:
    """Replace the samples of deleted turns by placeholder lines, also during writing; return their number.

    Each line is overwritten in place with as many bytes, so lines appended meanwhile stay intact and an interrupted
    call can be repeated.
    """
    if not path.exists():
        return 0
    count, at = 0, 0
    with path.open("r+b") as file, path.open("rb") as lines:
        for line in lines:
            sample = _parsed(line) if b'"kind": "sample"' in line else {}
            if sample.get("kind") == "sample" and gone(sample["turn"]):
                replacement = json.dumps(deleted_line(sample["step"])).encode()
                os.pwrite(file.fileno(), replacement.ljust(len(line) - 1), at)
                count += 1
            at += len(line)
        os.fsync(file.fileno())
    return count


# --- keeping up with the ledger


class Recorder:
    """Writer that brings the record and the sinks up to the ledger's newest step.

    A sink receives each step once, after the record: a crash between the two loses the step for the sink. A sink that
    fails is dropped and shown in `status`; training continues.
    """

    def __init__(self, ledger: RecordLedger, path: Path | None, sinks: Sequence[Sink] = ()) -> None:
        """Keep no file if ``path`` is None; sinks then receive the steps from now on."""
        self._ledger = ledger
        self._path = path
        self._record: RecordFile | None = None
        self._last: int | None = None
        self._deletions = 0
        self._sinks = list(sinks)
        self.failures: list[str] = []

    def catch_up(self) -> int:
        """Write at most `_AT_ONCE` steps that are not in the record yet; return their number."""
        if self._last is None:
            self._last = self._begin()
        self._forget()
        numbers = self._ledger.steps_after(self._last, _AT_ONCE)
        for number in numbers:
            self._write(self._ledger.step(number))
            self._last = number
        return len(numbers)

    def _forget(self) -> None:
        """Remove the samples of turns deleted since the last call."""
        newest = self._ledger.newest("deletions")
        if self._path is not None and newest != self._deletions:
            forget_samples(self._path, self._ledger.was_deleted)
            self._deletions = newest

    def close(self) -> None:
        """Close the sinks. Safe to call twice."""
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            try:
                sink.close()
            except Exception:  # as in `_write`: a failing service must not keep this process from ending
                log.exception("sink %s failed to close", sink.name)

    def _begin(self) -> int:
        step = self._ledger.last_step()
        newest = step.number if step else 0
        if self._path is None:
            return newest
        self._record = RecordFile(self._path, newest=newest)
        return self._record.last

    def _write(self, step: Step) -> None:
        version = self._ledger.made_by(step.number)
        if self._record is not None:
            samples = [self._sample(step, turn) for turn in step.turns]
            self._record.add(step.number, [*samples, step_line(step, version)])
        values = figures(step, version)
        for sink in list(self._sinks):
            try:
                sink.step(step.number, values)
            except Exception as error:  # a remote service may fail in any way; training continues
                self._give_up(sink, error)

    def _sample(self, step: Step, turn: str) -> dict[str, Json]:
        if self._ledger.was_deleted(turn):
            return deleted_line(step.number)
        return sample_line(step, self._ledger.turn(turn), self._ledger.verdict(turn))

    def _give_up(self, sink: Sink, error: Exception) -> None:
        log.exception("sink %s failed and is disabled", sink.name)
        self.failures.append(f"sink {sink.name} failed and is disabled: {type(error).__name__}: {error}")
        self._sinks.remove(sink)


def figures(step: Step, made: Version | None) -> dict[str, float]:
    """Return the values to plot for a step: finite metrics, duration, sample count and the version it made."""
    values = {f"train/{name}": value for name, value in step.metrics.items() if math.isfinite(value)}
    values |= {"train/seconds": step.seconds, "train/samples": float(len(step.turns))}
    values |= {"train/skipped": float(step.skipped is not None)}
    return values | ({"train/version": float(made.number)} if made else {})
