"""The personal-agent measure: how soon a user's wish holds, and what it costs. Pure.

sessions_until(first replies met)     sessions until the wish held in three sessions in a row
measure(wish, tasks, replies)         the held-out rate, and whether replies keep their sense
teachable(plain, told)                whether the base, when told a wish, can teach it
summary(cells), table(rows)           mean and spread over seeds
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openclaw_rl.experiments.users import Exchange, as_wished
from openclaw_rl.tasks.everyday import Task, sense
from openclaw_rl.tasks.preferences import Wish
from openclaw_rl.text import degenerate, word_count

RUN = 3
"""sessions in a row in which the first reply must be as wished"""
METHODS = ("binary", "opd", "combine", "topk")
ARMS = ("none", "memory")
"""arms without training: nothing at all, and the corrections pasted into the prompt"""
FOLLOWS, GAIN = 0.5, 0.1
"""the least told rate of a wish that can be taught, and the least by which it is above the plain one"""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a set of held-out replies shows. Shares are of all replies; ``words`` is the mean length."""

    count: int
    rate: float
    sense: float
    words: float
    degenerate: int

    def plain(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def measure(wish: Wish, tasks: Sequence[Task], replies: Sequence[str]) -> Measured:
    """How many replies are as wished, name what was asked about, are none at all."""
    count = len(tasks)
    pairs = list(zip(tasks, replies, strict=True))
    return Measured(
        count=count,
        rate=sum(as_wished(wish, task, reply) for task, reply in pairs) / count,
        sense=sum(sense(task, reply) for task, reply in pairs) / count,
        words=sum(word_count(reply) for reply in replies) / count,
        degenerate=sum(degenerate(reply, figure=task.answer is not None) is not None for task, reply in pairs),
    )


def kept(after: Measured, hinted: Measured) -> float | None:
    """How much of the sense that the base has when told the wish is kept by a policy that knows it."""
    return after.sense / hinted.sense if hinted.sense else None


def teachable(plain: Measured, told: Measured) -> str:
    """Whether a base that is told the wish can teach it to one that is not, in words."""
    if told.rate < FOLLOWS:
        return "cannot be followed even when told"
    if told.rate - plain.rate < GAIN:
        return "nothing to teach: much the same when told"
    return "can be taught"


def told_table(rows: Mapping[str, tuple[Measured, Measured]]) -> str:
    """The base by user, plain and told the wish, as a Markdown table."""
    head = ("user", "prompts", "plain", "told", "sense, told", "words, told", "degenerate, told", "teachable")
    lines = [head, ("---",) * len(head)]
    for name, (plain, told) in rows.items():
        rates = (f"{plain.rate:.2f}", f"{told.rate:.2f}", f"{told.sense:.2f}", f"{told.words:.0f}")
        lines.append((name, str(plain.count), *rates, str(told.degenerate), teachable(plain, told)))
    return _markdown(lines)


def sessions_until(met: Sequence[bool], *, run: int = RUN) -> int | None:
    """The number of the session that completes ``run`` sessions in a row with the wish met; None if there is none."""
    row = 0
    for number, one in enumerate(met, 1):
        row = row + 1 if one else 0
        if row == run:
            return number
    return None


def curve(told: Iterable[Exchange], *, window: int = 8) -> list[tuple[int, float]]:
    """The share of the last ``window`` first replies that were as wished, by how many had been heard."""
    met = [exchange.met for exchange in told if exchange.round == 0]
    recent = (met[max(0, at - window) : at] for at in range(1, len(met) + 1))
    return [(at, sum(part) / len(part)) for at, part in enumerate(recent, 1)]


def sparkline(values: Sequence[float]) -> str:
    """Shares in 0 .. 1 as little bars."""
    return "".join(_BARS[min(len(_BARS) - 1, int(value * len(_BARS)))] for value in values)


# --- the benchmark's cells ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the benchmark: ``arm`` is a method or an arm without training, ``users`` share one policy."""

    arm: str
    users: tuple[str, ...]
    seed: int

    @property
    def key(self) -> str:
        return f"{self.arm} {'+'.join(self.users)} seed{self.seed}"


def cells(*, users: Sequence[str], together: Sequence[str], arms: Sequence[str], seeds: Iterable[int]) -> list[Cell]:
    """Every run there is to make: each user alone, then those that share one policy, seed by seed."""
    groups = [(user,) for user in users] + ([tuple(together)] if together else [])
    return [Cell(arm=arm, users=group, seed=seed) for seed in seeds for group in groups for arm in arms]


def summary(results: Mapping[str, Mapping[str, Any]], *, sessions: int) -> list[dict[str, Any]]:
    """One row for each arm, group and user of finished cells, with mean and spread over seeds.

    A wish that never held is counted as ``sessions`` and told of in ``reached``.
    """
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for result in results.values():
        for name, user in result["users"].items():
            grouped.setdefault((result["arm"], "+".join(result["users"]), name), []).append({**result, **user})
    return [_row(*names, found, sessions=sessions) for names, found in grouped.items()]


def _row(arm: str, group: str, user: str, found: Sequence[Mapping[str, Any]], *, sessions: int) -> dict[str, Any]:
    until = [sessions if one["sessions"] is None else one["sessions"] for one in found]
    senses = [one["sense_kept"] for one in found if one.get("sense_kept") is not None]
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
        "sense": spread([one["after"]["sense"] for one in found]),
        "sense_kept": spread(senses) if senses else None,
        "words": spread([one["after"]["words"] for one in found]),
        "degenerate": sum(one["after"]["degenerate"] for one in found),
        "ability": spread(abilities) if abilities else None,
        "seconds": spread([one["seconds"] for one in found]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation (0 for one value), least and most."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    found = {"mean": statistics.fmean(values), "deviation": deviation, "least": min(values), "most": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    head = ("users", "wish", "arm", "sessions", "reached", "held-out", "sense", "words", "ability", "seconds")
    return _markdown([head, ("---",) * len(head), *map(_cells, sorted(rows, key=_order))])


def _markdown(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    known = [*ARMS, *METHODS]
    return ("+" in row["group"], row["group"], row["user"], known.index(row["arm"]) if row["arm"] in known else 99)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    def give(name: str, digits: int) -> str:
        return f"{row[name]['mean']:.{digits}f} ± {row[name]['deviation']:.{digits}f}"

    return (
        row["group"],
        row["user"],
        row["arm"],
        give("sessions", 1),
        f"{row['reached']} of {row['seeds']}",
        f"{row['before']['mean']:.2f} -> {give('after', 2)}",
        give("sense", 2),
        f"{row['words']['mean']:.0f}",
        f"{row['ability']['mean']:+.2f}" if row["ability"] else "-",
        f"{row['seconds']['mean']:.0f}",
    )
