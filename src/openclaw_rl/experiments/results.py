"""JSON files of experiments: written atomically, one part per line; a benchmark resumes from its own file."""

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
"""former names of renamed fields in files from `bench`"""


def read(file: Path | None, start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results so far, or ``start`` if there are none.

    Raises ConfigError if the file's setup, settings or code differ from those in ``start``.
    """
    if file is None or not file.exists():
        return {**start, "cells": {}, "summary": []}
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if any(results.get(name) != start[name] for name in ("setup", "settings")):
        raise ConfigError(f"{file} holds results of other settings", remedy="give another --json, or the same settings")
    if results.get("code") != start["code"]:
        raise ConfigError(f"{file} holds results of other code", remedy="give another --json: users or gate may differ")
    return results


def code_digest(*roots: Path) -> str:
    """Return a digest of the files in these folders, since figures of two code states are not one benchmark."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def write(file: Path, report: Mapping[str, Any], *, former: Mapping[str, str] = FORMER) -> None:
    """Write a report atomically; each entry of a part, such as a cell, is on its own line."""
    view = with_aliases(report, former)
    parts = ",\n".join(f"{_line(name)}: {_lines(part)}" for name, part in view.items())
    files.write(file, f"{{\n{parts}\n}}\n")


def _lines(part: object) -> str:
    if isinstance(part, Mapping) and part:
        return "{\n" + ",\n".join(f" {_line(name)}: {_line(item)}" for name, item in part.items()) + "\n}"
    if isinstance(part, list) and part:
        return "[\n" + ",\n".join(f" {_line(item)}" for item in part) + "\n]"
    return _line(part)


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# Measures of learning: preference rate, relevance, and sessions until a preference is met. Pure.
#
# measure(preference, tasks, replies)     rates of a set of held-out replies
# sessions_until(met)                     sessions until the preference was met in three sessions in a row
# teachable(plain, prompted)              verdict on the prompted baseline as a teacher

RUN = 3
"""consecutive sessions in which the first reply must meet the preference"""
FOLLOWS, GAIN = 0.5, 0.1
"""least prompted rate of a teachable preference, and its least margin over the plain rate"""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRates:
    """Rates over held-out replies. Shares are of all replies; ``words`` is the mean length.

    ``rate`` is the preference rate, ``relevance`` the share that names the topic asked about.
    """

    count: int
    rate: float
    relevance: float
    words: float
    degenerate: int

    def plain(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def measure(preference: Preference, tasks: Sequence[Task], replies: Sequence[str]) -> HeldOutRates:
    """Return the shares of replies that meet the preference, stay relevant, or are degenerate."""
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
    """Return the relevance after learning the preference, relative to the prompted baseline's."""
    return after.relevance / prompted.relevance if prompted.relevance else None


def teachable(plain: HeldOutRates, prompted: HeldOutRates) -> str:
    """Return in words if the base model with the preference in its prompt can teach it."""
    if prompted.rate < FOLLOWS:
        return "cannot be followed even when prompted"
    if prompted.rate - plain.rate < GAIN:
        return "nothing to teach: much the same when prompted"
    return "can be taught"


def prompted_table(rows: Mapping[str, tuple[HeldOutRates, HeldOutRates]]) -> str:
    """Return a Markdown table of the base model by user, plain and with the preference in its prompt."""
    of = ("relevance", "words", "degenerate")
    head = ("user", "prompts", "plain", "prompted", *(f"{column}, prompted" for column in of), "teachable")
    lines = [head, ("---",) * len(head)]
    for name, (plain, prompted) in rows.items():
        rates = (f"{plain.rate:.2f}", f"{prompted.rate:.2f}", f"{prompted.relevance:.2f}", f"{prompted.words:.0f}")
        lines.append((name, str(plain.count), *rates, str(prompted.degenerate), teachable(plain, prompted)))
    return markdown(lines)


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sessions_until(met: Sequence[bool], *, run: int = RUN) -> int | None:
    """Return the number of the session that completes ``run`` successes in a row, None if there is none."""
    row = 0
    for number, is_met in enumerate(met, 1):
        row = row + 1 if is_met else 0
        if row == run:
            return number
    return None


def note_curves(distillations: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return curves by training step of a note's distillation: compliance without the note.

    One curve is for held-out prompts and one for training prompts; without a checker, the remaining share of the first
    KL.
    """
    held_out, sampled, apart, before = *(list[tuple[int, float]]() for _ in range(3)), 0
    first = max((row["kl"][0] for row in distillations[:1]), default=0.0) or 1.0
    for row in distillations:
        at = [before + step for step in row["measured_after"]]
        held_out += [
            (step, met / row["held_back"]) for step, met in zip(at, row["met"], strict=True) if met is not None
        ]
        sampled += [(before + step, met / count) for step, met, count in row["sampled"]]
        apart += [(step, min(1.0, kl / first)) for step, kl in zip(at, row["kl"], strict=True)]
        before += row["steps"]
    return {"held-back prompts": held_out, "distilled prompts": sampled} if held_out else {"distance left": apart}


def curve(turns: Iterable[SimulatedTurn], *, window: int = 8) -> list[tuple[int, float]]:
    """Return the preference rate over the last ``window`` first replies, by the number read."""
    met = [turn.met for turn in turns if turn.round == 0]
    recent = (met[max(0, at - window) : at] for at in range(1, len(met) + 1))
    return [(at, sum(part) / len(part)) for at, part in enumerate(recent, 1)]


def sparkline(values: Sequence[float]) -> str:
    """Return shares in 0 .. 1 as small bars."""
    return "".join(_BARS[min(len(_BARS) - 1, int(value * len(_BARS)))] for value in values)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, standard deviation (0 for one value), minimum, maximum, and the mean's 95 % interval.

    The interval is Student's, over the seeds, and None for fewer than three values.
    """
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    figures = {"mean": statistics.fmean(values), "deviation": deviation, "least": min(values), "most": max(values)}
    within = interval(values, alpha=0.025)
    ends = {"low": within.low, "high": within.high}
    return {
        **{name: round(value, 4) for name, value in figures.items()},
        **{name: round(value, 4) if math.isfinite(value) else None for name, value in ends.items()},
    }
