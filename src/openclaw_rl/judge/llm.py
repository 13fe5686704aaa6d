"""The `llm` judge: votes of a model, counted; what cannot be had now is asked for again later."""

from __future__ import annotations

import hashlib
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2

from openclaw_rl.errors import ConfigError, JudgeUnavailable
from openclaw_rl.judge.answer import Answer, parse, schema
from openclaw_rl.judge.breaker import Breaker
from openclaw_rl.judge.evidence import foreign, request_of, user_hints
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hints import KEEP, Limits, sift
from openclaw_rl.judge.prompt import Count, Rendered, approximate, load, render
from openclaw_rl.judge.text import hands_over, said_by_user
from openclaw_rl.judge.voters import Ballot, Endpoint, OwnBase, Voter
from openclaw_rl.judge.votes import Tally, majority, tally
from openclaw_rl.ports import Case, Policy
from openclaw_rl.types import Verdict, canonical

_CACHED = 4096
_TRIES = 3  # unreadable answers to one case, while others are answered, before it is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One round of votes: what was asked, what came back, how it was read."""

    asked: Rendered
    hints_asked: bool
    ballots: tuple[Ballot, ...]
    answers: tuple[Answer, ...]
    count: Tally


@dataclass(slots=True)
class _Puzzle:
    first: float
    tries: int = 0


