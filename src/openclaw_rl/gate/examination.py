"""The gate: a candidate is examined beside the live version, with a policy that holds both.

Cheap checks come first and one failure ends the examination: the verdicts that trained the candidate, its weights,
what it makes of turns that are read again; only then is anything generated, and only when it has moved away from the
base model is its general ability measured anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openclaw_rl.errors import BackendError, ModelRefused
from openclaw_rl.gate.best import BestResults
from openclaw_rl.gate.checks import (
    Check,
    GateLimits,
    Probe,
    ProbeReply,
    Probes,
    check_ability,
    check_corrections,
    check_drift,
    check_entropy,
    check_flaws,
    check_kl,
    check_length,
    check_lost,
    check_pairs,
    check_relevance,
    check_tasks,
    check_verdicts,
    choose,
    decide,
    everyday_probes,
)
from openclaw_rl.gate.examiner import Examiner, reads_calls
from openclaw_rl.ports import Case, GateDecision, PlaysTasks, Policy, SupportsCandidates, SupportsVersions
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Rehearsal, Sampling, Version

# Few replies that seem bad are no proof: other prompts and longer replies, beside the base model's, decide.

MORE_PROBES = 12
"""further prompts for a version whose replies seem degenerate, or to have lost relevance since the base model"""
LONGER = 3
"""times the usual tokens for a reply to them"""
VALID_FOR = 4
"""versions for which a second look that found nothing holds, unless it seems to have become worse"""

Compare = Callable[[Sequence[ProbeReply], Sequence[ProbeReply]], Check]
"""a check of the candidate's replies beside the base model's"""


class SecondLook:
    """Repeats a failed check on other prompts. What it finds holds for some versions, unless one seems worse."""

    def __init__(self, *, tokens: int) -> None:
        self._tokens = LONGER * tokens
        self._passed: dict[str, tuple[int, int]] = {}  # by check: the version last found sound, how bad it had seemed

    async def decide(
        self, seen: Check, bad: int, compare: Compare, examiner: Examiner, candidate: Version, asked: Sequence[Probe]
    ) -> Check:
        """What replaces a check that failed on ``asked``, with ``bad`` replies; its first numbers are kept."""
        number, before = self._passed.get(seen.name, (-VALID_FOR, 0))
        if bad <= before and candidate.number < number + VALID_FOR:
            return Check(name=seen.name, ok=True, detail=f"{seen.detail}; version {number} was found sound on others")
        others = everyday_probes(MORE_PROBES, besides=asked, tokens=self._tokens)
        both = (candidate, base_of(candidate))
        found = compare(*[await examiner.replies(version, others, compared=False) for version in both])
        if found.ok is None:
            return seen  # there are no other prompts
        if found.ok:
            self._passed[seen.name] = candidate.number, bad
        return replace(found, numbers={**found.numbers, "at_first": dict(seen.numbers)})


def base_of(version: Version) -> Version:
    """The base model as a version."""
    return Version(number=0, parent=None, base=version.base)


# The policy that examines, and the candidates it holds beside the live version.

log = logging.getLogger(__name__)

GetPolicy = Callable[[], Awaitable[Policy]]


class LazyPolicy:
    """A policy of this process alone, built and started when it is first needed."""

    def __init__(self, build: Callable[[], Policy]) -> None:
        self._build = build
        self._policy: Policy | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> Policy:
        """The policy, ready; raises BackendError when it cannot be had."""
        async with self._lock:
            if self._policy is None:
                made = self._build()
                await made.start()
                self._policy = made
            return self._policy

    async def stop(self) -> None:
        """End it, if it was started. Safe to call twice."""
        policy, self._policy = self._policy, None
        if policy is not None:
            await policy.stop()


class Candidates:
    """The versions that the policy was given for examination."""

    def __init__(self, policy: GetPolicy) -> None:
        self._policy = policy
        self._admitted: set[int] = set()

    async def admit(self, policy: Policy, candidate: Version, live: Version) -> Check:
        """Load the candidate beside the live version; whether its weights can be read."""
        if not isinstance(policy, SupportsCandidates):
            raise BackendError(
                f"policy {policy.name!r} cannot hold a candidate beside the live version",
                remedy="give it admit() and dismiss() (openclaw_rl.ports.SupportsCandidates), or set gate.mode = 'off'",
            )
        await self.dismiss(self._admitted - {candidate.number, live.number})
        if isinstance(policy, SupportsVersions):
            policy.know(live)
        self._admitted.add(candidate.number)
        try:
            await policy.admit(candidate)
        except ModelRefused as error:
            return Check(name="weights", ok=False, detail=str(error))
        return Check(name="weights", ok=True, detail="readable and finite")

    async def dismiss(self, numbers: set[int]) -> None:
        """Unload versions. One that was promoted stays until the next examination: serving takes it up meanwhile."""
        leaving = numbers & self._admitted
        self._admitted -= leaving
        try:
            policy = await self._policy() if leaving else None
            for number in leaving:
                if isinstance(policy, SupportsCandidates):
                    await policy.dismiss(number)
        except BackendError as error:  # a policy that is down holds nothing
            log.debug("versions %s could not be dismissed: %s", leaving, error)


# Do the verdicts that trained a candidate contradict what users plainly wrote?

EARLIER_STEPS = 4
"""steps before one whose judge is in doubt that count as well"""


class VerdictCheck:
    """Compares a step's verdicts with the score that users' own words give (None where they give none)."""

    def __init__(self, ledger: LedgerReader, user_score: Callable[[Case], float | None], *, limits: GateLimits) -> None:
        self._ledger, self._user_score, self._limits = ledger, user_score, limits

    def check(self, candidate: Version) -> Check:
        """A judge whom users contradict, or never confirm in this step, is in doubt: the steps before count as well."""
        if candidate.step is None:
            return check_verdicts(0, 0, limits=self._limits)
        found = list(self._agreements(candidate.step))
        confirmed = {judge for judge, agrees in found if agrees}
        doubted = {judge for judge, agrees in found if agrees is False or judge not in confirmed}
        for number in range(max(candidate.step - EARLIER_STEPS, 1), candidate.step) if doubted else ():
            found += [one for one in self._agreements(number) if one[0] in doubted]
        both = [agrees for _, agrees in found if agrees is not None]
        return check_verdicts(both.count(False), len(both), limits=self._limits)

    def _agreements(self, step: int) -> Iterator[tuple[str, bool | None]]:
        """Of each verdict of a step: the judge, and whether the user's own words agree; None where they say nothing."""
        for name in self._ledger.step(step).turns:
            verdict, outcome = self._ledger.verdict(name), self._ledger.outcome(name)
            if verdict is None or outcome is None or verdict.source != "judge" or not verdict.score:
                continue
            plain = self._user_score(Case(turn=self._ledger.turn(name), outcome=outcome))
            yield verdict.judge, (plain > 0) == (verdict.score > 0) if plain else None


