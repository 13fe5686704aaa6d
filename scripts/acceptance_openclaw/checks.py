"""What must be true of the ledger after the talk. Pure: rows in, checks out.

Nothing here uses the code that is under test: conversations are told apart by the session key that OpenClaw writes
into its own prompt, and what should follow what is known from the script.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripted import TOO_LONG, Said


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One turn of the ledger with all that became of it. ``key`` is empty where the prompt names no session."""

    id: str
    key: str
    tools: bool
    asked: str
    calls: tuple[str, ...]
    declared: str | None
    version: int
    session: str | None = None
    kind: str | None = None
    reason: str = ""
    parent: str | None = None
    next_state: tuple[tuple[str, str], ...] = ()
    ended: str | None = None
    judged: bool = False
    score: float | None = None
    hints: tuple[str, ...] = ()
    step: int | None = None
    reply: str = ""
    rewritten: bool = False
    finish: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the table."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What was said under one key without a reset or a compaction in between. ``cut`` says what ended it.

    ``again`` are messages whose first answer was lost on the way: their turns may be in the ledger more than once.
    """

    key: str
    said: tuple[Said, ...]
    cut: str | None = None
    again: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One main turn: in which part, what was asked, which call the reply makes, what must follow."""

    part: int
    key: str
    asked: str
    call: str | None
    follows: tuple[str, str] | None


def expected(parts: Sequence[Part]) -> list[Expected]:
    """The main turns that the script makes, part by part."""
    turns: list[Expected] = []
    for number, part in enumerate(parts):
        for at, said in enumerate(part.said):
            after = part.said[at + 1].text if at + 1 < len(part.said) else None
            rounds = [(call.tool, ("tool", call.shows)) for call in said.calls]
            turns += [
                Expected(part=number, key=part.key, asked=said.text, call=call, follows=follows)
                for call, follows in (*rounds, (None, ("user", after) if after else None))
            ]
    return turns


def session_key(text: str) -> str:
    """The key that OpenClaw's Runtime line names, without its prefix; empty without such a line."""
    found = re.search(r"\| session=agent:main:([^ |]+) \|", text)
    return found.group(1) if found else ""


def check(
    rows: Sequence[Row],
    parts: Sequence[Part],
    *,
    plugin: bool,
    heard: Sequence[tuple[str, str]],
    failed: Sequence[str],
    steps: Sequence[Sequence[str]],
    live: int,
) -> list[Check]:
    """All checks. ``heard`` are the answers that the client got, each with its key; ``failed`` are requests that went
    wrong in anybody's eyes, ``steps`` the turns of each step."""
    talk = [row for row in rows if row.tools and row.finish != "aborted"]
    paired, stray = pair(talk, parts)
    return [
        _all("no request failed", failed, f"{len(heard)} answers in {len(rows)} turns"),
        _kept(rows, heard),
        _turns(paired, stray, parts),
        _next_states(paired),
        _side(rows),
        _separate(paired, parts),
        _cuts(paired, parts),
        _corrections(paired),
        _steps(rows, steps),
        _served(rows, live),
        _declared(rows, plugin=plugin),
    ]


Paired = Sequence[tuple[Expected, Row | None]]


def pair(talk: Sequence[Row], parts: Sequence[Part]) -> tuple[Paired, list[Row]]:
    """Each expected turn with its row, in order, and the rows that nothing in the script explains.

    Where a message had to be said again, the last of the equal rows counts: its reply is the one that was kept.
    """
    left: dict[str, list[Row]] = {}
    for row in talk:
        left.setdefault(row.key, []).append(row)
    paired = [
        (turn, _take(left.get(turn.key, []), turn, again=turn.asked in parts[turn.part].again))
        for turn in expected(parts)
    ]
    return paired, [row for queue in left.values() for row in queue]


def _take(queue: list[Row], turn: Expected, *, again: bool) -> Row | None:
    if not queue or not _is(queue[0], turn):
        return None
    row = queue.pop(0)
    while again and queue and _is(queue[0], turn):
        row = queue.pop(0)
    return row


