"""The cells of the personal-agent benchmark, and their results over seeds as rows, a table and a chart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.experiments import charts
from openclaw_rl.experiments.metrics import RUN, markdown, spread

METHODS = ("binary", "opd", "combine", "topk")
ARMS = ("none", "memory")
"""arms without training: nothing at all, and the corrections pasted into the prompt"""
NOTES = ("note", "rehearse", "note+rehearse")
"""arms of standing notes: in the prompt alone, rehearsed and never in the prompt, and both; turns take no steps"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the benchmark: ``arm`` is a method, or one of `ARMS` and `NOTES`; ``users`` share one policy."""

    arm: str
    users: tuple[str, ...]
    seed: int

    @property
    def trains(self) -> bool:
        """Whether its policy changes."""
        return self.arm in METHODS or "rehearse" in self.arm

    @property
    def noted(self) -> bool:
        """Whether standing notes are in its users' prompts."""
        return self.arm in ("note", "note+rehearse")

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
    kept = [one["relevance_kept"] for one in found if one.get("relevance_kept") is not None]
    abilities = [one["ability_after"] - one["ability_before"] for one in found if one["ability_after"] is not None]
    return {
        "arm": arm,
        "group": group,
        "user": user,
        "seeds": len(found),
        "reached": sum(one["sessions"] is not None for one in found),
        "sessions": spread(until),
        "before": spread([one["before"]["rate"] for one in found]),
        "after": spread([one["after"]["rate"] for one in found]),
        "relevance": spread([one["after"]["relevance"] for one in found]),
        "relevance_kept": spread(kept) if kept else None,
        "words": spread([one["after"]["words"] for one in found]),
        "degenerate": sum(one["after"]["degenerate"] for one in found),
        "ability": spread(abilities) if abilities else None,
        "seconds": spread([one["seconds"] for one in found]),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    head = ("users", "preference", "arm", "sessions", "reached", "held-out", "relevance", "words", "ability", "seconds")
    return markdown([head, ("---",) * len(head), *map(_columns, sorted(rows, key=_order))])


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    known = [*ARMS, *NOTES, *METHODS]
    return ("+" in row["group"], row["group"], row["user"], known.index(row["arm"]) if row["arm"] in known else 99)


def _columns(row: Mapping[str, Any]) -> tuple[str, ...]:
    def give(name: str, digits: int) -> str:
        return f"{row[name]['mean']:.{digits}f} ± {row[name]['deviation']:.{digits}f}"

    return (
        row["group"],
        row["user"],
        row["arm"],
        give("sessions", 1),
        f"{row['reached']} of {row['seeds']}",
        f"{row['before']['mean']:.2f} -> {give('after', 2)}",
        give("relevance", 2),
        f"{row['words']['mean']:.0f}",
        f"{row['ability']['mean']:+.2f}" if row["ability"] else "-",
        f"{row['seconds']['mean']:.0f}",
    )


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
