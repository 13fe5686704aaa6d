"""The gate: examines a candidate beside the live version, with a policy that holds both.

Cheap checks run first and one failure ends the examination: the training verdicts, the candidate's weights, and its
scores on recorded turns. Replies are generated only after these, and general ability is measured again only if the
candidate has moved away from the base model.
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
from openclaw_rl.types import Distillation, Sampling, Version

# A few bad replies are no proof: other prompts and longer replies, compared with the base model's, decide.

MORE_PROBES = 12
"""additional prompts for a version whose replies seem degenerate or less relevant than the base model's"""
LONGER = 3
"""reply limit on these prompts, as a multiple of the usual one"""
VALID_FOR = 4
"""versions for which a passed second look stays valid, unless the failure gets worse"""

Compare = Callable[[Sequence[ProbeReply], Sequence[ProbeReply]], Check]
"""compares the candidate's replies with the base model's"""


class SecondLook:
    """Repetition of a failed check on other prompts; a pass stays valid for some versions, unless one seems worse."""

    def __init__(self, *, tokens: int) -> None:
        self._tokens = LONGER * tokens
        self._passed: dict[
            str, tuple[int, int]
        ] = {}  # by check: the version that last passed, its number of bad replies

    async def decide(
        self, seen: Check, bad: int, compare: Compare, examiner: Examiner, candidate: Version, asked: Sequence[Probe]
    ) -> Check:
        """Return the check that replaces one failed on ``asked``, with ``bad`` replies; include its first numbers."""
        number, before = self._passed.get(seen.name, (-VALID_FOR, 0))
        if bad <= before and candidate.number < number + VALID_FOR:
            return Check(name=seen.name, ok=True, detail=f"{seen.detail}; version {number} passed on other prompts")
        probes = everyday_probes(MORE_PROBES, besides=asked, tokens=self._tokens)
        versions = (candidate, base_of(candidate))
        check = compare(*[await examiner.replies(version, probes, compared=False) for version in versions])
        if check.ok is None:
            return seen  # there are no other prompts
        if check.ok:
            self._passed[seen.name] = candidate.number, bad
        return replace(check, numbers={**check.numbers, "at_first": dict(seen.numbers)})


def base_of(version: Version) -> Version:
    """Return the base model as a version."""
    return Version(number=0, parent=None, base=version.base)


# The examining policy, and the candidates it holds beside the live version.

log = logging.getLogger(__name__)

GetPolicy = Callable[[], Awaitable[Policy]]


class LazyPolicy:
    """Policy of this process alone, built and started on first use."""

    def __init__(self, build: Callable[[], Policy]) -> None:
        self._build = build
        self._policy: Policy | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> Policy:
        """Return the started policy; raise BackendError if it cannot start."""
        async with self._lock:
            if self._policy is None:
                policy = self._build()
                await policy.start()
                self._policy = policy
            return self._policy

    async def stop(self) -> None:
        """Stop the policy if it was started. Safe to call twice."""
        policy, self._policy = self._policy, None
        if policy is not None:
            await policy.stop()


class Candidates:
    """Versions that the policy holds for examination."""

    def __init__(self, policy: GetPolicy) -> None:
        self._policy = policy
        self._admitted: set[int] = set()

    async def admit(self, policy: Policy, candidate: Version, live: Version) -> Check:
        """Load the candidate beside the live version and check that its weights can be read."""
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
        """Unload versions. A promoted one stays until the next examination, since serving loads it meanwhile."""
        leaving = numbers & self._admitted
        self._admitted -= leaving
        try:
            policy = await self._policy() if leaving else None
            for number in leaving:
                if isinstance(policy, SupportsCandidates):
                    await policy.dismiss(number)
        except BackendError as error:  # a policy that is down holds no versions
            log.debug("versions %s could not be dismissed: %s", leaving, error)


# Check of the training verdicts against users' explicit words.

EARLIER_STEPS = 4
"""additional earlier steps examined if the judge is in doubt"""


