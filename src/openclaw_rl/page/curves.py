"""Curves and Environments: figures of training, each with what good looks like; how tasks of environments end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from openclaw_rl.page.charts import bars, chart
from openclaw_rl.page.frame import alarms, header
from openclaw_rl.page.html import Html, el, empty, join, when
from openclaw_rl.types import DropReason
from openclaw_rl.views.alarms import REMEDIES
from openclaw_rl.views.browse import Curve, TaskLine


def curves_view(
    curves: Sequence[Curve], drops: Mapping[DropReason, int], found: Sequence[str], *, waiting: str
) -> Html:
    """Alarms first, then what moves, then what was left out of training and why."""
    drawn = [chart(curve) for curve in curves]
    nothing = empty("Nothing to draw yet", "Figures come with the first verdicts and the first step.")
    return join(
        header("Curves", f"{waiting} turns wait to be judged. Under each curve: what good looks like."),
        alarms(found),
        el("div", *(drawn or [nothing]), class_="curves", data_live="curves"),
        _drops(drops) if drops else None,
    )


def _drops(drops: Mapping[DropReason, int]) -> Html:
    ranked = sorted(drops.items(), key=lambda row: -row[1])
    rows = [(reason, float(count), f"{count:,}") for reason, count in ranked]
    advice = [el("li", el("strong", why), f": {REMEDIES[why]}") for why, _ in ranked[:3] if why in REMEDIES]
    return el(
        "section",
        el("h2", "Turns that do not train, by reason"),
        el("p", "Every drop is counted. Side turns and talk without feedback are most of them in a sound run."),
        bars(rows, label="Turns dropped, by reason"),
        el("ul", *advice, class_="advice") if advice else None,
        class_="card drops",
        data_live="drops",
    )


def environments_view(tasks: Sequence[TaskLine], *, replays: bool) -> Html:
    """Success by task; ``replays``: whether this person may read the episodes."""
    top = header("Environments", "How the newest episodes of each task ended.")
    if not tasks:
        hint = "Play some: openclaw-rl up --set env.type=terminal. Episodes are shown by task as they end."
        return join(top, empty("No episode yet", hint))
    by_env: dict[str, list[TaskLine]] = {}
    for task in tasks:
        by_env.setdefault(task.environment, []).append(task)
    return join(top, *[_environment(name, lines, replays=replays) for name, lines in by_env.items()])


def _environment(name: str, tasks: Sequence[TaskLine], *, replays: bool) -> Html:
    episodes, won = sum(task.episodes for task in tasks), sum(task.won for task in tasks)
    rows = [
        el(
            "tr",
            el("td", task.task),
            el("td", f"{task.won} of {task.episodes}"),
            el("td", "" if task.mean is None else f"{task.mean:+.2f}"),
            el("td", task.failed or ""),
            el("td", when(task.at)),
        )
        for task in tasks[:100]
    ]
    titles = [el("th", title, scope="col") for title in ("Task", "Won", "Mean outcome", "Failed", "Last")]
    table = el("table", el("thead", el("tr", *titles)), el("tbody", *rows))
    share = f"{won / max(episodes, 1):.0%} of {episodes} episodes won"
    episodes_of = f"/sessions?{urlencode({'user': f'env:{name}'})}"
    read = el("a", "Read the newest episodes", href=episodes_of) if replays else None
    top = el("header", el("h2", name), el("p", share, read, class_="row faint"))
    return el("section", top, el("div", table, class_="scroll"), class_="card listing")
