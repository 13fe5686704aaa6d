"""Curves: figures of training and serving, each with what good looks like, and what does not train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openclaw_rl.page.charts import bars, chart
from openclaw_rl.page.frame import alarms, header
from openclaw_rl.page.html import Html, el, empty, join
from openclaw_rl.types import DropReason
from openclaw_rl.views.alarms import REMEDIES
from openclaw_rl.views.browse import Curve


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