def _is(row: Row, turn: Expected) -> bool:
    made = row.calls[0] if row.calls else None
    return row.asked == turn.asked and made == turn.call


def _all(name: str, bad: Sequence[str], good: str) -> Check:
    """Good when nothing is bad; the first three that are bad are told."""
    return Check(name=name, ok=not bad, detail="; ".join(bad[:3]) or good)


def _kept(rows: Sequence[Row], heard: Sequence[tuple[str, str]]) -> Check:
    """OpenClaw shows the beginning of a reply alone where the rest repeats it, so a beginning is enough."""
    said = [(row.key, " ".join(row.reply.split())) for row in rows]
    lost = [
        f"an answer in {key} is not in the ledger: {text[:50]!r}"
        for key, text in heard
        if not any(key == where and words.startswith(" ".join(text.split())) for where, words in said)
    ]
    return _all("every answer that was heard is in the ledger", lost, f"{len(heard)} answers")


def _turns(paired: Paired, stray: Sequence[Row], parts: Sequence[Part]) -> Check:
    missing = [
        f"no turn for {turn.asked!r} ({turn.call or 'words'}) in {turn.key}" for turn, row in paired if row is None
    ]
    talk = [row for _, row in paired if row]
    side = [f"{row.id} is {row.kind} ({row.reason})" for row in talk if row.kind == "side" and not row.rewritten]
    side += [
        f"{row.id} was rewritten by the client and is {row.kind}"
        for row in talk
        if row.rewritten and row.kind == "main"
    ]
    extra = [f"{row.id} in {row.key} is one too many: {row.asked[:40]!r}" for row in stray]
    rounds = sum(turn.call is not None for turn, _ in paired)
    said = sum(len(part.said) for part in parts)
    return _all(
        "every user turn and tool round is one main turn",
        [*missing, *side, *extra],
        f"{len(paired)} main turns: {said} messages, {rounds} tool rounds",
    )


def _next_states(paired: Paired) -> Check:
    bad, good = [], 0
    for turn, row in paired:
        if row is None or turn.follows is None or row.rewritten:
            continue
        role, text = turn.follows
        fits = [said for said in row.next_state if said[0] == role and _shows(said[1], text, role)]
        if len(row.next_state) == 1 and fits:
            good += 1
        else:
            bad.append(f"{row.id} in {row.key} was followed by {row.next_state or row.ended}, not by {text!r}")
    return _all("each with its own next state, none matched wrongly", bad, f"{good} next states, each as it was said")


def _shows(said: str, wanted: str, role: str) -> bool:
    return said == wanted if role == "user" else wanted in said


def _side(rows: Sequence[Row]) -> Check:
    side = [row for row in rows if not row.tools]
    bad = [f"{row.id} is {row.kind} ({row.reason}): {row.asked[:40]!r}" for row in side if row.kind != "side"]
    bad += [f"side call {row.id} was trained in step {row.step}" for row in rows if row.kind == "side" and row.step]
    if not side:
        bad.append("the client made no side call at all")
    return _all("side calls are side, and never trained", bad, f"{len(side)} side calls")


def _separate(paired: Paired, parts: Sequence[Part]) -> Check:
    home = {row.id: turn.part for turn, row in paired if row}
    bad = [
        f"{row.id} of part {turn.part} follows {row.parent} of part {home[row.parent]}"
        for turn, row in paired
        if row and row.parent in home and not _one_talk(home[row.parent], turn.part, parts)
    ]
    keys: dict[str, set[str]] = {}
    for turn, row in paired:
        if row and row.session:
            keys.setdefault(row.session.partition(":")[0], set()).add(turn.key)
    bad += [f"session {name} holds {sorted(found)}" for name, found in keys.items() if len(found) > 1]
    return _all("sessions are separate", bad, f"{len(keys)} sessions, no turn follows one of another")


