"""The gate's arithmetic: is a candidate fit to be served in place of the live version? Pure.

    measured numbers -> `Check` each -> `decide` -> promote, refuse or hold

Every comparison is paired: the same probe, once by the live version and once by the candidate. *Noise* is what such
pairs differ by without any change of quality: a comparison counts as worse only if the whole one-sided ``1 - alpha``
interval of the mean difference lies below what is tolerated (or, for yes-and-no measures, if the sign test says so).
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from openclaw_rl.ports import Decision
from openclaw_rl.preferences.comparison import opposes
from openclaw_rl.preferences.wording import put
from openclaw_rl.stats import interval, sign_test, tail
from openclaw_rl.tasks.everyday import Task, held_out
from openclaw_rl.tasks.preferences import About
from openclaw_rl.text import UNSPACED, degenerate, script, word_count
from openclaw_rl.types import Message, Note, Prompt, Turn, Verdict, texts


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """What the gate tolerates; each is a setting of the same name under ``gate.limits``."""

    alpha: float
    kl_budget: float
    ability_drop: float
    likelihood_drop: float
    correction_drop: float
    min_words: float
    length_ratio: float
    entropy_ratio: float
    degenerate: float
    relevance_drop: float
    rehearsal_drop: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question and its answer. ``ok`` None: there was nothing to answer it from."""

    name: str
    ok: bool | None
    detail: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReply:
    """One reply to a probe. ``kl`` and ``entropy`` are nats per token of so many ``tokens``, None where not measured.

    ``relevant`` says whether it names what was asked about, None where not known; ``flaw`` why it is degenerate.
    """

    probe: str
    prompt: str
    reply: str
    tokens: int
    relevant: bool | None = None
    flaw: str | None = None
    kl: float | None = None
    entropy: float | None = None

    @property
    def words(self) -> int:
        return word_count(self.reply)


DISAGREEMENT = 0.2
"""share of verdicts that may contradict users' own words by nature"""
LOST_SINCE_BEST = 2
"""times what one version may lose of the corrections that all versions since the best may lose together"""
NEEDED = ("ability", "kl", "flaws")
"""checks without whose answer a candidate is held"""


# --- checks ---


def check_verdicts(contradicted: int, both: int, *, limits: GateLimits) -> Check:
    """Do the verdicts that trained it contradict what users plainly wrote? `DISAGREEMENT` is tolerated."""
    if not both:
        return Check(name="verdicts", ok=None, detail="no plain words of a user to compare the verdicts with")
    p_value = tail(contradicted, both, DISAGREEMENT)
    numbers = {"contradicted": contradicted, "both_speak": both, "p_value": round(p_value, 4)}
    if p_value < limits.alpha:
        detail = f"{contradicted} of {both} verdicts contradict what the user plainly wrote: look at the judge"
        return Check(name="verdicts", ok=False, detail=detail, numbers=numbers)
    return Check(name="verdicts", ok=True, detail=f"{contradicted} of {both} verdicts contradicted", numbers=numbers)


def check_ability(candidate: Sequence[float], base: Sequence[float], *, limits: GateLimits) -> Check:
    """General ability: small questions whose right answer is the likeliest, counted against the base model."""
    if not candidate:
        return Check(name="ability", ok=None, detail="not measured")
    now, before = (sum(margin > 0 for margin in each) / len(each) for each in (candidate, base))
    numbers = {"candidate": round(now, 3), "base": round(before, 3), "tasks": len(candidate)}
    detail = f"{now:.0%} of {len(candidate)} small questions right, the base model {before:.0%}"
    if not all(map(math.isfinite, candidate)):
        return Check(name="ability", ok=False, detail="its log-probs are not finite", numbers=numbers)
    return Check(name="ability", ok=before - now <= limits.ability_drop + 1e-9, detail=detail, numbers=numbers)


