"""The output of `status` and `show` as plain JSON: stable, documented in docs/json.md, read while the system runs."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from openclaw_rl.errors import NotInLedger
from openclaw_rl.store import LedgerReader, codec
from openclaw_rl.store.results import LoopHealth
from openclaw_rl.types import DropReason, Turn, Verdict
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views import notes
from openclaw_rl.views.browse import Curve
from openclaw_rl.views.lineage import with_aliases

# Alarms on turns that cannot train, or train too late. Pure.

REMEDIES: Mapping[DropReason, str] = {
    "side turn": "mark conversations with the header X-Turn-Type: main, or do not use the '-side' model for them",
    "opted out": "remove x-openclaw-rl-train: off from the requests or the key",
    "no signal": "send the whole history with each request, or a session id (X-Session-Id)",
    "alike": "give tasks that the policy solves now and then, neither always nor never",
    "unjudged": "check that the judge keeps up (judge in 'openclaw-rl status'), and end each session of a group",
    "cut off": "raise max_tokens, or set train.train_truncated = true",
    "greedy": "sample with a temperature above 0",
    "not shared": "see train.share",
    "stale": "raise train.max_lag",
    "late": "end episodes sooner, and name each group of rollouts (x-openclaw-rl-group) only once",
    "redacted": "see serve.redact",
}
"""the remedy if most turns are dropped for a reason"""


_FEW = 4
_SHARE = 0.1
"""number of turns that are stale by chance, and their share in all that could have trained"""


def falling_behind(stale: int, trained: int) -> str | None:
    """Return the alarm if turns are ready too late to train, because versions outpace them; None otherwise."""
    if stale < _FEW or stale < _SHARE * (stale + trained):
        return None
    return (
        f"training falls behind: {stale} turns of the last hour were dropped as stale and {trained} trained; raise"
        " train.batch_size (fewer versions) or train.max_lag, or give the trainer a faster device"
    )


def nothing_trainable(*, answered: int, trainable: int, reasons: Mapping[DropReason, int], after: int) -> str | None:
    """Return the alarm if ``after`` turns or more were answered and none of them may train; None otherwise.

    ``reasons`` counts turns that do not train by reason; the most frequent is listed first, with its remedy if one is
    known. Turns that still wait for their next message are in none of the counts.
    """
    if trainable > 0 or answered < after:
        return None
    ranked = sorted(((count, why) for why, count in reasons.items() if count > 0), key=lambda item: (-item[0], item[1]))
    because = ", ".join(f"{count} {why}" for count, why in ranked) or "no reason was recorded"
    remedy = REMEDIES.get(ranked[0][1]) if ranked else None
    return f"{answered} turns answered, none trainable, because: {because}" + (f"; {remedy}" if remedy else "")


View = dict[str, Any]

LATELY = 3600.0
"""seconds for which turns that were dropped as too late are an alarm"""
STALE = 30.0
"""seconds without a report after which a running loop is shown as silent"""
FORMER = {"last_message": "said"}
"""renamed fields, also printed under their former names"""
LITTLE = 64 * 2**20
"""free bytes on the ledger's disk under which there is an alarm"""


def status(ledger: LedgerReader, *, starve_after: int, now: float | None = None) -> View:
    """Return the run's state: loops, rows, drops by reason, the live version, alarms.

    ``starve_after`` settled turns without a trainable one are an alarm.
    """
    counts = ledger.counts()
    live = LiveVersions(ledger).live()
    last = ledger.last_step()
    now = time.time() if now is None else now
    loops = [_loop(health, now) for health in ledger.health()]
    behind = falling_behind(*ledger.stale_and_trained(now - LATELY))
    return {
        "ledger": str(ledger.place),
        "bytes": ledger.size(),
        "loops": loops,
        "gateways": [_gateway(loop) for loop in loops if loop["loop"].partition(" ")[0] == "serve"],
        "turns": {
            "answered": counts["turns"],
            "open": counts["open_turns"],
            "settled": counts["outcomes"],
            "judged": counts["judged_turns"],
            "trained": counts["trained"],
            "dropped": ledger.drop_counts(),
        },
        "feedback": counts["feedback"],
        "notes": notes.by_state(ledger),
        "steps": counts["steps"],
        "last_step": step(ledger, last.number) if last else None,
        "versions": counts["versions"],
        "live": live.number if live else None,
        "alarms": [
            *_room(ledger),
            *([behind] if behind else []),
            *alarms(counts, ledger.drop_counts(), loops, after=starve_after),
        ],
    }


