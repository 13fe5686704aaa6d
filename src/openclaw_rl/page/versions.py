"""The versions view: all versions with the gate's decisions, a comparison of two, and the controls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.page.html import Html, button, chip, clipped, el, empty, header, join, text, when
from openclaw_rl.ports import GateDecision
from openclaw_rl.store.results import StateChange
from openclaw_rl.types import distilling
from openclaw_rl.views.browse import VersionLine

COLOURS = {"live": "good", "refused": "bad", "rolled back": "bad", "candidate": "busy", "deleted": ""}
_EXAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionList:
    """The list's data; ``back`` is the rollback target, ``steers`` is True if this person may use the controls."""

    lines: Sequence[VersionLine]
    paused: str | None
    back: int | None
    steers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStory:
    """A version's data: its history, the gate's decisions, and its training turns."""

    line: VersionLine
    history: Sequence[StateChange]
    decisions: Sequence[GateDecision]
    step: Mapping[str, Any] | None


def versions_view(found: VersionList) -> Html:
    """Draw the newest versions, and a comparison."""
    top = header("Versions", "Each step makes a version; the gate examines it before it is served.", *_controls(found))
    if not found.lines:
        return join(top, empty("No version yet", "The base model becomes version 0 when a server starts."))
    rows = [_row(line, steers=found.steers) for line in found.lines]
    listed = el("ol", *rows, class_="versions", data_live="versions")
    return join(top, el("div", listed, _compare(found.lines), class_="columns"))


def _controls(found: VersionList) -> list[Html]:
    if not found.steers:
        return []
    back = button(
        "Roll back",
        "/do/control",
        body=json.dumps({"command": "rollback"}),
        confirm=f"Serve the weights of version {found.back} again? They become a new version, at once.",
        ask="reason",
        example="Why? (for the ledger)",
        class_="danger",
    )
    word = "pause" if found.paused is None else "resume"
    questions = {
        "pause": "Pause training? Serving, collecting and judging go on.",
        "resume": f"Resume training? It was paused: {found.paused}",
    }
    hold = button(
        f"{word.capitalize()} training",
        "/do/control",
        body=json.dumps({"command": word}),
        confirm=questions[word],
        ask="reason",
        example="Why? (for the ledger)",
    )
    controls = el("div", hold, back if found.back is not None else None, class_="row", data_live="controls")
    return [controls]


def _row(line: VersionLine, *, steers: bool) -> Html:
    version, decision = line.version, line.decision
    state = "live" if line.live else "was live" if version.state == "live" else version.state
    colour = COLOURS.get(version.state, "") if line.live or version.state != "live" else ""
    reason = decision.reason if decision is not None else version.note
    return el(
        "li",
        el(
            "header",
            el("a", f"Version {version.number}", href=f"/versions?version={version.number}", class_="name"),
            chip(state, colour),
            chip("pinned", "force") if line.pinned else None,
            el("span", when(version.at), class_="faint"),
        ),
        el("p", reason),
        el(
            "p",
            f"from version {version.parent}" if version.parent is not None else "the base model",
            f" · step {version.step}" if version.step is not None else "",
            _reception(line),
            class_="faint",
        ),
        _steering(line) if steers else None,
        class_="live" if line.live else None,
    )


def _reception(line: VersionLine) -> str:
    figures = line.reception
    if figures is None or line.bad_high is None:
        return ""
    return f" · {figures.good} good and {figures.bad} bad of {figures.scored} scored (bad at most {line.bad_high:.0%})"


def _steering(line: VersionLine) -> Html | None:
    number = line.version.number
    if line.version.state in ("deleted", "candidate"):
        return None
    pin = "unpin" if line.pinned else "pin"
    back = button(
        f"Serve version {number} again",
        "/do/control",
        "Serve this again",
        body=json.dumps({"command": "rollback", "version": number}),
        confirm=f"Serve the weights of version {number} again? They become a new version, at once.",
        ask="reason",
        example="Why? (for the ledger)",
        class_="link",
    )
    pin_button = button(
        f"{pin.capitalize()} version {number}",
        "/do/control",
        pin.capitalize(),
        body=json.dumps({"command": pin, "version": number}),
        confirm="Keep these weights whatever train.keep says?"
        if pin == "pin"
        else "Allow these weights to be deleted?",
        class_="link",
    )
    return el("div", pin_button, back if not line.live and line.version.state != "refused" else None, class_="row")


