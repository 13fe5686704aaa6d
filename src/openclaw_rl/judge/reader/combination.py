"""N-grams, classifier and rules in one estimate, and the thresholds above which it is believed. Pure.

Weights and thresholds are fitted on voices that the models behind them had not seen, at the rates of real talk, for
each group of languages and each channel by itself; where nothing reaches the precision that is asked for there is no
threshold, and silence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.channel import CHANNELS, Channel
from openclaw_rl.text import script

# What a message can be, and the group of languages whose thresholds it is held against. Pure.

# ruff: noqa: SIM905  (a list of words is read as a text)

MessageKind: TypeAlias = Literal["complaint", "rule", "fact", "neutral", "praise", "mixed"]
KINDS: tuple[MessageKind, ...] = get_args(MessageKind)
"""in the order of every table; mixed is praise with a wish for later"""
KindLogprobs: TypeAlias = tuple[float, ...]
"""one log-prob per kind `[6]`"""
BAD: tuple[MessageKind, ...] = ("complaint", "fact")
"""a rule alone is no bad news: a wish for replies to come, or a plain next task taken for one"""
GOOD: tuple[MessageKind, ...] = ("praise", "mixed")

LanguageGroup: TypeAlias = Literal["english", "latin", "chinese", "japanese", "korean", "arabic", "hindi", "other"]
GROUPS: tuple[LanguageGroup, ...] = get_args(LanguageGroup)
_SCRIPTS: dict[str, LanguageGroup] = {
    "CJK": "chinese",
    "HIRAGANA": "japanese",
    "KATAKANA": "japanese",
    "HANGUL": "korean",
    "ARABIC": "arabic",
    "DEVANAGARI": "hindi",
}
_KANA = re.compile(r"[぀-ヿ]")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ENGLISH = frozenset(
    "the of and to a in is it you that for on with this was are be i have not but what can my me your from at do if"
    " so just please thanks no yes it's don't i'm that's would how which about need make give all or as we there when"
    " did does why more too only one out up get like they he she their his her an by has had were been will good"
    " great wrong again next time one ok okay now write use want than then them these those some into after before"
    " first last right still never always also any much very really here where who thank could should got i've".split()
)


def group_of(message: str, *, request: str = "") -> LanguageGroup:
    """By the letters; Latin ones are English where its small words are a third of all, the request's included."""
    named = script(message * 4) or script(request)  # a word of two characters has a script too
    if named is None:
        return "other" if not request else group_of(request)
    if named == "CJK" and _KANA.search(message + request):
        return "japanese"
    if named == "LATIN":
        return "english" if _is_english(message, request) else "latin"
    return _SCRIPTS.get(named, "other")


def _is_english(message: str, request: str) -> bool:
    found = [word.lower().replace("’", "'") for word in _WORD.findall(message)]
    if len(found) < 8:
        found += [word.lower().replace("’", "'") for word in _WORD.findall(request)[:24]]
    return sum(word in _ENGLISH for word in found) >= 0.25 * max(1, len(found))


def normalised(logits: Sequence[float]) -> KindLogprobs:
    """Logits as log-probs."""
    top = max(logits)
    total = top + math.log(sum(math.exp(value - top) for value in logits))
    return tuple(value - total for value in logits)


def mass(logprobs: Sequence[float], kinds: Sequence[MessageKind]) -> float:
    """The probability that the message is of one of these kinds."""
    return sum(math.exp(logprobs[KINDS.index(kind)]) for kind in kinds)


