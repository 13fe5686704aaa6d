"""Environments as they are looked at: success by task and by version, and episodes step by step."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from openclaw_rl.errors import NotInLedger
from openclaw_rl.store import LedgerReader
from openclaw_rl.store.results import EpisodeLine
from openclaw_rl.types import ENVIRONMENT, Message, Turn, Verdict, environment_of
from openclaw_rl.views.browse import Curve

# The screenshots that an environment kept beside the ledger: which of them an episode showed.
#
# They lie in ``screens/`` of the run directory, each under the hash of its bytes; a line of ``episodes.jsonl`` says
# which one was shown at which step. An environment has an id of its own for an episode, made between the name of the
# session and the id of its first turn, all of which are in the order of time. Where several began in between, what
# their actions came to tells them apart; where that does not, their screens were the same.

FOLDER: Final = "screens"
_LINES: Final = "episodes.jsonl"
_SESSION: Final = re.compile(r"episode-([0-9a-z]{26})")
_EPISODE: Final = re.compile(r'{"episode": "([0-9a-z]{26})"')
_NAME: Final = re.compile(r"[0-9a-f]{64}")


def kept_screens(root: Path, session: str, turns: Sequence[str], came: Sequence[str]) -> dict[int, str]:
    """The name of the screen before each step of an episode, and after its last, by the number of replies before it.

    ``turns`` are the ids of its turns, ``came`` is what came after each of them.
    """
    named, lines = _SESSION.fullmatch(session), root / FOLDER / _LINES
    if named is None or not turns or not lines.exists():
        return {}
    episodes: dict[str, list[Mapping[str, Any]]] = {}
    for line in _between(lines, named[1], turns[0]):
        episodes.setdefault(line["episode"], []).append(line)
    fitting = (shown for shown in episodes.values() if all(_fits(one, came) for one in shown))
    return {int(one["step"]): str(one["screen"]) for one in next(fitting, ())}


def _between(lines: Path, after: str, before: str) -> Iterator[Mapping[str, Any]]:
    with lines.open(encoding="utf-8") as file:
        for line in file:
            found = _EPISODE.match(line)
            if found is not None and after < found[1] < before and line.endswith("\n"):
                yield json.loads(line)


def _fits(shown: Mapping[str, Any], came: Sequence[str]) -> bool:
    """Whether what an action came to, as the environment said it, stands in what came after that turn.

    Nothing came after the last one, as far as the ledger knows.
    """
    step = int(shown["step"])
    if step == 0 or step > len(came):
        return step == 0
    return not came[step - 1] or all(part in came[step - 1] for part in str(shown["said"]).split("; "))


def picture(root: Path, name: str) -> bytes | None:
    """The bytes of a screen by its name, None where there is none."""
    place = root / FOLDER / name[:2] / f"{name}.png"
    return place.read_bytes() if _NAME.fullmatch(name) and place.is_file() else None


_IMAGE: Final = re.compile(r"data:(image/(?:png|jpeg|webp|gif));base64,([A-Za-z0-9+/=]*)")
_MOST_STEPS: Final = 200
_MOST_DECISIONS: Final = 400
Part = Literal["before", "after"]
"""where a screen stands: among what a turn was asked with, or what came after it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """How the episodes of one task ended."""

    environment: str
    task: str
    episodes: int
    won: int
    mean: float | None
    failed: int
    at: float


def tasks_played(ledger: LedgerReader) -> list[TaskLine]:
    """By environment and task, the most recent first."""
    return [
        TaskLine(
            environment=environment_of(row.user) or row.user,
            task=row.task,
            episodes=row.episodes,
            won=row.won or 0,
            mean=row.mean,
            failed=row.failed or 0,
            at=row.at,
        )
        for row in ledger.played()
    ]


