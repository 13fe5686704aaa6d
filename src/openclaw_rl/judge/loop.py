"""Loop 3: outcomes become verdicts. An unreachable judge does not delay evidence."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import anyio
import anyio.to_thread

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge import reported
from openclaw_rl.judge.availability import WaitingList
from openclaw_rl.judge.behaviour import with_behaviour
from openclaw_rl.judge.evidence import (
    decide,
    failure,
    given_hints,
    joined,
    leaves_words,
    may_instruct,
    outcome_alone,
    with_heard,
    with_reach,
)
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.parts import LearnsFromRatings, Measures, Reports, at_work, every
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Drop, DropReason, Json, UnreadableTurn, Verdict, environment_of

log = logging.getLogger(__name__)

BATCH = 32
"""cases per tick: enough to keep the workers busy, few enough for `status` to progress"""
SCAN = 1024
"""maximum cases read per tick to reach those behind the waiting ones"""

Job: TypeAlias = Callable[[], Awaitable[None]]


class VerdictLedger(Protocol):
    """The ledger methods that this loop needs; all may be called from a worker thread."""

    def unjudged(self, limit: int) -> Sequence[Case | UnreadableTurn]: ...

    def late_feedback(self, limit: int) -> Sequence[Case | UnreadableTurn]: ...

    def late_rewards(self, limit: int) -> Sequence[Case | UnreadableTurn]: ...

    def add_verdicts(self, verdicts: Sequence[Verdict], drops: Sequence[Drop] = ()) -> None: ...

    def scores(self, window: int) -> Sequence[tuple[str, float | None, str]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLoopSettings:
    """``trusted`` environments may give hints; ``step_votes``: the judge votes on the steps of all environments.

    ``behaviour``: the user's behaviour counts a little if the judge is silent. ``calibrate``: the judge is also asked
    about turns that users scored, to compare them. Alarms cover the last ``window`` verdicts.
    """

    workers: int
    trusted: frozenset[str]
    hints: HintLimits
    behaviour: bool
    step_votes: bool
    calibrate: bool
    window: int
    longest_pause: float


class JudgeLoop:
    """Each tick settles a batch: by evidence at once, by the judge ``workers`` cases at a time.

    Each verdict is written when it is ready. A case with an unavailable judge stays in the ledger's list and is asked
    again as `WaitingList` decides. A case that fails alone becomes an abstention and a drop with the reason: at once if
    reading it raises (reading is pure and would raise again), otherwise after several tries between which the judge
    answered other cases. An outage drops no turn, regardless of its length.
    """

    name = "judge"

    def __init__(
        self,
        ledger: VerdictLedger,
        judge: Judge,
        settings: JudgeLoopSettings,
        *,
        batch: int = BATCH,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        take_notes: Callable[[], int] | None = None,
    ) -> None:
        """``take_notes`` is called after new verdicts, and on every tick for inline feedback commands."""
        self._take_notes = take_notes
        self._ledger, self._judge, self._settings = ledger, judge, settings
        self._slots = anyio.Semaphore(settings.workers)
        self._batch = batch
        self._clock, self._wall, self._sleep = clock, wall, sleep
        self._waiting = WaitingList(longest_pause=settings.longest_pause, clock=clock)
        self._failed = 0
        self._given_up = 0
        self._rest_until = float("-inf")
        self._pairs: deque[reported.Pair] = deque(maxlen=512)
        self._overtaken: set[str] = set()
        self._newest: dict[str, Case] = {}
        self._written = 0
        self._in_hand = 0

    async def tick(self) -> int:
        """Settle up to a batch of cases; return the number of verdicts written."""
        before = self._given_up
        await self._note()
        read_at = self._wall()  # feedback after this moment is late, and will be listed as such
        cases = await self._read()
        found, taught, rest = await self._by_evidence(cases, read_at)
        jobs: list[Job] = [partial(self._hear_out, case, verdict, read_at) for case, verdict in taught]
        jobs += [partial(self._settle, case, read_at) for case in self._waiting.choose(rest, most=self._batch)]
        if self._settings.calibrate:
            jobs += [
                partial(self._compare, case, verdict.score or 0.0)
                for case, verdict in found
                if verdict.source == "explicit" and case.outcome.next_state
            ]
        written = len(found)
        if jobs:
            written += await self._by_judge(jobs)
        return written + self._given_up - before

    async def _read(self) -> list[Case]:
        """Read new cases and those with late feedback or rewards, each once; give up turns that cannot be decoded."""
        late = [
            *await anyio.to_thread.run_sync(self._ledger.late_rewards, SCAN),
            *await anyio.to_thread.run_sync(self._ledger.late_feedback, self._batch),
        ]
        fresh = [] if self._clock() < self._rest_until else await self._fresh()
        damaged = {found.turn: found for found in (*fresh, *late) if isinstance(found, UnreadableTurn)}
        for found in damaged.values():
            await self._give_up(found.turn, reason="unreadable", why=found.why)
        return list({case.turn.id: case for case in (*fresh, *late) if isinstance(case, Case)}.values())

    async def _give_up(self, turn: str, *, reason: DropReason, why: str) -> None:
        """Record a turn that cannot be judged: no opinion and no training; later feedback on it still counts."""
        self._waiting.remove(turn)
        note = f"{reason}: {why}"
        verdict = Verdict(turn=turn, score=None, source="judge", judge=self._judge.name, note=note, at=self._wall())
        await self._write([verdict], [Drop(turn=turn, stage="judge", reason=reason, detail=why)])
        self._given_up += 1

    async def _fresh(self) -> Sequence[Case | UnreadableTurn]:
        """Read the oldest unjudged cases, past the waiting ones; pause between reads while many wait."""
        limit = min(self._batch + len(self._waiting) + self._in_hand, max(SCAN, self._batch))
        cases = await anyio.to_thread.run_sync(self._ledger.unjudged, limit)
        listed = {case.turn.id if isinstance(case, Case) else case.turn for case in cases}
        self._waiting.keep(listed)
        idle = 0 < len(self._waiting) == len(listed)
        self._rest_until = self._clock() + min(5.0, 0.005 * len(self._waiting)) if idle else float("-inf")
        return cases

    def _decided(self, case: Case) -> Verdict | None:
        """Return the evidence's verdict with the outcome of a step's episode; None if the judge must be asked."""
        if case.verdict is not None:  # judged while the episode ran, rewarded since
            return joined(case, case.verdict)
        verdict = decide(case, trusted=self._settings.trusted, limits=self._settings.hints)
        environment = environment_of(case.turn.user)
        if environment is None or case.outcome.kind == "side":
            return verdict
        wants_vote = self._settings.step_votes or environment in self._settings.trusted
        if wants_vote and (verdict is None or verdict.source == "environment"):
            return None
        return outcome_alone(case, "its outcome is not known yet") if verdict is None else joined(case, verdict)

    def _sorted(self, cases: Iterable[Case]) -> _Sorted:
        """Sort cases: decided by evidence, decided with words left for the judge, left to the judge, or unreadable."""
        found: list[tuple[Case, Verdict]] = []
        taught: list[tuple[Case, Verdict]] = []
        rest: list[Case] = []
        unfit: list[tuple[Case, DropReason, str]] = []
        for case in cases:
            if (why := failure(case)) is not None:
                unfit.append((case, "environment failed", why))
                continue
            try:
                verdict = self._decided(case)
            except Exception as error:  # any text may follow a reply; a parser error costs this case alone
                log.warning("judge.failed turn=%s", case.turn.id, exc_info=True)
                unfit.append((case, "judge failed", f"its evidence could not be read: {type(error).__name__}"))
                continue
            if verdict is None:
                rest.append(case)
            else:
                (taught if leaves_words(case, verdict) else found).append((case, verdict))
        return _Sorted(found, taught, rest, unfit)

    async def _by_evidence(
        self, cases: Iterable[Case], read_at: float
    ) -> tuple[list[tuple[Case, Verdict]], list[tuple[Case, Verdict]], list[Case]]:
        """Write the verdicts of evidence; return them, those with words for the judge, and the cases for the judge."""
        groups = await anyio.to_thread.run_sync(self._sorted, cases)
        for case, reason, why in groups.unfit:
            await self._give_up(case.turn.id, reason=reason, why=why)
        if groups.found:
            await self._write([_dated(case, verdict, read_at) for case, verdict in groups.found])
            for case, _ in groups.found:
                self._waiting.remove(case.turn.id)
        return groups.found, groups.taught, groups.rest

    async def _by_judge(self, jobs: Sequence[Job]) -> int:
        """Run the jobs, ``workers`` at a time, and settle new evidence meanwhile."""
        self._overtaken.clear()
        self._newest.clear()
        self._written, self._in_hand = 0, len(jobs)

        async def run(job: Job) -> None:
            async with self._slots:
                await job()

        async with bare_errors(), anyio.create_task_group() as outer:
            outer.start_soon(self._settle_new_evidence)
            async with anyio.create_task_group() as inner:
                for job in jobs:
                    inner.start_soon(run, job)
            outer.cancel_scope.cancel()
        self._in_hand = 0
        return self._written

    async def _settle_new_evidence(self) -> None:
        """Settle new evidence every second, so that a slow judge does not delay it."""
        while True:
            await self._sleep(1.0)
            read_at = self._wall()
            with anyio.CancelScope(shield=True):  # a verdict is written and counted, or neither
                cases = await self._read()
                self._newest.update((case.turn.id, case) for case in cases)
                found, _, _ = await self._by_evidence(cases, read_at)
                self._overtaken |= {case.turn.id for case, _ in found}
                self._written += len(found)

    async def _settle(self, case: Case, read_at: float) -> None:
        """Ask the judge and write its verdict at once; a case that cannot be judged now waits."""
        turn = case.turn.id
        try:
            verdict = await self._ask(case)
        except JudgeUnavailable as error:
            if case.reward is None:
                await self._wait(turn, error.what)
                return
            verdict = outcome_alone(case, f"no vote on this step: {error.what}")
        self._waiting.answered(turn)
        if turn not in self._overtaken:
            case = self._newest.get(turn, case)  # a hint may have arrived during the judge's call
            await self._finish(case, verdict, read_at)

    async def _hear_out(self, case: Case, decided: Verdict, read_at: float) -> None:
        """Add the judge's hints to a verdict that evidence scored; the judge reads the user's words with more models.

        If the judge is unavailable, the evidence's own hints are written at once.
        """
        try:
            decided = with_heard(decided, await self._ask(case))
        except JudgeUnavailable as error:
            log.info("judge.hints_skipped turn=%s reason=%s", case.turn.id, error.what)
        if case.turn.id not in self._overtaken:
            await self._finish(self._newest.get(case.turn.id, case), decided, read_at)

    async def _wait(self, turn: str, why: str) -> None:
        """Keep the case in the list; give it up if it fails alone while others are answered."""
        log.info("judge.waits turn=%s reason=%s", turn, why)
        if self._waiting.failed(turn, why) and turn not in self._overtaken:
            await self._give_up(turn, reason="judge failed", why=why)

    async def _finish(self, case: Case, verdict: Verdict, read_at: float) -> None:
        try:
            final = _dated(case, self._final_verdict(case, verdict), read_at)
        except Exception as error:  # a judge may be foreign code with an arbitrary verdict
            log.warning("judge.failed turn=%s", case.turn.id, exc_info=True)
            why = f"the verdict cannot be used: {type(error).__name__}"
            await self._give_up(case.turn.id, reason="judge failed", why=why)
        else:
            await self._write([final])
            self._written += 1

    async def _ask(self, case: Case) -> Verdict:
        try:
            return await self._judge.judge(case)
        except JudgeUnavailable:
            raise
        except Exception as error:  # a judge may be foreign code; its error costs this opinion, not the loop
            log.warning("judge.failed turn=%s judge=%s", case.turn.id, self._judge.name, exc_info=True)
            self._failed += 1
            note = f"{self._judge.name} raised {type(error).__name__}"
            return Verdict(turn=case.turn.id, score=None, source="judge", judge=self._judge.name, note=note)

    def _final_verdict(self, case: Case, verdict: Verdict) -> Verdict:
        """Finish the judge's verdict: drop hints from sources that may not instruct, join the outcome."""
        trusted, limits = self._settings.trusted, self._settings.hints
        offered = verdict.hints if may_instruct(case, trusted) else ()
        filtered = filter_hints(
            (*given_hints(case, trusted), *offered), reply=case.turn.completion.reply.content, limits=limits
        )
        verdict = replace(verdict, turn=case.turn.id, hints=filtered.kept)
        if self._settings.behaviour:
            verdict = with_behaviour(case, verdict)
        return verdict if environment_of(case.turn.user) is None else joined(case, verdict)

    async def _compare(self, case: Case, explicit: float) -> None:
        """Ask the judge about a turn that the user scored, and record both scores."""
        try:
            verdict = await self._ask(case)
            for judge in every(self._judge):
                if isinstance(judge, LearnsFromRatings):
                    await judge.rated(case, explicit)
        except JudgeUnavailable:
            return  # the comparison is optional: the explicit verdict is written already
        if verdict.score is not None:
            self._pairs.append((case.turn.user, verdict.score, explicit))

    async def _write(self, verdicts: Sequence[Verdict], drops: Sequence[Drop] = ()) -> None:
        await anyio.to_thread.run_sync(self._ledger.add_verdicts, [_encodable(verdict) for verdict in verdicts], drops)
        if any(verdict.hints for verdict in verdicts):
            await self._note()
        for verdict in verdicts:
            level = logging.DEBUG if verdict.source == "environment" else logging.INFO  # steps would hide all others
            log.log(level, "judge.verdict turn=%s score=%s source=%s", verdict.turn, verdict.score, verdict.source)

    async def _note(self) -> None:
        """Make notes from new hints; a failure delays no verdict and is retried on a later tick."""
        if self._take_notes is None:
            return
        try:
            await anyio.to_thread.run_sync(self._take_notes)
        except Exception:  # the writer of irreplaceable data reports the ledger's errors
            log.warning("judge.notes_failed", exc_info=True)

    async def status(self) -> dict[str, Json]:
        """Return the `status` entries: waiting cases with the reason, today's tokens, agreement with users, alarms."""
        scores = await anyio.to_thread.run_sync(self._ledger.scores, self._settings.window)
        judges = tuple(every(self._judge))
        models = [part for part in judges if isinstance(part, LlmJudge)]
        breakers = [*(part.breaker for part in models), self._waiting.breaker]
        breaker = next((part for part in breakers if part.state != "closed"), breakers[0])
        reason = breaker.reason or self._waiting.breaker.reason
        reports = [part for part in judges if isinstance(part, Reports)]
        alarms = reported.alarms(scores, self._pairs, waiting=len(self._waiting), reason=reason)
        return {
            "judge": self._judge.name,
            "at_work": at_work(self._judge),
            "models": [part.report() for part in reports],
            "measured": next((part.measured() for part in judges if isinstance(part, Measures)), None),
            "waiting": len(self._waiting),
            "failed": self._failed + self._given_up,
            "paused": breaker.state != "closed",
            "reason": reason,
            "retry_in": breaker.retry_in,
            "tokens_today": sum(part.tokens.spent for part in models),
            "agreement": reported.agreement(self._pairs),
            "alarms": [asdict(alarm) for alarm in (*alarms, *(found for part in reports for found in part.alarms()))],
        }


class _Sorted(NamedTuple):
    found: list[tuple[Case, Verdict]]
    taught: list[tuple[Case, Verdict]]
    rest: list[Case]
    unfit: list[tuple[Case, DropReason, str]]


@asynccontextmanager
async def bare_errors() -> AsyncIterator[None]:
    """Raise a group's first error by itself, so that its type and message are visible."""
    try:
        yield
    except ExceptionGroup as errors:
        first: Exception = errors
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def _encodable(verdict: Verdict) -> Verdict:
    """Return the verdict in writable form: lone surrogates, which no file can hold, are replaced."""
    hints = tuple(replace(hint, text=_valid_text(hint.text)) for hint in verdict.hints)
    version = None if verdict.prompt_version is None else _valid_text(verdict.prompt_version)
    return replace(
        verdict, hints=hints, note=_valid_text(verdict.note), judge=_valid_text(verdict.judge), prompt_version=version
    )


def _valid_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def _dated(case: Case, verdict: Verdict, read_at: float) -> Verdict:
    """Date the verdict to the time of reading, so that newer feedback counts as later; set each hint's reach."""
    newest = max((feedback.at for feedback in case.feedback), default=read_at)
    return replace(with_reach(case, verdict), at=max(read_at, newest))