def _loop(health: LoopHealth, now: float) -> View:
    age = now - health.at
    state = "silent" if health.state == "running" and age > STALE else health.state
    return {**asdict(health), "state": state, "seconds_ago": round(age, 1)}


def _gateway(loop: View) -> View:
    """Return one of the serving processes: the first has no number in its loop's name."""
    number = int(loop["loop"].partition(" ")[2] or 1)
    fields = {name: loop[name] for name in ("state", "pid", "host", "seconds_ago")}
    return {"gateway": number, "url": loop["detail"].get("url"), **fields}


def alarms(counts: Mapping[str, int], drops: Mapping[DropReason, int], loops: list[View], *, after: int) -> list[str]:
    """Return the alarms that need attention, each with its reason and remedy."""
    problems = [
        f"loop {loop['loop']} is failing ({loop['failures']} times in a row): {loop['error']}"
        for loop in loops
        if loop["state"] == "failing"
    ]
    problems += [
        f"loop {loop['loop']} has not reported for {loop['seconds_ago']:.0f} s; check that process {loop['pid']} on"
        f" {loop['host']} still runs, its log, and the free space on its disk"
        for loop in loops
        if loop["state"] == "silent"
    ]
    for loop in loops:
        problems += [f"{alarm['what']}; {alarm['remedy']}" for alarm in loop["detail"].get("alarms", ())]
    trainable = counts["outcomes"] - sum(drops.values())
    starved = nothing_trainable(answered=counts["outcomes"], trainable=trainable, reasons=drops, after=after)
    return [*problems, starved] if starved else problems


def _room(ledger: LedgerReader) -> list[str]:
    free = shutil.disk_usage(ledger.root).free if ledger.root.exists() else LITTLE
    if free >= LITTLE:
        return []
    return [f"{free / 2**20:.1f} MiB are left on the disk of {ledger.root}; free some, or turns are lost"]


def turn(ledger: LedgerReader, name: str) -> View:
    """Return a turn: its prompt and reply, its outcome and verdict, and its training."""
    answered = ledger.turn(turn_id(name))
    outcome, verdict = ledger.outcome(answered.id), ledger.verdict(answered.id)
    drop, recorded = ledger.dropped(answered.id), ledger.recorded(answered.id)
    completion = answered.completion
    return {
        "id": answered.id,
        "at": answered.at,
        "session": outcome.session if outcome else answered.session,
        "declared_session": answered.session,
        "user": answered.user,
        "group": answered.group,
        "client": answered.client,
        "kind": outcome.kind if outcome else None,
        "kind_reason": outcome.kind_reason if outcome else None,
        "confidence": outcome.confidence if outcome else None,
        "index": outcome.index if outcome else None,
        "parent": outcome.parent if outcome else None,
        "prompt": codec.plain(answered.prompt),
        "noted": notes.put_in(answered),
        "reply": codec.plain(completion.reply),
        "finish": completion.finish,
        "flaws": list(completion.flaws),
        "tokens": {"prompt": len(completion.prompt_tokens), "reply": len(completion.reply_tokens)},
        "sampling": codec.plain(completion.sampling),
        "trainable": answered.trainable,
        "imported": recorded is not None,
        "next_state": codec.plain(outcome.next_state) if outcome else None,
        "ended": outcome.ended if outcome else None,
        "evidence": list(outcome.evidence) if outcome else [],
        "feedback": [asdict(feedback) for feedback in ledger.feedback(answered.id)],
        "verdict": _verdict(verdict) if verdict else None,
        "dropped": {"stage": drop.stage, "reason": drop.reason, "detail": drop.detail} if drop else None,
        "version": completion.version,
        "step": ledger.trained_in(answered.id),
    }


def _verdict(verdict: Verdict) -> View:
    return {
        "score": verdict.score,
        "source": verdict.source,
        "votes": list(verdict.votes),
        "hints": [asdict(hint) for hint in verdict.hints],
        "note": verdict.note,
        "judge": verdict.judge,
        "prompt_version": verdict.prompt_version,
        "seconds": verdict.seconds,
        "at": verdict.at,
    }


def turn_id(name: str) -> str:
    """Return the turn id in a response id: ``resp_`` and ``msg_`` are other wire formats' prefixes."""
    for prefix in ("resp_", "msg_", "chatcmpl-"):
        name = name.removeprefix(prefix)
    return name


