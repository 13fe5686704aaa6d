"""Charts as SVG text: curves, and bars with their spread. Pure, without any package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 60, 48
_COLOURS = ("#1f6feb", "#d1571b", "#2da44e", "#8250df", "#bf8700", "#57606a")

Point = tuple[float, float]


def lines(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x: str,
    y: str,
    marks: Sequence[tuple[float, str]] = (),
    levels: Mapping[str, float] | None = None,
) -> str:
    """Draw curves with y in 0 .. 1. ``marks`` label moments on the x axis, ``levels`` are named heights."""
    most = max((at for points in series.values() for at, _ in points), default=1.0) or 1.0
    body = [*_frame(title, x=x, y=y, top=1.0), *_ticks_x(most)]
    for at, word in marks:
        place = _across(at, most)
        body.append(f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{_foot()}" stroke="#d0d7de"/>')
        body.append(_text(place, _TOP - 4, word, size=9, anchor="middle", colour="#8c959f"))
    for number, (name, height) in enumerate((levels or {}).items()):
        up = _up(height, 1.0)
        beside = up + 13 if height > 0.9 else up - 4  # within the frame
        body.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up:.1f}" y2="{up:.1f}"'
            f' stroke="{_COLOURS[(number + 1) % 6]}" stroke-dasharray="5 4"/>'
        )
        body.append(_text(_WIDTH - _RIGHT - 4, beside, name, size=11, anchor="end", colour=_COLOURS[(number + 1) % 6]))
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % 6]
        path = " ".join(f"{_across(at, most):.1f},{_up(value, 1.0):.1f}" for at, value in points)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        body.append(_text(_LEFT + 150 * number, _TOP - 22, name, size=12, colour=colour))
    return _svg(body, title)


def bars(
    title: str, groups: Mapping[str, Mapping[str, tuple[float, float]]], *, y: str, top: float | None = None
) -> str:
    """Draw bars by group and name, each (mean, deviation), with the mean in its foot and a whisker of one deviation."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    tallest = max((mean + dev for group in groups.values() for mean, dev in group.values()), default=1.0)
    top = top or tallest * 1.05 or 1.0
    body = list(_frame(title, x="", y=y, top=top))
    room = (_WIDTH - _LEFT - _RIGHT) / max(1, len(groups))
    wide = room * 0.8 / max(1, len(names))
    for place, (group, values) in enumerate(groups.items()):
        start = _LEFT + place * room + room * 0.1
        body.append(_text(start + room * 0.4, _foot() + 18, group, size=11, anchor="middle"))
        for name, (mean, deviation) in values.items():
            at = start + names.index(name) * wide
            body += _bar(at, wide, mean, deviation, top, _COLOURS[names.index(name) % 6])
    for number, name in enumerate(names):
        body.append(_text(_LEFT + 100 * number, _TOP - 22, name, size=12, colour=_COLOURS[number % 6]))
    return _svg(body, title)


def _bar(at: float, wide: float, mean: float, deviation: float, top: float, colour: str) -> Iterator[str]:
    up, middle = _up(mean, top), at + wide * 0.45
    yield f'<rect x="{at:.1f}" y="{up:.1f}" width="{wide * 0.9:.1f}" height="{_foot() - up:.1f}" fill="{colour}"/>'
    low, high = _up(max(0.0, mean - deviation), top), _up(min(top, mean + deviation), top)
    yield f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="#24292f"/>'
    inside = _foot() - up > 26
    foot, ink = (_foot() - 4, "#ffffff") if inside else (high - 4, "#24292f")
    yield _text(middle + 3, foot, f"{mean:.1f}", size=9, colour=ink, upright=True)


def _frame(title: str, *, x: str, y: str, top: float) -> Iterator[str]:
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    yield _text(_LEFT, 20, title, size=13)
    for part in range(5):
        value = top * part / 4
        up = _up(value, top)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up:.1f}" y2="{up:.1f}" stroke="#eaeef2"/>'
        yield _text(_LEFT - 6, up + 4, f"{value:g}" if top <= 1 else f"{value:.0f}", size=10, anchor="end")
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x, size=11, anchor="middle")
    yield _text(14, (_TOP + _foot()) / 2, y, size=11, anchor="middle", upright=True)


def _ticks_x(most: float) -> Iterator[str]:
    for part in range(5):
        at = most * part / 4
        yield _text(_across(at, most), _foot() + 16, f"{at:.0f}", size=10, anchor="middle")


def _across(at: float, most: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / most


def _up(value: float, top: float) -> float:
    return _foot() - (_foot() - _TOP) * min(value, top) / top


def _foot() -> float:
    return _HEIGHT - _BOTTOM


def _text(
    x: float, y: float, text: str, *, size: int, anchor: str = "start", colour: str = "#24292f", upright: bool = False
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
    return f"<text {place}{turned}>{escape(text)}</text>"


def _svg(body: Sequence[str], title: str) -> str:
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<title>{escape(title)}</title>", *body, "</svg>", ""])
