"""What `status` and `show` print, as plain JSON: stable, documented in docs/json.md, read while the system runs."""

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

# Is there anything to train on, and is it trained in time? Pure.

REMEDIES: Mapping[DropReason, str] = {
    "side turn": "mark talk with the header X-Turn-Type: main, or do not use the '-side' model for it",
    "opted out": "remove x-openclaw-rl-train: off from the requests or the key",
    "no signal": "send the whole history with each request, or a session id (X-Session-Id)",
    "alike": "give tasks that the policy solves now and then, neither always nor never",
    "unjudged": "see whether the judge keeps up (judge in 'openclaw-rl status'), and end each session of a group",
    "cut off": "raise max_tokens, or set train.train_truncated = true",
    "greedy": "sample with a temperature above 0",
    "not shared": "see train.share",
    "stale": "raise train.max_lag",
    "late": "end episodes sooner, and name each group of rollouts (x-openclaw-rl-group) only once",
    "redacted": "see serve.redact",
}
"""what to do where most turns are dropped for a reason"""


_FEW = 4
_SHARE = 0.1
"""turns that are stale by chance, and their share of all that could have trained"""


def falling_behind(stale: int, trained: int) -> str | None:
    """The alarm when turns come too late to train, because versions are made faster than turns are used; None else."""
    if stale < _FEW or stale < _SHARE * (stale + trained):
        return None
    return (
        f"training falls behind: {stale} turns of the last hour were dropped as stale and {trained} trained; raise"
        " train.batch_size (fewer versions) or train.max_lag, or give the trainer a faster device"
    )


def nothing_trainable(*, answered: int, trainable: int, reasons: Mapping[DropReason, int], after: int) -> str | None:
    """The alarm when ``after`` turns or more were answered and none of them may train; None otherwise.

    ``reasons`` counts turns that do not train by why; the most frequent comes first, with its remedy if one is known.
    Turns that still wait for what comes next belong in none of the counts.
    """
    if trainable > 0 or answered < after:
        return None
    ranked = sorted(((count, why) for why, count in reasons.items() if count > 0), key=lambda item: (-item[0], item[1]))
    because = ", ".join(f"{count} {why}" for count, why in ranked) or "no reason was recorded"
    remedy = REMEDIES.get(ranked[0][1]) if ranked else None
    return f"{answered} turns answered, none trainable, because: {because}" + (f"; {remedy}" if remedy else "")


View = dict[str, Any]

LATELY = 3600.0
"""seconds for which turns that came too late to train are an alarm"""
STALE = 30.0
"""seconds without a report after which a running loop is shown as silent"""
FORMER = {"last_message": "said"}
"""renamed fields, printed under their former names as well"""
LITTLE = 64 * 2**20
"""bytes of room on the ledger's disk under which there is an alarm"""


def status(ledger: LedgerReader, *, starve_after: int, now: float | None = None) -> View:
    """How the run stands: loops, rows, drops by reason, the live version, alarms.

    ``starve_after`` settled turns of which none may train are an alarm.
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
    """One of the processes that answer: the first has no number in its loop's name."""
    number = int(loop["loop"].partition(" ")[2] or 1)
    shown = {name: loop[name] for name in ("state", "pid", "host", "seconds_ago")}
    return {"gateway": number, "url": loop["detail"].get("url"), **shown}


def alarms(counts: Mapping[str, int], drops: Mapping[DropReason, int], loops: list[View], *, after: int) -> list[str]:
    """What a person should look at, each with the reason and the remedy."""
    found = [
        f"loop {loop['loop']} is failing ({loop['failures']} times in a row): {loop['error']}"
        for loop in loops
        if loop["state"] == "failing"
    ]
    found += [
        f"loop {loop['loop']} has not reported for {loop['seconds_ago']:.0f} s; see whether process {loop['pid']} on"
        f" {loop['host']} still runs, its log, and the room on its disk"
        for loop in loops
        if loop["state"] == "silent"
    ]
    for loop in loops:
        found += [f"{alarm['what']}; {alarm['remedy']}" for alarm in loop["detail"].get("alarms", ())]
    trainable = counts["outcomes"] - sum(drops.values())
    starved = nothing_trainable(answered=counts["outcomes"], trainable=trainable, reasons=drops, after=after)
    return [*found, starved] if starved else found


def _room(ledger: LedgerReader) -> list[str]:
    free = shutil.disk_usage(ledger.root).free if ledger.root.exists() else LITTLE
    if free >= LITTLE:
        return []
    return [f"{free / 2**20:.1f} MiB are left on the disk of {ledger.root}; free some, or turns are lost"]


