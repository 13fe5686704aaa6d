"""Detect a regression since a version's promotion: a sequential test on users' feedback. Pure.

For each promotion the turns answered since (by that version and its descendants) are compared with the turns answered
before. A turn is *bad* if its score is below 0. The old rate is unknown and only estimated, so each user's upper bound
is used: the test asks if new turns are bad more often than even that. Its evidence is a likelihood ratio averaged over
several worse rates; under any rate up to the bound it is a supermartingale, so the probability that it *ever* reaches
``1 / alpha`` is at most ``alpha`` (Ville), at any number of checks. A promotion is monitored for ``window`` turns.

Earlier turns had standing notes in the prompt, which is no merit of their version: a complaint that repeats a note
which has left the prompt since does not count. It restores the note.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.ports import Regression
from openclaw_rl.preferences.comparison import says_same
from openclaw_rl.preferences.wording import put
from openclaw_rl.stats import wilson
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions

_WORSE = (0.15, 0.3, 0.5, 0.7, 0.9)
"""alternative rates, as fractions of the way from the tolerated rate to 1"""
FEWEST = 8
"""scored turns that a record needs for a comparison"""
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and any are as at be but can do for from give i if in is it its just me more my no not of on or please"
        " reply answer replies answers response say should so that the them then this to use want with would write",
    )
)


class Evidence(Protocol):
    """One judged main turn."""

    @property
    def version(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def rules(self) -> tuple[str, ...]: ...
    @property
    def noted(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRules:
    """``alpha``: probability of a false alarm per promotion; ``least``: bad-turn rate that never alarms.

    ``window``: turns for which a promotion is monitored; ``reference``: turns before it to compare with.
    """

    alpha: float
    window: int
    reference: int
    least: float


def find_regression(
    seen: Sequence[Evidence],
    versions: Sequence[Version],
    *,
    live: Version,
    rules: MonitorRules,
    notes: Mapping[int, str] | None = None,
) -> Regression | None:
    """Return the promotion after which replies became worse, if any; ``seen`` is ordered oldest first.

    ``notes`` maps numbers to standing notes' texts.
    """
    line = lineage(live, versions)
    over = {version.number for version in versions if version.state == "rolled back"}  # restored by hand since
    turns = [(line[turn.version], turn) for turn in seen if turn.version in line and turn.version not in over]
    regressions: list[tuple[float, int, Regression]] = []
    for place in range(1, len(set(line.values()))):
        record = [turn for at, turn in turns if at < place]
        since = [turn for at, turn in turns if at >= place]
        if len(record) < FEWEST or not 0 < len(since) <= 2 * rules.window:  # a longer history was checked in time
            continue
        before, after = record[-rules.reference :], since[: rules.window]
        strength = evidence(before, after, rules=rules, record=record, notes=notes)
        if strength >= 1 / rules.alpha:
            regressions.append((strength, place, _regression(place, before, after, line, versions, strength)))
    return max(regressions, key=lambda entry: entry[:2])[2] if regressions else None  # on a tie the newest promotion


def lineage(live: Version, versions: Sequence[Version]) -> dict[int, int]:
    """Return each version's position in the line of weights that leads to the live one; other versions have none.

    Versions with the same weights (a rollback and its target) share a position.
    """
    by_number = {version.number: version for version in versions}
    at: Version | None = live
    line: list[Version] = []
    while at is not None:
        line.append(at)
        at = by_number.get(at.parent) if at.parent is not None else None
    places: dict[int, int] = {}
    place, weights = -1, ""
    for version in reversed(line):
        name = version.adapter or "base"
        place, weights = (place, weights) if name == weights else (place + 1, name)
        places[version.number] = place
    return places


def evidence(
    before: Sequence[Evidence],
    after: Sequence[Evidence],
    *,
    rules: MonitorRules,
    record: Sequence[Evidence] = (),
    notes: Mapping[int, str] | None = None,
) -> float:
    """Return the strength of evidence for a drop: the largest averaged likelihood ratio over the later turns.

    ``record`` may reach further back than ``before``, so that old preferences are recognized. Users without any record
    do not count, since their opinion of the earlier version is unknown.
    """
    tolerated = _bounds(before, rules)
    preferences = _preferences(record or before)
    prompted = _prompted(record or before)
    logs = [0.0] * len(_WORSE)
    strongest = 0.0
    for turn in after:
        bad = turn.score < 0
        if turn.user not in tolerated or (bad and is_new(turn.rules, preferences.get(turn.user, ()))):
            continue
        if bad and misses_note(turn, prompted[turn.user], notes or {}):
            continue
        bound = tolerated[turn.user]
        for index, share in enumerate(_WORSE):
            rate = bound + (1 - bound) * share
            logs[index] += math.log(rate / bound) if bad else math.log((1 - rate) / (1 - bound))
        strongest = max(strongest, sum(map(math.exp, logs)) / len(logs))
    return strongest


def _bounds(before: Sequence[Evidence], rules: MonitorRules) -> Mapping[str, float]:
    """Return the tolerated bad-turn rate per user: from their own record, or from all users' if theirs is short."""
    by_user: dict[str, list[bool]] = defaultdict(list)
    for turn in before:
        by_user[turn.user].append(turn.score < 0)
    all_flags = [bad for flags in by_user.values() for bad in flags]
    records = {user: record if len(record) >= FEWEST else all_flags for user, record in by_user.items()}
    return {
        user: min(0.98, max(rules.least, wilson(sum(bad), len(bad), alpha=0.1)[1])) for user, bad in records.items()
    }