def check_pairs(name: str, gains: Sequence[float], *, tolerated: float, what: str, limits: GateLimits) -> Check:
    """Is the mean gain below what is tolerated, beyond noise?"""
    if not gains:
        return Check(name=name, ok=None, detail=f"no {what} to look at")
    if not all(map(math.isfinite, gains)):
        return Check(name=name, ok=False, detail="its log-probs are not finite")
    found = interval(gains, alpha=limits.alpha)
    numbers = {"mean": _round(found.mean), "high": _round(found.high), "pairs": found.count, "tolerated": -tolerated}
    detail = f"{what}: {found.mean:+.3f} nats per token on {found.count}"
    return Check(name=name, ok=found.high >= -tolerated, detail=detail, numbers=numbers)


def check_corrections(gains: Sequence[float], since_best: Sequence[float], *, limits: GateLimits) -> Check:
    """Does it follow corrections less than the live version, or much less than the version that followed them best?"""
    tolerated = limits.correction_drop
    found = check_pairs("corrections", gains, tolerated=tolerated, what="corrections", limits=limits)
    if not found.ok:
        return found
    what = "corrections, since they were followed best"
    lost = check_pairs("corrections", since_best, tolerated=LOST_SINCE_BEST * tolerated, what=what, limits=limits)
    return replace(found, numbers={**found.numbers, "since_best": lost.numbers["mean"]}) if lost.ok else lost


def check_kl(shown: Sequence[ProbeReply], *, limits: GateLimits, taught: float | None = None) -> Check:
    """How far it has moved from the base model, at the tokens of its own replies; each token counts the same.

    Not each reply: what makes a form stands in its first tokens, so one reply of three words would outweigh the rest.
    ``taught`` is how far it is from its teacher, where a note was rehearsed: a note may ask for what the base model
    never does.
    """
    mean = _per_token([(one.kl, one.tokens) for one in shown])
    if mean is None:
        return Check(name="kl", ok=None, detail="not measured")
    counted = mean if taught is None or not math.isfinite(mean) else min(mean, taught)
    told = f"{mean:.2f} nats per token from the base model"
    told += "" if taught is None else f", {taught:.2f} from it with the note"
    return Check(
        name="kl",
        ok=math.isfinite(mean) and counted <= limits.kl_budget,
        detail=f"{told}, {limits.kl_budget:g} allowed",
        numbers={"kl": _round(mean), "budget": limits.kl_budget},
    )


def check_entropy(
    candidate: Sequence[ProbeReply], live: Sequence[ProbeReply], base: Sequence[ProbeReply], *, limits: GateLimits
) -> Check:
    """Has its choice of words collapsed or dissolved? Compared with the live version as a ratio, either way.

    And with the base model, at most the square of it: small steps one way are no more than two whole ones.
    """
    now, before, first = (_per_token([(s.entropy, s.tokens) for s in each]) for each in (candidate, live, base))
    if now is None or before is None:
        return Check(name="entropy", ok=None, detail="not measured")
    ratio = (now + 0.05) / (before + 0.05)  # so that two greedy replies are alike
    ok = _within(ratio, limits.entropy_ratio)
    detail = f"{now:.2f} nats per token, the live version {before:.2f}"
    numbers = {"candidate": _round(now), "live": _round(before)}
    if first is not None:
        ok = ok and _within((now + 0.05) / (first + 0.05), limits.entropy_ratio**2)
        detail, numbers = f"{detail}, the base model {first:.2f}", numbers | {"base": _round(first)}
    return Check(name="entropy", ok=ok, detail=detail, numbers=numbers)


def check_length(candidate: Sequence[ProbeReply], live: Sequence[ProbeReply], *, limits: GateLimits) -> Check:
    """Mean words of the replies, against an absolute floor and against the live version's."""
    now, before = (_mean([float(s.words) for s in each]) for each in (candidate, live))
    if now is None or before is None:
        return Check(name="length", ok=None, detail="not measured")
    floor = max(min(limits.min_words, before), limits.length_ratio * before)
    detail = f"{now:.1f} words a reply, the live version {before:.1f}, at least {floor:.1f} needed"
    return Check(
        name="length", ok=now >= floor, detail=detail, numbers={"candidate": _round(now), "live": _round(before)}
    )


