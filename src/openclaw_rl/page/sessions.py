"""The sessions view: search conversations, read them, and inspect a turn down to its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from openclaw_rl.page.html import Html, button, chip, clipped, el, empty, header, join, text, when
from openclaw_rl.store.results import SessionTally
from openclaw_rl.types import Deletion, Turn
from openclaw_rl.views.browse import SessionLine, SessionPage
from openclaw_rl.views.status import View

FILTERS: Mapping[str, tuple[str, Callable[[SessionTally], bool]]] = {
    "": ("All", lambda _: True),
    "bad": ("Something was bad", lambda tally: tally.bad > 0),
    "good": ("Something was good", lambda tally: tally.good > 0),
    "trained": ("Trained on", lambda tally: tally.trained > 0),
    "dropped": ("Dropped", lambda tally: tally.dropped > 0),
}
_SHOWN = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """A search: words, a filter, a user, and the place to continue from."""

    words: str = ""
    only: str = ""
    user: str = ""
    before: int | None = None

    def address(self, **changes: object) -> str:
        """Return the address of the same search with some changes."""
        query = {"q": self.words, "only": self.only, "user": self.user, "before": self.before, **changes}
        return "/sessions?" + urlencode({name: value for name, value in query.items() if value not in ("", None)})


def sessions_view(found: SessionPage, query: SessionQuery, users: Sequence[str]) -> Html:
    """Draw a search, a filter, and sessions by their newest turn."""
    rows = [_line(line, whose=bool(users)) for line in found.lines]
    nothing = empty("Nothing found", "Try other words, another filter, or older turns.")
    looked = f"{found.looked:,} turns were searched" if query.words or query.only else ""
    older = el("a", "Look further back", href=query.address(before=found.next), class_="button") if found.next else None
    return join(
        header("Sessions", "Every conversation, with the results of each turn."),
        _search(query, users),
        el("ul", *rows, class_="sessions") if rows else nothing,
        el("p", older, el("span", looked, class_="faint"), class_="row more"),
    )


def _search(query: SessionQuery, users: Sequence[str]) -> Html:
    def choice(name: str, label: str, options: Sequence[tuple[str, str]], chosen: str) -> Html:
        items = [el("option", caption, value=value, selected=value == chosen) for value, caption in options]
        return el("select", *items, name=name, aria_label=label)

    people = [("", "All users"), *[(user, user) for user in users]]
    return el(
        "form",
        el(
            "input", type="search", name="q", value=query.words, placeholder="Search conversations", aria_label="Search"
        ),
        choice("only", "Filter", [(name, label) for name, (label, _) in FILTERS.items()], query.only),
        choice("user", "User", people, query.user) if users else None,
        el("button", "Search", type="submit"),
        class_="search",
        action="/sessions",
        role="search",
    )


def _line(line: SessionLine, *, whose: bool) -> Html:
    tally = line.tally
    marks = [
        chip(f"{tally.good} good", "good") if tally.good else None,
        chip(f"{tally.bad} bad", "bad") if tally.bad else None,
        chip(f"{tally.trained} trained", "force") if tally.trained else None,
        chip(f"{tally.dropped} dropped") if tally.dropped else None,
    ]
    address = "/sessions?" + urlencode({"session": line.session, "user": line.user})
    return el(
        "li",
        el("a", clipped(line.title, 150), href=address),
        el("p", f"… {clipped(line.found, 200)} …", class_="hit") if line.found else None,
        el(
            "p",
            when(line.at),
            el("span", f"{line.turns} turn{'s' if line.turns != 1 else ''}"),
            el("span", line.user) if whose else None,
            *marks,
            class_="row faint",
        ),
    )


# --- one session ---


def session_view(session: str, user: str, turns: Sequence[tuple[Turn, View]], *, own: bool, going: Deletion) -> Html:
    """Draw the conversation, each turn with its outcome; ``going`` is the extent of a deletion."""
    named = urlencode({"session": session, "user": user})
    tools = [
        el("a", "Continue", href="/talk?" + urlencode({"session": session}), class_="button") if own else None,
        el("a", "Export", href=f"/export?{named}", class_="button", download=True),
        _delete(session, user, going),
    ]
    rows = [piece for turn, view in turns for piece in _turn(turn, view)]
    return join(
        header("Session", f"{len(turns)} turns of {user}, {session}", *tools),
        el("div", *rows, class_="messages transcript"),
    )


def _delete(session: str, user: str, going: Deletion) -> Html:
    remains = f"{going.remains[0].upper()}{going.remains[1:]}."
    return button(
        "Delete this session",
        "/do/delete",
        "Delete",
        body=json.dumps({"session": session, "user": user}),
        confirm=f"Delete this session of {user} with all its data: {going.extent}?",
        confirm2=f"It cannot be undone. {remains} Delete it?",
        class_="danger",
    )


def _turn(turn: Turn, view: View) -> list[Html]:
    last = turn.prompt.messages[-1]
    question = el("article", text(last.content, most=_SHOWN), class_="said" if last.role == "user" else "said tool")
    details = el("a", "details", href=f"/sessions?turn={turn.id}")
    under = el("p", *_marks(view), el("span", f"version {view['version']}"), details, class_="row faint")
    reply = text(turn.completion.reply.content, most=_SHOWN)
    return [question, el("article", reply, *_calls(turn), under, class_="reply", id=f"turn-{turn.id}")]


def _calls(turn: Turn) -> list[Html]:
    return [
        el("pre", f"{call.name}({call.arguments})", class_="call", tabindex=0)
        for call in turn.completion.reply.tool_calls
    ]


def _marks(view: View) -> list[Html]:
    verdict = view["verdict"]
    chips = []
    if verdict and verdict["score"] is not None:
        kind = "good" if verdict["score"] > 0 else "bad" if verdict["score"] < 0 else ""
        chips.append(chip(f"score {verdict['score']:+g}", kind))
    if view["kind"] == "side":
        chips.append(chip("side"))
    if view["step"] is not None:
        chips.append(chip(f"trained in step {view['step']}", "force"))
    if view["dropped"]:
        chips.append(chip(f"dropped: {view['dropped']['reason']}"))
    return chips


# --- one turn ---


def turn_view(turn: Turn, view: View) -> Html:
    """Draw a turn: its prompt, its exact reply tokens, the verdict with its votes, its training."""
    session = urlencode({"session": view["session"] or turn.id, "user": turn.user})
    back = el("a", "The whole session", href=f"/sessions?{session}", class_="button")
    line = el("a", "As a correction", href=f"/learning?turn={turn.id}", class_="button")
    tokens = el(
        "section",
        el("h2", "The reply, token by token"),
        el(
            "p",
            f"{view['tokens']['prompt']} tokens in, {view['tokens']['reply']} out. The paler a token, the likelier"
            " it was when it was sampled; point at one to see its log-prob.",
            class_="faint",
        ),
        el("div", text(turn.completion.reply.content, most=_SHOWN), class_="tokens", data_tokens=turn.id),
        class_="card",
    )
    return join(
        header("Turn", turn.id, back, line),
        el("div", _asked(turn), tokens, _verdict(view), _facts(view), class_="cards"),
    )


def _asked(turn: Turn) -> Html:
    rows = [
        el("li", chip(message.role), text(message.content, most=_SHOWN), class_=message.role)
        for message in turn.prompt.messages[-8:]
    ]
    earlier = len(turn.prompt.messages) - len(rows)
    note = el("p", chip("note put in", "force"), el("span", turn.noted.text)) if turn.noted else None
    omitted = el("p", f"{earlier} messages before these", class_="faint") if earlier > 0 else None
    return el("section", el("h2", "The prompt"), omitted, el("ul", *rows, class_="prompt"), note, class_="card")


def _verdict(view: View) -> Html:
    verdict = view["verdict"]
    if verdict is None:
        return el("section", el("h2", "Verdict"), el("p", "None yet.", class_="faint"), class_="card")
    score = "no opinion" if verdict["score"] is None else f"{verdict['score']:+g}"
    votes = ", ".join("none" if vote is None else f"{vote:+d}" for vote in verdict["votes"]) or "none were needed"
    rows = {"Score": score, "Votes": votes, "By": f"{verdict['judge']} ({verdict['source']})", "Why": verdict["note"]}
    hints = [el("li", el("strong", hint["text"]), chip(hint["kind"])) for hint in verdict["hints"]]
    return el(
        "section",
        el("h2", "Verdict"),
        _pairs(rows),
        el("ul", *hints, class_="causes") if hints else None,
        class_="card",
    )


def _facts(view: View) -> Html:
    dropped = view["dropped"]
    rows = {
        "Kind": f"{view['kind'] or 'not settled'}" + (f": {view['kind_reason']}" if view["kind_reason"] else ""),
        "Trained": f"in step {view['step']}" if view["step"] is not None else "no",
        "Dropped": f"{dropped['reason']}, by {dropped['stage']}: {dropped['detail']}" if dropped else "",
        "Version": str(view["version"]),
        "Client": view["client"],
        "Finish": view["finish"] + (f" ({', '.join(view['flaws'])})" if view["flaws"] else ""),
        "Sampling": ", ".join(f"{name} {value}" for name, value in view["sampling"].items()),
    }
    feedback = [el("li", json.dumps({k: v for k, v in item.items() if v is not None})) for item in view["feedback"]]
    feedback_list = el("ul", *feedback, class_="causes") if feedback else None
    return el("section", el("h2", "Details"), _pairs(rows), feedback_list, _pin(view), class_="card")


def _pairs(rows: Mapping[str, str]) -> Html:
    pairs = [piece for name, value in rows.items() if value for piece in (el("dt", name), el("dd", value))]
    return el("dl", *pairs)


def _pin(view: View) -> Html:
    return button(
        "Pin this reply",
        "/do/control",
        body=json.dumps({"command": "pin", "turn": view["id"]}),
        confirm="Pin this reply? The gate then refuses versions that lose it.",
    )
