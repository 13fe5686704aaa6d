"""The learning view: for each correction its text, its interpretation, its training, the reply before and now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.page.html import Child, Html, button, chip, clipped, el, empty, header, join, text, when
from openclaw_rl.page.talk import STATES, notes_panel
from openclaw_rl.types import Distillation, Note
from openclaw_rl.views.learning import Correction, TrainedIn, VersionAnswer

_TOLD = 1200
"""characters of a reply shown on a card"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """The view's data: corrections, newest first, and standing notes; ``more`` is the address of older ones."""

    corrections: Sequence[Correction]
    notes: Sequence[Note]
    notes_on: bool
    whose: bool
    unheard: Sequence[Correction] = ()
    more: str | None = None
    one: bool = False


def learning_view(lessons: Lessons, sentence: str) -> Html:
    """Draw corrections that need an explanation first, then all of them as lines; notes beside."""
    unclear = [one for one in lessons.corrections if one.asks]
    cards = [_card(one, whose=lessons.whose) for one in lessons.corrections]
    main = el(
        "section",
        _not_understood(unclear) if unclear and not lessons.one else None,
        el("div", *(cards or [_nothing()]), class_="cards"),
        _unheard(lessons.unheard) if lessons.unheard else None,
        el("a", "Older corrections", href=lessons.more, class_="button") if lessons.more else None,
        data_live="corrections",
    )
    panel = notes_panel(lessons.notes, on=lessons.notes_on, whose=lessons.whose)
    back = el("a", "All corrections", href="/learning", class_="button") if lessons.one else None
    subtitle = f"From what you said to a better answer. {sentence}."
    return join(header("Learning", subtitle, back), el("div", main, panel, class_="columns"))


def _nothing() -> Html:
    return empty(
        "No correction yet",
        "Correct a reply in ",
        el("a", "Talk", href="/talk"),
        " or in any client: “shorter, please” is enough. Here you will see how it was understood, the step that"
        " trained on it, and the answer before and after.",
    )


def _not_understood(found: Sequence[Correction]) -> Html:
    rows = [
        el(
            "li",
            el("blockquote", clipped(one.said or "You rated the reply as bad.", 240)),
            el("p", "after ", el("q", clipped(one.question, 120)), class_="faint"),
            _say_what(one),
        )
        for one in found[:5]
    ]
    return el(
        "div",
        el("h2", f"Not understood ({len(found)})"),
        el("p", "These replies were not what you wanted, but the judge does not know how to improve them."),
        el("ul", *rows),
        class_="asks",
    )


def _unheard(found: Sequence[Correction]) -> Html:
    rows = [
        el(
            "li",
            el("blockquote", clipped(one.said or "", 240)),
            el("p", "after ", el("q", clipped(one.question, 120)), class_="faint"),
            _say_what(one, label="It was a correction"),
        )
        for one in found
    ]
    return el(
        "details",
        el("summary", f"Treated as ordinary conversation ({len(found)})"),
        el("p", "Nothing is learned from these. If one of them was a correction, say what you meant.", class_="faint"),
        el("ul", *rows),
        class_="asks plain",
    )


def _say_what(one: Correction, *, label: str = "Say what you meant") -> Html:
    return button(
        label,
        "/do/feedback",
        body=json.dumps({"turn": one.turn, "thumb": "down"}),
        ask="comment",
        confirm="What would have made this reply better?",
        example="Please keep it under 30 words.",
        class_="primary",
    )


# --- one correction as a line of four steps ---


def _card(one: Correction, *, whose: bool) -> Html:
    steps = (_said(one), _understood(one), _trained(one), _answers(one))
    top = el(
        "header",
        el("h2", clipped(one.question, 140)),
        el("p", when(one.at), el("span", one.user) if whose else None, _links(one), class_="faint row"),
    )
    return el("article", top, el("ol", *steps, class_="line"), class_="card", id=f"turn-{one.turn}")


def _links(one: Correction) -> Html:
    return el("a", "only this", href=f"/learning?turn={one.turn}")


def _step(title: str, done: bool, *children: Child) -> Html:
    mark = el("span", class_="mark", aria_hidden="true")
    state = el("span", "done: " if done else "waits: ", class_="hidden")
    return el("li", el("h3", mark, state, title), *children, class_="done" if done else "waits")


def _said(one: Correction) -> Html:
    hows = {"comment": "your comment", "edit": "an edit of the reply", "thumb": "a thumb down", "message": ""}
    words = el("blockquote", clipped(one.said, 400)) if one.said else None
    source = hows[one.how] or ("your next message" if one.said else "")
    return _step("You said", True, words, el("p", source, class_="faint") if source else None)


