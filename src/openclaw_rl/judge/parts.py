"""Judges that are made of judges: all of them, and those that have something to start or to tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.judge.health import Alarm
from openclaw_rl.ports import Case, Judge


@runtime_checkable
class HasParts(Protocol):
    """A judge that asks others."""

    @property
    def parts(self) -> Sequence[Judge]: ...


@runtime_checkable
class Starts(Protocol):
    """A judge with something to make ready beside the loops, which it does by itself once it is told to begin."""

    def begin(self) -> None:
        """Make ready in the background; goes on trying when it fails."""
        ...

    async def first_try(self) -> None:
        """Wait until it is ready, or has failed for the first time."""
        ...

    async def stop(self) -> None:
        """Give everything back. Safe to call twice."""
        ...


@runtime_checkable
class Reports(Protocol):
    """A judge that has something to say in `status`."""

    def report(self) -> dict[str, Any]: ...

    def alarms(self) -> tuple[Alarm, ...]: ...


@runtime_checkable
class LearnsFromRatings(Protocol):
    """A judge that sets itself by the turns that users rate."""

    async def rated(self, case: Case, score: float) -> None:
        """Count a turn that a user rated; raises JudgeUnavailable as `judge` does."""
        ...


@runtime_checkable
class SaysWho(Protocol):
    """A judge that says in a few words who is at work."""

    @property
    def at_work(self) -> str: ...


@runtime_checkable
class Measures(Protocol):
    """A judge that knows how well it and others hear."""

    def measured(self) -> dict[str, Any] | None: ...


def at_work(judge: Judge) -> str:
    """Who judges, for people to read."""
    return judge.at_work if isinstance(judge, SaysWho) else judge.name


def every(judge: Judge) -> Iterator[Judge]:
    """A judge and all that it asks."""
    yield judge
    if isinstance(judge, HasParts):
        for part in judge.parts:
            yield from every(part)


def starting(judge: Judge) -> tuple[Starts, ...]:
    """All of them that have something to make ready."""
    return tuple(each for each in every(judge) if isinstance(each, Starts))
