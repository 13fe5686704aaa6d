"""Data for lists and curves: versions, sessions, training figures. Typed, newest first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from openclaw_rl.errors import NotInLedger
from openclaw_rl.ports import GateDecision
from openclaw_rl.stats import wilson
from openclaw_rl.store import LedgerReader
from openclaw_rl.store.results import ListedTurn, Reception, SaidTurn, ScoreMark, SessionTally, StepFigures
from openclaw_rl.types import Turn, Version, texts
from openclaw_rl.versions import LiveVersions

SessionName: TypeAlias = tuple[str, str]
"""a session's name and its user"""
SEARCHED = 3000
"""turns that one search scans; the next search continues after them"""
_CHUNK = 500
_EXAMINED = 100
SMOOTH = 20
"""verdicts averaged into one point of a rate"""


# --- versions ---


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine:
    """A version in the list: the gate's decision, its replies' reception, and its live and pinned marks."""

    version: Version
    live: bool
    pinned: bool
    decision: GateDecision | None
    reception: Reception | None

    @property
    def bad_high(self) -> float | None:
        """The upper bound of the rate of bad replies, at 95 %."""
        found = self.reception
        return wilson(found.bad, found.scored)[1] if found else None


def version_lines(ledger: LedgerReader, *, limit: int) -> list[VersionLine]:
    """Return the newest versions."""
    live, pinned, received = ledger.last_live(), ledger.pinned(), ledger.received()
    found = []
    for version in ledger.newest_versions(limit):
        decisions = ledger.gate_decisions(version.number)
        found.append(
            VersionLine(
                version=version,
                live=version.number == live,
                pinned=version.number in pinned,
                decision=decisions[-1] if decisions else None,
                reception=received.get(version.number),
            )
        )
    return found


def rollback_target(ledger: LedgerReader) -> int | None:
    """Return the version that a rollback would restore; None without one."""
    try:
        return LiveVersions(ledger).rollback_target(None).number
    except NotInLedger:
        return None


# --- sessions ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """A session in the list: its first question, its number of scanned turns, and their results."""

    session: str
    user: str
    at: float
    title: str
    turns: int
    tally: SessionTally
    found: str | None = None


def session_plain(line: SessionLine) -> dict[str, Any]:
    """Return a session in the list for a script."""
    return {**asdict(line), "tally": line.tally._asdict()}


def session_text(line: SessionLine) -> str:
    """Return a session in the list as a line of text that fits a terminal."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(line.at))
    tally = line.tally
    counts = f"{line.turns} turns, {tally.good} good, {tally.bad} bad, {tally.trained} trained"
    excerpt = " ".join((line.found or line.title).split())
    return f"{line.session}  {line.user}  {when}  {counts}  {excerpt[:60]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """A page of sessions; ``next`` is the place to continue from, None at the end; ``looked`` turns were scanned."""

    lines: tuple[SessionLine, ...]
    next: int | None
    looked: int


def sessions(
    ledger: LedgerReader,
    user: str | None,
    *,
    limit: int,
    before: int | None = None,
    words: str = "",
    keep: Callable[[SessionTally], bool] = lambda _: True,
) -> SessionPage:
    """Return sessions by their newest turn; filtered by ``words`` in their messages and by ``keep`` on their tally."""
    found: dict[SessionName, list[ListedTurn]] = {}
    hits: dict[SessionName, str] = {}
    place, looked = before, 0
    for turn, hit in _newest(ledger, user, before, words):
        key = (turn.session or turn.id, turn.user)
        if looked >= SEARCHED or (len(hits) >= limit if words else len(found) >= limit and key not in found):
            break
        found.setdefault(key, []).append(turn)
        if hit is not None:
            hits.setdefault(key, hit)
        place, looked = turn.seq, looked + 1
    else:
        place = None
    lines = [_session_line(ledger, key, found[key], hits.get(key)) for key in found if not words or key in hits]
    return SessionPage(lines=tuple(line for line in lines if keep(line.tally)), next=place, looked=looked)


def _newest(ledger: LedgerReader, user: str | None, before: int | None, words: str) -> Iterator[SaidTurn]:
    """Yield turns from a place on, newest first, with their matching text; one chunk is read at a time."""
    while True:
        if words:
            turns = ledger.saying(user, words, before=before, limit=_CHUNK)
        else:
            turns = [SaidTurn(turn, None) for turn in ledger.latest(user, before=before, limit=_CHUNK)]
        yield from turns
        if len(turns) < _CHUNK:
            return
        before = turns[-1].turn.seq


def _session_line(ledger: LedgerReader, key: SessionName, turns: Sequence[ListedTurn], hit: str | None) -> SessionLine:
    first = ledger.turn(turns[-1].id)
    questions = texts(first.prompt.messages, "user")
    return SessionLine(
        session=key[0],
        user=key[1],
        at=turns[0].at,
        title=questions[0] if questions else first.prompt.messages[0].content,
        turns=len(turns),
        tally=ledger.tally([turn.id for turn in turns[:_CHUNK]]),
        found=hit,
    )


def session_turns(ledger: LedgerReader, session: str, user: str, *, limit: int) -> list[Turn]:
    """Return a session's newest turns, oldest first; empty if the user has none with this name."""
    names = ledger.session(session, user) or ([session] if ledger.has_turn(session) else [])  # or a lone turn
    return [turn for turn in map(ledger.turn, names[-limit:]) if turn.user == user]