def check_flaws(
    candidate: Sequence[ProbeReply], live: Sequence[ProbeReply], base: Sequence[ProbeReply], *, limits: GateLimits
) -> Check:
    """Degenerate replies: repetition, junk, another script, a tool call that cannot be read.

    Counted beyond those of the live version or of the base model, whichever has fewer: many steps of a little are much.
    """
    if not candidate:
        return Check(name="flaws", ok=None, detail="not measured")
    now, before, first = (sum(s.flaw is not None for s in each) for each in (candidate, live, base))
    normal = min((count / len(each) for count, each in ((before, live), (first, base)) if each), default=0.0)
    why = ", ".join(f"{n} x {flaw}" for flaw, n in Counter(s.flaw for s in candidate if s.flaw).most_common(3))
    detail = f"{now} of {len(candidate)} replies degenerate" + (f" ({why})" if why else "")
    numbers = {"candidate": now, "live": before, "base": first, "replies": len(candidate)}
    return Check(name="flaws", ok=now / len(candidate) - normal <= limits.degenerate, detail=detail, numbers=numbers)


def check_relevance(candidate: Sequence[ProbeReply], live: Sequence[ProbeReply], *, limits: GateLimits) -> Check:
    """Does it still name what was asked about? A sign test on the probes that both versions answered."""
    pairs = _relevance_pairs(live, candidate)
    if not pairs:
        return Check(name="relevance", ok=None, detail="not measured")
    lost, won = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    p_value = sign_test(lost, won)
    good = sum(now for _, now in pairs)
    numbers = {"lost": lost, "won": won, "pairs": len(pairs), "p_value": round(p_value, 4)}
    detail = f"{good} of {len(pairs)} replies name what was asked about; {lost} lost, {won} won"
    return Check(name="relevance", ok=p_value >= limits.alpha or lost == 0, detail=detail, numbers=numbers)


def check_drift(candidate: Sequence[ProbeReply], base: Sequence[ProbeReply], *, limits: GateLimits) -> Check:
    """Has relevance been lost since the base model, in steps too small to notice one by one?"""
    pairs = _relevance_pairs(base, candidate)
    if not pairs:
        return Check(name="drift", ok=None, detail="not measured")
    before, now = (sum(each) for each in zip(*pairs, strict=True))
    numbers = {"candidate": now, "base": before, "pairs": len(pairs)}
    detail = f"{now} of {len(pairs)} replies name what was asked about, {before} of the base model's"
    return Check(name="drift", ok=(before - now) / len(pairs) <= limits.relevance_drop, detail=detail, numbers=numbers)


def check_lost(candidate: Sequence[ProbeReply], base: Sequence[ProbeReply] | None, *, limits: GateLimits) -> Check:
    """Of many prompts, how many does a rehearsed version miss the point of that the base model does not?

    ``base`` needs replies only to what the candidate missed; None: it was not asked, and counts as missing nothing.
    What the candidate gained elsewhere makes up for nothing.
    """
    known = [one for one in candidate if one.relevant is not None]
    if not known:
        return Check(name="drift", ok=None, detail="not measured")
    kept = {one.probe for one in base or () if one.relevant}
    lost = sum(base is None or one.probe in kept for one in known if not one.relevant)
    numbers = {"candidate": sum(bool(one.relevant) for one in known), "lost": lost, "pairs": len(known)}
    missed = "do not name what was asked about"
    if base is not None:
        missed = "no longer name what was asked about where the base model's do"
    detail = f"{lost} of {len(known)} replies {missed}, at most {limits.rehearsal_drop:.0%} may"
    return Check(name="drift", ok=lost / len(known) <= limits.rehearsal_drop + 1e-9, detail=detail, numbers=numbers)


def check_tasks(
    candidate: Mapping[str, bool], live: Mapping[str, bool], best: Mapping[str, bool], *, limits: GateLimits
) -> Check:
    """Does it lose tasks of its environment, more than it wins, beyond noise?

    Tasks that the live version solves, or the best version so far: many steps of a little are much.
    """
    found = _compare_tasks(candidate, live, "the live version", limits=limits)
    if not found.ok:
        return found
    since = _compare_tasks(candidate, best, "the best version so far", limits=limits)
    before = {"best": since.numbers.get("live")}
    if since.ok is False:
        return replace(since, numbers={**since.numbers, "live": found.numbers["live"], **before})
    return replace(found, numbers={**found.numbers, **before})


