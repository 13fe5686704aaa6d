"""The gate's arithmetic: decides if a candidate is fit to replace the live version. Pure.

    measured numbers -> `Check` each -> `decide` -> promote, refuse or hold

Every comparison is paired: the same probe, once by the live version and once by the candidate. *Noise* is the
difference within such pairs at equal quality: a comparison counts as worse only if the whole one-sided ``1 - alpha``
interval of the mean difference is below the tolerance (or, for yes-and-no measures, if the sign test is significant).
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
    """The gate's tolerances; each is a setting of the same name under ``gate.limits``."""

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
    distillation_drop: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check's result; ``ok`` is None if there was no data."""

    name: str
    ok: bool | None
    detail: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReply:
    """One reply to a probe; ``kl`` and ``entropy`` are nats per token over ``tokens``, None if not measured.

    ``relevant`` is True if the reply names the topic asked about, None if unknown; ``flaw`` is the reason why it is
    degenerate.
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
"""share of verdicts that may contradict users' explicit words without a fault in the judge"""
LOST_SINCE_BEST = 2
"""tolerated loss in corrections since the best version, as a multiple of one version's tolerance"""
NEEDED = ("ability", "kl", "flaws")
"""checks that must have a result, else the candidate is held"""


# --- checks ---


def check_verdicts(contradicted: int, both: int, *, limits: GateLimits) -> Check:
    """Check if the training verdicts contradict users' explicit words; `DISAGREEMENT` is tolerated."""
    if not both:
        return Check(name="verdicts", ok=None, detail="no explicit feedback to compare the verdicts with")
    p_value = tail(contradicted, both, DISAGREEMENT)
    numbers = {"contradicted": contradicted, "both_speak": both, "p_value": round(p_value, 4)}
    if p_value < limits.alpha:
        detail = f"{contradicted} of {both} verdicts contradict what the user explicitly wrote: check the judge"
        return Check(name="verdicts", ok=False, detail=detail, numbers=numbers)
    return Check(name="verdicts", ok=True, detail=f"{contradicted} of {both} verdicts contradicted", numbers=numbers)


def check_ability(candidate: Sequence[float], base: Sequence[float], *, limits: GateLimits) -> Check:
    """Check general ability against the base model: small questions whose right answer must be the likeliest."""
    if not candidate:
        return Check(name="ability", ok=None, detail="not measured")
    now, before = (sum(margin > 0 for margin in margins) / len(margins) for margins in (candidate, base))
    numbers = {"candidate": round(now, 3), "base": round(before, 3), "tasks": len(candidate)}
    detail = f"{now:.0%} of {len(candidate)} small questions right, the base model {before:.0%}"
    if not all(map(math.isfinite, candidate)):
        return Check(name="ability", ok=False, detail="its log-probs are not finite", numbers=numbers)
    return Check(name="ability", ok=before - now <= limits.ability_drop + 1e-9, detail=detail, numbers=numbers)


def check_pairs(name: str, gains: Sequence[float], *, tolerated: float, what: str, limits: GateLimits) -> Check:
    """Check that the mean loss does not exceed ``tolerated`` beyond noise."""
    if not gains:
        return Check(name=name, ok=None, detail=f"no {what} to compare")
    if not all(map(math.isfinite, gains)):
        return Check(name=name, ok=False, detail="its log-probs are not finite")
    gain = interval(gains, alpha=limits.alpha)
    numbers = {"mean": _round(gain.mean), "high": _round(gain.high), "pairs": gain.count, "tolerated": -tolerated}
    detail = f"{what}: {gain.mean:+.3f} nats per token on {gain.count}"
    return Check(name=name, ok=gain.high >= -tolerated, detail=detail, numbers=numbers)


def check_corrections(gains: Sequence[float], since_best: Sequence[float], *, limits: GateLimits) -> Check:
    """Check that the candidate follows corrections about as well as the live version and as the best version so far."""
    tolerated = limits.correction_drop
    check = check_pairs("corrections", gains, tolerated=tolerated, what="corrections", limits=limits)
    if not check.ok:
        return check
    what = "corrections, against the best version so far"
    lost = check_pairs("corrections", since_best, tolerated=LOST_SINCE_BEST * tolerated, what=what, limits=limits)
    return replace(check, numbers={**check.numbers, "since_best": lost.numbers["mean"]}) if lost.ok else lost


