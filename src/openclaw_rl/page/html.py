"""Markup as values: text is escaped on insertion, so no caller can forget it. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from openclaw_rl.page.door import Person
from openclaw_rl.views.learning import LearningProgress

_VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "path", "circle", "line", "rect", "polyline"})
_NAME = re.compile(r"[a-z][a-z0-9-]*", re.IGNORECASE)
_BARRED = frozenset({"script", "style", "iframe", "object", "embed"})


class Html(str):
    """Valid markup. Made by `el` and `join` alone; any other text is escaped."""

    __slots__ = ()


Child: TypeAlias = "Html | str | int | float | Iterable[Html | str | None] | None"
Attribute: TypeAlias = str | int | float | bool | None


def el(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """Return an element; None and False omit an attribute, True adds its name.

    ``class_`` is class, ``data_x`` is data-x.

    >>> el("p", "1 < 2", class_="sum")
    '<p class="sum">1 &lt; 2</p>'
    """
    assert _NAME.fullmatch(tag), f"{tag!r} is not an element"
    assert tag not in _BARRED, f"<{tag}>: scripts and styles are not allowed in markup"
    opening = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{opening} />")
    return Html(f"<{tag}{opening}>{join(*children)}</{tag}>")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    assert _NAME.fullmatch(name), f"{name!r} is not an attribute"
    assert not name.lower().startswith("on"), f"{name}: scripts are not allowed in markup"
    return f" {name}" if value is True else f' {name}="{escape(str(value), quote=True)}"'


def join(*children: Child) -> Html:
    """Join children into one piece of markup."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str | int | float):
            parts.append(escape(str(child), quote=False))
        else:
            parts.append(join(*child))
    return Html("".join(parts))


def script(source: str, *, first: bool = False) -> Html:
    """Return one of our own scripts, by its address: no script is inline. ``first``: before anything is drawn."""
    return Html(f'<script{"" if first else " type=module"} src="{escape(source)}"></script>')


def document(*children: Child, **attributes: Attribute) -> Html:
    """Return a complete page."""
    return Html("<!doctype html>" + el("html", *children, **attributes))


# --- small pieces for all views ---


def text(words: str, *, most: int = 20_000) -> Html:
    """Return a model's or person's text: the browser lays it out from the text itself, as text."""
    excerpt = words if len(words) <= most else f"{words[:most]}\n\n… {len(words) - most:,} characters more"
    return el("div", excerpt, class_="prose", data_prose=True)


