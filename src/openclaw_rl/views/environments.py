"""Data on environments: success by task and by version, and episodes step by step."""

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

# Screenshots that an environment kept beside the ledger, matched to an episode.
#
# They are in ``screens/`` in the run directory, each under the hash of its bytes; a line of ``episodes.jsonl`` maps an
# episode's step to its screenshot. An environment gives each episode its own id, created between the session's name and
# the id of its first turn, all of which sort by time. If several episodes began in between, their actions' results
# distinguish them; where those are equal, their screens were the same.

FOLDER: Final = "screens"
_LINES: Final = "episodes.jsonl"
_SESSION: Final = re.compile(r"episode-([0-9a-z]{26})")
_EPISODE: Final = re.compile(r'{"episode": "([0-9a-z]{26})"')
_NAME: Final = re.compile(r"[0-9a-f]{64}")


def kept_screens(root: Path, session: str, turns: Sequence[str], came: Sequence[str]) -> dict[int, str]:
    """Return the screens' names in an episode, before each step and after the last, by the number of earlier replies.

    ``turns`` are its turns' ids, ``came`` the text after each of them.
    """
    named, lines = _SESSION.fullmatch(session), root / FOLDER / _LINES
    if named is None or not turns or not lines.exists():
        return {}
    episodes: dict[str, list[Mapping[str, Any]]] = {}
    for line in _between(lines, named[1], turns[0]):
        episodes.setdefault(line["episode"], []).append(line)
    candidates = (steps for steps in episodes.values() if all(_fits(step, came) for step in steps))
    return {int(step["step"]): str(step["screen"]) for step in next(candidates, ())}


def _between(lines: Path, after: str, before: str) -> Iterator[Mapping[str, Any]]:
    with lines.open(encoding="utf-8") as file:
        for line in file:
            match = _EPISODE.match(line)
            if match is not None and after < match[1] < before and line.endswith("\n"):
                yield json.loads(line)


def _fits(shown: Mapping[str, Any], came: Sequence[str]) -> bool:
    """Check if an action's result, as the environment reported it, is in the text after its turn.

    After the last turn, the ledger has no text to compare.
    """
    step = int(shown["step"])
    if step == 0 or step > len(came):
        return step == 0
    return not came[step - 1] or all(part in came[step - 1] for part in str(shown["said"]).split("; "))


def picture(root: Path, name: str) -> bytes | None:
    """Return a kept screen by its name, None without one."""
    place = root / FOLDER / name[:2] / f"{name}.png"
    return place.read_bytes() if _NAME.fullmatch(name) and place.is_file() else None


_IMAGE: Final = re.compile(r"data:(image/(?:png|jpeg|webp|gif));base64,([A-Za-z0-9+/=]*)")
_MOST_STEPS: Final = 200
_MOST_DECISIONS: Final = 400
Part = Literal["before", "after"]
"""a screen's position: in a turn's prompt, or after its reply"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """Counts of one task's episodes by result."""

    environment: str
    task: str
    episodes: int
    won: int
    mean: float | None
    failed: int
    at: float


