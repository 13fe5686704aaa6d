"""A conversation with a running server, from a terminal or a pipe.

`TerminalChat` handles a typed line, a message or a command, and writes the result; `describe_turn` reports a
correction's effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from openclaw_rl.errors import RequestError
from openclaw_rl.types import Doubt, Message, Prompt, new_id

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiClient, ServedNote


# Standing notes in a conversation: new ones as they are made, and all of them on request.

_LOOK = 0.1
"""seconds between two checks for a new note"""
_PROMPTED = ("in force", "learning", "kept")
"""the states of notes in prompts"""


class NewNotes:
    """Tracks known notes to report new ones; a server without notes has none to report."""

    def __init__(self, client: ApiClient, notice: float) -> None:
        self._client = client
        self._notice = notice
        self._told: dict[int, bool] = {}
        self._known = True

    async def begin(self) -> None:
        """Record the present notes as known."""
        await self._new()

    async def lines(self) -> list[str]:
        """Return lines on new notes; wait a moment for them."""
        lines = await self._new()
        for _ in range(round(self._notice / _LOOK)):
            if lines or not self._known:
                break
            await asyncio.sleep(_LOOK)
            lines = await self._new()
        return lines

    async def all(self) -> list[str]:
        """Return every note with its state."""
        notes = [note for note in await self._listed() if note.state not in ("replaced", "declined")]
        if not notes:
            return ["no notes yet: tell me how you would like replies, and I keep to it"]
        return [f"{note.number:>4}  {note.state:<9}  {note.text}{_put_as(note)}" for note in notes]

    async def change(self, word: str, number: int) -> None:
        """Switch a note off or on, remove it, or answer if it was meant for all replies (yes, no, here)."""
        if word == "yes":
            await self._client.accept_note(number)
            return
        if word in ("no", "here"):
            await self._client.decline_note(number, only_here=word == "here")
            return
        if word == "rm":
            await self._client.remove_note(number)
        else:
            await self._client.switch_note(number, word == "on")

    async def _listed(self) -> Sequence[ServedNote]:
        if not self._known:
            return ()
        try:
            return await self._client.notes()
        except RequestError:  # a server of another kind, or an older release
            self._known = False
            return ()

    async def _new(self) -> list[str]:
        notes = await self._listed()
        prompted = [note for note in notes if note.state in _PROMPTED and not self._told.get(note.number)]
        proposed = [note for note in notes if note.state == "proposed" and note.number not in self._told]
        replaced = {note.replaced_by: note for note in notes if note.replaced_by is not None}
        self._told |= {note.number: note.state != "proposed" for note in notes}
        lines = [_told(note, replaced.get(note.number)) for note in prompted]
        return lines + [_asked(note) for note in proposed[-1:]]


def _told(note: ServedNote, old: ServedNote | None) -> str:
    instead = f" (instead of: {old.text})" if old is not None else ""
    return f"noted: {note.text}{_put_as(note)}{instead}"


def _asked(note: ServedNote) -> str:
    choices = f"/notes yes {note.number}, /notes here {note.number} (only here) or /notes no {note.number}"
    return f'did you mean "{note.text}" for all replies? {choices}'


def _put_as(note: ServedNote) -> str:
    return "" if note.put.rstrip(".") == note.text.rstrip(".") else f" (put as: {note.put})"


PATIENCE = 330.0
"""seconds of silence after which a reply is abandoned; a restarting server holds requests"""

Write = Callable[[str], None]
Look = Callable[[str], Sequence[str]]
"""a turn's effects, line by line"""
Command = Callable[[str], Awaitable[None]]


