"""The `llm` judge: counted votes of a model; unavailable votes are requested again later."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio.to_thread

from openclaw_rl.errors import ConfigError, JudgeUnavailable
from openclaw_rl.judge.availability import PATIENCE, Availability, Breaker, TokenBudget
from openclaw_rl.judge.evidence import foreign, request_of, user_hints
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.judge.prompt import PromptBuilder, PromptSettings, Question
from openclaw_rl.judge.text import user_text
from openclaw_rl.judge.voters import EndpointSettings, EndpointVoter, PolicyVoter, Voter
from openclaw_rl.judge.votes import Poll, PollCache, Pollster, VoteRule
from openclaw_rl.ports import Case, Policy
from openclaw_rl.types import Sampling, Verdict, canonical

_CACHED = 4096  # polls


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings:
    """Settings of this judge by duty; ``endpoint`` None if the policy's own base model votes."""

    endpoint: EndpointSettings | None
    sampling: Sampling
    rule: VoteRule
    prompts: PromptSettings
    hints: HintLimits
    workers: int
    deadline: float
    breaker_failures: int
    breaker_seconds: float
    daily_tokens: int | None


class LlmJudge:
    """Several answers of one model per case, counted by the vote rule.

    A failed vote is no answer. If too few votes are answered because the model is unreachable, JudgeUnavailable is
    raised and the case waits. If all answers are unreadable, it waits too, as long as `Availability` allows, and then
    becomes an abstention with a note. A missing answer never scores 0.
    """

    name = "llm"

    def __init__(
        self,
        *,
        settings: LlmSettings,
        policy: Policy | None = None,
        voter: Voter | None = None,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.voter = voter or voter_of(settings.endpoint, policy, settings.sampling)
        self._prompts = PromptBuilder(
            settings.prompts,
            answer=settings.sampling.max_tokens or 0,
            counter=self.voter if isinstance(self.voter, PolicyVoter) else None,
        )
        self._hints = settings.hints
        self._votes = settings.rule.votes
        longest = settings.breaker_seconds
        self.breaker = Breaker(
            failures=settings.breaker_failures, pause=min(1.0, longest), longest=longest, clock=clock
        )
        self.tokens = TokenBudget(settings.daily_tokens, wall=wall)
        self._pollster = Pollster(
            self.voter,
            settings.rule,
            workers=settings.workers,
            deadline=settings.deadline,
            spend=self.tokens.spend,
        )
        self._availability = Availability(self.breaker, self.tokens, patience=patience, clock=clock)
        self._cache = PollCache(_CACHED)
        self._scope = f"{settings.rule.votes}\0{settings.sampling.temperature}"

    @property
    def at_work(self) -> str:
        """Return the vote count and the model's name."""
        return f"{self._votes} votes of {self.voter.model}"

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        await self.voter.close()

    async def judge(self, case: Case) -> Verdict:
        """Return a poll's verdict; raises JudgeUnavailable if the case should be asked again later."""
        if not case.outcome.next_state:
            return self._abstain(case, "nothing came after the reply")
        begun = time.perf_counter()
        poll = await self._poll(case)
        return replace(self._verdict(case, poll), seconds=time.perf_counter() - begun)

    async def explain(self, case: Case) -> Explanation:
        """Return the exact prompt, each ballot and the verdict; the model is asked unless the poll is cached."""
        question = await anyio.to_thread.run_sync(self._prompts.question, case)
        try:
            poll = await self._poll(case)
        except JudgeUnavailable as error:
            return Explanation(judge=self.name, prompt=question.text, prompt_version=question.version, note=str(error))
        ballots = tuple(
            ballot.text if ballot.text is not None else f"(no answer: {ballot.note})" for ballot in poll.ballots
        )
        return Explanation(
            judge=self.name,
            prompt=question.text,
            prompt_version=question.version,
            ballots=ballots,
            verdict=self._verdict(case, poll),
            note=poll.count.note,
        )

    async def _poll(self, case: Case) -> Poll:
        question = await anyio.to_thread.run_sync(self._prompts.question, case)
        key = self._key(question)
        if (cached := self._cache.get(key)) is not None:
            return cached
        self._availability.admit()
        try:
            poll = await self._pollster.poll(question)
        except BaseException:
            self._availability.cancelled()
            raise
        self._settle(key, poll)
        return poll

    def _key(self, question: Question) -> str:
        text = canonical([self.voter.model, self._scope, *(message.content for message in question.messages)])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _settle(self, key: str, poll: Poll) -> None:
        """Cache a poll that counts; raises JudgeUnavailable if the case should wait."""
        if poll.answered < self._pollster.rule.needed and poll.failure is not None:
            self._availability.failed(poll.failure)
        if poll.answered:
            self._availability.answered(key)
        else:
            self._availability.unreadable(key, poll.votes[0].note)
        self._cache.put(key, poll)

    def _verdict(self, case: Case, poll: Poll) -> Verdict:
        user = user_text(case.outcome.next_state)
        offered = [vote.hint for vote in poll.votes if vote.hint is not None]
        filtered = filter_hints(
            offered if poll.question.asks_hint else user_hints(case),
            reply=case.turn.completion.reply.content,
            user=f"{request_of(case)}\n{user}",
            others=foreign(case, roles=("tool", "assistant")),
            limits=self._hints,
        )
        failed = sorted({vote.note for vote in poll.votes if vote.value is None})
        return Verdict(
            turn=case.turn.id,
            score=poll.count.score,
            source="judge",
            votes=tuple(vote.value for vote in poll.votes),
            hints=filtered.kept,
            judge=f"{self.name}:{self.voter.model}",
            prompt_version=poll.question.version,
            note="; ".join([poll.count.note, *failed]),
        )

    def _abstain(self, case: Case, note: str) -> Verdict:
        judge = f"{self.name}:{self.voter.model}"
        return Verdict(turn=case.turn.id, score=None, source="judge", judge=judge, note=note)


def voter_of(endpoint: EndpointSettings | None, policy: Policy | None, sampling: Sampling) -> Voter:
    """Return the policy's voter if there is a policy, else the endpoint's; raises ConfigError without either."""
    if policy is not None:
        return PolicyVoter(policy, sampling)
    if endpoint is None:
        raise ConfigError(
            "the llm judge needs a base URL and a model, or a policy",
            remedy="set judge.llm.base_url and judge.llm.model, or choose the rules judge",
        )
    return EndpointVoter(endpoint, sampling)
