"""The command that measures a judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.options import POLICY, as_json, command, print_json, settings

if TYPE_CHECKING:
    from openclaw_rl.config import Resolved

_SHOWN_BAD = 20


@command(name="eval")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--judge", "name", metavar="NAME", help="rules, auto, llm, behaviour, or your own file.py.")
@click.option(
    "--by",
    type=click.Choice(["kind", "channel", "language", "tag", "voice"]),
    multiple=True,
    default=("kind", "language", "tag"),
    help="Tables to show; may be repeated [default: kind, language and tag].",
)
@as_json
@settings("judge", *POLICY)
def evaluate(resolved: Resolved, file: Path, name: str | None, by: tuple[str, ...], json_out: bool) -> None:
    """Measure a judge on labelled exchanges.

    FILE is JSONL, or a folder of such files: request, reply, next and kind in each line. Nothing is written.
    """
    import asyncio

    from openclaw_rl.app.judges import evaluate_judge

    def progress(done: int) -> None:
        if done % 100 == 0:
            click.echo(f"{done} rows", err=True)

    report = asyncio.run(evaluate_judge(resolved.config, file, judge=name, progress=progress))
    for row in report["skipped"][:_SHOWN_BAD]:
        click.secho(f"skipped {row['where']}: {row['why']}", fg="yellow", err=True)
    if len(report["skipped"]) > _SHOWN_BAD:
        click.secho(f"skipped {len(report['skipped']) - _SHOWN_BAD} more", fg="yellow", err=True)
    for why, count in report["failures"].items():
        click.secho(f"failed on {count} rows: {why}", fg="red", err=True)
    if json_out:
        print_json(report)
    else:
        for line in report_lines(report, by):
            click.echo(line)
    if report["failed"] == report["rows"]:
        raise click.exceptions.Exit(1)


def report_lines(found: Mapping[str, Any], by: tuple[str, ...]) -> list[str]:
    """Return the figures as tables in Markdown; rates are in percent, with their 95 % intervals."""
    classified = f" with the classifier for {found['classifier']}" if found["classifier"] else ""
    took = f"{found['seconds_per_row'] * 1000:.1f} ms a row"
    lines = [f"judge {found['judge']}{classified}, {found['rows']} rows, {took}", ""]
    lines += _table("over", {"all": found["all"]})
    lines += ["", _standing_line(found["all"]), "", *_base_table(found["base_rate"])]
    for group in by:
        lines += ["", *(_kind_table(found["kind"]) if group == "kind" else _table(group, found[group]))]
    return lines


def _table(title: str, groups: Mapping[str, Any]) -> list[str]:
    heads = [
        title,
        "rows",
        "-1 precision",
        "-1 recall",
        "+1 precision",
        "+1 recall",
        "rules with key",
        "unwanted rules",
    ]
    return [*_head(heads), *(_line(name, group) for name, group in groups.items())]


def _standing_line(one: Mapping[str, Any]) -> str:
    """Return the rate of rules that would enter later prompts at once."""
    false, standing = one["false_standing"], one["standing"]
    share = "none" if false["rate"] is None else f"{100 * false['rate']:.1f} false in 100 messages"
    return f"standing notes: {share} ({_rate(false)}), rules that stand {_rate(standing)}"


def _line(name: str, one: Mapping[str, Any]) -> str:
    rates = [one[score][figure] for score in ("bad", "good") for figure in ("precision", "recall")]
    cells = [name, str(one["rows"]), *map(_rate, (*rates, one["rules"], one["unwanted"]))]
    return f"| {' | '.join(cells)} |"


def _rate(one: Mapping[str, Any]) -> str:
    """Return ``66 (60-72), 12 of 18``; a dash without a rate."""
    if one["rate"] is None:
        return "-"
    return f"{one['rate']:.0%} ({one['low']:.0%}-{one['high']:.0%}), {one['right']} of {one['of']}".replace("%", "")


def _base_table(channels: Mapping[str, Any]) -> list[str]:
    """Return the scores' estimated precision in real conversations, where most messages express no opinion."""
    lines = _head(["at base rate", "rows", "share in real conversations", "precision", "recall"])
    for channel, row in channels.items():
        for name in ("complaints", "praise"):
            figures = row[name]
            cells = [f"{channel} {name}", str(row["rows"]), f"{figures['base']:.0%}", _precision(figures), _of(figures)]
            lines.append(f"| {' | '.join(cells)} |".replace("%", ""))
    return lines


def _precision(one: Mapping[str, Any]) -> str:
    if one["precision"] is None:
        return "-"
    return f"{one['precision']:.0%} ({one['low']:.0%}-{one['high']:.0%}), {one['false']} false of {one['rest']}"


def _of(one: Mapping[str, Any]) -> str:
    return f"{one['recall']:.0%}, {one['right']} of {one['there']}" if one["there"] else "-"


def _kind_table(kinds: Mapping[str, Any]) -> list[str]:
    names = ("rows", "bad", "good", "silent", "rules", "with_key")
    heads = ["kind", "rows", "judged -1", "judged +1", "silent", "given a rule", "hint with the key"]
    return [
        *_head(heads),
        *(f"| {kind} | {' | '.join(str(row[name]) for name in names)} |" for kind, row in kinds.items()),
    ]


def _head(names: list[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]


def fit_feedback_classifier(resolved: Resolved, *, voices: Path | None, epochs: float, json_out: bool) -> None:
    """Fit the feedback classifier to the base model, and print its accuracy on messages outside the fit."""
    from openclaw_rl.app import classifier_fit

    def progress(text: str) -> None:
        click.echo(text, err=True)

    result: Mapping[str, Any] = classifier_fit.fit_feedback_classifier(
        resolved.config, voices=voices, epochs=epochs, progress=progress
    )
    if json_out:
        print_json(dict(result))
        return
    click.echo(f"The feedback classifier for {result['base']} is in {result['folder']}; the next start uses it.\n")
    heads = ["languages", "messages", "-1 precision", "-1 recall", "+1 precision", "+1 recall"]
    for line in _head(heads):
        click.echo(line)
    for group, row in result["groups"].items():
        rates = [row[score][figure] for score in ("bad", "good") for figure in ("precision", "recall")]
        cells = ["-" if rate is None else f"{rate:.0%}".removesuffix("%") for rate in rates]
        click.echo(f"| {' | '.join([group, str(row['messages']), *cells])} |")
    click.echo("\nOn held-out personas, at thresholds set on them; a dash: no opinion there.")