def tasks_played(ledger: LedgerReader) -> list[TaskLine]:
    """Return the counts by environment and task, the most recent first."""
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
    """Return the share of episodes that each version won, in an environment or in one of its tasks."""
    counts: dict[int, tuple[int, int]] = {}
    for row in ledger.won():
        if environment_of(row.user) == environment and task in (None, row.task):
            won, of = counts.get(row.version, (0, 0))
            counts[row.version] = won + row.won, of + row.episodes
    return Curve(
        name="wins",
        title="Episodes won, as sampled",
        good="Rises towards 1 as versions follow one another; a fall after a rise is a task that is being forgotten.",
        unit="of its episodes",
        points=tuple((float(version), won / of) for version, (won, of) in sorted(counts.items())),
        axis="version",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutResult:
    """The number of the gate's held-out tasks that a version solves greedily."""

    version: int
    solved: int
    of: int


def held_out(ledger: LedgerReader, *, limit: int = _MOST_DECISIONS) -> list[HeldOutResult]:
    """Return results by version from the gate's newest decisions, including the live versions in its comparisons."""
    results: dict[int, HeldOutResult] = {}
    for decision in reversed(ledger.newest_decisions(limit)):
        checks = decision.evidence.get("checks", ())
        numbers = next((check["numbers"] for check in checks if check["name"] == "tasks" and check["numbers"]), None)
        if numbers is not None:
            for version, solved in ((decision.against, numbers["live"]), (decision.version, numbers["candidate"])):
                results[version] = HeldOutResult(version=version, solved=solved, of=numbers["tasks"])
    return [results[version] for version in sorted(results)]


def greedy_wins(ledger: LedgerReader) -> Curve:
    """Return the share of the gate's held-out tasks that each version solves greedily."""
    return Curve(
        name="greedy",
        title="Held-out tasks solved, greedily",
        good="Rises more slowly than episodes as sampled: the untrained model is better greedily too.",
        unit="of the gate's tasks",
        points=tuple((float(result.version), result.solved / result.of) for result in held_out(ledger)),
        axis="version",
    )


def episodes(
    ledger: LedgerReader, environment: str, task: str | None, *, session: str | None = None, limit: int = 50
) -> list[EpisodeLine]:
    """Return the newest episodes of an environment, of one of its tasks or of a session."""
    return ledger.episodes(ENVIRONMENT + environment, task, session=session, limit=limit)


# --- one episode ---


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStep:
    """A step: the messages seen, the reply, and its verdict; ``after`` are the messages after the last step.

    ``screen`` and ``screen_after`` are names of screenshots that the environment kept, None without one.
    """

    turn: Turn
    seen: tuple[Message, ...]
    after: tuple[Message, ...]
    verdict: Verdict | None
    screen: str | None = None
    screen_after: str | None = None


def episode(ledger: LedgerReader, environment: str, session: str) -> list[EpisodeStep]:
    """Return an episode's steps, in order; raise NotInLedger if there is none."""
    names = ledger.session(session, ENVIRONMENT + environment)[:_MOST_STEPS]
    if not names:
        raise NotInLedger(f"there is no episode {session!r} of {environment}")
    steps = [_step(ledger, name, last=name == names[-1]) for name in names]
    after_texts = [_came(ledger, name) for name in names]
    kept_names = kept_screens(ledger.root, session, names, after_texts)
    with_screens = [replace(step, screen=kept_names.get(number)) for number, step in enumerate(steps)]
    return [*with_screens[:-1], replace(with_screens[-1], screen_after=kept_names.get(len(with_screens)))]


def _came(ledger: LedgerReader, name: str) -> str:
    outcome = ledger.outcome(name)
    return "\n".join(message.content for message in outcome.next_state) if outcome is not None else ""


def _step(ledger: LedgerReader, name: str, *, last: bool) -> EpisodeStep:
    turn, outcome = ledger.turn(name), ledger.outcome(name)
    after = outcome.next_state if outcome is not None and last else ()
    return EpisodeStep(turn=turn, seen=_news(turn.prompt.messages), after=after, verdict=ledger.verdict(name))


def _news(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages after the policy's last reply."""
    replies = [at for at, message in enumerate(messages) if message.role == "assistant"]
    return tuple(messages[replies[-1] + 1 :] if replies else messages)


def screens(messages: Sequence[Message]) -> list[str]:
    """Return the messages' pictures, as they were sent."""
    return [image for message in messages for image in message.images]


def screen(ledger: LedgerReader, turn: Turn, part: Part, number: int) -> tuple[str, bytes]:
    """Return a turn's picture: its type and its bytes. Raise NotInLedger if it is missing or not a picture."""
    outcome = ledger.outcome(turn.id) if part == "after" else None
    messages = (outcome.next_state if outcome else ()) if part == "after" else _news(turn.prompt.messages)
    pictures = screens(messages)
    read = _IMAGE.fullmatch(pictures[number]) if 0 <= number < len(pictures) else None
    if read is None:
        raise NotInLedger(f"turn {turn.id} has no picture {number}")
    try:
        return read[1], b64decode(read[2], validate=True)
    except Error as error:
        raise NotInLedger(f"picture {number} of turn {turn.id} cannot be read: {error}") from error
