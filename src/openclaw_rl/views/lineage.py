"""A version's lineage back to the messages that made it, and a correction's effect.

Plain JSON like the other views, documented in docs/json.md; `version_lines` and `turn_lines` are for a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from openclaw_rl.errors import NotInLedger
from openclaw_rl.ports import GateDecision
from openclaw_rl.stats import wilson
from openclaw_rl.store import LedgerReader
from openclaw_rl.store.results import BadRate
from openclaw_rl.types import Note, Step, Turn, Version, distilling, texts
from openclaw_rl.versions import LiveVersions

# Former names of published JSON fields: a renamed field is also printed under its old name. Pure.
#
# Each report keeps its own table from new to former names; docs/json.md lists them all.


def with_aliases(view: Any, former: Mapping[str, str]) -> Any:
    """Return the view with every renamed field, at any depth, also under its former name, right behind the new one."""
    if isinstance(view, Mapping):
        renamed: dict[str, Any] = {}
        for name, value in view.items():
            renamed[name] = with_aliases(value, former)
            if name in former:
                renamed[former[name]] = renamed[name]
        return renamed
    return [with_aliases(item, former) for item in view] if isinstance(view, list | tuple) else view


View = dict[str, Any]

FORMER = {
    "gate_decision": "ruling",
    "gate_decisions": "rulings",
    "question": "asked",
    "next_message": "sentence",
    "failed_version": "fallen",
}
"""renamed fields, also printed under their former names"""
FORMER_IN_CHECKS = {"detail": "said", "p_value": "chance"}
FORMER_CHECKS = {"relevance": "sense", "drift": "slide"}
"""renamed checks of the gate: older runs' decisions have the former names"""


def versions(ledger: LedgerReader, *, now: float | None = None) -> list[View]:
    """Return every version in a line: its origin, the gate's decision, its replies' reception."""
    rates, live = ledger.bad_rates(), LiveVersions(ledger).live()
    at = time.time() if now is None else now
    rows = [_row(ledger, version, rates.get(version.number), live, at) for version in ledger.versions()]
    return [with_aliases(row, FORMER) for row in rows]


def _row(ledger: LedgerReader, version: Version, rate: BadRate | None, live: Version | None, now: float) -> View:
    decisions = ledger.gate_decisions(version.number)
    return {
        "number": version.number,
        "parent": version.parent,
        "state": version.state,
        "live": live is not None and live.number == version.number,
        "step": version.step,
        "turns": len(ledger.step(version.step).turns) if version.step is not None else 0,
        "bad": rate.bad if rate else 0,
        "scored": rate.scored if rate else 0,
        "bad_high": round(wilson(*rate)[1], 3) if rate else None,
        "gate_decision": _decision(decisions[-1]) if decisions else None,
        "origin": version.origin,
        "note": version.note,
        "at": version.at,
        "seconds_ago": round(now - version.at, 1),
    }


def version(ledger: LedgerReader, number: int) -> View:
    """Return a version's full lineage: each step behind its weights with the turns, verdicts, hints and messages."""
    target = ledger.version(number)
    line = list(_line(ledger, target))
    steps = [step_behind(ledger, entry) for entry in line if entry.step is not None]
    view = {
        "number": target.number,
        "parent": target.parent,
        "state": target.state,
        "note": target.note,
        "at": target.at,
        "history": [change._asdict() for change in ledger.history(number)],
        "gate_decisions": [{**_decision(entry), **_evidence(entry)} for entry in ledger.gate_decisions(number)],
        "line": [entry.number for entry in line],
        "steps": steps,
    }
    return dict(with_aliases(view, FORMER))


def _line(ledger: LedgerReader, found: Version) -> Iterator[Version]:
    """Yield the version and all its ancestors, newest first; a rollback counts as the version that it restored."""
    yield found
    weights = found.adapter
    for older in LiveVersions(ledger).ancestors(found):
        if older.adapter != weights:
            yield older
        weights = older.adapter


def step_behind(ledger: LedgerReader, made: Version) -> View:
    """Return the step that made a version, with every turn it used that was not deleted since."""
    assert made.step is not None
    step, distillation = ledger.step(made.step), ledger.distillation_of(made.step)
    return {
        "number": step.number,
        "version": made.number,
        "at": step.at,
        "seconds": step.seconds,
        "metrics": dict(step.metrics),
        "turns": [_cause(ledger, turn, step) for turn in step.turns if ledger.has_turn(turn)],
        "deleted": sum(ledger.was_deleted(turn) for turn in step.turns),
        "distillation": asdict(distillation) if distillation is not None else None,
    }