def check_kl(shown: Sequence[ProbeReply], *, limits: GateLimits, taught: float | None = None) -> Check:
    """Check the distance from the base model at the tokens of the candidate's replies; each token counts the same.

    The mean is per token since a format is decided in the first tokens: a three-word reply would otherwise outweigh the
    others. ``taught`` is the distance to the teacher after a prompt distillation, whose note may ask for replies that
    the base model never gives.
    """
    mean = _per_token([(reply.kl, reply.tokens) for reply in shown])
    if mean is None:
        return Check(name="kl", ok=None, detail="not measured")
    counted = mean if taught is None or not math.isfinite(mean) else min(mean, taught)
    distance = f"{mean:.2f} nats per token from the base model"
    distance += "" if taught is None else f", {taught:.2f} from it with the note"
    return Check(
        name="kl",
        ok=math.isfinite(mean) and counted <= limits.kl_budget,
        detail=f"{distance}, {limits.kl_budget:g} allowed",
        numbers={"kl": _round(mean), "budget": limits.kl_budget},
    )


def check_entropy(
    candidate: Sequence[ProbeReply], live: Sequence[ProbeReply], base: Sequence[ProbeReply], *, limits: GateLimits
) -> Check:
    """Check that the entropy stays within a ratio of the live version's, and within its square of the base's."""
    now, before, first = (_per_token([(s.entropy, s.tokens) for s in replies]) for replies in (candidate, live, base))
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
    """Check the mean words per reply against an absolute floor and against the live version's."""
    now, before = (_mean([float(s.words) for s in replies]) for replies in (candidate, live))
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
    """Check for degenerate replies: repetition, junk, another script, an unreadable tool call.

    Only those beyond the live version's or the base model's rate count, whichever is lower, so that small steps add up.
    """
    if not candidate:
        return Check(name="flaws", ok=None, detail="not measured")
    now, before, first = (sum(s.flaw is not None for s in replies) for replies in (candidate, live, base))
    normal = min((count / len(replies) for count, replies in ((before, live), (first, base)) if replies), default=0.0)
    why = ", ".join(f"{n} x {flaw}" for flaw, n in Counter(s.flaw for s in candidate if s.flaw).most_common(3))
    detail = f"{now} of {len(candidate)} replies degenerate" + (f" ({why})" if why else "")
    numbers = {"candidate": now, "live": before, "base": first, "replies": len(candidate)}
    return Check(name="flaws", ok=now / len(candidate) - normal <= limits.degenerate, detail=detail, numbers=numbers)


def check_relevance(candidate: Sequence[ProbeReply], live: Sequence[ProbeReply], *, limits: GateLimits) -> Check:
    """Check that replies still name the topic asked about: a sign test on the probes that both versions answered."""
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
    """Check that relevance has not dropped since the base model in many small steps."""
    pairs = _relevance_pairs(base, candidate)
    if not pairs:
        return Check(name="drift", ok=None, detail="not measured")
    before, now = (sum(flags) for flags in zip(*pairs, strict=True))
    numbers = {"candidate": now, "base": before, "pairs": len(pairs)}
    detail = f"{now} of {len(pairs)} replies name what was asked about, {before} of the base model's"
    return Check(name="drift", ok=(before - now) / len(pairs) <= limits.relevance_drop, detail=detail, numbers=numbers)


