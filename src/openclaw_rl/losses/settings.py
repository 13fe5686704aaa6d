"""Settings of the built-in losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from openclaw_rl.errors import ConfigError

T = TypeVar("T")

KNOWN: Mapping[str, tuple[str, ...]] = {
    "method": (
        "binary",
        "opd",
        "distill",
        "combine",
        "topk",
        "gspo",
        "cispo",
        "dr_grpo",
        "dapo",
        "reinforce++",
        "rloo",
    ),
    "hint_selection": ("sequence_optimal", "token_optimal", "shortest"),
    "subset": ("student", "teacher", "overlap"),
    "kl": ("full", "k3"),
    "aggregate": ("token", "sample", "constant"),
}
"""names in the loss tables, for a process without torch that only passes settings on"""

SCORES_ALONE: Final = frozenset(("binary", "gspo", "cispo", "dr_grpo", "dapo", "reinforce++", "rloo"))
"""methods that learn from scores alone, never from hints"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageRule:
    """Comparison between a task's episodes in a method's advantage.

    ``baseline`` is subtracted: the mean over the group, the others in it, or the whole batch. ``scaled`` divides by
    the standard deviation. ``overlong`` reduces the reward near a reply's length limit; a reply that was cut off then
    trains.
    """

    baseline: Literal["mean", "others", "batch"] = "mean"
    scaled: bool = True
    overlong: bool = False


ADVANTAGES: Mapping[str, AdvantageRule] = MappingProxyType(
    {
        "dr_grpo": AdvantageRule(scaled=False),
        "dapo": AdvantageRule(overlong=True),
        "reinforce++": AdvantageRule(baseline="batch"),
        "rloo": AdvantageRule(baseline="others", scaled=False),
    }
)
"""methods with their own rule; the others use the defaults of `AdvantageRule`"""

FORWARD: Mapping[str, bool] = MappingProxyType({"reverse": False, "forward": True, "sft": True, "auto": False})
"""by the name of a distillation loss: True if its KL is KL(teacher || current)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Settings of the built-in losses, as `config` declares them."""

    method: str
    """binary, opd, distill, combine, topk, gspo, cispo, dr_grpo, dapo, reinforce++ or rloo"""
    w_rl: float
    """weight of the policy-gradient term in combine and topk; 0 is OPD only"""
    w_opd: float
    """weight of the distillation term in combine and topk; 0 is GRPO only"""
    clip: float
    """C, the bound of l_T - l_old; 0 or less: no bound"""
    eps_low: float
    eps_high: float
    hint_selection: str
    """sequence_optimal, token_optimal or shortest"""
    subset: str
    """student, teacher or overlap"""
    kl: str
    """full (exact, over the vocabulary) or k3 (from the sampled token alone)"""
    kl_coef: float
    """weight of the KL penalty to the base model; 0 disables it"""
    max_mismatch: float
    """mask a token whose ratio of trainer to engine at equal weights is outside [1/this, this]; at least 1"""
    importance_cap: float
    """upper bound on a token's importance weight, its ratio of trainer to engine at equal weights; at least 1"""
    aggregate: str
    """token (one count per part), sample (mean within a sample, then over samples) or constant (sum over a constant)"""

    def __post_init__(self) -> None:
        for name, choices in KNOWN.items():
            look_up({key: key for key in choices}, getattr(self, name), name)


def look_up(table: Mapping[str, T], name: str, setting: str) -> T:
    """Return the entry called ``name``; raise ConfigError, listing the known names, if there is none."""
    if name not in table:
        raise ConfigError(f"no {setting} called {name!r}", remedy=f"known: {', '.join(table)}")
    return table[name]


def needs(s: LossSettings) -> tuple[int | None, bool]:
    """Return the number of hints per sample that these settings use (None: all), and True if they use its score."""
    from openclaw_rl.losses.methods import METHODS

    method = METHODS[s.method]
    hints = 0 if method.weighted and s.w_opd == 0 else method.hints
    return hints, method.scores and not (method.weighted and s.w_rl == 0)


def weight_of(s: LossSettings, *, hinted: bool, advantage: float | None, urgency: float = 1.0) -> float:
    """Return a sample's weight, 0 .. 1: its hint's weight times its urgency, or its score's, whichever is larger.

    A weight is taken relative to the larger of ``w_opd`` and ``w_rl``, so that scaling both changes nothing.
    """
    from openclaw_rl.losses.methods import METHODS

    method = METHODS[s.method]
    w_opd, w_rl = (s.w_opd, s.w_rl) if method.weighted else (1.0, 1.0)
    distilled = w_opd * urgency if hinted and method.hints != 0 else 0.0
    scored = w_rl * min(1.0, abs(advantage or 0.0)) if method.scores else 0.0
    return max(distilled, scored) / (max(w_opd, w_rl) or 1.0)