class DailyTokens:
    """A budget of tokens per UTC day; None is without end."""

    def __init__(self, limit: int | None, *, wall: Callable[[], float] = time.time) -> None:
        self.limit = limit
        self._wall = wall
        self._day = -1
        self._spent = 0

    @property
    def spent(self) -> int:
        """Tokens used today."""
        today = int(self._wall() // 86400)
        if today != self._day:
            self._day, self._spent = today, 0
        return self._spent

    @property
    def left(self) -> bool:
        """Whether anything may still be asked today."""
        return self.limit is None or self.spent < self.limit

    def spend(self, tokens: int) -> None:
        """Note tokens as used."""
        self._spent = self.spent + tokens

    def renewal(self) -> str:
        """When the next day begins, for people to read."""
        midnight = (int(self._wall() // 86400) + 1) * 86400
        return datetime.fromtimestamp(midnight, UTC).isoformat(timespec="minutes")


class LlmJudge:
    """`votes` answers of one model per case, in parallel within ``workers``, by the vote rule.

    A vote that fails is no answer. Too few answers because the model is out of reach: JudgeUnavailable, the case waits.
    Unreadable answers alone: it waits too, until the model answers other cases or ``patience`` seconds are over; then
    it is an abstention with a note. Nothing is ever scored 0 for want of an answer.
    """

    name = "llm"

    def __init__(
        self,
        *,
        base_url: str | None = None,
        model: str = "",
        api_key: str | None = None,
        policy: Policy | None = None,
        votes: int = 3,
        threshold: float = 0.5,
        quorum: int | None = None,
        workers: int = 4,
        deadline: float = 60.0,
        temperature: float = 0.6,
        max_tokens: int = 512,
        retries: int = 2,
        prompts_dir: Path | None = None,
        daily_tokens: int | None = None,
        evidence_tokens: int = 3000,
        history: int = 6,
        limits: Limits = KEEP,
        cache: bool = True,
        patience: float = 600.0,
        count: Count = approximate,
        breaker_failures: int = 5,
        breaker_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        transport: httpx2.AsyncBaseTransport | None = None,
        voter: Voter | None = None,
    ) -> None:
        if voter is None and policy is not None:
            voter = OwnBase(policy, temperature=temperature, max_tokens=max_tokens)
        if voter is None:
            if not base_url or not model:
                raise ConfigError(
                    "the llm judge needs a base URL and a model, or a policy",
                    remedy="set judge.llm.base_url and judge.llm.model, or choose the rules judge",
                )
            voter = Endpoint(
                base_url=base_url,
                model=model,
                api_key=api_key,
                temperature=temperature,
                max_tokens=max_tokens,
                timeout=deadline,
                retries=retries,
                count=count,
                rng=rng,
                sleep=sleep,
                transport=transport,
            )
        self.voter = voter
        pause = min(1.0, breaker_seconds)
        self.breaker = Breaker(failures=breaker_failures, pause=pause, longest=breaker_seconds, clock=clock)
        self.tokens = DailyTokens(daily_tokens, wall=wall)
        self._votes, self._threshold = votes, threshold
        self._quorum = majority(votes) if quorum is None else quorum
        self._slots = anyio.Semaphore(workers)
        self._deadline = deadline
        self._patience, self._clock, self._count = patience, clock, count
        self._budget, self._history, self._limits = evidence_tokens, history, limits
        self._keeps = _CACHED if cache else 0
        self._turn, self._score = load("turn", prompts_dir), load("score", prompts_dir)
        self._setting = f"{voter.model}\0{votes}\0{temperature}"
        self._cache: OrderedDict[str, Poll] = OrderedDict()
        self._puzzles: OrderedDict[str, _Puzzle] = OrderedDict()
        self._last_answer = float("-inf")

    async def close(self) -> None:
        """Give connections back. Safe to call twice."""
        await self.voter.close()

    async def judge(self, case: Case) -> Verdict:
        """The verdict of a poll; raises JudgeUnavailable when it should be asked again later."""
        if not case.outcome.next_state:
            return self._abstain(case, "nothing came after the reply")
        begun = time.perf_counter()
        poll = await self._poll(case)
        return replace(self._verdict(case, poll), seconds=time.perf_counter() - begun)

    async def explain(self, case: Case) -> Explanation:
        """The exact prompt, each ballot and the verdict it leads to; asks the model unless the answer is known."""
        asked, _ = self.ask_of(case)
        try:
            poll = await self._poll(case)
        except JudgeUnavailable as error:
            return Explanation(judge=self.name, prompt=asked.text, prompt_version=asked.version, note=str(error))
        ballots = tuple(
            ballot.text if ballot.text is not None else f"(no answer: {ballot.note})" for ballot in poll.ballots
        )
        return Explanation(
            judge=self.name,
            prompt=asked.text,
            prompt_version=asked.version,
            ballots=ballots,
            verdict=self._verdict(case, poll),
            note=poll.count.note,
        )

    def ask_of(self, case: Case) -> tuple[Rendered, bool]:
        """The prompt of a case, and whether it asks for a hint: only where all of the next state is the user's own."""
        said = case.outcome.next_state
        hints = all(message.role == "user" and not hands_over(message.content) for message in said)
        hints = hints and bool(said_by_user(said))
        made = self._turn if hints else self._score
        return render(case, made, budget=self._budget, window=self._history, count=self._count), hints

    async def _poll(self, case: Case) -> Poll:
        asked, hints = await anyio.to_thread.run_sync(self.ask_of, case)
        key = self._key(asked)
        if (known := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return known
        self._admit()
        try:
            ballots = await self._collect(asked, hints=hints)
        except BaseException:
            self.breaker.release()
            raise
        answers = tuple(_read(ballot, hints=hints) for ballot in ballots)
        count = tally([answer.vote for answer in answers], threshold=self._threshold, quorum=self._quorum)
        poll = Poll(asked=asked, hints_asked=hints, ballots=ballots, answers=answers, count=count)
        self._settle(key, poll)
        return poll

    def _key(self, asked: Rendered) -> str:
        text = canonical([self._setting, *(message.content for message in asked.messages)])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _admit(self) -> None:
        if not self.tokens.left:
            raise JudgeUnavailable(
                f"the judge has used its {self.tokens.limit} tokens of today",
                remedy=f"it goes on at {self.tokens.renewal()}, or raise judge.llm.daily_tokens",
            )
        if not self.breaker.allow():
            raise JudgeUnavailable(
                f"judging is paused after failures ({self.breaker.reason})",
                remedy=f"it is tried again in {self.breaker.retry_in:.0f} s; serving is not touched",
            )

    async def _collect(self, asked: Rendered, *, hints: bool) -> tuple[Ballot, ...]:
        """All votes at once, each within its own deadline once it has a slot."""
        late = Ballot(text=None, failed=True, note=f"no answer within {self._deadline:g} s")
        ballots = [late] * self._votes

        async def vote(at: int) -> None:
            async with self._slots:
                with anyio.move_on_after(self._deadline):
                    ballots[at] = await self.voter.ask(asked.messages, schema=schema(hints=hints))
            self.tokens.spend(ballots[at].tokens)

        async with anyio.create_task_group() as group:
            for at in range(self._votes):
                group.start_soon(vote, at)
        return tuple(ballots)

    def _settle(self, key: str, poll: Poll) -> None:
        """Tell the breaker how it went; raise where the case should wait."""
        answered = sum(answer.vote is not None for answer in poll.answers)
        if answered < self._quorum and any(ballot.failed for ballot in poll.ballots):
            self._fail(next(ballot.note for ballot in poll.ballots if ballot.failed))
        if not answered and not self._give_up(key):
            self._fail(next(answer.note for answer in poll.answers))
        if answered:
            self._last_answer = self._clock()
            self.breaker.success()
        else:
            self.breaker.release()
        self._puzzles.pop(key, None)
        self._cache[key] = poll
        while len(self._cache) > self._keeps:
            self._cache.popitem(last=False)

    def _fail(self, note: str) -> None:
        self.breaker.failure(note)
        raise JudgeUnavailable(f"no vote could be had: {note}", remedy="the turn stays on the list")

    def _give_up(self, key: str) -> bool:
        """Whether a case that only draws unreadable answers is at fault itself, or has waited long enough."""
        now = self._clock()
        puzzle = self._puzzles.setdefault(key, _Puzzle(first=now))
        if len(self._puzzles) > _CACHED:
            self._puzzles.popitem(last=False)
        puzzle.tries += 1
        alone = puzzle.tries >= _TRIES and self._last_answer > puzzle.first
        return alone or now - puzzle.first >= self._patience

    def _verdict(self, case: Case, poll: Poll) -> Verdict:
        user = said_by_user(case.outcome.next_state)
        offered = [answer.hint for answer in poll.answers if answer.hint is not None]
        sifted = sift(
            offered if poll.hints_asked else user_hints(case),
            reply=case.turn.completion.reply.content,
            user=f"{request_of(case)}\n{user}",
            others=foreign(case, roles=("tool", "assistant")),
            limits=self._limits,
        )
        failed = sorted({answer.note for answer in poll.answers if answer.vote is None})
        return Verdict(
            turn=case.turn.id,
            score=poll.count.score,
            source="judge",
            votes=tuple(answer.vote for answer in poll.answers),
            hints=sifted.kept,
            judge=f"{self.name}:{self.voter.model}",
            prompt_version=poll.asked.version,
            note="; ".join([poll.count.note, *failed]),
        )

    def _abstain(self, case: Case, note: str) -> Verdict:
        judge = f"{self.name}:{self.voter.model}"
        return Verdict(turn=case.turn.id, score=None, source="judge", judge=judge, note=note)


def _read(ballot: Ballot, *, hints: bool) -> Answer:
    return Answer(vote=None, note=ballot.note) if ballot.text is None else parse(ballot.text, hints=hints)