Place: TypeAlias = tuple[LanguageGroup, Channel]
PLACES: tuple[Place, ...] = tuple((group, channel) for group in GROUPS for channel in CHANNELS)
SHIPPED = Path(__file__).parent / "combination.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The probability from which on a message is believed to be bad or good news, a rule, a fact; None: never.

    ``bad_with_rules`` and ``good_with_rules`` are for messages of which the rules say the same.
    """

    bad: float | None
    good: float | None
    bad_with_rules: float | None
    good_with_rules: float | None
    rule: float | None
    fact: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much each voice counts: a factor on its log-probs, what the rules' verdict adds, and what each kind begins
    with `[6]`."""

    ngrams: float
    classifier: float
    rules_bad: float
    rules_good: float
    bias: tuple[float, ...]
    thresholds: Thresholds

    def combined(
        self, ngrams: Sequence[float], classifier: Sequence[float] | None, rules: float | None
    ) -> KindLogprobs:
        """One estimate of all that was heard; ``rules`` is the score that the rules would give."""
        sums = [self.bias[kind] + self.ngrams * ngrams[kind] for kind in range(len(KINDS))]
        if classifier is not None:
            sums = [total + self.classifier * value for total, value in zip(sums, classifier, strict=True)]
        for kind, name in enumerate(KINDS):
            if rules == -1 and name in BAD:
                sums[kind] += self.rules_bad
            if rules == 1 and name in GOOD:
                sums[kind] += self.rules_good
        return normalised(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Weights by group of languages and channel: for n-grams ``alone``, and for ``both`` where the classifier
    answered."""

    alone: Mapping[Place, Weights]
    both: Mapping[Place, Weights]

    def weights(self, group: LanguageGroup, channel: Channel, *, classifier: bool) -> Weights:
        return (self.both if classifier and self.both else self.alone)[group, channel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed of a message: a score or none, and whether it carries a rule or a fact."""

    score: int | None
    rule: bool
    fact: bool
    bad: float
    good: float


def believe(logprobs: Sequence[float], thresholds: Thresholds, *, rules: float | None, wish: bool = False) -> Belief:
    """Above its threshold, only the likelier of good and bad, and nothing that the rules contradict.

    ``wish``: the rules found a preference and no complaint, which says nothing of the reply.
    """
    bad, good = mass(logprobs, BAD), mass(logprobs, GOOD)
    score = None
    agreed = rules == -1 and not wish
    if bad > good and rules != 1 and _either(bad, thresholds.bad, thresholds.bad_with_rules, agreed=agreed):
        score = -1
    if good > bad and rules != -1 and _either(good, thresholds.good, thresholds.good_with_rules, agreed=rules == 1):
        score = 1
    rule, fact = mass(logprobs, ("rule", "mixed")), mass(logprobs, ("fact",))
    return Belief(
        score=score,
        rule=_over(rule, thresholds.rule) and rule >= fact,
        fact=_over(fact, thresholds.fact) and fact > rule,
        bad=bad,
        good=good,
    )


def _either(value: float, alone: float | None, with_rules: float | None, *, agreed: bool) -> bool:
    return _over(value, alone) or (agreed and _over(value, with_rules))


def _over(value: float, threshold: float | None) -> bool:
    return threshold is not None and value >= threshold


def as_json(combination: Combination) -> dict[str, Any]:
    """The file's content."""

    def row(weights: Weights) -> dict[str, Any]:
        limits = weights.thresholds
        return {
            "ngrams": weights.ngrams,
            "classifier": weights.classifier,
            "rules_bad": weights.rules_bad,
            "rules_good": weights.rules_good,
            "bias": list(weights.bias),
            "thresholds": asdict(limits),
        }

    return {
        name: {f"{group} {channel}": row(weights) for (group, channel), weights in table.items()}
        for name, table in (("alone", combination.alone), ("both", combination.both))
    }


def from_json(data: Mapping[str, Any], *, name: str) -> Combination:
    """The combination of a file; raises ConfigError where something is missing."""

    def table(rows: Mapping[str, Any]) -> dict[Place, Weights]:
        named = {place: rows[f"{place[0]} {place[1]}"] for place in PLACES}
        return {
            place: Weights(
                **{**row, "bias": tuple(row["bias"])} | {"thresholds": Thresholds(**row["thresholds"])},
            )
            for place, row in named.items()
        }

    try:
        return Combination(alone=table(data["alone"]), both=table(data["both"]) if data["both"] else {})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{name} is incomplete: {error}", remedy="install again, or make judge-reader") from error


@cache
def shipped_combination() -> Combination:
    """The weights and thresholds that come with the package."""
    return from_json(json.loads(SHIPPED.read_text()), name=str(SHIPPED))