class VerdictCheck:
    """Comparison of a step's verdicts with the score from users' explicit words (None without any)."""

    def __init__(self, ledger: LedgerReader, user_score: Callable[[Case], float | None], *, limits: GateLimits) -> None:
        self._ledger, self._user_score, self._limits = ledger, user_score, limits

    def check(self, candidate: Version) -> Check:
        """Check the step's verdicts; for a judge that users contradict, or never confirm, add the steps before."""
        if candidate.step is None:
            return check_verdicts(0, 0, limits=self._limits)
        agreements = list(self._agreements(candidate.step))
        confirmed = {judge for judge, agrees in agreements if agrees}
        doubted = {judge for judge, agrees in agreements if agrees is False or judge not in confirmed}
        for number in range(max(candidate.step - EARLIER_STEPS, 1), candidate.step) if doubted else ():
            agreements += [pair for pair in self._agreements(number) if pair[0] in doubted]
        votes = [agrees for _, agrees in agreements if agrees is not None]
        return check_verdicts(votes.count(False), len(votes), limits=self._limits)

    def _agreements(self, step: int) -> Iterator[tuple[str, bool | None]]:
        """Yield per verdict its judge and True if the user's words agree, None if they give no score."""
        for name in self._ledger.step(step).turns:
            verdict, outcome = self._ledger.verdict(name), self._ledger.outcome(name)
            if verdict is None or outcome is None or verdict.source != "judge" or not verdict.score:
                continue
            plain = self._user_score(Case(turn=self._ledger.turn(name), outcome=outcome))
            yield verdict.judge, (plain > 0) == (verdict.score > 0) if plain else None


NEAR = 0.1
"""growth of the distance from the base model, in nats per token, up to which general ability is not measured again"""