def check_lost(candidate: Sequence[ProbeReply], base: Sequence[ProbeReply] | None, *, limits: GateLimits) -> Check:
    """Check how many prompts a distilled version misses the point of, among those that the base model gets right.

    ``base`` needs replies only to the prompts that the candidate missed; None means that the base model was not
    measured and counts as missing none. Gains on other prompts do not compensate.
    """
    checked = [reply for reply in candidate if reply.relevant is not None]
    if not checked:
        return Check(name="drift", ok=None, detail="not measured")
    base_hits = {reply.probe for reply in base or () if reply.relevant}
    lost = sum(base is None or reply.probe in base_hits for reply in checked if not reply.relevant)
    numbers = {"candidate": sum(bool(reply.relevant) for reply in checked), "lost": lost, "pairs": len(checked)}
    missed = "do not name what was asked about"
    if base is not None:
        missed = "no longer name what was asked about where the base model's do"
    detail = f"{lost} of {len(checked)} replies {missed}, at most {limits.distillation_drop:.0%} may"
    return Check(
        name="drift", ok=lost / len(checked) <= limits.distillation_drop + 1e-9, detail=detail, numbers=numbers
    )


def check_tasks(
    candidate: Mapping[str, bool], live: Mapping[str, bool], best: Mapping[str, bool], *, limits: GateLimits
) -> Check:
    """Check that the candidate does not lose significantly more of its environment's tasks than it wins.

    It is compared with the live version and with the best version so far, so that small losses add up.
    """
    check = _compare_tasks(candidate, live, "the live version", limits=limits)
    if not check.ok:
        return check
    since = _compare_tasks(candidate, best, "the best version so far", limits=limits)
    before = {"best": since.numbers.get("live")}
    if since.ok is False:
        return replace(since, numbers={**since.numbers, "live": check.numbers["live"], **before})
    return replace(check, numbers={**check.numbers, **before})


def _compare_tasks(candidate: Mapping[str, bool], other: Mapping[str, bool], name: str, *, limits: GateLimits) -> Check:
    shared = candidate.keys() & other.keys()
    if not shared:
        return Check(name="tasks", ok=None, detail="no held-out tasks were played")
    now, before = (sum(solved[task] for task in shared) for solved in (candidate, other))
    lost = sum(other[task] and not candidate[task] for task in shared)
    p_value = sign_test(lost, lost + now - before)
    numbers = {"candidate": now, "live": before, "tasks": len(shared), "lost": lost, "p_value": round(p_value, 4)}
    detail = f"{now} of {len(shared)} held-out tasks solved, {before} by {name}"
    return Check(name="tasks", ok=p_value >= limits.alpha or lost == 0, detail=detail, numbers=numbers)


def _relevance_pairs(first: Sequence[ProbeReply], second: Sequence[ProbeReply]) -> list[tuple[bool, bool]]:
    """Return, per probe that both answered, if the first and the second reply name the topic asked about."""
    by_probe = {s.probe: s.relevant for s in first if s.relevant is not None}
    return [(by_probe[s.probe], s.relevant) for s in second if s.relevant is not None and s.probe in by_probe]


def decide(checks: Sequence[Check]) -> tuple[Decision, str]:
    """Return the decision and its reason: a failed check refuses, a needed check without a result holds."""
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
    """Return the reason why a reply is degenerate, None if it is not. A tool call needs no words."""
    if broken_call:
        return "a tool call that cannot be read"
    if calls:
        return None
    expected, written = script(prompt), script(reply)
    if expected and written and expected != written:
        return f"{written} letters where {expected} ones were expected"
    return degenerate(reply, least=1 if written in UNSPACED else None)


def k3(policy: Sequence[float], base: Sequence[float]) -> float:
    """Return the KL per token from the policy to the base model on the policy's tokens: mean of ``exp(d) - 1 - d``."""
    gaps = [max(-20.0, min(20.0, b - p)) for p, b in zip(policy, base, strict=True)]
    return statistics.fmean(math.exp(d) - 1 - d for d in gaps)


def hint_alignment(gaps: Sequence[float], logprobs: Sequence[float]) -> float:
    """Return the alignment of log-probs with a hint: their mean product with the hint's clipped gap per token."""
    clipped = [max(-1.0, min(1.0, gap)) for gap in gaps]
    return statistics.fmean(gap * value for gap, value in zip(clipped, logprobs, strict=True))


def _per_token(replies: Sequence[tuple[float | None, int]]) -> float | None:
    """Return the token-weighted mean of values measured per reply."""
    measured = [(value, tokens) for value, tokens in replies if value is not None]
    if not measured:
        return None
    return statistics.fmean([value for value, _ in measured], weights=[tokens for _, tokens in measured])