class Asker(Protocol):
    """Detects a message that may be a correction, and stores its author's answer."""

    async def doubt(self, request: str, reply: str, message: str) -> Doubt | None: ...

    def keep(self, request: str, reply: str, message: str, doubt: Doubt, *, meant: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A question to a message's author, and the turn that it is about."""

    turn: str
    exchange: tuple[str, str, str]
    doubt: Doubt


class TerminalChat:
    """A series of conversations. ``say`` writes replies and command output, ``note`` all other events.

    A line that starts with / is a command; a space before the / sends it as a message. With an ``asker``, a message
    that may be a correction leads to a question.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        say: Write,
        note: Write,
        look: Look,
        asker: Asker | None = None,
        notice: float = 0.0,
    ) -> None:
        """``notice`` is the wait for a new standing note after a reply, in seconds, to report it at once."""
        self._client = client
        self._notes = NewNotes(client, notice)
        self._say, self._note, self._look, self._asker = say, note, look, asker
        self._question: _Question | None = None
        self._messages: tuple[Message, ...] = ()
        self._session = new_id()
        self._turns: list[str] = []
        self._corrected: str | None = None
        self._version: int | None = None
        self._commands: dict[str, tuple[str, Command]] = {
            "/good": ("the last reply was good", lambda _: self._thumb("up")),
            "/bad": ("the last reply was bad", lambda _: self._thumb("down")),
            "/fix": ("TEXT: the last reply was bad, and what would have made it better", self._fix),
            "/notes": (
                "what you asked for; /notes off, on, rm, yes, here or no NUMBER changes one",
                self._list_notes,
            ),
            "/why": ("the last correction's effects", self._why),
            "/version": ("the version that answers", self._which),
            "/new": ("start a new conversation", lambda _: self.end()),
            "/help": ("this list", self._help),
        }
        if asker is not None:
            self._commands["/yes"] = ("that is what you meant", lambda _: self._answer(meant=True))
            self._commands["/no"] = ("you meant something else", lambda _: self._answer(meant=False))
        self._helps = {
            **{name: text for name, (text, _) in self._commands.items()},
            "/quit": "end; so does the end of the input",
        }

    async def handle(self, line: str) -> bool:
        """Handle one line; return False if it was the last."""
        word, _, argument = line.partition(" ")
        if word == "/quit":
            return False
        if word.startswith("/"):
            await self._command(word, argument.strip())
        elif line.strip():
            await self._send(line.strip())
        return True

    async def greet(self) -> None:
        """Write the serving model's name; raises if no server answers."""
        model = (await self._client.models())[0]
        self._version = model.version
        await self._notes.begin()
        self._note(f"{model.name} at {self._client.url}{_at(model.version)}; /help lists the commands")

    async def end(self) -> None:
        """End the conversation and start a new one."""
        if self._turns:
            await self._client.end(self._session)
        self._messages, self._turns, self._session, self._question = (), [], new_id(), None

    async def _command(self, word: str, rest: str) -> None:
        if word not in self._commands:
            self._note(f"there is no {word}; known: {', '.join(self._helps)}")
            return
        await self._commands[word][1](rest)

    async def _send(self, text: str) -> None:
        messages = (*self._messages, Message(role="user", content=text))
        reply = ""
        try:
            async with self._client.stream(Prompt(messages=messages), session=self._session) as streamed:
                self._compare_version(streamed.version)
                async for delta in streamed.deltas:
                    self._say(delta)
                    reply += delta
        finally:
            if reply:
                self._say("\n")
        self._turns.append(streamed.turn)
        self._messages = (*messages, Message(role="assistant", content=reply))
        if len(self._turns) > 1:  # the message may have been a correction
            await self._tell_notes()
        await self._ask_about(messages)

    async def _ask_about(self, messages: Sequence[Message]) -> None:
        """Ask for the last message's meaning if it may be a correction but was not understood."""
        self._question = None
        if self._asker is None or len(self._turns) < 2:
            return
        request, reply, message = (item.content for item in messages[-3:])
        doubt = await self._asker.doubt(request, reply, message)
        if doubt is not None:
            self._question = _Question(turn=self._turns[-2], exchange=(request, reply, message), doubt=doubt)
            self._note(f"did you mean: {_meaning(doubt)}? /yes or /no")

    async def _answer(self, *, meant: bool) -> None:
        """Record the answer: as feedback on the previous turn if it was meant, and always as the user's own line."""
        question, asker = self._question, self._asker
        if question is None or asker is None:
            self._note("nothing was asked")
            return
        if meant:
            fields = {"thumb": "down" if question.doubt.score < 0 else "up"}
            if question.doubt.hints:
                fields["comment"] = question.doubt.hints[0].text
            await self._client.send_feedback(question.turn, **fields)
            self._corrected = question.turn
        asker.keep(*question.exchange, question.doubt, meant=meant)
        self._question = None
        self._note("noted as a correction; /why says what becomes of it" if meant else "noted: it was no correction")
        if meant and question.doubt.hints:
            await self._tell_notes()

    async def _tell_notes(self) -> None:
        for line in await self._notes.lines():
            self._note(line)

    async def _list_notes(self, rest: str) -> None:
        word, _, number = rest.partition(" ")
        if word in ("off", "on", "rm", "yes", "here", "no") and number.strip().isdecimal():
            await self._notes.change(word, int(number))
        elif rest:
            self._note("say /notes, or /notes off, on, rm, yes, here or no NUMBER")
            return
        for line in await self._notes.all():
            self._say(f"{line}\n")

    def _compare_version(self, version: int | None) -> None:
        """Report a change of the answering version."""
        if version is not None and self._version is not None and version != self._version:
            self._note(f"version {version} has taken over (before: {self._version})")
        self._version = version if version is not None else self._version

    async def _thumb(self, thumb: str) -> None:
        await self._feedback({"thumb": thumb}, f"noted: the last reply was {'good' if thumb == 'up' else 'bad'}")

    async def _fix(self, text: str) -> None:
        if not text:
            self._note("say what would have made it better: /fix Keep it under 30 words.")
            return
        await self._feedback({"thumb": "down", "comment": text}, "noted as a correction; /why says what becomes of it")

    async def _feedback(self, fields: Mapping[str, str], note: str) -> None:
        if not self._turns:
            self._note("there is no reply yet in this conversation")
            return
        await self._client.send_feedback(self._turns[-1], **fields)
        self._corrected = self._turns[-1]
        self._note(note)
        if "comment" in fields:
            await self._tell_notes()

    async def _why(self, _: str) -> None:
        """Explain the last correction: a command, or else the last message, which is about the reply before it."""
        turn = self._corrected or (self._turns[-2] if len(self._turns) > 1 else None)
        if turn is None:
            self._note("nothing has been corrected yet: answer a reply, or say /good, /bad or /fix TEXT")
            return
        for line in self._look(turn):
            self._say(f"{line}\n")

    async def _which(self, _: str) -> None:
        model = (await self._client.models())[0]
        before = f", the last reply came from version {self._version}" if self._turns else ""
        self._say(f"{model.name}{_at(model.version)}{before}\n")

    async def _help(self, _: str) -> None:
        for name, text in self._helps.items():
            self._say(f"{name:<9} {text}\n")


def _meaning(doubt: Doubt) -> str:
    if doubt.hints:
        return f'"{doubt.hints[0].text}"'
    return "the reply before was not what you wanted" if doubt.score < 0 else "the reply before was good"


def _at(version: int | None) -> str:
    return "" if version is None else f", version {version}"


def describe_turn(turn: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a turn's history from `views`: its verdict, its hints, and the version trained on it."""
    message = turn["prompt"]["messages"][-1].get("content", "")
    lines = [f"turn {turn['id']}, answered by version {turn['version']}: {_short(message)}"]
    verdict = turn["verdict"]
    if verdict is None:
        waits = "for what comes after it" if turn["kind"] is None else "for the judge"
        return [*lines, f"not judged yet: it waits {waits}"]
    score = "no opinion" if verdict["score"] is None else f"{verdict['score']:+g}"
    lines.append(f"judged {score} ({verdict['source']})" + (f": {verdict['note']}" if verdict["note"] else ""))
    lines += [f"hint ({hint['kind']}): {hint['text']}" for hint in verdict["hints"]]
    return [*lines, _use(turn, versions)]


def _use(turn: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> str:
    if turn["step"] is not None:
        results = [version for version in versions if version["step"] == turn["step"]]
        if not results:
            return f"used by step {turn['step']}, which made no version"
        return f"used by step {turn['step']}, which made version {results[0]['number']} ({results[0]['state']})"
    if turn["dropped"]:
        return f"not trained: {turn['dropped']['reason']} {turn['dropped']['detail']}".rstrip()
    return "not trained yet: it waits for a batch"


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
