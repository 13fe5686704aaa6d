"""One estimate from n-grams, classifier and rules, and the thresholds above which it counts. Pure.

Weights and thresholds are fitted on annotator personas that the models had not seen, at the rates of real
conversations, separately for each language group and channel. If nothing reaches the required precision, there is no
threshold and the judge stays silent.
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

# Kinds of messages, and the language groups with thresholds of their own. Pure.

# ruff: noqa: SIM905  (word lists stay in one string)

MessageKind: TypeAlias = Literal["complaint", "rule", "fact", "neutral", "praise", "mixed"]
KINDS: tuple[MessageKind, ...] = get_args(MessageKind)
"""in the order of every table; mixed is praise with a wish for later"""
KindLogprobs: TypeAlias = tuple[float, ...]
"""one log-prob per kind `[6]`"""
BAD: tuple[MessageKind, ...] = ("complaint", "fact")
"""a rule alone is no bad news: it may be a wish for later replies, or a plain next task mistaken for one"""
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
    """Return the group by script; Latin text is English if at least a quarter of its words are common English ones.

    A message under eight words is judged together with the request.
    """
    named = script(message * 4) or script(request)  # repeated, so that two characters suffice for a script
    if named is None:
        return "other" if not request else group_of(request)
    if named == "CJK" and _KANA.search(message + request):
        return "japanese"
    if named == "LATIN":
        return "english" if _is_english(message, request) else "latin"
    return _SCRIPTS.get(named, "other")


def _is_english(message: str, request: str) -> bool:
    tokens = [word.lower().replace("’", "'") for word in _WORD.findall(message)]
    if len(tokens) < 8:
        tokens += [word.lower().replace("’", "'") for word in _WORD.findall(request)[:24]]
    return sum(word in _ENGLISH for word in tokens) >= 0.25 * max(1, len(tokens))


def normalised(logits: Sequence[float]) -> KindLogprobs:
    """Return the logits as log-probs."""
    top = max(logits)
    total = top + math.log(sum(math.exp(value - top) for value in logits))
    return tuple(value - total for value in logits)


def mass(logprobs: Sequence[float], kinds: Sequence[MessageKind]) -> float:
    """Return the probability that the message has one of these kinds."""
    return sum(math.exp(logprobs[KINDS.index(kind)]) for kind in kinds)


Place: TypeAlias = tuple[LanguageGroup, Channel]
PLACES: tuple[Place, ...] = tuple((group, channel) for group in GROUPS for channel in CHANNELS)
SHIPPED = Path(__file__).parent / "combination.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Minimum probability of bad or good news, a rule and a fact; None: never.

    ``bad_with_rules`` and ``good_with_rules`` apply to messages with the same score by the rules.
    """

    bad: float | None
    good: float | None
    bad_with_rules: float | None
    good_with_rules: float | None
    rule: float | None
    fact: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weight of each estimator: factors on log-probs, a bonus for the rules' score, and each kind's bias `[6]`."""

    ngrams: float
    classifier: float
    rules_bad: float
    rules_good: float
    bias: tuple[float, ...]
    thresholds: Thresholds

    def combined(
        self, ngrams: Sequence[float], classifier: Sequence[float] | None, rules: float | None
    ) -> KindLogprobs:
        """Combine all log-probs to one estimate; ``rules`` is the score by the rules."""
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
    """Weights by language group and channel: ``alone`` for n-grams only, ``both`` with the classifier's answer."""

    alone: Mapping[Place, Weights]
    both: Mapping[Place, Weights]

    def weights(self, group: LanguageGroup, channel: Channel, *, classifier: bool) -> Weights:
        return (self.both if classifier and self.both else self.alone)[group, channel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Conclusions about a message: a score or none, and whether it carries a rule or a fact."""

    score: int | None
    rule: bool
    fact: bool
    bad: float
    good: float


def believe(logprobs: Sequence[float], thresholds: Thresholds, *, rules: float | None, wish: bool = False) -> Belief:
    """Apply the thresholds: only the likelier of good and bad counts, and nothing that the rules contradict.

    ``wish``: the rules found a preference and no complaint, so they do not confirm bad news.
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
    """Return the file's content."""

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
    """Return a file's combination; raises ConfigError if a part is missing."""

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
        raise ConfigError(
            f"{name} is incomplete: {error}", remedy="install again, or make feedback-classifier"
        ) from error


@cache
def shipped_combination() -> Combination:
    """Return the weights and thresholds shipped with the package."""
    return from_json(json.loads(SHIPPED.read_text()), name=str(SHIPPED))