def _one_talk(before: int, after: int, parts: Sequence[Part]) -> bool:
    """A compaction shortens a conversation, a reset ends it."""
    return before == after or (before + 1 == after and parts[before].cut == "compaction")


def _cuts(paired: Paired, parts: Sequence[Part]) -> Check:
    """After a reset nothing is joined; after a compaction nothing but what the same person said next."""
    bad, seen = [], []
    for number, part in enumerate(parts):
        if part.cut is None:
            continue
        mine = [row for turn, row in paired if turn.part == number and row]
        after = [row for turn, row in paired if turn.part == number + 1 and row]
        if not mine or not after:
            bad.append(f"nothing was said around the {part.cut} of {part.key}")
            continue
        last, first = mine[-1], after[0]
        joined = last.next_state or first.parent
        told = part.cut == "compaction" and last.next_state == (("user", first.asked),) and first.parent == last.id
        seen.append(
            f"{part.cut}: " + ("goes on with what was said next" if told else f"the turn before ended {last.ended!r}")
        )
        if joined and not told:
            bad.append(f"{part.cut} of {part.key} joins {last.id} and {first.id}")
    return _all("reset and compaction join nothing wrongly", bad, "; ".join(seen))


def _corrections(paired: Paired) -> Check:
    """All are judged; some may be left at that: what follows a reply that asks a question may be the answer to it."""
    corrected = [row for turn, row in paired if row and not row.rewritten and turn.follows == ("user", TOO_LONG)]
    heeded = [row for row in corrected if row.score and row.score < 0 and any("30 words" in hint for hint in row.hints)]
    bad = [f"{row.id} has no verdict" for row in corrected if not row.judged]
    if len(heeded) < 2:
        bad.append(f"{len(heeded)} of {len(corrected)} corrections were understood")
    return _all("corrections reached the judge", bad, f"{len(corrected)} judged, {len(heeded)} below 0 with their hint")


def _steps(rows: Sequence[Row], steps: Sequence[Sequence[str]]) -> Check:
    trained = [turn for step in steps for turn in step]
    kinds = {row.id: row.kind for row in rows}
    bad = [
        f"{turn} was trained {trained.count(turn)} times"
        for turn in sorted({t for t in trained if trained.count(t) > 1})
    ]
    bad += [f"{turn} is {kinds.get(turn)} and was trained" for turn in trained if kinds.get(turn) != "main"]
    if not steps:
        bad.append("no step was taken")
    return _all("trained, and no turn twice", bad, f"{len(steps)} steps on {len(trained)} turns")


def _served(rows: Sequence[Row], live: int) -> Check:
    versions = Counter(row.version for row in rows)
    told = ", ".join(f"{count} by version {number}" for number, count in sorted(versions.items()))
    ok = live >= 1 and any(row.version >= 1 and row.tools for row in rows)
    return Check(name="a trained version is served", ok=ok, detail=f"version {live} is live; turns: {told}")


def _declared(rows: Sequence[Row], *, plugin: bool) -> Check:
    """Talk is main; what OpenClaw does by itself after a restart is side."""
    found = Counter(f"{'talk' if row.tools else 'side call'} {row.declared or 'unsaid'}" for row in rows)
    wanted = "main" if plugin else None
    ok = all(row.declared == wanted or (row.rewritten and row.declared == "side") for row in rows if row.tools)
    name = "the plugin says what each turn is" if plugin else "without the plugin it is found out"
    return Check(name=name, ok=ok, detail=", ".join(f"{name}: {count}" for name, count in sorted(found.items())))


def table(title: str, checks: Sequence[Check], facts: Mapping[str, str]) -> str:
    """The checks as lines a person can read."""
    wide = max(len(check.name) for check in checks)
    lines = [f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<{wide}}  {check.detail}" for check in checks]
    lines += [f"      {name:<{wide}}  {value}" for name, value in facts.items()]
    return "\n".join([title, "-" * len(title), *lines])
