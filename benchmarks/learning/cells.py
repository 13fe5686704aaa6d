"""The cells of the personal-agent benchmark, and their results over seeds as rows, a table and a chart. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.experiments import charts
from openclaw_rl.experiments.results import RUN, markdown, spread

METHODS = ("binary", "opd", "combine", "topk")
ARMS = ("none", "memory")
"""arms without training: nothing at all, and the corrections pasted into the prompt"""
NOTES = ("note", "distill", "note+distill")
"""arms of standing notes: in the prompt alone, distilled and never in the prompt, and both; turns take no steps"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the benchmark: ``arm`` is a method, or one of `ARMS` and `NOTES`; ``users`` share one policy."""

    arm: str
    users: tuple[str, ...]
    seed: int

    @property
    def trains(self) -> bool:
        """Whether its policy changes."""
        return self.arm in METHODS or "distill" in self.arm

    @property
    def noted(self) -> bool:
        """Whether standing notes are in its users' prompts."""
        return self.arm in ("note", "note+distill")

    @property
    def key(self) -> str:
        return f"{self.arm} {'+'.join(self.users)} seed{self.seed}"


def cells(*, users: Sequence[str], together: Sequence[str], arms: Sequence[str], seeds: Iterable[int]) -> list[Cell]:
    """Every run there is to make: each user alone, then those that share one policy, seed by seed."""
    groups = [(user,) for user in users] + ([tuple(together)] if together else [])
    return [Cell(arm=arm, users=group, seed=seed) for seed in seeds for group in groups for arm in arms]


def summary(results: Mapping[str, Mapping[str, Any]], *, sessions: int) -> list[dict[str, Any]]:
    """One row for each arm, group and user of finished cells, with mean and spread over seeds.

    A preference that was never met is counted as ``sessions``; ``reached`` says how many seeds met it.
    """
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for result in results.values():
        for name, user in result["users"].items():
            grouped.setdefault((result["arm"], "+".join(result["users"]), name), []).append({**result, **user})
    return [_row(*names, found, sessions=sessions) for names, found in grouped.items()]


def _row(arm: str, group: str, user: str, found: Sequence[Mapping[str, Any]], *, sessions: int) -> dict[str, Any]:
    until = [sessions if one["sessions"] is None else one["sessions"] for one in found]
    return {
        "arm": arm,
        "group": group,
        "user": user,
        "seeds": len(found),
        "reached": sum(one["sessions"] is not None for one in found),
        "sessions": spread(until),
        **{f"{when}": _rates(found, when, "rate") for when in ("before", "prompted", "after", "served")},
        "relevance": _rates(found, "after", "relevance"),
        "relevance_before": _rates(found, "before", "relevance"),
        "relevance_kept": _spread(one.get("relevance_kept") for one in found),
        "words": _rates(found, "after", "words"),
        "words_prompted": _rates(found, "prompted", "words"),
        "degenerate": sum(one["after"]["degenerate"] for one in found),
        "degenerate_prompted": sum((one.get("prompted") or {}).get("degenerate", 0) for one in found),
        "ability": _spread(
            one["ability_after"] - one["ability_before"] for one in found if one["ability_after"] is not None
        ),
        "added_tokens": _spread(_mean(one.get("added_tokens")) for one in found),
        "training_per_correction": _spread(one.get("training_per_correction") for one in found),
        "seconds": spread([one["seconds"] for one in found]),
    }


def _rates(found: Sequence[Mapping[str, Any]], when: str, what: str) -> dict[str, Any] | None:
    return _spread((one.get(when) or {}).get(what) for one in found)


def _spread(values: Iterable[float | None]) -> dict[str, Any] | None:
    """The spread of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def _mean(values: Sequence[float] | None) -> float | None:
    return statistics.fmean(values) if values else None


_HEAD = (
    *("users", "preference", "arm", "sessions", "reached", "held-out", "prompted", "relevance", "words", "degenerate"),
    *("ability", "added tokens", "training s", "seconds"),
)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table, each mean with its 95 % interval over seeds (from three seeds on)."""
    return markdown([_HEAD, ("---",) * len(_HEAD), *map(_columns, sorted(rows, key=_order))])


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    known = [*ARMS, *NOTES, *METHODS]
    return ("+" in row["group"], row["group"], row["user"], known.index(row["arm"]) if row["arm"] in known else 99)


def _columns(row: Mapping[str, Any]) -> tuple[str, ...]:
    held_out = f"{row['before']['mean']:.2f} -> {_within(row['after'], 2)}"
    if row["served"]:
        held_out += f", {row['served']['mean']:.2f} with its notes"
    return (
        row["group"],
        row["user"],
        row["arm"],
        _within(row["sessions"], 1),
        f"{row['reached']} of {row['seeds']}",
        held_out,
        _plain(row["prompted"], ".2f"),
        f"{_within(row['relevance'], 2)}, base {row['relevance_before']['mean']:.2f}",
        f"{row['words']['mean']:.0f}, prompted {_plain(row['words_prompted'], '.0f')}",
        f"{row['degenerate']}, prompted {row['degenerate_prompted']}",
        _plain(row["ability"], "+.2f"),
        _plain(row["added_tokens"], ".0f"),
        _plain(row["training_per_correction"], ".0f"),
        f"{row['seconds']['mean']:.0f}",
    )


def _within(spread: Mapping[str, Any], digits: int) -> str:
    """A mean with its interval, where it has one."""
    mean = f"{spread['mean']:.{digits}f}"
    return mean if spread["low"] is None else f"{mean} ({spread['low']:.{digits}f} to {spread['high']:.{digits}f})"


def _plain(spread: Mapping[str, Any] | None, shown: str) -> str:
    return f"{spread['mean']:{shown}}" if spread else "-"


def chart(rows: Sequence[Mapping[str, Any]], *, sessions: int) -> str:
    """Sessions until the preference is met, by user and arm, as SVG."""
    groups: dict[str, dict[str, tuple[float, float]]] = {}
    order = [*ARMS, *NOTES, *METHODS]
    for row in sorted(rows, key=lambda row: order.index(row["arm"])):
        alone = row["group"] == row["user"]
        name = row["user"] if alone else f"{row['user']} (of {row['group'].count('+') + 1})"
        groups.setdefault(name, {})[row["arm"]] = (row["sessions"]["mean"], row["sessions"]["deviation"])
    title = f"sessions until the preference was met {RUN} times in a row"
    return charts.bars(f"{title} (at most {sessions}; mean and deviation over seeds)", groups, y="sessions")
