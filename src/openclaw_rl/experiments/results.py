"""The JSON files of experiments: written whole, each part on a line; a benchmark goes on from its own file."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openclaw_rl import files
from openclaw_rl.errors import ConfigError
from openclaw_rl.experiments.sessions import SimulatedTurn, is_degenerate, meets
from openclaw_rl.stats import interval
from openclaw_rl.tasks.everyday import Task, is_relevant
from openclaw_rl.tasks.preferences import Preference
from openclaw_rl.text import word_count
from openclaw_rl.views.lineage import with_aliases

PACKAGE = Path(__file__).parents[1]
FORMER = {"prompted": "told", "relevance": "sense", "relevance_kept": "sense_kept", "teachable": "said"}
"""renamed fields of the files of `bench`, with their former names"""


def read(file: Path | None, start: Mapping[str, Any]) -> dict[str, Any]:
    """The results so far, or ``start`` where there are none.

    Raises ConfigError when the file was made with another setup, other settings or other code than ``start`` names.
    """
    if file is None or not file.exists():
        return {**start, "cells": {}, "summary": []}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if any(found.get(name) != start[name] for name in ("setup", "settings")):
        raise ConfigError(f"{file} holds results of other settings", remedy="give another --json, or the same settings")
    if found.get("code") != start["code"]:
        raise ConfigError(f"{file} holds results of other code", remedy="give another --json: users or gate may differ")
    return found


def code_digest(*roots: Path) -> str:
    """Digest the files of these folders: figures of two states of the code are not one benchmark."""
    found = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


def write(file: Path, report: Mapping[str, Any], *, former: Mapping[str, str] = FORMER) -> None:
    """Write a report whole or not at all; each part of a part, such as a cell, has a line to itself."""
    view = with_aliases(report, former)
    parts = ",\n".join(f"{_line(name)}: {_lines(part)}" for name, part in view.items())
    files.write(file, f"{{\n{parts}\n}}\n")


def _lines(part: object) -> str:
    if isinstance(part, Mapping) and part:
        return "{\n" + ",\n".join(f" {_line(name)}: {_line(one)}" for name, one in part.items()) + "\n}"
    if isinstance(part, list) and part:
        return "[\n" + ",\n".join(f" {_line(one)}" for one in part) + "\n]"
    return _line(part)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# What is measured of learning: the preference rate, relevance, and how soon a preference is met. Pure.
#
# measure(preference, tasks, replies)     rates of a set of held-out replies
# sessions_until(met)                     sessions until the preference was met in three sessions in a row
# teachable(plain, prompted)              whether the prompted baseline can teach a preference

RUN = 3
"""sessions in a row in which the first reply must meet the preference"""
FOLLOWS, GAIN = 0.5, 0.1
"""the least prompted rate of a preference that can be taught, and the least by which it is above the plain one"""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRates:
    """What a set of held-out replies shows. Shares are of all replies; ``words`` is the mean length.

    ``rate`` is the preference rate, ``relevance`` the share that names what was asked about.
    """

    count: int
    rate: float
    relevance: float
    words: float
    degenerate: int

    def plain(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def measure(preference: Preference, tasks: Sequence[Task], replies: Sequence[str]) -> HeldOutRates:
    """How many replies meet the preference, name what was asked about, are degenerate."""
    count = len(tasks)
    pairs = list(zip(tasks, replies, strict=True))
    return HeldOutRates(
        count=count,
        rate=sum(meets(preference, task, reply) for task, reply in pairs) / count,
        relevance=sum(is_relevant(task, reply) for task, reply in pairs) / count,
        words=sum(word_count(reply) for reply in replies) / count,
        degenerate=sum(is_degenerate(task, reply) for task, reply in pairs),
    )


def relevance_kept(after: HeldOutRates, prompted: HeldOutRates) -> float | None:
    """The relevance of a policy that has learned the preference, over that of the prompted baseline."""
    return after.relevance / prompted.relevance if prompted.relevance else None


def teachable(plain: HeldOutRates, prompted: HeldOutRates) -> str:
    """Whether the base model with the preference in its prompt can teach it to one without, in words."""
    if prompted.rate < FOLLOWS:
        return "cannot be followed even when prompted"
    if prompted.rate - plain.rate < GAIN:
        return "nothing to teach: much the same when prompted"
    return "can be taught"


def prompted_table(rows: Mapping[str, tuple[HeldOutRates, HeldOutRates]]) -> str:
    """The base model by user, plain and with the preference in its prompt, as a Markdown table."""
    of = ("relevance", "words", "degenerate")
    head = ("user", "prompts", "plain", "prompted", *(f"{one}, prompted" for one in of), "teachable")
    lines = [head, ("---",) * len(head)]
    for name, (plain, prompted) in rows.items():
        rates = (f"{plain.rate:.2f}", f"{prompted.rate:.2f}", f"{prompted.relevance:.2f}", f"{prompted.words:.0f}")
        lines.append((name, str(plain.count), *rates, str(prompted.degenerate), teachable(plain, prompted)))
    return markdown(lines)


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sessions_until(met: Sequence[bool], *, run: int = RUN) -> int | None:
    """The number of the session that completes ``run`` in a row with the preference met; None if there is none."""
    row = 0
    for number, one in enumerate(met, 1):
        row = row + 1 if one else 0
        if row == run:
            return number
    return None


def note_curves(rehearsals: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """By rehearsal steps, the share of replies without the note that do what it asks, on prompts held back from
    them and of those that were sampled to be rehearsed; where no program knows, the share of the first KL left."""
    held, sampled, apart, before = *(list[tuple[int, float]]() for _ in range(3)), 0
    first = max((row["kl"][0] for row in rehearsals[:1]), default=0.0) or 1.0
    for row in rehearsals:
        at = [before + step for step in row["measured_after"]]
        held += [(step, met / row["held_back"]) for step, met in zip(at, row["met"], strict=True) if met is not None]
        sampled += [(before + step, met / count) for step, met, count in row["sampled"]]
        apart += [(step, min(1.0, kl / first)) for step, kl in zip(at, row["kl"], strict=True)]
        before += row["steps"]
    return {"held-back prompts": held, "rehearsed prompts": sampled} if held else {"distance left": apart}


def curve(turns: Iterable[SimulatedTurn], *, window: int = 8) -> list[tuple[int, float]]:
    """The share of the last ``window`` first replies that met the preference, by how many had been read."""
    met = [turn.met for turn in turns if turn.round == 0]
    recent = (met[max(0, at - window) : at] for at in range(1, len(met) + 1))
    return [(at, sum(part) / len(part)) for at, part in enumerate(recent, 1)]


def sparkline(values: Sequence[float]) -> str:
    """Shares in 0 .. 1 as little bars."""
    return "".join(_BARS[min(len(_BARS) - 1, int(value * len(_BARS)))] for value in values)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, standard deviation (0 for one value), least and most, and the mean's 95 % interval (None for under three).

    The interval is Student's, over the seeds.
    """
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    found = {"mean": statistics.fmean(values), "deviation": deviation, "least": min(values), "most": max(values)}
    within = interval(values, alpha=0.025)
    ends = {"low": within.low, "high": within.high}
    return {
        **{name: round(value, 4) for name, value in found.items()},
        **{name: round(value, 4) if math.isfinite(value) else None for name, value in ends.items()},
    }