@dataclass(slots=True, kw_only=True)
class _Findings:
    """Results of an examination so far; ``best`` are those from earlier promotions."""

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
    """Gate that examines a candidate beside the live version and decides: promote, refuse or hold."""

    def __init__(
        self,
        ledger: LedgerReader,
        policy: GetPolicy,
        *,
        limits: GateLimits,
        sampling: Sampling,
        user_score: Callable[[Case], float | None],
        probes: int,
        distillation_probes: int,
        replays: int,
        tokens: int,
        tasks: PlaysTasks | None,
    ) -> None:
        """``tasks`` plays held-out tasks of the training environment; None without an environment."""
        self._ledger = ledger
        self._policy = policy
        self._limits = limits
        self._sampling = sampling
        self._verdicts = VerdictCheck(ledger, user_score, limits=limits)
        self._count, self._replays, self._tokens = probes, replays, tokens
        self._many = distillation_probes
        self._tasks = tasks
        self._candidates = Candidates(policy)
        self._second_look = SecondLook(tokens=tokens)
        self._examiner: Examiner | None = None
        self._able_at = 0.0  # distance from the base model at the last passed ability check

    async def decide(self, candidate: Version, live: Version) -> GateDecision:
        """Decide on the candidate; hold it if a backend fails, so that it is examined again."""
        began = time.monotonic()
        findings = _Findings()
        try:
            await self._examine(candidate, live, findings)
            decision, reason = decide(findings.checks)
        except BackendError as error:
            decision, reason = "hold", f"the candidate cannot be examined now: {error}"
        if decision != "promote":
            await self._candidates.dismiss({candidate.number})
        return GateDecision(
            version=candidate.number,
            against=live.number,
            decision=decision,
            reason=reason,
            evidence=findings.evidence(),
            seconds=round(time.monotonic() - began, 3),
        )

    async def _examine(self, candidate: Version, live: Version, found: _Findings) -> None:
        """Run the checks, cheapest first; stop at the first failure."""
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
        replies = await examiner.replies(candidate, (*probes.held_out, *probes.replayed))  # in one batch
        again = {probe.key for probe in probes.replayed}
        new, replayed = (
            [reply for reply in replies if reply.probe not in again],
            [reply for reply in replies if reply.probe in again],
        )
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
        broken = any(
            reply.flaw and reply.probe in tooled for reply in replayed
        )  # everyday prompts do not test tool calls
        if not broken and [check for check in checks if check.ok is False] == [flaws]:
            checks[checks.index(flaws)] = await self._flaws_elsewhere(flaws, examiner, candidate, probes.held_out)
        return checks

    async def _distillation(self, candidate: Version) -> Distillation | None:
        """Return the prompt distillation that made the candidate, None for a step on turns."""
        return None if candidate.step is None else await asyncio.to_thread(self._ledger.distillation_of, candidate.step)

    async def _from_teacher(self, candidate: Version) -> float | None:
        """Return a distilled candidate's distance from the model with the note in its prompt, in nats per token."""
        distillation = await self._distillation(candidate)
        return None if distillation is None else distillation.evidence.get("last", {}).get("kl")

    async def _flaws_elsewhere(
        self, seen: Check, examiner: Examiner, candidate: Version, asked: Sequence[Probe]
    ) -> Check:
        def compare(now: Sequence[ProbeReply], base: Sequence[ProbeReply]) -> Check:
            return check_flaws(now, (), base, limits=self._limits)

        bad = seen.numbers["candidate"]
        return await self._second_look.decide(seen, bad, compare, examiner, candidate, asked)

    async def _drift(self, examiner: Examiner, candidate: Version, asked: Sequence[Probe]) -> Check:
        """Check relevance against the base model; on many prompts for a distilled version, whose note is arbitrary."""
        if await self._distillation(candidate) is not None:
            return await self._lost(examiner, candidate, asked)

        def compare(now: Sequence[ProbeReply], base: Sequence[ProbeReply]) -> Check:
            return check_drift(now, base, limits=self._limits)

        check = compare(*[await examiner.replies(version, asked) for version in (candidate, base_of(candidate))])
        if check.ok is not False:
            return check
        lost = check.numbers["base"] - check.numbers["candidate"]
        return await self._second_look.decide(check, lost, compare, examiner, candidate, asked)

    async def _lost(self, examiner: Examiner, candidate: Version, asked: Sequence[Probe]) -> Check:
        """Check relevance on many prompts; if too many are missed, compare with the base model on these."""
        many = everyday_probes(self._many, besides=asked, about="everyday", tokens=LONGER * self._tokens)
        now = await examiner.replies(candidate, many, compared=False)
        check = check_lost(now, None, limits=self._limits)
        if check.ok is not False:
            return check
        missed = {reply.probe for reply in now if not reply.relevant}
        again = [probe for probe in many if probe.key in missed]
        base = await examiner.replies(base_of(candidate), again, compared=False)
        return check_lost(now, base, limits=self._limits)

    async def _ability(self, examiner: Examiner, candidate: Version, checks: Sequence[Check]) -> Check:
        """Measure again only after a move: this close to weights that passed, little can have been lost."""
        away = next((check.numbers.get("kl") for check in checks if check.name == "kl"), None)
        if away is not None and away <= self._able_at + NEAR:
            moved = f"{away:.2f} nats per token from the base model, last measured at {self._able_at:.2f}"
            return Check(name="ability", ok=True, detail=f"not measured again: {moved}")
        margins = await examiner.margins(candidate)
        ability = check_ability(margins, await examiner.margins(base_of(candidate)), limits=self._limits)
        if ability.ok and away is not None:
            self._able_at = away
        return ability

    def _examples(
        self, old: Sequence[ProbeReply], new: Sequence[ProbeReply], replayed: Sequence[ProbeReply]
    ) -> list[dict[str, Any]]:
        before = {reply.probe: reply.reply for reply in old}
        before |= {reply.probe: self._ledger.turn(reply.probe).completion.reply.content for reply in replayed}
        turns = {reply.probe for reply in replayed}
        return [
            {
                "prompt": reply.prompt,
                "turn": reply.probe if reply.probe in turns else None,
                "live": before.get(reply.probe),
                "candidate": reply.reply,
                "flaw": reply.flaw,
            }
            for reply in (*new, *replayed)
        ]


def _gains(now: Mapping[str, float], before: Mapping[str, float]) -> list[float]:
    return [now[turn] - before[turn] for turn in now]


def _plain(check: Check) -> dict[str, Any]:
    return {"name": check.name, "ok": check.ok, "detail": check.detail, "numbers": dict(check.numbers)}