def _compare_tasks(candidate: Mapping[str, bool], other: Mapping[str, bool], name: str, *, limits: GateLimits) -> Check:
    both = candidate.keys() & other.keys()
    if not both:
        return Check(name="tasks", ok=None, detail="no held-out tasks were played")
    now, before = (sum(found[task] for task in both) for found in (candidate, other))
    lost = sum(other[task] and not candidate[task] for task in both)
    p_value = sign_test(lost, lost + now - before)
    numbers = {"candidate": now, "live": before, "tasks": len(both), "lost": lost, "p_value": round(p_value, 4)}
    detail = f"{now} of {len(both)} held-out tasks solved, {before} by {name}"
    return Check(name="tasks", ok=p_value >= limits.alpha or lost == 0, detail=detail, numbers=numbers)


def _relevance_pairs(first: Sequence[ProbeReply], second: Sequence[ProbeReply]) -> list[tuple[bool, bool]]:
    """Of each probe that both answered: whether either reply names what was asked about."""
    known = {s.probe: s.relevant for s in first if s.relevant is not None}
    return [(known[s.probe], s.relevant) for s in second if s.relevant is not None and s.probe in known]


def decide(checks: Sequence[Check]) -> tuple[Decision, str]:
    """The decision and its reason: one failed check refuses, a needed one without an answer holds."""
    failed = [check for check in checks if check.ok is False]
    if failed:
        return "refuse", "; ".join(f"{check.name}: {check.detail}" for check in failed)
    answered = {check.name for check in checks if check.ok is not None}
    missing = [name for name in NEEDED if name not in answered]
    if missing:
        return "hold", f"not enough evidence: {', '.join(missing)} could not be measured"
    return "promote", f"passed: {', '.join(check.name for check in checks if check.ok)}"


# --- one reply ---


def flaw(reply: str, *, prompt: str, broken_call: bool = False, calls: bool = False) -> str | None:
    """Why a reply is degenerate; None for any other. A call to a tool needs no words."""
    if broken_call:
        return "a tool call that cannot be read"
    if calls:
        return None
    expected, written = script(prompt), script(reply)
    if expected and written and expected != written:
        return f"{written} letters where {expected} ones were expected"
    return degenerate(reply, least=1 if written in UNSPACED else None)


def k3(policy: Sequence[float], base: Sequence[float]) -> float:
    """KL per token from the policy to the base model, on tokens of the policy: mean of ``exp(d) - 1 - d``."""
    gaps = [max(-20.0, min(20.0, b - p)) for p, b in zip(policy, base, strict=True)]
    return statistics.fmean(math.exp(d) - 1 - d for d in gaps)


def hint_alignment(gaps: Sequence[float], logprobs: Sequence[float]) -> float:
    """How far log-probs lean the way a hint points: their mean product with the hint's clipped gap, token by token."""
    clipped = [max(-1.0, min(1.0, gap)) for gap in gaps]
    return statistics.fmean(gap * value for gap, value in zip(clipped, logprobs, strict=True))


def _per_token(replies: Sequence[tuple[float | None, int]]) -> float | None:
    """The mean over all tokens of what was measured per token of each reply."""
    known = [(value, tokens) for value, tokens in replies if value is not None]
    if not known:
        return None
    return statistics.fmean([value for value, _ in known], weights=[tokens for _, tokens in known])


def _within(ratio: float, factor: float) -> bool:
    return math.isfinite(ratio) and 1 / factor <= ratio <= factor


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _round(value: float) -> float | None:
    """For JSON, which knows no infinity."""
    return round(value, 4) if math.isfinite(value) else None


# What a candidate is examined on. Probes are fixed before the step that made it.
#
# Held-out everyday prompts are the same for every version, so the live version's replies are those of its own
# examination; replays and pinned turns are read from the ledger as it stood when the step was taken.