def session(ledger: LedgerReader, name: str, user: str | None = None) -> View:
    """Return a session's turns in order, each in a line; ``user`` selects its owner if several users have the name."""
    users = [owner for owner in ledger.session_users(name) if user in (None, owner)]
    if not users:
        raise NotInLedger(f"there is no session {name!r} in the ledger", remedy="'openclaw-rl show turn ID' names it")
    if len(users) > 1:
        raise NotInLedger(f"{len(users)} users have a session {name!r}: {', '.join(users)}", remedy="give --user")
    turns = [_line(ledger, ledger.turn(turn_name)) for turn_name in ledger.session(name, users[0])]
    return {"session": name, "user": users[0], "turns": with_aliases(turns, FORMER)}


def _line(ledger: LedgerReader, found: Turn) -> View:
    outcome, verdict, drop = ledger.outcome(found.id), ledger.verdict(found.id), ledger.dropped(found.id)
    return {
        "id": found.id,
        "at": found.at,
        "user": found.user,
        "kind": outcome.kind if outcome else None,
        "index": outcome.index if outcome else None,
        "last_message": found.prompt.messages[-1].content,
        "reply": found.completion.reply.content,
        "score": verdict.score if verdict else None,
        "hints": [hint.text for hint in verdict.hints] if verdict else [],
        "dropped": drop.reason if drop else None,
        "version": found.completion.version,
        "step": ledger.trained_in(found.id),
    }


def step(ledger: LedgerReader, number: int) -> View:
    """Return a step: the turns it used, its metrics, the version it made."""
    target = ledger.step(number)
    version_made = ledger.made_by(number)
    return {**asdict(target), "version": version_made.number if version_made else None}


def version(ledger: LedgerReader, number: int) -> View:
    """Return a version: its origin and its history."""
    target = ledger.version(number)
    history = [change._asdict() for change in ledger.history(number)]
    trained = list(ledger.step(target.step).turns) if target.step is not None else []
    return {
        "number": target.number,
        "parent": target.parent,
        "base": target.base,
        "adapter": target.adapter,
        "step": target.step,
        "state": target.state,
        "origin": target.origin,
        "note": target.note,
        "at": target.at,
        "turns": trained,
        "history": history,
    }


# Serving's present load and its last hour, sampled from outside and kept by the sampling process.

EVERY: Final = 5.0
"""seconds between two samples"""
_KEPT: Final = 720
_FRESH: Final = 10.0
"""age in seconds after which a server's own report is outdated"""


class LiveSample(NamedTuple):
    """A sample: running and waiting requests, and reply tokens since the servers began."""

    at: float
    running: float
    waiting: float
    tokens: float


class LiveFigures:
    """The last hour's samples, summed over all servers."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._samples: deque[LiveSample] = deque(maxlen=_KEPT)

    def look(self, ledger: LedgerReader) -> None:
        """Take a sample, unless the last one is recent."""
        now = self._clock()
        if self._samples and now - self._samples[-1].at < EVERY:
            return
        loads = [
            health.detail.get("load", {})
            for health in ledger.health()
            if health.role == "serve" and now - health.at < _FRESH
        ]
        if loads:
            sums = [sum(load.get(name, 0.0) for load in loads) for name in ("running", "waiting", "reply_tokens")]
            self._samples.append(LiveSample(now, *sums))

    def curves(self) -> list[Curve]:
        """Return the queue and the served tokens per second, by minutes before the newest sample."""
        drawn = [
            Curve(
                name="queue",
                title="Requests waiting",
                good="0 most of the time. A lasting queue: more people than sequence slots (policy.slots).",
                unit="now",
                points=tuple((self._minutes(entry), entry.waiting) for entry in self._samples),
                axis="minute",
            ),
            Curve(
                name="served",
                title="Tokens served",
                good="Follows what people ask for. Low while requests wait: the engine shares its processor.",
                unit="tokens a second",
                points=tuple(self._rates()),
                axis="minute",
            ),
        ]
        return [curve for curve in drawn if curve.points]

    def _minutes(self, sample: LiveSample) -> float:
        return round((sample.at - self._samples[-1].at) / 60, 2)

    def _rates(self) -> list[tuple[float, float]]:
        pairs = zip(self._samples, list(self._samples)[1:], strict=False)
        return [
            (self._minutes(now), (now.tokens - before.tokens) / (now.at - before.at))
            for before, now in pairs
            if now.tokens >= before.tokens  # a restarted server counts from 0
        ]
