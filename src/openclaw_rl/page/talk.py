"""The talk view: a chat in which replies can be rated, corrected, stopped and repeated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.page.door import Person
from openclaw_rl.page.html import Html, button, chip, el, header, icon, join, switch, text
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import LONGEST_NOTE, Message, Note, Turn

_LONGEST = 2**20
_SAMPLES = ("What is tea?", "Explain how a rainbow forms.", "Give me three ideas for a rainy Sunday.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A reply in a conversation, and its turn."""

    messages: tuple[Message, ...]
    reply: str
    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation so far, and its person's notes."""

    session: str | None
    exchanges: tuple[Exchange, ...]
    notes: tuple[Note, ...]
    notes_on: bool


def read_talk(ledger: LedgerReader, person: Person, session: str | None) -> Talk:
    """Read a person's own conversation by its session; return a new one if there is none with this name."""
    turns = ledger.latest_turns(person.user, session=session, limit=200) if session else []
    notes = tuple(note for note in ledger.notes(person.user) if note.state not in ("replaced", "declined", "removed"))
    return Talk(
        session=session if turns else None,
        exchanges=tuple(_last_words(turns)),
        notes=notes,
        notes_on=ledger.notes_enabled(person.user),
    )


def _last_words(turns: Sequence[Turn]) -> list[Exchange]:
    """Return each turn's new messages. A repeated question keeps only its newer reply."""
    current: list[Turn] = []
    for turn in turns:
        if turn.declared == "side":
            continue
        while current and len(current[-1].prompt.messages) >= len(turn.prompt.messages):
            current.pop()
        current.append(turn)
    return [
        Exchange(messages=turn.prompt.messages[-1:], reply=turn.completion.reply.content, turn=turn) for turn in current
    ]


def talk_view(talk: Talk) -> Html:
    """Draw the conversation, the input field, the notes in force."""
    messages = [piece for exchange in talk.exchanges for piece in _exchange(exchange)]
    begun = el("div", *messages, id="messages", class_="messages", aria_live="polite", aria_label="Conversation")
    new = el("a", icon("new"), el("span", "New conversation"), href="/talk", class_="button")
    top = header("Talk", "Say what you would like to be different: it applies from the next reply on.", new)
    chat = el(
        "section",
        begun,
        _welcome() if not talk.exchanges else None,
        _composer(),
        class_="chat",
        data_talk=talk.session or "",
    )
    return join(top, el("div", chat, notes_panel(talk.notes, on=talk.notes_on), class_="columns"), _templates())


def _welcome() -> Html:
    tries = [el("button", sample, type="button", class_="sample", data_sample=True) for sample in _SAMPLES]
    return el(
        "div",
        el("h2", "Ask something, then correct it"),
        el("p", "Write “shorter, please” or “always answer in one sentence” after a reply, rate it, or put it right."),
        el("p", "A correction applies at once; serving continues while it is learned."),
        el("div", *tries, class_="samples"),
        class_="welcome",
        id="welcome",
    )


def _composer() -> Html:
    """The field is disabled until its script has loaded: a message sent earlier would be lost."""
    return el(
        "form",
        el("label", "Your message", for_="say", class_="hidden"),
        el("textarea", id="say", rows=1, placeholder="Write a message", disabled=True),
        el("button", "Send", type="submit", class_="primary", data_send=True),
        el("button", "Stop", type="button", class_="stop", data_stop=True, hidden=True),
        class_="composer",
        data_composer=True,
    )


def _exchange(exchange: Exchange) -> list[Html]:
    articles = [_said(message.content) for message in exchange.messages if message.role == "user"]
    noted = exchange.turn.noted.notes if exchange.turn.noted else ()
    return [*articles, _reply(exchange.reply, exchange.turn.id, exchange.turn.completion.version, noted)]


def _said(words: str) -> Html:
    return el("article", text(words, most=_LONGEST), class_="said", data_role="user")


def _reply(words: str, turn: str, version: int | None, notes: Sequence[int]) -> Html:
    return el(
        "article",
        text(words, most=_LONGEST),
        el("div", _origin(version, notes), _rating(), class_="under"),
        class_="reply",
        data_role="assistant",
        data_turn=turn,
    )


def _origin(version: int | None, notes: Sequence[int]) -> Html:
    answered = "" if version is None else f"version {version}"
    with_notes = f"with note {', '.join(map(str, notes))}" if notes else ""
    return el("p", " · ".join(filter(None, (answered, with_notes))), class_="origin", data_origin=True)


