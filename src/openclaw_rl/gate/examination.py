"""The gate and the watch, wired: a policy to examine with, the ledger to read from, the settings.

Cheap questions come first and one failed answer ends the examination: the verdicts that trained the candidate, its
weights, what it makes of turns that are read again; only then is anything generated, and only when it has moved away
from the base is its general ability asked for anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.errors import BackendError, ModelRefused
from openclaw_rl.formats.parts import CallStart
from openclaw_rl.formats.tools import tool_call_reader
from openclaw_rl.gate.checks import (
    Check,
    Limits,
    Shown,
    check_ability,
    check_entropy,
    check_flaws,
    check_kl,
    check_length,
    check_pairs,
    check_sense,
    check_slide,
    check_verdicts,
    decide,
)
from openclaw_rl.gate.monitor import Rules, relapse
from openclaw_rl.gate.probes import Called, Examiner, Probe, Probes, choose, everyday_probes
from openclaw_rl.ports import Case, GateDecision, Policy, Regression, SupportsCandidates, SupportsVersions
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Sampling, Version

log = logging.getLogger(__name__)

NEAR = 0.1
"""nats per token from the base by which a version may move before its general ability is asked for again"""

CLOSER = 12
"""further prompts that are asked of a version whose replies seem flawed, or to have lost sense since the base"""
ROOMIER = 3
"""times the usual tokens for a reply to them"""
SURE = 4
"""versions for which such a look that found nothing holds, unless it seems to have become worse"""

BACK = 4
"""steps before one whose judge is in doubt that are looked at as well"""
REACH = 1000
"""judged turns that the watch looks back on"""

Borrow = Callable[[], Awaitable[Policy]]


def reads_calls(policy: Policy) -> Called:
    """Whether a raw reply calls a tool, and whether the call is broken, in the way this model writes them."""

    def called(text: str, cut: bool) -> tuple[bool, bool]:
        found = tool_call_reader(policy.tool_format)
        parts = [*found.feed(text), *found.end(cut=cut)]
        return any(isinstance(part, CallStart) for part in parts), bool(found.flaws)

    return called


class OwnPolicy:
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
        """End it, if it was begun. Safe to call twice."""
        policy, self._policy = self._policy, None
        if policy is not None:
            await policy.stop()


class VersionGate:
    """Examines a candidate beside the live version and rules: promote, refuse or hold."""

    def __init__(
        self,
        ledger: LedgerReader,
        borrow: Borrow,
        *,
        limits: Limits,
        sampling: Sampling,
        plainly: Callable[[Case], float | None],
        held: int = 6,
        replays: int = 4,
        tokens: int = 28,
    ) -> None:
        self._ledger = ledger
        self._borrow = borrow
        self._limits = limits
        self._sampling = sampling
        self._plainly = plainly  # the score that users' own words give, None where they are silent
        self._held, self._replays, self._tokens = held, replays, tokens
        self._examiner: Examiner | None = None
        self._guests: set[int] = set()
        self._able_at = 0.0  # how far from the base general ability was last measured and found good
        self._sound: dict[str, tuple[int, int]] = {}  # by check: the version last looked at closely, how bad it seemed

    async def decide(self, candidate: Version, live: Version) -> GateDecision:
        """Never raises for what a backend does: what cannot be measured now is held and tried again."""
        began = time.monotonic()
        checks: list[Check] = []
        shown: list[dict[str, Any]] = []
        try:
            await self._examine(candidate, live, checks, shown)
            decision, reason = decide(checks)
        except BackendError as error:
            decision, reason = "hold", f"the candidate cannot be examined now: {error}"
        ruling = GateDecision(
            version=candidate.number,
            against=live.number,
            decision=decision,
            reason=reason,
            evidence={"checks": [_plain(check) for check in checks], "examples": shown},
            seconds=round(time.monotonic() - began, 3),
        )
        if decision != "promote":
            await self._let_go({candidate.number})
        return ruling

    async def _examine(
        self, candidate: Version, live: Version, checks: list[Check], shown: list[dict[str, Any]]
    ) -> None:
        """Ask what is cheap first; stop at the first failure."""
        checks.append(await asyncio.to_thread(self._verdicts, candidate))
        if _failed(checks):
            return
        policy = await self._borrow()
        checks.append(await self._admit(policy, candidate, live))
        if _failed(checks):
            return
        examiner = self._examiner = self._examiner or Examiner(
            policy, sampling=self._sampling, tokens=self._tokens, called=reads_calls(policy)
        )
        examiner.forget((candidate, live))
        probes = await asyncio.to_thread(self._probes, candidate)
        checks += await self._read_again(examiner, candidate, live, probes)
        if _failed(checks):
            return
        checks += await self._heard(examiner, candidate, live, probes, shown)
        if not _failed(checks):
            checks.append(await self._slide(examiner, candidate, probes.held))
        if not _failed(checks):
            checks.append(await self._ability(examiner, candidate, checks))

    def _verdicts(self, candidate: Version) -> Check:
        """Hold the verdicts of the step against what users plainly said.

        A judge that they contradict, or never speak of here, is in doubt: the steps before count as well.
        """
        if candidate.step is None:
            return check_verdicts(0, 0, limits=self._limits)
        found = list(self._opinions(candidate.step))
        borne_out = {judge for judge, agrees in found if agrees}
        doubted = {judge for judge, agrees in found if agrees is False or judge not in borne_out}
        for number in range(max(candidate.step - BACK, 1), candidate.step) if doubted else ():
            found += [one for one in self._opinions(number) if one[0] in doubted]
        both = [agrees for _, agrees in found if agrees is not None]
        return check_verdicts(both.count(False), len(both), limits=self._limits)

    def _opinions(self, step: int) -> Iterator[tuple[str, bool | None]]:
        """Of each verdict of a step: the judge, and whether the user's own words agree; None where they are silent."""
        for name in self._ledger.step(step).turns:
            verdict, outcome = self._ledger.verdict(name), self._ledger.outcome(name)
            if verdict is None or outcome is None or verdict.source != "judge" or not verdict.score:
                continue
            plainly = self._plainly(Case(turn=self._ledger.turn(name), outcome=outcome))
            yield verdict.judge, (plainly > 0) == (verdict.score > 0) if plainly else None

    async def _admit(self, policy: Policy, candidate: Version, live: Version) -> Check:
        if not isinstance(policy, SupportsCandidates):
            raise BackendError(
                f"policy {policy.name!r} cannot hold a candidate beside the live version",
                remedy="give it admit() and dismiss() (openclaw_rl.ports.SupportsCandidates), or set gate.mode = 'off'",
            )
        await self._let_go(self._guests - {candidate.number, live.number})
        if isinstance(policy, SupportsVersions):
            policy.know(live)
        self._guests.add(candidate.number)
        try:
            await policy.admit(candidate)
        except ModelRefused as error:
            return Check(name="weights", ok=False, said=str(error))
        return Check(name="weights", ok=True, said="readable and finite")

    def _probes(self, candidate: Version) -> Probes:
        before = self._ledger.step(candidate.step).at if candidate.step is not None else candidate.at
        return choose(self._ledger, before=before, held=self._held, replays=self._replays)

    async def _read_again(self, examiner: Examiner, candidate: Version, live: Version, probes: Probes) -> list[Check]:
        limits = self._limits
        kept = await examiner.kept(candidate, live, probes.pinned)
        heeded = await examiner.heeded(candidate, live, probes.corrections)
        return [
            check_pairs("pinned", kept, tolerated=limits.likelihood_drop, what="pinned replies", limits=limits),
            check_pairs("corrections", heeded, tolerated=limits.correction_drop, what="corrections", limits=limits),
        ]

    async def _heard(
        self, examiner: Examiner, candidate: Version, live: Version, probes: Probes, shown: list[dict[str, Any]]
    ) -> list[Check]:
        limits = self._limits
        base, old = [await examiner.shown(version, probes.held) for version in (_base(candidate), live)]
        said = await examiner.shown(candidate, (*probes.held, *probes.replayed))  # one batch: a pass serves them all
        again = {probe.key for probe in probes.replayed}
        new, replayed = [one for one in said if one.probe not in again], [one for one in said if one.probe in again]
        shown += self._examples(old, new, replayed)
        flaws = check_flaws([*new, *replayed], old, base, limits=limits)
        checks = [
            check_kl([*new, *replayed], limits=limits),
            check_entropy(new, old, limits=limits),
            check_length(new, old, limits=limits),
            flaws,
            check_sense(new, old, limits=limits),
        ]
        tooled = {probe.key for probe in probes.replayed if probe.prompt.tools}
        broken = any(one.flaw and one.probe in tooled for one in replayed)  # everyday prompts say nothing of these
        if not broken and [check for check in checks if check.ok is False] == [flaws]:
            checks[checks.index(flaws)] = await self._flaws_elsewhere(flaws, examiner, candidate, probes.held)
        return checks

    async def _flaws_elsewhere(
        self, seen: Check, examiner: Examiner, candidate: Version, asked: Sequence[Probe]
    ) -> Check:
        def found(now: Sequence[Shown], first: Sequence[Shown]) -> Check:
            return check_flaws(now, (), first, limits=self._limits)

        return await self._closer(seen, seen.numbers["candidate"], found, examiner, candidate, asked)

    async def _slide(self, examiner: Examiner, candidate: Version, asked: Sequence[Probe]) -> Check:
        """Hold it against the base."""

        def found(now: Sequence[Shown], first: Sequence[Shown]) -> Check:
            return check_slide(now, first, limits=self._limits)

        seen = found(*[await examiner.shown(version, asked) for version in (candidate, _base(candidate))])
        if seen.ok is not False:
            return seen
        lost = seen.numbers["base"] - seen.numbers["candidate"]
        return await self._closer(seen, lost, found, examiner, candidate, asked)

    async def _closer(
        self,
        seen: Check,
        bad: int,
        found: Callable[[Sequence[Shown], Sequence[Shown]], Check],
        examiner: Examiner,
        candidate: Version,
        asked: Sequence[Probe],
    ) -> Check:
        """A few replies seem too bad, ``bad`` of them: other prompts and longer replies, beside the base's, decide.

        What they find holds for some versions, unless one seems worse. What was seen at first is kept in the numbers.
        """
        number, before = self._sound.get(seen.name, (-SURE, 0))
        if bad <= before and candidate.number < number + SURE:
            return Check(name=seen.name, ok=True, said=f"{seen.said}; version {number} was found sound on others")
        others = everyday_probes(CLOSER, besides=asked, tokens=ROOMIER * self._tokens)
        closer = found(*[await examiner.shown(version, others) for version in (candidate, _base(candidate))])
        if closer.ok is None:
            return seen  # nothing else could be asked
        if closer.ok:
            self._sound[seen.name] = candidate.number, bad
        return replace(closer, numbers={**closer.numbers, "at_first": dict(seen.numbers)})

    async def _ability(self, examiner: Examiner, candidate: Version, checks: Sequence[Check]) -> Check:
        """Ask anew only once it has moved: so near to weights that were able, it cannot have lost much."""
        away = next((check.numbers.get("kl") for check in checks if check.name == "kl"), None)
        if away is not None and away <= self._able_at + NEAR:
            said = f"not asked again: {away:.2f} nats per token from the base, last asked at {self._able_at:.2f}"
            return Check(name="ability", ok=True, said=said)
        margins = await examiner.margins(candidate)
        found = check_ability(margins, await examiner.margins(_base(candidate)), limits=self._limits)
        if found.ok and away is not None:
            self._able_at = away
        return found

    def _examples(self, old: Sequence[Shown], new: Sequence[Shown], replayed: Sequence[Shown]) -> list[dict[str, Any]]:
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

    async def _let_go(self, guests: set[int]) -> None:
        """A version that was promoted stays until the next examination: serving takes it up meanwhile."""
        leaving = guests & self._guests
        self._guests -= leaving
        try:
            policy = await self._borrow() if leaving else None
            for number in leaving:
                if isinstance(policy, SupportsCandidates):
                    await policy.dismiss(number)
        except BackendError as error:  # a policy that is down holds nothing
            log.debug("versions %s could not be dismissed: %s", leaving, error)


def _base(candidate: Version) -> Version:
    return Version(number=0, parent=None, base=candidate.base)


def _failed(checks: Sequence[Check]) -> bool:
    return any(check.ok is False for check in checks)


def _plain(check: Check) -> dict[str, Any]:
    return {"name": check.name, "ok": check.ok, "said": check.said, "numbers": dict(check.numbers)}


class VersionWatch:
    """Looks at the newest evidence whenever there is any."""

    def __init__(self, ledger: LedgerReader, *, rules: Rules) -> None:
        self._ledger = ledger
        self._rules = rules
        self._seen = -1

    def check(self) -> Regression | None:
        """The relapse that the evidence shows, None while there is none."""
        newest = self._ledger.newest("verdicts")
        if newest == self._seen:
            return None
        self._seen = newest
        return relapse(self._ledger.scored(REACH), self._ledger.versions(), rules=self._rules)