def _cause(ledger: LedgerReader, name: str, step: Step | None) -> View:
    """Return a turn as a cause: the question, the reply, the user's next message, and the verdict on it."""
    source_turn, verdict = ledger.turn(name), ledger.verdict(name)
    source = step.parts.get(name, {}).get("recalled") if step is not None else None
    earlier = ledger.verdict(str(source)) if source is not None else None
    return {
        "turn": name,
        "user": source_turn.user,
        "version": source_turn.completion.version,
        "question": _question(source_turn),
        "reply": source_turn.completion.reply.content,
        "next_message": _next_message(ledger, name),
        "score": verdict.score if verdict else None,
        "source": verdict.source if verdict else None,
        "note": verdict.note if verdict else None,
        "hints": [asdict(hint) for hint in verdict.hints] if verdict else [],
        "noted": source_turn.noted.text if source_turn.noted else None,
        "notes": [_made_note(ledger, note) for note in ledger.notes_of_turn(name)],
        "recalled": {"turn": earlier.turn, "rules": [*earlier.rules]} if earlier else None,
    }


def _made_note(ledger: LedgerReader, note: Note) -> View:
    return {**asdict(note), "history": [asdict(change) for change in ledger.note_changes(note.number)]}


def turn(ledger: LedgerReader, name: str) -> View:
    """Return a correction's effect: the step that used it, the version made, and the replies before and after."""
    used = ledger.trained_in(name)
    step = ledger.step(used) if used is not None else None
    version_made = ledger.made_by(used) if used is not None else None
    drop, failed = ledger.dropped(name), ledger.failed_version(name)
    decisions = ledger.gate_decisions(version_made.number) if version_made else []
    view = {
        **_cause(ledger, name, step),
        "pinned": name in ledger.pinned_turns(),
        "dropped": {"stage": drop.stage, "reason": drop.reason, "detail": drop.detail} if drop else None,
        "step": used,
        "made": {"number": version_made.number, "state": version_made.state, "at": version_made.at}
        if version_made
        else None,
        "failed_version": failed._asdict() if failed else None,
        "gate_decision": _decision(decisions[-1]) if decisions else None,
        "before": ledger.turn(name).completion.reply.content,
        "after": [*_after(ledger, name)],
    }
    return dict(with_aliases(view, FORMER))


def _after(ledger: LedgerReader, name: str) -> Iterator[View]:
    """Yield new replies to the same prompt by versions that the gate examined."""
    for decision in ledger.replays(name):
        for example in decision.evidence.get("examples", ()):
            if example["turn"] == name:
                yield {"version": decision.version, "reply": example["candidate"], "from": "the gate's replay"}


def either(ledger: LedgerReader, name: str) -> View:
    """Return `version` for a number, `turn` for any other name; a turn's view has the key ``turn``."""
    if name.isdecimal() and len(name) < 19:  # more digits than any row number
        return version(ledger, int(name))
    if not name:
        raise NotInLedger("no version or turn is named", remedy="'openclaw-rl versions' lists versions")
    return turn(ledger, name)


def _question(found: Turn) -> str:
    return (texts(found.prompt.messages, "user") or (found.prompt.messages[-1].content,))[-1]


def _next_message(ledger: LedgerReader, name: str) -> str | None:
    """Return the user's next message."""
    outcome = ledger.outcome(name)
    messages = texts(outcome.next_state, "user") if outcome else ()
    return messages[-1] if messages else None


def _decision(one: GateDecision) -> View:
    return {
        "decision": one.decision,
        "reason": one.reason,
        "against": one.against,
        "seconds": one.seconds,
        "at": one.at,
    }


def _evidence(one: GateDecision) -> View:
    """Return a decision's evidence, with every check under its present names, whatever release wrote it."""
    return {**one.evidence, "checks": [_check(check) for check in one.evidence.get("checks", ())]}


def _check(check: View) -> View:
    present = {former: name for name, former in FORMER_CHECKS.items()}
    name = present.get(check["name"], check["name"])
    detail = check["detail"] if "detail" in check else check["said"]
    view = {"name": name, "ok": check["ok"], "detail": detail, "numbers": check["numbers"]}
    alias = {"former_name": FORMER_CHECKS[name]} if name in FORMER_CHECKS else {}
    return {**dict(with_aliases(view, FORMER_IN_CHECKS)), **alias}


# --- the same in lines ---


def versions_lines(rows: list[View]) -> Iterator[str]:
    """Yield the versions as a table."""
    yield f"{'version':>7}  {'parent':>6}  {'state':<11}  {'step':>4}  {'turns':>5}  {'bad':>9}  {'gate':<8} {'age':>7}"
    for row in rows:
        bad = f"{row['bad']} of {row['scored']}" if row["scored"] else "-"
        decision = row["gate_decision"]
        gate = decision["decision"] if decision else "-"
        mark = "*" if row["live"] else " "
        state = "was live" if row["state"] == "live" and not row["live"] else row["state"]
        yield (
            f"{row['number']:>6}{mark}  {_dash(row['parent']):>6}  {state:<11}  {_dash(row['step']):>4}"
            f"  {row['turns']:>5}  {bad:>9}  {gate:<8} {age(row['seconds_ago']):>7}"
        )
        if decision and decision["decision"] != "promote":
            yield f"{'':>9}{decision['reason']}"
        elif not decision and (row["origin"] != "trained" or row["step"] is None):
            yield f"{'':>9}{row['note']}"