NEAR = 0.1
"""nats per token from the base model by which a version may move before its general ability is measured again"""


@dataclass(slots=True, kw_only=True)
class _Findings:
    """The results of an examination so far; ``best`` are those of the versions promoted before."""

    checks: list[Check] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    best: BestResults = field(default_factory=BestResults)

    @property
    def failed(self) -> bool:
        return any(check.ok is False for check in self.checks)

    def evidence(self) -> dict[str, Any]:
        return {
            "checks": [_plain(check) for check in self.checks],
            "examples": self.examples,
            "best": self.best.json(),
        }


class VersionGate:
    """Examines a candidate beside the live version and decides: promote, refuse or hold."""

    def __init__(
        self,
        ledger: LedgerReader,
        policy: GetPolicy,
        *,
        limits: GateLimits,
        sampling: Sampling,
        user_score: Callable[[Case], float | None],
        probes: int,
        rehearsal_probes: int,
        replays: int,
        tokens: int,
        tasks: PlaysTasks | None,
    ) -> None:
        """``tasks`` plays held-out tasks of the environment that trains; None: there is none."""
        self._ledger = ledger
        self._policy = policy
        self._limits = limits
        self._sampling = sampling
        self._verdicts = VerdictCheck(ledger, user_score, limits=limits)
        self._count, self._replays, self._tokens = probes, replays, tokens
        self._many = rehearsal_probes
        self._tasks = tasks
        self._candidates = Candidates(policy)
        self._second_look = SecondLook(tokens=tokens)
        self._examiner: Examiner | None = None
        self._able_at = 0.0  # how far from the base model general ability was last measured and found good

    async def decide(self, candidate: Version, live: Version) -> GateDecision:
        """Never raises for what a backend does: what cannot be measured now is held and tried again."""
        began = time.monotonic()
        found = _Findings()
        try:
            await self._examine(candidate, live, found)
            decision, reason = decide(found.checks)
        except BackendError as error:
            decision, reason = "hold", f"the candidate cannot be examined now: {error}"
        if decision != "promote":
            await self._candidates.dismiss({candidate.number})
        return GateDecision(
            version=candidate.number,
            against=live.number,
            decision=decision,
            reason=reason,
            evidence=found.evidence(),
            seconds=round(time.monotonic() - began, 3),
        )

    async def _examine(self, candidate: Version, live: Version, found: _Findings) -> None:
        """Check what is cheap first; stop at the first failure."""
        checks = found.checks
        checks.append(await asyncio.to_thread(self._verdicts.check, candidate))
        if found.failed:
            return
        policy = await self._policy()
        checks.append(await self._candidates.admit(policy, candidate, live))
        if found.failed:
            return
        found.best = await asyncio.to_thread(BestResults.read, self._ledger, live)
        examiner = self._examiner = self._examiner or Examiner(
            policy, sampling=self._sampling, tokens=self._tokens, calls=reads_calls(policy)
        )
        examiner.forget((candidate, live))
        probes = await asyncio.to_thread(self._probes, candidate)
        checks.append(await self._pinned(examiner, candidate, live, probes))
        checks.append(await self._corrections(examiner, candidate, live, probes, found))
        if found.failed:
            return
        checks += await self._generated(examiner, candidate, live, probes, found.examples)
        if not found.failed and self._tasks is not None:
            checks.append(await self._played(self._tasks, policy, candidate, live, found))
        if not found.failed:
            checks.append(await self._drift(examiner, candidate, probes.held_out))
        if not found.failed:
            checks.append(await self._ability(examiner, candidate, checks))

    def _probes(self, candidate: Version) -> Probes:
        before = self._ledger.step(candidate.step).at if candidate.step is not None else candidate.at
        return choose(self._ledger, before=before, count=self._count, replays=self._replays)

    async def _pinned(self, examiner: Examiner, candidate: Version, live: Version, probes: Probes) -> Check:
        limits = self._limits
        gains = await examiner.pinned_gains(candidate, live, probes.pinned)
        return check_pairs("pinned", gains, tolerated=limits.likelihood_drop, what="pinned replies", limits=limits)

    async def _corrections(
        self, examiner: Examiner, candidate: Version, live: Version, probes: Probes, found: _Findings
    ) -> Check:
        now, before = [await examiner.leans(version, probes.corrections) for version in (candidate, live)]
        farthest = found.best.farthest_leans(before)
        found.best = replace(found.best, leans=found.best.farthest_leans(before, now))
        return check_corrections(_gains(now, before), _gains(now, farthest), limits=self._limits)

    async def _played(
        self, tasks: PlaysTasks, policy: Policy, candidate: Version, live: Version, found: _Findings
    ) -> Check:
        now, before = [await tasks.solved(policy, version) for version in (candidate, live)]
        base = {} if found.best.tasks else await tasks.solved(policy, base_of(candidate))
        most = found.best.most_tasks(base, before)
        found.best = replace(found.best, tasks=found.best.most_tasks(base, before, now))
        return check_tasks(now, before, most, limits=self._limits)

    async def _generated(
        self, examiner: Examiner, candidate: Version, live: Version, probes: Probes, examples: list[dict[str, Any]]
    ) -> list[Check]:
        limits = self._limits
        base, old = [await examiner.replies(version, probes.held_out) for version in (base_of(candidate), live)]
        both = await examiner.replies(candidate, (*probes.held_out, *probes.replayed))  # one batch serves them all
        again = {probe.key for probe in probes.replayed}
        new, replayed = [one for one in both if one.probe not in again], [one for one in both if one.probe in again]
        examples += self._examples(old, new, replayed)
        flaws = check_flaws([*new, *replayed], old, base, limits=limits)
        checks = [
            check_kl([*new, *replayed], limits=limits, taught=await self._from_teacher(candidate)),
            check_entropy(new, old, base, limits=limits),
            check_length(new, old, limits=limits),
            flaws,
            check_relevance(new, old, limits=limits),
        ]
        tooled = {probe.key for probe in probes.replayed if probe.prompt.tools}
        broken = any(one.flaw and one.probe in tooled for one in replayed)  # everyday prompts say nothing of these
        if not broken and [check for check in checks if check.ok is False] == [flaws]:
            checks[checks.index(flaws)] = await self._flaws_elsewhere(flaws, examiner, candidate, probes.held_out)
        return checks

    async def _rehearsal(self, candidate: Version) -> Rehearsal | None:
        """What made the candidate, if a rehearsal did."""
        return None if candidate.step is None else await asyncio.to_thread(self._ledger.rehearsal_of, candidate.step)

    async def _from_teacher(self, candidate: Version) -> float | None:
        """How far a rehearsed candidate is from the model that has the note in its prompt, in nats per token."""
        rehearsal = await self._rehearsal(candidate)
        return None if rehearsal is None else rehearsal.evidence.get("last", {}).get("kl")

    async def _flaws_elsewhere(
        self, seen: Check, examiner: Examiner, candidate: Version, asked: Sequence[Probe]
    ) -> Check:
        def compare(now: Sequence[ProbeReply], base: Sequence[ProbeReply]) -> Check:
            return check_flaws(now, (), base, limits=self._limits)

        bad = seen.numbers["candidate"]
        return await self._second_look.decide(seen, bad, compare, examiner, candidate, asked)

    async def _drift(self, examiner: Examiner, candidate: Version, asked: Sequence[Probe]) -> Check:
        """Compare it with the base model: a rehearsed version on many prompts, since a note asks for anything."""
        if await self._rehearsal(candidate) is not None:
            return await self._lost(examiner, candidate, asked)

        def compare(now: Sequence[ProbeReply], base: Sequence[ProbeReply]) -> Check:
            return check_drift(now, base, limits=self._limits)

        seen = compare(*[await examiner.replies(version, asked) for version in (candidate, base_of(candidate))])
        if seen.ok is not False:
            return seen
        lost = seen.numbers["base"] - seen.numbers["candidate"]
        return await self._second_look.decide(seen, lost, compare, examiner, candidate, asked)

    async def _lost(self, examiner: Examiner, candidate: Version, asked: Sequence[Probe]) -> Check:
        """What it misses the point of; where that is too much, the base model is asked about that alone."""
        many = everyday_probes(self._many, besides=asked, about="everyday", tokens=LONGER * self._tokens)
        now = await examiner.replies(candidate, many, compared=False)
        seen = check_lost(now, None, limits=self._limits)
        if seen.ok is not False:
            return seen
        missed = {one.probe for one in now if not one.relevant}
        again = [probe for probe in many if probe.key in missed]
        base = await examiner.replies(base_of(candidate), again, compared=False)
        return check_lost(now, base, limits=self._limits)

    async def _ability(self, examiner: Examiner, candidate: Version, checks: Sequence[Check]) -> Check:
        """Measure anew only once it has moved: so near to weights that were able, it cannot have lost much."""
        away = next((check.numbers.get("kl") for check in checks if check.name == "kl"), None)
        if away is not None and away <= self._able_at + NEAR:
            moved = f"{away:.2f} nats per token from the base model, last measured at {self._able_at:.2f}"
            return Check(name="ability", ok=True, detail=f"not measured again: {moved}")
        margins = await examiner.margins(candidate)
        found = check_ability(margins, await examiner.margins(base_of(candidate)), limits=self._limits)
        if found.ok and away is not None:
            self._able_at = away
        return found

    def _examples(
        self, old: Sequence[ProbeReply], new: Sequence[ProbeReply], replayed: Sequence[ProbeReply]
    ) -> list[dict[str, Any]]:
        before = {one.probe: one.reply for one in old}
        before |= {one.probe: self._ledger.turn(one.probe).completion.reply.content for one in replayed}
        turns = {one.probe for one in replayed}
        return [
            {
                "prompt": one.prompt,
                "turn": one.probe if one.probe in turns else None,
                "live": before.get(one.probe),
                "candidate": one.reply,
                "flaw": one.flaw,
            }
            for one in (*new, *replayed)
        ]


def _gains(now: Mapping[str, float], before: Mapping[str, float]) -> list[float]:
    return [now[turn] - before[turn] for turn in now]


def _plain(check: Check) -> dict[str, Any]:
    return {"name": check.name, "ok": check.ok, "detail": check.detail, "numbers": dict(check.numbers)}
