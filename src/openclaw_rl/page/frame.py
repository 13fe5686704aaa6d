"""What every view stands in: the way to the others, what is live, who looks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.page.door import Person
from openclaw_rl.page.html import Child, Html, document, el, icon, join, script
from openclaw_rl.views.learning import LearningProgress

VIEWS: tuple[tuple[str, str], ...] = (
    ("talk", "Talk"),
    ("learning", "Learning"),
    ("versions", "Versions"),
    ("curves", "Curves"),
    ("environments", "Environments"),
    ("sessions", "Sessions"),
)
"""each view's name, which is its address too, and its title; in the order of the navigation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What a page knows before it is drawn: who looks, how learning stands, what is wrong."""

    person: Person
    progress: LearningProgress
    alarms: Sequence[str]
    login: bool


def page(context: PageContext, view: str, *content: Child) -> Html:
    """A whole page with one view in it."""
    title = dict(VIEWS)[view]
    main = el("main", *content, id="main", tabindex="-1", class_="view")
    body = el("body", el("a", "Skip to the content", href="#main", class_="skip"), _rail(context, view), main)
    return document(_head(title), body, lang="en")


def login_page() -> Html:
    """Where somebody without a login gives a key."""
    form = el(
        "form",
        _brand(),
        el("h1", "Welcome back"),
        el("p", "This page shows what people said. Give the key that you use for the API."),
        el("label", "Key", for_="key"),
        el("input", id="key", name="key", type="password", autocomplete="current-password", required=True),
        el("p", class_="error", role="alert", hidden=True),
        el("button", "Open", type="submit", class_="primary"),
        class_="login",
        data_login=True,
    )
    return document(_head("Log in"), el("body", el("main", form, id="main", class_="door")), lang="en")


def failure_page(title: str, what: str) -> Html:
    """What a person sees where a page cannot be shown."""
    told = el("div", _brand(), el("h1", title), el("p", what), el("p", el("a", "Back", href="/")), class_="login")
    return document(_head(title), el("body", el("main", told, id="main", class_="door")), lang="en")


def header(title: str, sentence: str, *tools: Child) -> Html:
    """The top of a view: its name, what it is for, and what can be done with all of it."""
    return el("header", el("div", el("h1", title), el("p", sentence)), el("div", *tools, class_="tools"), class_="top")


def alarms(found: Sequence[str]) -> Html | None:
    """What a person should look at, with the remedy."""
    if not found:
        return None
    rows = [el("li", el("strong", what), el("span", remedy)) for what, remedy in map(_split, found)]
    return el("ul", *rows, class_="alarms", role="alert", aria_label="Alarms")


def _split(alarm: str) -> tuple[str, str]:
    what, _, remedy = alarm.partition("; ")
    return what, remedy


def _head(title: str) -> Html:
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("title", f"{title} · OpenClaw-RL"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href="/static/mark.svg", type="image/svg+xml"),
        script("/static/theme.js", first=True),
        el("link", rel="stylesheet", href="/static/page.css"),
        script("/static/page.js"),
    )


def _brand() -> Html:
    return el("span", el("img", src="/static/mark.svg", alt="", width=28, height=28), "OpenClaw-RL", class_="brand")


def _rail(context: PageContext, view: str) -> Html:
    links = [
        el("a", icon(name), el("span", title), href=f"/{name}", aria_current="page" if name == view else None)
        for name, title in VIEWS
    ]
    person = context.person
    who = f"{person.user}, sees everybody" if person.admin and context.login else person.user
    leave = el("button", icon("leave"), el("span", "Log out"), type="button", class_="quiet", data_logout=True)
    theme = el("button", icon("theme"), el("span", "Light or dark"), type="button", class_="quiet", data_theme=True)
    foot = el("div", el("p", who, class_="who"), theme, leave if context.login else None, class_="foot")
    return el("div", _brand(), el("nav", *links, aria_label="Views"), pulse(context), foot, class_="rail")


def pulse(context: PageContext) -> Html:
    """What is live and what happens now; kept up to date by the browser."""
    progress = context.progress
    live = "no version yet" if progress.live is None else f"version {progress.live}"
    kind = "paused" if progress.paused else "busy" if progress.rehearsal else "calm"
    warn = el("a", f"{len(context.alarms)} to look at", href="/curves", class_="warn") if context.alarms else None
    return el(
        "div",
        el("p", el("span", class_=f"dot {kind}"), el("strong", live)),
        el("p", progress.sentence, class_="now"),
        warn,
        class_="pulse",
        data_live="pulse",
        role="status",
    )


def switch(label: str, *, on: bool, act: str, **more: str) -> Html:
    """A switch that acts at once; ``act`` is the address of what it does."""
    return el(
        "button",
        el("span", class_="knob"),
        type="button",
        role="switch",
        aria_checked="true" if on else "false",
        aria_label=label,
        class_="switch",
        data_act=act,
        **{f"data_{name}": value for name, value in more.items()},
    )


def button(label: str, act: str, *children: Child, class_: str = "", **more: str | None) -> Html:
    """A button that acts; `page.js` says what ``confirm``, ``ask`` and ``body`` mean."""
    data = {f"data_{name}": value for name, value in more.items()}
    shown = join(*children) if children else label
    return el("button", shown, type="button", class_=class_ or None, aria_label=label, data_act=act, **data)