# --- curves ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure's points, in order; ``good`` describes a good curve in a sentence."""

    name: str
    title: str
    good: str
    unit: str
    points: tuple[tuple[float, float], ...]
    axis: str


_STEPS: tuple[tuple[str, str, str, str], ...] = (
    ("loss", "Loss", "Falls within a distillation; across steps, any finite value is normal.", ""),
    ("gap_mean", "Log-prob gap, engine to trainer", "Near 0: engine and trainer agree on the sampled tokens.", "nats"),
    ("ess", "Effective sample size", "Near 1: every sample of a batch counts.", ""),
    ("grad_norm", "Gradient norm", "Steady; a spike that does not recur is a broken batch.", ""),
    (
        "distillation_kl_last",
        "Left to learn after a distillation",
        "Falls towards 0: the weights follow the note alone.",
        "nats",
    ),
)


_FORMER = {"distillation_kl_last": "rehearsal_kl_last"}
"""metric names in runs of earlier releases"""


def curves(ledger: LedgerReader, user: str | None, *, limit: int = 400) -> list[Curve]:
    """Return every curve that has points."""
    steps, marks = ledger.step_metrics(limit), ledger.score_marks(user, limit * 3)
    found = [_of_step(steps, *row) for row in _STEPS]
    found[1:1] = [_drift(ledger)]
    found += [_reward(marks), _length(marks), _agreement(marks), _preference(ledger), _speed(steps)]
    return [curve for curve in found if curve.points]


def _of_step(steps: Sequence[StepFigures], name: str, title: str, good: str, unit: str) -> Curve:
    names = (name, _FORMER.get(name, name))
    values = [(step, next((step.metrics[key] for key in names if key in step.metrics), None)) for step in steps]
    points = [(float(step.number), value) for step, value in values if value is not None]
    return Curve(name=name, title=title, good=good, unit=unit, points=_finite(points), axis="step")


def _drift(ledger: LedgerReader) -> Curve:
    """Return each examined version's distance from the base model, as measured by the gate."""
    points: list[tuple[float, float]] = []
    for decision in reversed(ledger.newest_decisions(_EXAMINED)):
        found = [check["numbers"] for check in decision.evidence.get("checks", ()) if check["name"] == "kl"]
        points += [(float(decision.version), float(numbers["kl"])) for numbers in found if "kl" in numbers]
    good = "Rises slowly and stays under the gate's budget; a version beyond it is not served."
    title, unit = "KL to the base model", "nats a token"
    return Curve(name="kl", title=title, good=good, unit=unit, points=_finite(points), axis="version")


def _reward(marks: Sequence[ScoreMark]) -> Curve:
    return Curve(
        name="reward",
        title="Reward",
        good=f"Rises: people are happier with replies. Mean of {SMOOTH} verdicts, -1 to 1.",
        unit="",
        points=_rolling([mark.score for mark in marks]),
        axis="verdict",
    )


def _length(marks: Sequence[ScoreMark]) -> Curve:
    sizes = [max(mark.size - 1, 0) / 2 for mark in marks]
    good = f"Follows what people ask for; a collapse to nothing is not learning. Mean of {SMOOTH} replies."
    return Curve(name="length", title="Reply length", good=good, unit="tokens", points=_rolling(sizes), axis="verdict")


def _agreement(marks: Sequence[ScoreMark]) -> Curve:
    agreed = [
        float(len({vote for vote in mark.votes if vote is not None}) == 1) for mark in marks if len(mark.votes) > 1
    ]
    good = "Near 1: the judge's votes agree. Below 0.7 they are close to guesses."
    return Curve(name="agreement", title="Judge agreement", good=good, unit="", points=_rolling(agreed), axis="verdict")


def _preference(ledger: LedgerReader) -> Curve:
    """Return, for each prompt distillation, the share of replies without the note that follow it."""
    last = [
        distillation.evidence["last"]
        for distillation in ledger.distillations()[-200:]
        if distillation.practised is None
    ]
    points = [
        (float(at), result["met"] / result["replies"]) for at, result in enumerate(last, 1) if result["met"] is not None
    ]
    good = "Near 1 after each distillation: replies follow the note without it in the prompt."
    return Curve(
        name="preference", title="Preference rate", good=good, unit="", points=_finite(points), axis="distillation"
    )


def _speed(steps: Sequence[StepFigures]) -> Curve:
    points = [
        (float(step.number), step.metrics["tokens_computed"] / step.metrics["seconds"])
        for step in steps
        if step.metrics.get("seconds", 0) > 0 and "tokens_computed" in step.metrics
    ]
    good = "Steady; a fall means that the trainer shares its processor with another process."
    return Curve(
        name="speed", title="Training speed", good=good, unit="tokens a second", points=_finite(points), axis="step"
    )


def _rolling(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return moving averages of the newest values, so that single verdicts do not hide the trend."""
    found, total = [], 0.0
    for at, value in enumerate(values):
        total += value - (values[at - SMOOTH] if at >= SMOOTH else 0.0)
        found.append((float(at + 1), total / min(at + 1, SMOOTH)))
    return _finite(found)


def _finite(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple(point for point in points if math.isfinite(point[1]))