def version_lines(view: View, *, steps: int = 3) -> Iterator[str]:
    """Yield a version's history, newest step first."""
    built = " on ".join(map(str, view["line"]))
    yield f"version {view['number']}: {view['state']}, {view['note']}; the line of its weights: {built}"
    for change in view["history"]:
        yield f"  {_clock(change['at'])}  {change['state']}: {change['reason']}"
    for decision in view["gate_decisions"]:
        yield f"  gate, against version {decision['against']} in {decision['seconds']:.1f} s: {decision['decision']}"
        for check in decision["checks"]:
            yield f"    {_mark(check['ok'])} {check['name']}: {check['detail']}"
        for example in decision.get("examples", ())[:2]:
            yield f"    prompt {_short(example['prompt'])}"
            yield f"    live   {_short(example['live'])}"
            yield f"    new    {_short(example['candidate'])}"
    for step in view["steps"][:steps]:
        if (distillation := step["distillation"]) is not None:
            yield from _distillation_lines(step, distillation)
            continue
        yield f"  step {step['number']} made version {step['version']} from {len(step['turns'])} turns:"
        for cause in step["turns"]:
            yield from _cause_lines(cause, indent="    ")
    older_steps = len(view["steps"]) - steps
    if older_steps > 0:
        yield f"  and {older_steps} steps before that (--steps shows more)"


def _distillation_lines(step: View, done: View) -> Iterator[str]:
    figures = done["evidence"]
    in_prompt = "practised" in figures
    how = distilling(done["note"], in_prompt=in_prompt)
    became = "learned" if done["learned"] else "it stays in the prompt" if in_prompt else "not learned yet"
    yield f"  step {step['number']} made version {step['version']} by {how}:"
    yield (
        f"    {figures['steps']} steps on {figures['replies']} replies in {figures['seconds']:.0f} s"
        f" ({figures['ended']}); {became}"
    )
    for name, what in (("first", "before"), ("last", "after"), ("with_note", "base" if in_prompt else "with the note")):
        figure = figures[name]
        met = "" if figure["met"] is None else f"{figure['met']} of {figure['replies']} replies do what it asks, "
        yield f"    {what:<13}  {met}{figure['words']:.0f} words, {figure['kl']:.3f} nats a token from the teacher"


def turn_lines(view: View) -> Iterator[str]:
    """Yield a correction's history."""
    yield from _cause_lines(view, indent="")
    if view["dropped"]:
        yield f"did not train: {view['dropped']['reason']} ({view['dropped']['detail']})"
    elif view["step"] is None:
        yield "has not trained yet"
    else:
        version_made = view["made"]
        what = (
            f"which made version {version_made['number']} ({version_made['state']})"
            if version_made
            else "which made no version"
        )
        yield f"trained in step {view['step']}, {what}"
    if failed := view["failed_version"]:
        yield f"marked: version {failed['version']}, which it trained, was {failed['state']}"
    yield f"before   version {view['version']}: {_short(view['before'], 300)}"
    for after in view["after"]:
        yield f"after    version {after['version']}: {_short(after['reply'], 300)}   ({after['from']})"


def _cause_lines(cause: View, *, indent: str) -> Iterator[str]:
    yield f"{indent}turn {cause['turn']} of {cause['user']}: {_short(cause['question'])}"
    if cause["noted"]:
        yield f"{indent}  with the note  {_short(cause['noted'])}"
    yield f"{indent}  version {cause['version']} replied  {_short(cause['reply'])}"
    if cause["next_message"]:
        yield f"{indent}  the user wrote  {_short(cause['next_message'])}"
    score = "no opinion" if cause["score"] is None else f"{cause['score']:+g}"
    yield f"{indent}  verdict  {score} ({cause['source']}: {cause['note']})"
    for hint in cause["hints"]:
        yield f"{indent}  {hint['kind']}  {_short(hint['text'])}"
    for note in cause["notes"]:
        last = note["history"][-1]
        yield f"{indent}  note {note['number']}  {note['state']} since {_clock(last['at'])}: {last['reason']}"
    if cause["recalled"]:
        for rule in cause["recalled"]["rules"]:
            yield f"{indent}  recalled from turn {cause['recalled']['turn']}  {_short(rule)}"


def age(seconds: float) -> str:
    """Return a duration in the largest unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _mark(ok: bool | None) -> str:
    return {True: "+", False: "!", None: "?"}[ok]


def _dash(value: Any) -> str:
    return "-" if value is None else str(value)


def _short(text: str | None, most: int = 110) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
