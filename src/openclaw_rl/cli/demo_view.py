"""The demo in a terminal: conversations, the preference rate, versions as they come; plain lines in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from openclaw_rl.experiments.demo_report import DemoReport
    from openclaw_rl.experiments.demo_server import Progress
    from openclaw_rl.experiments.sessions import SimulatedTurn

_RECENT = 8
_SHOWN = 5


class Live:
    """A `DemoView` in the terminal: lines that stay, and under them one line that is written over and over."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._alive = sys.stdout.isatty()
        self._began = time.monotonic()
        self._met: list[bool] = []
        self._read = 0
        self._live = self._refused = 0
        self._status = ""

    def phase(self, what: str) -> None:
        self._print(click.style(f"==> {what}", bold=True))

    def answered(self, done: int, total: int) -> None:
        self._show(f"    {done} of {total} answered")

    def turn(self, turn: SimulatedTurn) -> None:
        self._read += 1
        if turn.round == 0:
            self._met.append(turn.met)
        mark = click.style("preference met", fg="green") if turn.met else click.style("not yet", fg="yellow")
        self._print(f"{self._read:>4}  {turn.user}: {_cut(turn.message, 12)}")
        size = "1 word" if turn.words == 1 else f"{turn.words} words"
        self._print(f"      v{turn.version}: {_cut(turn.reply, 38)}  ({size}, {mark})")
        self._print(f"      {turn.user}: {_cut(turn.response, 12)}")

    def progress(self, progress: Progress) -> None:
        if progress.live > self._live:
            self._live = progress.live
            self._print(click.style(f"      version {progress.live} is live", fg="cyan"))
        if progress.refused > self._refused:
            self._refused = progress.refused
            self._print(click.style("      a version was refused by the gate", fg="red"))
        self._show(self._line(progress))

    def _line(self, progress: Progress) -> str:
        from openclaw_rl.experiments.metrics import sparkline

        recent = self._met[-_RECENT:]
        parts = [self._met[at : at + 4] for at in range(0, len(self._met), 4)]
        rate = f"{sum(recent) / len(recent):.0%}" if recent else "-"
        bars = sparkline([sum(part) / len(part) for part in parts])
        versions = f"version {progress.live}, {progress.promoted} promoted, {progress.refused} refused"
        return (
            f"    turn {self._read}/{self._turns}  preference met {bars} {rate}  {versions}, "
            f"{progress.waiting} waiting  {self._clock()}"
        )

    def _clock(self) -> str:
        spent = int(time.monotonic() - self._began)
        return f"{spent // 60}:{spent % 60:02}"

    def _print(self, line: str) -> None:
        self._wipe()
        click.echo(line)
        self._redraw()

    def _show(self, status: str) -> None:
        if status != self._status:
            self._wipe()
            self._status = status
            self._redraw()

    def _wipe(self) -> None:
        if self._alive and self._status:
            click.echo("\r\x1b[2K", nl=False)

    def _redraw(self) -> None:
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


def print_report(report: DemoReport) -> None:
    """Before and after side by side, and the figures."""
    from openclaw_rl.experiments.metrics import curve, sparkline

    wide = max(30, (shutil.get_terminal_size((120, 40)).columns - 4) // 2)
    click.secho("\nThe same held-out prompts, before and after\n", bold=True)
    for task, old, new in report.answers[:_SHOWN]:
        click.secho(task.prompt, bold=True)
        _columns(old, new, wide)
    _print_rates(report)
    click.echo(f"curve over {len(report.turns)} turns: {sparkline([value for _, value in curve(report.turns)])}")
    progress, seconds = report.progress, report.seconds
    click.echo(
        f"{progress.promoted} versions promoted, {progress.refused} refused, {seconds['total']:.0f} s in all "
        f"({seconds['before']:.0f} before, {seconds['talk']:.0f} talk and training, {seconds['after']:.0f} after)"
    )
    if report.paused:
        click.secho(f"training stopped: {report.paused}", fg="red")


def _print_rates(report: DemoReport) -> None:
    from openclaw_rl.experiments.metrics import relevance_kept

    measured = (report.before, report.after, report.prompted)
    click.secho(f"{report.plan.preference.name}: {report.plan.preference.description}", bold=True)
    click.echo(f"{'':24}{'before':>10}{'after':>10}{'prompted':>10}")
    click.echo(f"{'preference rate':24}" + "".join(f"{one.rate:>10.0%}" for one in measured))
    click.echo(f"{'relevance':24}" + "".join(f"{one.relevance:>10.0%}" for one in measured))
    click.echo(f"{'mean words':24}" + "".join(f"{one.words:>10.1f}" for one in measured))
    click.echo(f"{'degenerate replies':24}" + "".join(f"{one.degenerate:>10}" for one in measured))
    click.echo("prompted: the base model with the preference in the prompt; relevance: names what was asked about")
    kept = relevance_kept(report.after, report.prompted)
    if kept is not None:
        click.echo(f"relevance kept: {kept:.0%} of the prompted baseline's")


def _columns(left: str, right: str, wide: int) -> None:
    rows = [textwrap.wrap(" ".join(text.split()), wide)[:8] or ["(nothing)"] for text in (left, right)]
    for at in range(max(map(len, rows))):
        one, other = (lines[at] if at < len(lines) else "" for lines in rows)
        click.echo(f"{one:<{wide}}  | {other}")
    click.echo()