def _within(ratio: float, factor: float) -> bool:
    return math.isfinite(ratio) and 1 / factor <= ratio <= factor


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _round(value: float) -> float | None:
    """Round for JSON, which has no infinity."""
    return round(value, 4) if math.isfinite(value) else None


# Probes for an examination, fixed before the step that made the candidate.
#
# Held-out everyday prompts are the same for every version, so the live version's replies from its own examination are
# reused; replays and pinned turns are read from the ledger as of the step.

_WITHDRAWN = ("proposed", "declined", "replaced", "off", "removed")
LONGEST = 2048
"""largest prompt, in tokens: longer turns cost too much to replay"""


class ProbeSource(Protocol):
    """Part of the ledger that probes are chosen from."""

    def turn(self, turn: str) -> Turn: ...
    def verdict(self, turn: str) -> Verdict | None: ...
    def pinned_turns(self) -> list[str]: ...
    def corrections(self, limit: int, *, before: float) -> list[str]: ...
    def notes(self, user: str | None = None) -> list[Note]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A prompt that versions answer; ``task`` lists the words of a relevant reply, ``turn`` is the turn it replays.

    ``tokens`` limits the reply; None: the examiner's limit.
    """

    key: str
    prompt: Prompt
    task: Task | None = None
    turn: str | None = None
    tokens: int | None = None

    @property
    def question(self) -> str:
        """Return the user's last message."""
        return (texts(self.prompt.messages, "user") or ("",))[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Probes of an examination: ``held_out`` and ``replayed`` are sampled; ``corrections``, ``pinned`` are scored."""

    held_out: tuple[Probe, ...]
    replayed: tuple[Probe, ...]
    corrections: tuple[tuple[Turn, str], ...]
    pinned: tuple[Turn, ...]


def choose(source: ProbeSource, *, before: float, count: int, replays: int) -> Probes:
    """Return an examination's probes, ``count`` of them held out; turns must be judged ``before`` the step."""
    names, notes = _steady(source.corrections(replays * 4, before=before)), source.notes()
    learned = {note.turn: put(note) for note in notes if note.state == "learned" and note.turn is not None}
    turns = [*learned, *(name for name in names if name not in learned)]  # notes outside the prompt must stay learned
    corrected = [(source.turn(name), learned.get(name) or _rule(source, name)) for name in turns]
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
    """Return True if the user has withdrawn a correction, so that a version need not follow it any more."""
    states = [note.state for note in notes if note.turn == turn.id]
    if states and all(state in _WITHDRAWN for state in states):
        return True
    return any(
        note.user == turn.user and note.kind == "rule" and note.state not in _WITHDRAWN and opposes(rule, put(note))
        for note in notes
    )


def _steady(names: Sequence[str]) -> list[str]:
    """Put a fixed quarter first in every examination, so that most cached scores of these turns stay valid."""
    return sorted(names, key=lambda name: ord(name[-1]) % 4 != 0)


def everyday_probes(
    count: int, *, besides: Sequence[Probe] = (), about: About = "facts", tokens: int | None = None
) -> tuple[Probe, ...]:
    """Return up to ``count`` held-out prompts, always the same, without those in ``besides``."""
    excluded = {probe.key for probe in besides}
    tasks = [task for task in held_out(about) if task.prompt not in excluded]
    chosen = random.Random(0).sample(tasks, min(count, len(tasks)))
    return tuple(Probe(key=task.prompt, prompt=plain(task.prompt), task=task, tokens=tokens) for task in chosen)


def plain(text: str) -> Prompt:
    """Return a conversation that starts with this message."""
    return Prompt(messages=(Message(role="user", content=text),))


def _rule(source: ProbeSource, turn: str) -> str | None:
    verdict = source.verdict(turn)
    return next(iter(verdict.rules), None) if verdict else None


def _readable(turn: Turn) -> bool:
    return len(turn.completion.prompt_tokens) <= LONGEST and len(turn.completion.reply_tokens) > 0