def _understood(one: Correction) -> Html:
    if not one.judged and not one.notes:
        return _step("It understood", False, el("p", "The judge has not read it yet."))
    rows: list[Html] = [
        el("p", el("strong", hint.text), chip(hint.kind)) for hint in one.hints if hint.kind != "complaint"
    ]
    hint_texts = {hint.text for hint in one.hints}
    rows += [el("p", el("strong", note.text), chip(note.kind)) for note in one.notes if note.text not in hint_texts]
    if not rows:
        rows = [el("p", "The reply was not what you wanted; the reason is unknown."), _say_what(one)]
    rows += [_note_state(note) for note in one.notes]
    score = "" if one.score is None else f"score {one.score:+g}"
    rows.append(el("p", " · ".join(filter(None, (score, one.reading))), class_="faint"))
    return _step("It understood", one.understood, *rows)


def _note_state(note: Note) -> Html:
    name, colour, meaning = STATES.get(note.state, (note.state, "", ""))
    return el("p", chip(f"note {note.number} {name}", colour), title=meaning)


def _trained(one: Correction) -> Html:
    rows = [_lesson(lesson) for lesson in one.trained]
    if rows:
        return _step("It trained", True, *rows)
    if one.dropped:
        return _step("It trained", False, el("p", "Not on this turn: ", el("strong", one.dropped)))
    waits = {
        "proposed": "Waits until you confirm that you meant it for all replies.",
        "declined": "You did not mean it for all replies.",
        "in force": "Waits for idle time to be distilled; until then the note stays in the prompt.",
        "learning": "Being distilled now.",
        "kept": "Kept as a note: it cannot be taught.",
        "off": "You switched the note off.",
    }
    reason = next((waits[note.state] for note in one.notes if note.state in waits), "Waits for a batch to train in.")
    return _step("It trained", False, el("p", reason))


def _lesson(lesson: TrainedIn) -> Html:
    summary = el("p", f"Step {lesson.step}", _version(lesson))
    how = el("p", f"by {lesson.distillation.what}", class_="faint") if lesson.distillation is not None else None
    figures = _distilled(lesson.distillation) if lesson.distillation is not None else None
    ruling = el("p", f"Gate: {lesson.ruling}", class_="faint") if lesson.ruling else None
    return el("div", summary, how, figures, ruling)


def _version(lesson: TrainedIn) -> Html:
    if lesson.version is None:
        return join(", which made no version")
    colours = {"live": "good", "refused": "bad", "rolled back": "bad", "candidate": "busy"}
    state = {"live": "served", "candidate": "being examined"}.get(lesson.state or "", lesson.state or "")
    return join(" made ", chip(f"version {lesson.version}: {state}", colours.get(lesson.state or "", "")))


def _distilled(done: Distillation) -> Html:
    """Draw how many replies follow the note: without it before and after, and (unless it stays) with it."""
    figures, labels = done.evidence, [("first", "before"), ("last", "after"), ("with_note", "with note")]
    parts = [(figures[name], what) for name, what in (labels[:2] if done.practised else labels)]
    if any(one["met"] is None for one, _ in parts):
        kl = " to ".join(f"{one['kl']:.2f}" for one, what in parts if what != "with note")
        return el("p", f"{kl} nats a token from the replies with the note")
    bars = [_bar(what, one["met"], one["replies"]) for one, what in parts]
    return el("div", *bars, class_="bars", title="replies that follow the note, on held-out prompts")


def _bar(what: str, met: int, of: int) -> Html:
    share = 100 * met / max(of, 1)
    drawn = el(
        "svg",
        el("rect", width=100, height=6, class_="track"),
        el("rect", width=round(share, 1), height=6, class_="fill"),
        viewBox="0 0 100 6",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    return el("p", el("span", what), drawn, el("span", f"{met} of {of}"))


def _answers(one: Correction) -> Html:
    now = next(iter(one.after), None)
    again = el(
        "div",
        button(
            "Ask it now" if now is None else "Ask it again now",
            "/do/again",
            body=json.dumps({"turn": one.turn}),
            answer="true",
        ),
        class_="again",
    )
    return _step(
        "Before and now",
        now is not None,
        _answer("before", one.before),
        _answer("now", now) if now is not None else None,
        again,
    )


def _answer(when_: str, answer: VersionAnswer) -> Html:
    summary = f"{when_}, version {answer.version}"
    return el(
        "details",
        el("summary", el("span", summary, class_="faint"), el("span", clipped(answer.reply, 160), class_="glimpse")),
        text(answer.reply, most=_TOLD),
        class_=f"answer {when_}",
    )