def wins(ledger: LedgerReader, environment: str, task: str | None = None) -> Curve:
    """The share of episodes that each version won, of an environment or of one of its tasks."""
    counted: dict[int, tuple[int, int]] = {}
    for row in ledger.won():
        if environment_of(row.user) == environment and task in (None, row.task):
            won, of = counted.get(row.version, (0, 0))
            counted[row.version] = won + row.won, of + row.episodes
    return Curve(
        name="wins",
        title="Episodes won, as sampled",
        good="Rises towards 1 as versions follow one another; a fall after a rise is a task that is being forgotten.",
        unit="of its episodes",
        points=tuple((float(version), won / of) for version, (won, of) in sorted(counted.items())),
        axis="version",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutResult:
    """How many of the gate's held-out tasks a version solves greedily."""

    version: int
    solved: int
    of: int


def held_out(ledger: LedgerReader, *, limit: int = _MOST_DECISIONS) -> list[HeldOutResult]:
    """By version, from the gate's newest decisions; one for each version, the live ones that it compared with too."""
    found: dict[int, HeldOutResult] = {}
    for decision in reversed(ledger.newest_decisions(limit)):
        checks = decision.evidence.get("checks", ())
        numbers = next((check["numbers"] for check in checks if check["name"] == "tasks" and check["numbers"]), None)
        if numbers is not None:
            for version, solved in ((decision.against, numbers["live"]), (decision.version, numbers["candidate"])):
                found[version] = HeldOutResult(version=version, solved=solved, of=numbers["tasks"])
    return [found[version] for version in sorted(found)]


def greedy_wins(ledger: LedgerReader) -> Curve:
    """The share of the gate's held-out tasks that each version solves greedily."""
    return Curve(
        name="greedy",
        title="Held-out tasks solved, greedily",
        good="Rises more slowly than episodes as sampled: the untrained model is better greedily too.",
        unit="of the gate's tasks",
        points=tuple((float(one.version), one.solved / one.of) for one in held_out(ledger)),
        axis="version",
    )


def episodes(
    ledger: LedgerReader, environment: str, task: str | None, *, session: str | None = None, limit: int = 50
) -> list[EpisodeLine]:
    """The newest episodes of an environment, or of one of its tasks; or the one of a session."""
    return ledger.episodes(ENVIRONMENT + environment, task, session=session, limit=limit)


# --- one episode ---


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStep:
    """One step: what was seen, what was done, and what that was worth; ``after`` is what came of the last one.

    ``screen`` and ``screen_after`` are names of screenshots that the environment kept, None where it kept none.
    """

    turn: Turn
    seen: tuple[Message, ...]
    after: tuple[Message, ...]
    verdict: Verdict | None
    screen: str | None = None
    screen_after: str | None = None


def episode(ledger: LedgerReader, environment: str, session: str) -> list[EpisodeStep]:
    """The steps of an episode, in order; raises NotInLedger where there is none."""
    names = ledger.session(session, ENVIRONMENT + environment)[:_MOST_STEPS]
    if not names:
        raise NotInLedger(f"there is no episode {session!r} of {environment}")
    steps = [_step(ledger, name, last=name == names[-1]) for name in names]
    came = [_came(ledger, name) for name in names]
    kept = kept_screens(ledger.root, session, names, came)
    found = [replace(step, screen=kept.get(number)) for number, step in enumerate(steps)]
    return [*found[:-1], replace(found[-1], screen_after=kept.get(len(found)))]


def _came(ledger: LedgerReader, name: str) -> str:
    outcome = ledger.outcome(name)
    return "\n".join(message.content for message in outcome.next_state) if outcome is not None else ""


def _step(ledger: LedgerReader, name: str, *, last: bool) -> EpisodeStep:
    turn, outcome = ledger.turn(name), ledger.outcome(name)
    after = outcome.next_state if outcome is not None and last else ()
    return EpisodeStep(turn=turn, seen=_news(turn.prompt.messages), after=after, verdict=ledger.verdict(name))


def _news(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What stands after the policy's last words."""
    said = [at for at, message in enumerate(messages) if message.role == "assistant"]
    return tuple(messages[said[-1] + 1 :] if said else messages)


def screens(messages: Sequence[Message]) -> list[str]:
    """The pictures of some messages, as they were sent."""
    return [image for message in messages for image in message.images]


def screen(ledger: LedgerReader, turn: Turn, part: Part, number: int) -> tuple[str, bytes]:
    """A picture of a turn: its type and its bytes. Raises NotInLedger for what is not there, or is no picture."""
    outcome = ledger.outcome(turn.id) if part == "after" else None
    messages = (outcome.next_state if outcome else ()) if part == "after" else _news(turn.prompt.messages)
    found = screens(messages)
    read = _IMAGE.fullmatch(found[number]) if 0 <= number < len(found) else None
    if read is None:
        raise NotInLedger(f"turn {turn.id} has no picture {number}")
    try:
        return read[1], b64decode(read[2], validate=True)
    except Error as error:
        raise NotInLedger(f"picture {number} of turn {turn.id} cannot be read: {error}") from error