def is_new(rules: Sequence[str], known: Sequence[frozenset[str]]) -> bool:
    """Return True if a complaint is a preference new for this user, which is no evidence on the version."""
    contents = [_content(text) for text in rules]
    return bool(contents) and not any(content & old for content in contents for old in known)


def misses_note(one: Evidence, before: frozenset[int], notes: Mapping[int, str]) -> bool:
    """Return True if a complaint repeats a note that was in prompts ``before`` and is not in this turn's."""
    texts = [notes[number] for number in before.difference(one.noted) if number in notes]
    return any(says_same(rule, text) for rule in one.rules for text in texts)


def _prompted(before: Sequence[Evidence]) -> Mapping[str, frozenset[int]]:
    """Return the notes in the prompts of these turns, by user."""
    notes: dict[str, frozenset[int]] = defaultdict(frozenset)
    for turn in before:
        notes[turn.user] |= frozenset(turn.noted)
    return notes


def _preferences(before: Sequence[Evidence]) -> Mapping[str, list[frozenset[str]]]:
    preferences: dict[str, list[frozenset[str]]] = defaultdict(list)
    for turn in before:
        preferences[turn.user] += [_content(text) for text in turn.rules]
    return preferences


def _content(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower())) - _COMMON


def _regression(
    place: int,
    before: Sequence[Evidence],
    after: Sequence[Evidence],
    line: Mapping[int, int],
    versions: Sequence[Version],
    strength: float,
) -> Regression:
    deleted = {version.number for version in versions if version.state == "deleted"}
    over = {version.number for version in versions if version.state == "rolled back"}
    first = min((number for number, at in line.items() if at == place), key=lambda number: (number in over, number))
    last = max((number for number, at in line.items() if at < place and number not in deleted), key=lambda n: line[n])
    was, now = (sum(turn.score < 0 for turn in turns) for turns in (before, after))
    return Regression(
        version=first,
        to=last,
        reason=f"{now} of {len(after)} turns since version {first} were bad, {was} of {len(before)} before it",
        evidence={
            "bad_since": now,
            "turns_since": len(after),
            "bad_before": was,
            "turns_before": len(before),
            "likelihood_ratio": round(min(strength, 1e12), 1),
        },
    )


# Live monitor: checks the ledger's newest evidence for a regression.

REACH = 1000
"""number of judged turns that the monitor reads"""


class VersionMonitor:
    """Monitor that checks new evidence as it arrives."""

    def __init__(self, ledger: LedgerReader, *, rules: MonitorRules) -> None:
        self._ledger = ledger
        self._versions = LiveVersions(ledger)
        self._rules = rules
        self._seen = -1

    def check(self) -> Regression | None:
        """Return the regression in the evidence, None if there is none."""
        newest = self._ledger.newest("verdicts")
        if newest == self._seen:
            return None
        self._seen = newest
        live = self._versions.live()
        if live is None:
            return None
        return find_regression(
            self._ledger.scored(REACH),
            self._versions.versions(),
            live=live,
            rules=self._rules,
            notes={note.number: put(note) for note in self._ledger.notes()},
        )
