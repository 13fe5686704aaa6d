"""Curves as drawings without a script: a line, and the same in words for screen readers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openclaw_rl.page.html import Html, alarms, el, empty, header, join
from openclaw_rl.types import DropReason
from openclaw_rl.views.browse import Curve
from openclaw_rl.views.status import REMEDIES

WIDE, HIGH, EDGE = 600.0, 160.0, 8.0
_MOST = 300
"""most points of a line: more would be indistinguishable"""


def chart(curve: Curve) -> Html:
    """Return a card with the curve, its present value, and a description of a good curve."""
    points = thinned(curve.points)
    first, last = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    summary = f"{curve.title}: {figure(first[1])} at {curve.axis} {first[0]:g}, {figure(last[1])} at {last[0]:g}"
    spread = f"; between {figure(low)} and {figure(high)}"
    return el(
        "figure",
        el(
            "figcaption",
            el("h2", curve.title),
            el("p", el("strong", figure(last[1])), el("span", curve.unit, class_="faint"), class_="value"),
        ),
        *(_drawn(curve, points, low, high, label=summary + spread) if len(points) > 1 else [_alone(curve, first)]),
        el("p", curve.good, class_="good-is"),
        class_="card curve",
    )


def _drawn(curve: Curve, points: Sequence[tuple[float, float]], low: float, high: float, *, label: str) -> list[Html]:
    ends = f"{curve.axis} {points[0][0]:g}", f"{figure(low)} to {figure(high)}", f"{points[-1][0]:g}"
    return [_drawing(points, low, high, label=label), el("p", *[el("span", end) for end in ends], class_="axis")]


def _alone(curve: Curve, point: tuple[float, float]) -> Html:
    return el("p", f"one point so far, {curve.axis} {point[0]:g}", class_="axis")


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most ``_MOST`` of the points, evenly spaced, always with the last one."""
    if len(points) <= _MOST:
        return list(points)
    every = len(points) / _MOST
    return [points[int(at * every)] for at in range(_MOST - 1)] + [points[-1]]


def figure(value: float) -> str:
    """Format a number for a person."""
    size = abs(value)
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if size >= 100 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def _drawing(points: Sequence[tuple[float, float]], low: float, high: float, *, label: str) -> Html:
    places = [_place(point, points, low, high) for point in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    (first, _), (x, y) = places[0], places[-1]
    return el(
        "svg",
        el("path", d=f"M{first:.1f},{HIGH} L{line.replace(' ', ' L')} L{x:.1f},{HIGH} Z", class_="area"),
        el("polyline", points=line, class_="stroke"),
        el("circle", cx=round(x, 1), cy=round(y, 1), r=4.5, class_="end"),
        viewBox=f"0 0 {WIDE:g} {HIGH:g}",
        role="img",
        aria_label=label,
    )


def _place(
    point: tuple[float, float], points: Sequence[tuple[float, float]], low: float, high: float
) -> tuple[float, float]:
    start, end = points[0][0], points[-1][0]
    across = (point[0] - start) / (end - start) if end > start else 1.0
    up = (point[1] - low) / (high - low) if high > low else 0.5
    return EDGE + across * (WIDE - 2 * EDGE), HIGH - EDGE - up * (HIGH - 2.5 * EDGE)


def bars(rows: Sequence[tuple[str, float, str]], *, label: str) -> Html:
    """Draw amounts beside their names: name, amount, its label."""
    most = max((amount for _, amount, _ in rows), default=0.0) or 1.0
    drawn = [
        el(
            "li",
            el("span", name),
            el(
                "svg",
                el("rect", width=100, height=8, class_="track"),
                el("rect", width=round(100 * amount / most, 1), height=8, class_="fill"),
                viewBox="0 0 100 8",
                preserveAspectRatio="none",
                aria_hidden="true",
            ),
            el("span", amount_label),
        )
        for name, amount, amount_label in rows
    ]
    return el("ul", *drawn, class_="amounts", aria_label=label)


# Curves: figures of training and serving with descriptions of good curves, and the turns that do not train.


def curves_view(
    curves: Sequence[Curve], drops: Mapping[DropReason, int], found: Sequence[str], *, waiting: str
) -> Html:
    """Draw alarms, then curves, then the turns left out of training with their reasons."""
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
        el("p", "Every drop is counted. In a healthy run most are side turns and conversations without feedback."),
        bars(rows, label="Turns dropped, by reason"),
        el("ul", *advice, class_="advice") if advice else None,
        class_="card drops",
        data_live="drops",
    )