def clipped(words: str, most: int = 180) -> str:
    """Return the beginning of a text, in one line."""
    line = " ".join(words[: most * 8].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def chip(words: str, kind: str = "") -> Html:
    """Return a state as a chip with a word or two."""
    return el("span", words, class_=f"chip {kind}".strip())


def when(at: float) -> Html:
    """Return a moment; the browser shows it in the reader's time zone, with its age."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return el("time", stamp.replace("T", " ").removesuffix("Z"), datetime=stamp)


def empty(title: str, *children: Child) -> Html:
    """Return a placeholder for an empty view, with the action to take."""
    return el("div", el("h2", title), el("p", *children), class_="empty")


_ICONS = {
    "talk": "M4 5h16v11H9l-4 4v-4H4z",
    "learning": "M4 18l5-6 4 3 7-9 M20 6v5 M20 6h-5",
    "versions": "M7 4v16 M7 8c0 5 10 3 10 9 M4.5 4.5h5 M14.5 18.5h5",
    "curves": "M4 4v16h16 M7 15c3 0 3-8 6-8s3 5 6 5",
    "environments": "M4 5h16v14H4z M7 9l3 3-3 3 M12 15h5",
    "sessions": "M5 5h14 M5 10h14 M5 15h9 M5 20h6",
    "up": "M7 11l4-7c2 0 2.5 1.5 2 3l-.7 3H18c1.3 0 2 1 1.7 2.2l-1.5 6c-.2 1-1 1.8-2.2 1.8H7z M4 11h3v9H4z",
    "down": "M17 13l-4 7c-2 0-2.5-1.5-2-3l.7-3H6c-1.3 0-2-1-1.7-2.2l1.5-6C6 4.8 6.8 4 8 4h9z M20 13h-3V4h3z",
    "edit": "M5 19l1-4L16 5l3 3L9 18z M14 7l3 3",
    "again": "M19 12a7 7 0 1 1-2-5l2 2 M19 4v5h-5",
    "copy": "M9 9h10v11H9z M5 15V4h10",
    "theme": "M12 4a8 8 0 1 0 8 8 6 6 0 0 1-8-8z",
    "new": "M12 5v14 M5 12h14",
    "leave": "M10 5H5v14h5 M14 8l4 4-4 4 M18 12H9",
}


def icon(name: str) -> Html:
    """Return a small drawing beside words, or in a button that has a label."""
    drawn = el("path", d=_ICONS[name])
    return el("svg", drawn, viewBox="0 0 24 24", class_="icon", aria_hidden="true")


# The frame around every view: navigation, the live version, the person. Pure.

VIEWS: tuple[tuple[str, str], ...] = (
    ("talk", "Talk"),
    ("learning", "Learning"),
    ("versions", "Versions"),
    ("curves", "Curves"),
    ("environments", "Environments"),
    ("sessions", "Sessions"),
)
"""each view's name, which is also its address, and its title; in navigation order"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """The frame's data: the person, the state of learning, the alarms."""

    person: Person
    progress: LearningProgress
    alarms: Sequence[str]
    login: bool


def page(context: PageContext, view: str, *content: Child) -> Html:
    """Return a complete page with one view in it."""
    title = dict(VIEWS)[view]
    main = el("main", *content, id="main", tabindex="-1", class_="view")
    body = el("body", el("a", "Skip to the content", href="#main", class_="skip"), _rail(context, view), main)
    return document(_head(title), body, lang="en")


def login_page() -> Html:
    """Return the login page, which asks for a key."""
    form = el(
        "form",
        _brand(),
        el("h1", "Welcome back"),
        el("p", "This page shows private conversations. Enter the key that you use for the API."),
        el("label", "Key", for_="key"),
        el("input", id="key", name="key", type="password", autocomplete="current-password", required=True),
        el("p", class_="error", role="alert", hidden=True),
        el("button", "Open", type="submit", class_="primary"),
        class_="login",
        data_login=True,
    )
    return document(_head("Log in"), el("body", el("main", form, id="main", class_="door")), lang="en")


def failure_page(title: str, what: str) -> Html:
    """Return a page that explains why another one cannot be shown."""
    message = el("div", _brand(), el("h1", title), el("p", what), el("p", el("a", "Back", href="/")), class_="login")
    return document(_head(title), el("body", el("main", message, id="main", class_="door")), lang="en")


def header(title: str, sentence: str, *tools: Child) -> Html:
    """Return the top of a view: its name, its purpose, and its tools."""
    return el("header", el("div", el("h1", title), el("p", sentence)), el("div", *tools, class_="tools"), class_="top")


def alarms(found: Sequence[str]) -> Html | None:
    """Return the alarms that need attention, with their remedies."""
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
    user_label = f"{person.user}, sees all users" if person.admin and context.login else person.user
    leave = el("button", icon("leave"), el("span", "Log out"), type="button", class_="quiet", data_logout=True)
    theme = el("button", icon("theme"), el("span", "Light or dark"), type="button", class_="quiet", data_theme=True)
    foot = el("div", el("p", user_label, class_="who"), theme, leave if context.login else None, class_="foot")
    return el("div", _brand(), el("nav", *links, aria_label="Views"), pulse(context), foot, class_="rail")


def pulse(context: PageContext) -> Html:
    """Return the live version and the present activity; kept up to date by the browser."""
    progress = context.progress
    live = "no version yet" if progress.live is None else f"version {progress.live}"
    kind = "paused" if progress.paused else "busy" if progress.distillation else "calm"
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
    """Return a switch with an immediate effect; ``act`` is its action's address."""
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
    """Return a button with an action; `page.js` documents ``confirm``, ``ask`` and ``body``."""
    data = {f"data_{name}": value for name, value in more.items()}
    content = join(*children) if children else label
    return el("button", content, type="button", class_=class_ or None, aria_label=label, data_act=act, **data)