def _rating() -> Html:
    def small(label: str, drawn: str, does: str) -> Html:
        return el("button", icon(drawn), type="button", aria_label=label, title=label, class_="small", data_do=does)

    return el(
        "div",
        small("This was good", "up", "up"),
        small("This was not good", "down", "down"),
        small("This is how I would have liked it", "edit", "edit"),
        small("Answer again", "again", "again"),
        small("Copy", "copy", "copy"),
        class_="rating",
        role="group",
        aria_label="This reply",
    )


def _templates() -> Html:
    """Return the templates that the browser copies for new messages."""
    edit = el(
        "form",
        el("label", "This is how I would have liked it", for_="wanted"),
        el("textarea", id="wanted", rows=4),
        el("div", el("button", "Teach this", type="submit", class_="primary"), _cancel(), class_="row"),
        class_="edit",
    )
    return join(
        el("template", _said(""), id="template-said"),
        el("template", _reply("", "", None, ()), id="template-reply"),
        el("template", edit, id="template-edit"),
    )


def _cancel() -> Html:
    return el("button", "Cancel", type="button", class_="quiet", data_do="cancel")


# --- notes ---


STATES = {
    "proposed": ("proposed", "busy", "It is in no prompt until you confirm that you meant it for all replies."),
    "in force": ("in force", "force", "It is in your prompts."),
    "learning": ("being learned", "busy", "It is in your prompts while the weights are taught it."),
    "learned": ("learned", "good", "The weights follow it without the prompt, so it left your prompts."),
    "kept": ("kept as a note", "force", "It stays in your prompts: it cannot be taught."),
    "off": ("off", "", "You switched it off."),
    "declined": ("declined", "", "You did not mean it for all replies."),
}
"""for each state of a note: its label, its colour, its meaning"""


def notes_panel(notes: Sequence[Note], *, on: bool, whose: bool = False) -> Html:
    """Draw a person's notes, each with a switch."""
    rows = [_note(note, whose=whose) for note in sorted(notes, key=_place)]
    none = el("p", "Nothing yet. Correct a reply, or add a note here:", class_="faint")
    form = el(
        "form",
        el("label", "A note of your own", for_="note", class_="hidden"),
        el("input", id="note", name="text", placeholder="Always answer in British English", maxlength=LONGEST_NOTE),
        el("button", "Add", type="submit"),
        data_form="/do/notes",
        class_="add",
    )
    off = el("p", "Your notes are switched off: they go into no prompt.", class_="warn") if not on else None
    return el(
        "aside",
        el("h2", "What you asked for"),
        off,
        el("ul", *rows, class_="notes") if rows else none,
        form,
        class_="panel",
        data_live="notes",
        aria_label="Notes",
    )


def _place(note: Note) -> tuple[bool, bool, int]:
    """Sort open questions first, notes that are off last, then the newest first."""
    return note.state != "proposed", note.state == "off", -note.number


def _question(note: Note) -> Html:
    """Ask if a proposed note applies to all replies, with a button for each answer."""
    accept, decline = (f"/do/notes/{note.number}/{answer}" for answer in ("accept", "decline"))
    here = json.dumps({"only_here": True})
    return el(
        "div",
        el("p", "Did you mean this for all replies?", class_="faint"),
        button(f"Yes, note {note.number} is for all replies", accept, "Yes"),
        button(f"Note {note.number} was meant only there", decline, "Only here", body=here),
        button(f"No, note {note.number} was not a request", decline, "No"),
        class_="row",
    )


def _note(note: Note, *, whose: bool) -> Html:
    name, colour, meaning = STATES.get(note.state, (note.state, "", ""))
    on = note.state != "off"
    address = f"/do/notes/{note.number}"
    remove = button(
        f"Remove note {note.number}",
        f"{address}/remove",
        "Remove",
        class_="link",
        confirm=f"Remove this note for good? “{note.text}”",
    )
    return el(
        "li",
        el("p", note.text),
        _question(note)
        if note.state == "proposed"
        else switch(f"Note {note.number}: {note.text}", on=on, act=address, body=json.dumps({"enabled": not on})),
        el(
            "div",
            chip(name, colour),
            el("span", f"note {note.number}", class_="faint"),
            el("span", note.user, class_="faint") if whose else None,
            el("a", "source", href=f"/learning?turn={note.turn}", class_="faint") if note.turn else None,
            remove,
            class_="row",
            title=meaning,
        ),
    )
