"""The demo as a person sees it: conversations going by, the rate climbing, versions coming; plain lines in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openclaw_rl.experiments.demo import Report, Standing
    from openclaw_rl.experiments.users import Exchange

_RECENT = 8
_SHOWN = 5


class Live:
    """A `demo.View` on the terminal: lines that stay, and under them one line that is written over and over."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._alive = sys.stdout.isatty()
        self._began = time.monotonic()
        self._met: list[bool] = []
        self._heard = 0
        self._live = self._refused = 0
        self._status = ""

    def phase(self, what: str) -> None:
        self._say(click.style(f"==> {what}", bold=True))

    def probed(self, done: int, total: int) -> None:
        self._show(f"    {done} of {total} answered")

    def heard(self, exchange: Exchange) -> None:
        self._heard += 1
        if exchange.round == 0:
            self._met.append(exchange.met)
        mark = click.style("as wished", fg="green") if exchange.met else click.style("not yet", fg="yellow")
        self._say(f"{self._heard:>4}  {exchange.user}: {_cut(exchange.said, 12)}")
        size = "1 word" if exchange.words == 1 else f"{exchange.words} words"
        self._say(f"      v{exchange.version}: {_cut(exchange.reply, 34)}  ({size}, {mark})")
        self._say(f"      {exchange.user}: {_cut(exchange.answer, 12)}")

    def stands(self, standing: Standing) -> None:
        if standing.live > self._live:
            self._live = standing.live
            self._say(click.style(f"      version {standing.live} is live", fg="cyan"))
        if standing.refused > self._refused:
            self._refused = standing.refused
            self._say(click.style("      a version was refused by the gate", fg="red"))
        self._show(self._line(standing))

    def _line(self, standing: Standing) -> str:
        from openclaw_rl.experiments.personal import sparkline

        recent = self._met[-_RECENT:]
        parts = [self._met[at : at + 4] for at in range(0, len(self._met), 4)]
        rate = f"{sum(recent) / len(recent):.0%}" if recent else "-"
        bars = sparkline([sum(part) / len(part) for part in parts])
        versions = f"version {standing.live}, {standing.promoted} promoted, {standing.refused} refused"
        return (
            f"    turn {self._heard}/{self._turns}  as wished {bars} {rate}  {versions}, "
            f"{standing.waiting} waiting  {self._clock()}"
        )

    def _clock(self) -> str:
        spent = int(time.monotonic() - self._began)
        return f"{spent // 60}:{spent % 60:02}"

    def _say(self, line: str) -> None:
        self._wipe()
        click.echo(line)
        self._draw()

    def _show(self, status: str) -> None:
        if status != self._status:
            self._wipe()
            self._status = status
            self._draw()

    def _wipe(self) -> None:
        if self._alive and self._status:
            click.echo("\r\x1b[2K", nl=False)

    def _draw(self) -> None:
        if self._alive and self._status:
            click.echo(self._status[: shutil.get_terminal_size().columns - 1], nl=False)

    def done(self) -> None:
        """Leave the terminal as it was."""
        self._wipe()
        self._status = ""


def _cut(text: str, taken: int) -> str:
    """A text on one line of the terminal that has ``taken`` columns for other things."""
    room = max(30, shutil.get_terminal_size((120, 40)).columns - taken)
    flat = " ".join(text.split())
    return flat if len(flat) <= room else f"{flat[: room - 1]}…"


def print_report(report: Report) -> None:
    """Before and after side by side, the figures, and how to undo it."""
    from openclaw_rl.experiments.personal import curve, kept, sparkline

    wide = max(30, (shutil.get_terminal_size((120, 40)).columns - 4) // 2)
    click.secho("\nThe same held-out prompts, before and after\n", bold=True)
    for task, old, new in report.answers[:_SHOWN]:
        click.secho(task.prompt, bold=True)
        _columns(old, new, wide)
    before, after, hinted = report.before, report.after, report.hinted
    share = kept(after, hinted)
    click.secho(f"{report.plan.wish.name}: {report.plan.wish.description}", bold=True)
    click.echo(f"{'':24}{'before':>8}{'after':>8}{'told':>8}   (told: the base model with the wish in the prompt)")
    for name, of in (("as wished", "rate"), ("names what was asked", "sense")):
        row = "".join(f"{getattr(one, of):>8.0%}" for one in (before, after, hinted))
        click.echo(f"{name:24}{row}")
    click.echo(f"{'mean words':24}" + "".join(f"{one.words:>8.1f}" for one in (before, after, hinted)))
    click.echo(f"{'degenerate replies':24}" + "".join(f"{one.degenerate:>8}" for one in (before, after, hinted)))
    if share is not None:
        click.echo(f"sense kept: {share:.0%} of what the base has when told")
    click.echo(f"curve over {len(report.told)} turns: {sparkline([value for _, value in curve(report.told)])}")
    standing, seconds = report.standing, report.seconds
    click.echo(
        f"{standing.promoted} versions promoted, {standing.refused} refused, {seconds['total']:.0f} s in all "
        f"({seconds['before']:.0f} before, {seconds['talk']:.0f} talk and training, {seconds['after']:.0f} after)"
    )
    if report.paused:
        click.secho(f"training stopped: {report.paused}", fg="red")


def _columns(left: str, right: str, wide: int) -> None:
    rows = [textwrap.wrap(" ".join(text.split()), wide)[:8] or ["(nothing)"] for text in (left, right)]
    for at in range(max(map(len, rows))):
        one, other = (lines[at] if at < len(lines) else "" for lines in rows)
        click.echo(f"{one:<{wide}}  | {other}")
    click.echo()
