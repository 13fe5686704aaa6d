"""The vote rule: several answers become one score or no opinion."""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from openclaw_rl.errors import InvalidValue
from openclaw_rl.judge.prompt import Question
from openclaw_rl.judge.voters import Ballot, Voter
from openclaw_rl.types import Hint, HintKind

Vote = int | None
"""+1, -1 or 0; None without an answer"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A ballot's count. ``score`` None is "no opinion", with the reason in ``note``."""

    score: int | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRule:
    """The number of votes and the condition for a score.

    The most frequent answer wins if ``needed`` votes are answered, its share reaches ``threshold`` and no other answer
    has as many. ``quorum`` None requires more than half the ``votes``.
    """

    votes: int
    threshold: float
    quorum: int | None

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise InvalidValue("threshold", f"{self.threshold!r} is not in (0, 1]")

    @property
    def needed(self) -> int:
        """Return the number of answers required for a score."""
        return self.votes // 2 + 1 if self.quorum is None else self.quorum

    def tally(self, votes: Sequence[Vote]) -> Tally:
        """Return the votes' score; those without an answer are dropped first."""
        answers = [vote for vote in votes if vote is not None]
        if not answers or len(answers) < self.needed:
            return Tally(score=None, note=f"{len(answers)} of {len(votes)} votes answered, {self.needed} needed")
        ranked = Counter(answers).most_common(2)
        best, count = ranked[0]
        if len(ranked) > 1 and ranked[1][1] == count:
            return Tally(score=None, note=f"a tie: {count} votes each for {best:+d} and {ranked[1][0]:+d}")
        share = f"{count} of {len(answers)} for {best:+d}"
        if count < self.threshold * len(answers) - 1e-9:
            return Tally(score=None, note=f"{share} is below the threshold {self.threshold}")
        return Tally(score=best, note=share)


# A judge model's answer, parsed strictly: any deviation from the requested form is no answer.

KINDS: tuple[HintKind, ...] = ("rule", "fact", "complaint")
_FENCE = re.compile(r"\A```(?:json)?+[ \t]*+\n")
_BEGIN, _END = "[HINT_START]", "[HINT_END]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedVote:
    """One vote: its value, its hint, its reason. ``value`` None is no answer, with the cause in ``note``."""

    value: int | None
    hint: Hint | None = None
    note: str = ""


def schema(*, hints: bool) -> dict[str, Any]:
    """Return an answer's JSON schema, with or without a hint."""
    parts: dict[str, Any] = {"reason": {"type": "string"}, "score": {"type": "integer", "enum": [1, 0, -1]}}
    if hints:
        parts["hint"] = {"type": ["string", "null"]}
        parts["kind"] = {"type": ["string", "null"], "enum": [*KINDS, None]}
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def parse(text: str, *, hints: bool) -> ParsedVote:
    """Parse one answer; strip thoughts before it and one code fence around it, and reject any other deviation."""
    body = text.strip()
    if body.startswith("<think>") and "</think>" in body:
        body = body.partition("</think>")[2].strip()
    marked: list[str] = []
    while (begin := body.find(_BEGIN)) >= 0 and (end := body.find(_END, begin)) >= 0:
        marked.append(body[begin + len(_BEGIN) : end])
        body = f"{body[:begin]}{body[end + len(_END) :]}".strip()
        if len(marked) > 1:
            return ParsedVote(value=None, note="more than one marked hint")
    try:
        value = json.loads(_unfenced(body), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return ParsedVote(value=None, note="the answer is not one JSON object")
    if not isinstance(value, dict):
        return ParsedVote(value=None, note="the answer is not one JSON object")
    return _vote(value, marked[0].strip() if marked else None, hints=hints)


def _unfenced(body: str) -> str:
    opening = _FENCE.match(body)
    return body[opening.end() : -3] if opening and body.endswith("```") else body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _vote(value: Mapping[str, Any], marked: str | None, *, hints: bool) -> ParsedVote:
    unknown = set(value) - {"reason", "score", "hint", "kind"}
    if unknown:
        return ParsedVote(value=None, note=f"unknown keys in the answer: {', '.join(sorted(unknown))[:80]}")
    score = value.get("score")
    if type(score) is not int or score not in (-1, 0, 1):
        return ParsedVote(value=None, note="the score is none of 1, 0, -1")
    hint_text, kind, reason = value.get("hint"), value.get("kind"), value.get("reason", "")
    if not (hint_text is None or isinstance(hint_text, str)) or not (kind is None or kind in KINDS):
        return ParsedVote(value=None, note="the hint or its kind is of the wrong form")
    text = marked or (hint_text or "").strip()
    hint = Hint(text=text, kind=kind or "rule") if hints and text else None
    return ParsedVote(value=score, hint=hint, note=reason[:200] if isinstance(reason, str) else "")


# A poll: one question to one model several times at once, with the parsed and counted answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One voting round: the question, the ballots, their parsed votes and the count."""

    question: Question
    ballots: tuple[Ballot, ...]
    votes: tuple[ParsedVote, ...]
    count: Tally

    @property
    def answered(self) -> int:
        """Count the readable votes."""
        return sum(vote.value is not None for vote in self.votes)

    @property
    def failure(self) -> str | None:
        """Return the reason for a missing vote; None if every voter was reachable."""
        return next((ballot.note for ballot in self.ballots if ballot.failed), None)


class Pollster:
    """Asks a voter as often as the rule requires, ``workers`` votes at once, each within ``deadline`` seconds.

    ``spend`` receives each vote's tokens on arrival.
    """

    def __init__(
        self, voter: Voter, rule: VoteRule, *, workers: int, deadline: float, spend: Callable[[int], None]
    ) -> None:
        self.rule = rule
        self._voter, self._spend = voter, spend
        self._slots = anyio.Semaphore(workers)
        self._deadline = deadline

    async def poll(self, question: Question) -> Poll:
        """Return all votes on a question, counted."""
        ballots = await self._collect(question)
        votes = tuple(_read(ballot, hints=question.asks_hint) for ballot in ballots)
        count = self.rule.tally([vote.value for vote in votes])
        return Poll(question=question, ballots=ballots, votes=votes, count=count)

    async def _collect(self, question: Question) -> tuple[Ballot, ...]:
        late = Ballot(text=None, failed=True, note=f"no answer within {self._deadline:g} s")
        ballots = [late] * self.rule.votes

        async def vote(at: int) -> None:
            async with self._slots:
                with anyio.move_on_after(self._deadline):
                    ballots[at] = await self._voter.ask(question.messages, schema=schema(hints=question.asks_hint))
            self._spend(ballots[at].tokens)

        async with anyio.create_task_group() as group:
            for at in range(self.rule.votes):
                group.start_soon(vote, at)
        return tuple(ballots)


class PollCache:
    """The newest ``size`` polls by their content."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._polls: OrderedDict[str, Poll] = OrderedDict()

    def get(self, key: str) -> Poll | None:
        """Return the poll under this key and mark it as the newest."""
        if key in self._polls:
            self._polls.move_to_end(key)
        return self._polls.get(key)

    def put(self, key: str, poll: Poll) -> None:
        """Store a poll; beyond the size, evict the least recently used one."""
        self._polls[key] = poll
        while len(self._polls) > self._size:
            self._polls.popitem(last=False)


def _read(ballot: Ballot, *, hints: bool) -> ParsedVote:
    return ParsedVote(value=None, note=ballot.note) if ballot.text is None else parse(ballot.text, hints=hints)
