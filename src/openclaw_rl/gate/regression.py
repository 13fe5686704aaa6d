"""A regression: has it become worse since a version was promoted? A sequential test on users' evidence. Pure.

For each promotion the turns answered since (by that version and those built on it) are compared with the turns answered
before. A turn is *bad* when its score is below 0. The old rate is not known but estimated, so each user's upper bound
is taken for it: the test asks whether the new turns are bad more often than even that. Its evidence is a likelihood
ratio averaged over several worse rates; under any rate up to the bound it is a supermartingale, so the probability
that it *ever* reaches ``1 / alpha`` is at most ``alpha`` (Ville), however often one looks. A promotion is monitored
for ``window`` turns.

What the turns before owe to a standing note is not the merit of their version: a complaint that says what a note said
which has left the prompt since does not count. It brings the note back.
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
"""how far from the tolerated rate to certainty the alternatives lie"""
FEWEST = 8
"""scored turns that a record needs to be compared with"""
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
    """``alpha``: probability of a false alarm per promotion; ``least``: a rate of bad turns that never alarms.

    ``window``: turns for which a promotion is monitored; ``reference``: turns before it that it is compared with.
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
    """The promotion after which it became worse, if there is one; ``seen`` is in order, oldest first.

    ``notes`` has, by number, what standing notes say.
    """
    line = lineage(live, versions)
    over = {version.number for version in versions if version.state == "rolled back"}  # a person brought it back since
    mine = [(line[one.version], one) for one in seen if one.version in line and one.version not in over]
    found: list[tuple[float, int, Regression]] = []
    for place in range(1, len(set(line.values()))):
        record = [one for at, one in mine if at < place]
        since = [one for at, one in mine if at >= place]
        if len(record) < FEWEST or not 0 < len(since) <= 2 * rules.window:  # beyond, it was looked at in time
            continue
        before, after = record[-rules.reference :], since[: rules.window]
        strength = evidence(before, after, rules=rules, record=record, notes=notes)
        if strength >= 1 / rules.alpha:
            found.append((strength, place, _regression(place, before, after, line, versions, strength)))
    return max(found, key=lambda each: each[:2])[2] if found else None  # of promotions alike, the newest


def lineage(live: Version, versions: Sequence[Version]) -> dict[int, int]:
    """The place of each version in the line of weights that leads to the live one; others have none.

    Versions with the same weights (a rollback and what it went back to) share a place.
    """
    known = {version.number: version for version in versions}
    at: Version | None = live
    line: list[Version] = []
    while at is not None:
        line.append(at)
        at = known.get(at.parent) if at.parent is not None else None
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
    """How strongly the turns after speak for a drop: the largest averaged likelihood ratio on the way.

    ``record`` may reach further back than ``before``, so that an old preference is known as one. Users without any
    record do not count: what they think of the version before is not known.
    """
    tolerated = _bounds(before, rules)
    known = _preferences(record or before)
    prompted = _prompted(record or before)
    logs = [0.0] * len(_WORSE)
    strongest = 0.0
    for one in after:
        bad = one.score < 0
        if one.user not in tolerated or (bad and is_new(one.rules, known.get(one.user, ()))):
            continue
        if bad and misses_note(one, prompted[one.user], notes or {}):
            continue
        bound = tolerated[one.user]
        for index, share in enumerate(_WORSE):
            rate = bound + (1 - bound) * share
            logs[index] += math.log(rate / bound) if bad else math.log((1 - rate) / (1 - bound))
        strongest = max(strongest, sum(map(math.exp, logs)) / len(logs))
    return strongest


def _bounds(before: Sequence[Evidence], rules: MonitorRules) -> Mapping[str, float]:
    """The rate of bad turns that is tolerated of each user: by their own record, or by all where theirs is short."""
    by_user: dict[str, list[bool]] = defaultdict(list)
    for one in before:
        by_user[one.user].append(one.score < 0)
    everybody = [bad for each in by_user.values() for bad in each]
    records = {user: own if len(own) >= FEWEST else everybody for user, own in by_user.items()}
    return {
        user: min(0.98, max(rules.least, wilson(sum(bad), len(bad), alpha=0.1)[1])) for user, bad in records.items()
    }


def is_new(rules: Sequence[str], known: Sequence[frozenset[str]]) -> bool:
    """Whether a complaint is a preference that this user had never had: it says nothing about the version."""
    contents = [_content(text) for text in rules]
    return bool(contents) and not any(content & old for content in contents for old in known)


def misses_note(one: Evidence, before: frozenset[int], notes: Mapping[int, str]) -> bool:
    """Whether a complaint says what a note said that was in prompts ``before`` and is not in this turn's."""
    left = [notes[number] for number in before.difference(one.noted) if number in notes]
    return any(says_same(rule, text) for rule in one.rules for text in left)


def _prompted(before: Sequence[Evidence]) -> Mapping[str, frozenset[int]]:
    """By user, the notes that were in the prompts of these turns."""
    found: dict[str, frozenset[int]] = defaultdict(frozenset)
    for one in before:
        found[one.user] |= frozenset(one.noted)
    return found


def _preferences(before: Sequence[Evidence]) -> Mapping[str, list[frozenset[str]]]:
    found: dict[str, list[frozenset[str]]] = defaultdict(list)
    for one in before:
        found[one.user] += [_content(text) for text in one.rules]
    return found


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
    was, now = (sum(one.score < 0 for one in each) for each in (before, after))
    return Regression(
        version=first,
        to=last,
        reason=f"{now} of {len(after)} turns since version {first} went badly, {was} of {len(before)} before it",
        evidence={
            "bad_since": now,
            "turns_since": len(after),
            "bad_before": was,
            "turns_before": len(before),
            "likelihood_ratio": round(min(strength, 1e12), 1),
        },
    )


# The live monitor: looks for a regression in the newest evidence of the ledger.

REACH = 1000
"""judged turns that the monitor looks back on"""


class VersionMonitor:
    """Looks at the newest evidence whenever there is any."""

    def __init__(self, ledger: LedgerReader, *, rules: MonitorRules) -> None:
        self._ledger = ledger
        self._versions = LiveVersions(ledger)
        self._rules = rules
        self._seen = -1

    def check(self) -> Regression | None:
        """The regression that the evidence shows, None while there is none."""
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