def turn(ledger: LedgerReader, name: str) -> View:
    """One turn: its prompt and reply, what came after, its verdict, and whether it trained."""
    found = ledger.turn(turn_id(name))
    outcome, verdict = ledger.outcome(found.id), ledger.verdict(found.id)
    drop, recorded = ledger.dropped(found.id), ledger.recorded(found.id)
    done = found.completion
    return {
        "id": found.id,
        "at": found.at,
        "session": outcome.session if outcome else found.session,
        "declared_session": found.session,
        "user": found.user,
        "group": found.group,
        "client": found.client,
        "kind": outcome.kind if outcome else None,
        "kind_reason": outcome.kind_reason if outcome else None,
        "confidence": outcome.confidence if outcome else None,
        "index": outcome.index if outcome else None,
        "parent": outcome.parent if outcome else None,
        "prompt": codec.plain(found.prompt),
        "noted": notes.put_in(found),
        "reply": codec.plain(done.reply),
        "finish": done.finish,
        "flaws": list(done.flaws),
        "tokens": {"prompt": len(done.prompt_tokens), "reply": len(done.reply_tokens)},
        "sampling": codec.plain(done.sampling),
        "trainable": found.trainable,
        "imported": recorded is not None,
        "next_state": codec.plain(outcome.next_state) if outcome else None,
        "ended": outcome.ended if outcome else None,
        "evidence": list(outcome.evidence) if outcome else [],
        "feedback": [asdict(feedback) for feedback in ledger.feedback(found.id)],
        "verdict": _verdict(verdict) if verdict else None,
        "dropped": {"stage": drop.stage, "reason": drop.reason, "detail": drop.detail} if drop else None,
        "version": done.version,
        "step": ledger.trained_in(found.id),
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
    """The turn behind a response id: ``resp_`` and ``msg_`` are what the other wire formats put before it."""
    for prefix in ("resp_", "msg_", "chatcmpl-"):
        name = name.removeprefix(prefix)
    return name


def session(ledger: LedgerReader, name: str, user: str | None = None) -> View:
    """One session: its turns in order, each in a line. ``user`` says whose, where several have one of this name."""
    users = [each for each in ledger.session_users(name) if user in (None, each)]
    if not users:
        raise NotInLedger(f"there is no session {name!r} in the ledger", remedy="'openclaw-rl show turn ID' names it")
    if len(users) > 1:
        raise NotInLedger(f"{len(users)} users have a session {name!r}: {', '.join(users)}", remedy="give --user")
    turns = [_line(ledger, ledger.turn(found)) for found in ledger.session(name, users[0])]
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
    """One step: the turns it used, its metrics, the version it made."""
    found = ledger.step(number)
    made = ledger.made_by(number)
    return {**asdict(found), "version": made.number if made else None}


def version(ledger: LedgerReader, number: int) -> View:
    """One version: where it comes from, and what happened to it since."""
    found = ledger.version(number)
    history = [change._asdict() for change in ledger.history(number)]
    trained = list(ledger.step(found.step).turns) if found.step is not None else []
    return {
        "number": found.number,
        "parent": found.parent,
        "base": found.base,
        "adapter": found.adapter,
        "step": found.step,
        "state": found.state,
        "origin": found.origin,
        "note": found.note,
        "at": found.at,
        "turns": trained,
        "history": history,
    }


# How serving is doing now, and how it did in the last hour: looked at from outside, and kept by whoever looks.

EVERY: Final = 5.0
"""seconds between two looks"""
_KEPT: Final = 720
_FRESH: Final = 10.0
"""seconds after which what a server said of itself is old"""


class LiveSample(NamedTuple):
    """One look: requests that are answered and that wait, tokens of replies since the servers began."""

    at: float
    running: float
    waiting: float
    tokens: float


class LiveFigures:
    """The looks of the last hour, of all servers together."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._samples: deque[LiveSample] = deque(maxlen=_KEPT)

    def look(self, ledger: LedgerReader) -> None:
        """Look, unless it was done a moment ago."""
        now = self._clock()
        if self._samples and now - self._samples[-1].at < EVERY:
            return
        loads = [one.detail.get("load", {}) for one in ledger.health() if one.role == "serve" and now - one.at < _FRESH]
        if loads:
            sums = [sum(load.get(name, 0.0) for load in loads) for name in ("running", "waiting", "reply_tokens")]
            self._samples.append(LiveSample(now, *sums))

    def curves(self) -> list[Curve]:
        """The queue, and how many tokens came out of it; of minutes before the newest look."""
        found = [
            Curve(
                name="queue",
                title="Requests waiting",
                good="0 most of the time. A queue that stays: more people than sequence slots (policy.slots).",
                unit="now",
                points=tuple((self._minutes(one), one.waiting) for one in self._samples),
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
        return [curve for curve in found if curve.points]

    def _minutes(self, sample: LiveSample) -> float:
        return round((sample.at - self._samples[-1].at) / 60, 2)

    def _rates(self) -> list[tuple[float, float]]:
        pairs = zip(self._samples, list(self._samples)[1:], strict=False)
        return [
            (self._minutes(now), (now.tokens - before.tokens) / (now.at - before.at))
            for before, now in pairs
            if now.tokens >= before.tokens  # a server that began anew counts from 0
        ]