_WITHDRAWN = ("proposed", "declined", "replaced", "off", "removed")
LONGEST = 2048
"""prompt tokens beyond which a turn is too costly to replay"""


class ProbeSource(Protocol):
    """What probes are chosen from: the ledger."""

    def turn(self, turn: str) -> Turn: ...
    def verdict(self, turn: str) -> Verdict | None: ...
    def pinned_turns(self) -> list[str]: ...
    def corrections(self, limit: int, *, before: float) -> list[str]: ...
    def notes(self, user: str | None = None) -> list[Note]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A prompt that versions answer. ``task`` knows what a relevant reply names, ``turn`` is the one it replays.

    ``tokens`` is the room for the reply; None: as much as the examiner gives.
    """

    key: str
    prompt: Prompt
    task: Task | None = None
    turn: str | None = None
    tokens: int | None = None

    @property
    def question(self) -> str:
        """The user's last message."""
        return (texts(self.prompt.messages, "user") or ("",))[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """``held_out`` and ``replayed`` are answered; ``corrections`` and ``pinned`` are turns that are read again."""

    held_out: tuple[Probe, ...]
    replayed: tuple[Probe, ...]
    corrections: tuple[tuple[Turn, str], ...]
    pinned: tuple[Turn, ...]


def choose(source: ProbeSource, *, before: float, count: int, replays: int) -> Probes:
    """The probes of an examination, ``count`` of them held out: of turns, only those judged ``before`` the step."""
    names, notes = _steady(source.corrections(replays * 4, before=before)), source.notes()
    learned = {note.turn: put(note) for note in notes if note.state == "learned" and note.turn is not None}
    asked = [*learned, *(name for name in names if name not in learned)]  # what left the prompt must stay learned
    corrected = [(source.turn(name), learned.get(name) or _rule(source, name)) for name in asked]
    fit = [(turn, rule) for turn, rule in corrected if rule and _readable(turn) and not withdrawn(turn, rule, notes)][
        :replays
    ]
    pinned = [turn for turn in map(source.turn, source.pinned_turns()) if _readable(turn)]
    tooled = [turn for turn in pinned if turn.prompt.tools]
    replayed = [*tooled[:2], *(turn for turn, _ in fit[:1])]
    return Probes(
        held_out=everyday_probes(count),
        replayed=tuple(Probe(key=turn.id, prompt=turn.prompt, turn=turn.id) for turn in replayed),
        corrections=tuple(fit),
        pinned=tuple(pinned[:replays]),
    )


def withdrawn(turn: Turn, rule: str, notes: Sequence[Note]) -> bool:
    """Whether its user no longer wants what a correction asked for: a version need not lean that way any more."""
    made = [note.state for note in notes if note.turn == turn.id]
    if made and all(state in _WITHDRAWN for state in made):
        return True
    return any(
        note.user == turn.user and note.kind == "rule" and note.state not in _WITHDRAWN and opposes(rule, put(note))
        for note in notes
    )


def _steady(names: Sequence[str]) -> list[str]:
    """One in four first, the same in every examination, so that most of what was read of them before still holds."""
    return sorted(names, key=lambda name: ord(name[-1]) % 4 != 0)


def everyday_probes(
    count: int, *, besides: Sequence[Probe] = (), about: About = "facts", tokens: int | None = None
) -> tuple[Probe, ...]:
    """So many held-out prompts, always the same, none of them among ``besides``; all there are where these are few."""
    known = {probe.key for probe in besides}
    left = [task for task in held_out(about) if task.prompt not in known]
    chosen = random.Random(0).sample(left, min(count, len(left)))
    return tuple(Probe(key=task.prompt, prompt=plain(task.prompt), task=task, tokens=tokens) for task in chosen)


def plain(text: str) -> Prompt:
    """A conversation that begins with this message."""
    return Prompt(messages=(Message(role="user", content=text),))


def _rule(source: ProbeSource, turn: str) -> str | None:
    verdict = source.verdict(turn)
    return next(iter(verdict.rules), None) if verdict else None


def _readable(turn: Turn) -> bool:
    return len(turn.completion.prompt_tokens) <= LONGEST and len(turn.completion.reply_tokens) > 0
