"""A poll: one question to one model several times at once, and how the answers are read and counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from openclaw_rl.judge.answer import ParsedVote, parse, schema
from openclaw_rl.judge.prompt import Question
from openclaw_rl.judge.voters import Ballot, Voter
from openclaw_rl.judge.votes import Tally, VoteRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One round of votes: the question, what came back, how it was read."""

    question: Question
    ballots: tuple[Ballot, ...]
    votes: tuple[ParsedVote, ...]
    count: Tally

    @property
    def answered(self) -> int:
        """Votes that could be read."""
        return sum(vote.value is not None for vote in self.votes)

    @property
    def failure(self) -> str | None:
        """Why a vote could not be had; None where every voter could be reached."""
        return next((ballot.note for ballot in self.ballots if ballot.failed), None)


class Pollster:
    """Asks a voter as often as the rule wants, ``workers`` votes at once, each within ``deadline`` seconds.

    ``spend`` gets the tokens of each vote as soon as it is there.
    """

    def __init__(
        self, voter: Voter, rule: VoteRule, *, workers: int, deadline: float, spend: Callable[[int], None]
    ) -> None:
        self.rule = rule
        self._voter, self._spend = voter, spend
        self._slots = anyio.Semaphore(workers)
        self._deadline = deadline

    async def poll(self, question: Question) -> Poll:
        """All votes on a question, counted."""
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
        """The poll under this key; it then counts as the newest."""
        if key in self._polls:
            self._polls.move_to_end(key)
        return self._polls.get(key)

    def put(self, key: str, poll: Poll) -> None:
        """Keep a poll in place of the one that was least recently used."""
        self._polls[key] = poll
        while len(self._polls) > self._size:
            self._polls.popitem(last=False)


def _read(ballot: Ballot, *, hints: bool) -> ParsedVote:
    return ParsedVote(value=None, note=ballot.note) if ballot.text is None else parse(ballot.text, hints=hints)