def _compare(lines: Sequence[VersionLine]) -> Html:
    eligible = [line for line in lines if line.version.state not in ("deleted", "candidate")]
    numbers = [line.version.number for line in eligible]
    live = next((line.version.number for line in eligible if line.live), numbers[0] if numbers else 0)
    second = next((number for number in numbers if number != live), live)

    def choice(name: str, chosen: int) -> Html:
        options = [el("option", f"Version {n}", value=n, selected=n == chosen) for n in numbers]
        return el("select", *options, name=name, aria_label=f"{name.capitalize()} version")

    return el(
        "aside",
        el("h2", "Side by side"),
        el("p", "The same prompts, answered by two versions. The replies never train.", class_="faint"),
        el(
            "form",
            el("div", choice("first", second), choice("second", live), class_="row two"),
            el("label", "Prompts, one to a line", for_="prompts", class_="faint"),
            el("textarea", "What is tea?\nWhy is the sky blue?", id="prompts", name="prompts", rows=4),
            el("button", "Compare", type="submit", class_="primary"),
            data_compare="/do/compare",
        ),
        el("div", class_="compared", aria_live="polite"),
        class_="panel compare",
    )


# --- one version ---


def version_view(story: VersionStory) -> Html:
    """Draw its training, the gate's decisions and its history."""
    line = story.line
    number = line.version.number
    back = el("a", "All versions", href="/versions", class_="button")
    top = header(f"Version {number}", line.version.note or "the base model", back)
    changes = [
        el("li", chip(change.state, COLOURS.get(change.state, "")), el("span", change.reason), when(change.at))
        for change in story.history
    ]
    happened = el("section", el("h2", "What happened to it"), el("ul", *changes, class_="changes"), class_="card")
    return join(top, el("div", happened, *map(_decision, story.decisions), _step(story.step), class_="cards"))


def _decision(decision: GateDecision) -> Html:
    checks = [_check(check) for check in decision.evidence.get("checks", ())]
    examples = [_example(example) for example in decision.evidence.get("examples", ())[:_EXAMPLES]]
    titles = el(
        "tr", *[el("th", title, scope="col") for title in ("Prompt", f"Version {decision.against}", "This one")]
    )
    table = el("div", el("table", el("thead", titles), el("tbody", *examples)), class_="scroll") if examples else None
    colour = "good" if decision.decision == "promote" else "bad"
    return el(
        "section",
        el("h2", "The gate ", chip(decision.decision, colour)),
        el("p", f"Against version {decision.against}, in {decision.seconds:.0f} s: {decision.reason}", class_="faint"),
        el("ul", *checks, class_="checks"),
        table,
        class_="card listing",
    )


def _check(check: Mapping[str, Any]) -> Html:
    mark, word = {True: ("good", "passed"), False: ("bad", "failed"), None: ("", "no result")}[check["ok"]]
    detail = check.get("detail", check.get("said", ""))
    return el("li", chip(word, mark), el("strong", check["name"]), el("span", detail))


def _example(example: Mapping[str, Any]) -> Html:
    replies = [el("td", text(example.get(name) or "", most=600)) for name in ("live", "candidate")]
    return el("tr", el("td", clipped(example["prompt"], 160)), *replies)


def _step(step: Mapping[str, Any] | None) -> Html | None:
    if step is None:
        return None
    rows = [
        el(
            "li",
            el("a", clipped(cause["question"], 110), href=f"/learning?turn={cause['turn']}"),
            el("span", clipped(cause["next_message"] or "", 110), class_="faint"),
        )
        for cause in step["turns"][:20]
    ]
    distillation = step["distillation"]
    gone = f" and {step['deleted']} that were deleted since" if step["deleted"] else ""
    in_prompt = distillation is not None and "practised" in distillation["evidence"]
    description = (
        f"by {distilling(distillation['note'], in_prompt=in_prompt)}"
        if distillation
        else f"from {len(step['turns'])} turns{gone}"
    )
    return el(
        "section",
        el("h2", f"Step {step['number']} made it, {description}"),
        el("p", f"{step['seconds']:.0f} s", class_="faint"),
        el("ul", *rows, class_="causes") if rows else None,
        class_="card",
    )
