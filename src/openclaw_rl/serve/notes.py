"""/v1/notes: a user's standing notes, read and changed by that user alone; by every person if there are no keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, get_args
from urllib.parse import parse_qs

from pydantic import ConfigDict, Field
from starlette.routing import Route

from openclaw_rl.errors import InvalidValue, NotInLedger, RequestError
from openclaw_rl.notes import AddedNote, NewNote, NotesBook
from openclaw_rl.preferences.wording import put
from openclaw_rl.serve.endpoints import AdmittedRequest, ApiEndpoint, Handle, read_body
from openclaw_rl.serve.fields import Flag, Name, RequestModel, parse
from openclaw_rl.serve.request import PutsNotes, openai_error
from openclaw_rl.serve.state import ServerState
from openclaw_rl.types import Json, Note, NoteKind, NoteState, environment_of
from openclaw_rl.web import parse_json, read_number

T = TypeVar("T")

_LARGEST = 2**16
"""maximum bytes in a body: a note is a few sentences"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingNotes:
    """A server's notes: the book, and the prompter that inserts them, None if notes are switched off."""

    book: NotesBook
    prompter: PutsNotes | None


class NoteRequest(RequestModel):
    """A note by the caller, in force at once."""

    text: Name = Field(description="the rule or fact, in the user's words")
    kind: NoteKind | None = Field(default=None, description="rule (default) or fact")


class NoteChangeRequest(RequestModel):
    """Another text for a note, or its switch."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    text: Name | None = Field(default=None, description="the note in other words: a new note, which replaces it")
    enabled: Flag | None = Field(default=None, description="false omits it from prompts, true inserts it again")


class NoteDeclineRequest(RequestModel):
    """The reason for declining a proposed note."""

    only_here: Flag | None = Field(default=None, description="true: the note was meant for that one reply")


class NotesSwitchRequest(RequestModel):
    """The switch for all the caller's notes in prompts."""

    enabled: Flag


def note_routes(server: ServerState, notes: StandingNotes | None) -> list[Route]:
    """Return the note endpoints; none if the server has no notes."""
    if notes is None:
        return []
    handle = NoteHandlers(server, notes)
    by_path = {
        "/v1/notes": {"GET": handle.all, "POST": handle.add, "PATCH": handle.switch_all},
        "/v1/notes/{number}": {"GET": handle.one, "PATCH": handle.change, "DELETE": handle.remove},
        "/v1/notes/{number}/accept": {"POST": handle.accept},
        "/v1/notes/{number}/decline": {"POST": handle.decline},
    }
    return [
        Route(path, ApiEndpoint(server, "notes", _for_people(handler), openai_error), methods=[method])
        for path, methods in by_path.items()
        for method, handler in methods.items()
    ]


def _for_people(handle: Handle) -> Handle:
    """Return the handler, closed to environments: they have no notes, and without keys they would reach all users'."""

    async def handle_for_person(admitted: AdmittedRequest) -> None:
        if environment_of(admitted.user) is not None:
            raise RequestError("an environment has no notes", status=403, remedy="use a person's key")
        await handle(admitted)

    return handle_for_person


class NoteHandlers:
    """Handles one request each. Another user's note does not exist for the caller."""

    def __init__(self, server: ServerState, notes: StandingNotes) -> None:
        self._server = server
        self._book = notes.book
        self._on = notes.prompter is not None

    async def all(self, admitted: AdmittedRequest) -> None:
        await self._list(admitted)

    async def add(self, admitted: AdmittedRequest) -> None:
        request = await self._body(admitted, NoteRequest)
        text = self._redacted(request.text)
        added = await self._work(
            lambda: self._book.add(
                NewNote(user=admitted.user, text=text, kind=request.kind or "rule", by="user", reason="added by hand")
            )
        )
        await self._reply_added(admitted, added)

    async def one(self, admitted: AdmittedRequest) -> None:
        note = await self._own(admitted)
        history = await self._work(lambda: self._book.history(note.number))
        await admitted.exchange.reply_json(200, {**shown(note), "history": [asdict(change) for change in history]})

    async def change(self, admitted: AdmittedRequest) -> None:
        request = await self._body(admitted, NoteChangeRequest)
        note = await self._own(admitted)
        if (request.text is None) == (request.enabled is None):
            raise RequestError("text: set either text or enabled", field="text")
        if request.text is not None:
            text = self._redacted(request.text)
            added = await self._work(lambda: self._book.edit(note.number, text))
            await self._reply_added(admitted, added)
            return
        on = bool(request.enabled)
        reason = "switched on by its user" if on else "switched off by its user"
        changed = await self._work(lambda: self._book.switch(note.number, on, reason=reason))
        await admitted.exchange.reply_json(200, shown(changed))

    async def remove(self, admitted: AdmittedRequest) -> None:
        note = await self._own(admitted)
        removed = await self._work(lambda: self._book.remove(note.number, reason="removed by its user"))
        await admitted.exchange.reply_json(200, shown(removed))

    async def accept(self, admitted: AdmittedRequest) -> None:
        note = await self._own(admitted)
        await self._reply_added(admitted, await self._work(lambda: self._book.accept(note.number)))

    async def decline(self, admitted: AdmittedRequest) -> None:
        note = await self._own(admitted)
        raw = await admitted.exchange.body(_LARGEST)
        limits = self._server.limits
        body = parse_json(raw, depth=limits.depth, values=limits.values) if raw.strip() else {}
        only_here = parse(NoteDeclineRequest, body, limits).only_here
        reason = "the user meant it for one reply" if only_here else "the user said no"
        declined = await self._work(lambda: self._book.decline(note.number, reason=reason))
        await admitted.exchange.reply_json(200, shown(declined))

    async def switch_all(self, admitted: AdmittedRequest) -> None:
        request = await self._body(admitted, NotesSwitchRequest)
        await self._work(lambda: self._book.enable(admitted.user, request.enabled, reason="switched by the user"))
        await self._list(admitted)

    async def _list(self, admitted: AdmittedRequest) -> None:
        scope = None if self._server.keys.open else admitted.user
        state = _state_asked(admitted)
        notes = [note for note in await self._work(lambda: self._book.all(scope)) if state in (None, note.state)]
        enabled = self._on and await self._work(lambda: self._book.enabled(admitted.user))
        page = {"object": "list", "enabled": enabled, "data": [shown(note) for note in notes]}
        await admitted.exchange.reply_json(200, page)

    async def _own(self, admitted: AdmittedRequest) -> Note:
        named = admitted.exchange.scope["path_params"]["number"]
        missing = RequestError(f"there is no note {named[:20]} of yours", field="number", status=404)
        number = read_number(named)
        if number is None:
            raise missing
        try:
            note = await self._work(lambda: self._book.note(number))
        except NotInLedger as error:
            raise missing from error
        if note.state == "removed" or not (self._server.keys.open or note.user == admitted.user):
            raise missing
        return note

    async def _reply_added(self, admitted: AdmittedRequest, added: AddedNote) -> None:
        replaced = [note.number for note in added.replaced]
        await admitted.exchange.reply_json(200, {**shown(added.note), "new": added.new, "replaced": replaced})

    async def _body(self, admitted: AdmittedRequest, model: type[Any]) -> Any:
        limits = self._server.limits
        return await read_body(self._server, admitted.exchange, lambda body: parse(model, body, limits), limit=_LARGEST)

    def _redacted(self, text: str) -> str:
        redact = self._server.answerer.recording.redact
        return redact(text) if redact else text

    async def _work(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except InvalidValue as error:
            raise RequestError(str(error), field=error.field) from error


def _state_asked(admitted: AdmittedRequest) -> str | None:
    """Return the state that a list is filtered by, None for any; raise RequestError for an unknown state."""
    query = parse_qs(admitted.exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if "state" not in query:
        return None
    state: str = query["state"][-1]
    if state not in get_args(NoteState):
        raise RequestError(f"state: must be one of {', '.join(get_args(NoteState))}", field="state")
    return state


def shown(note: Note) -> dict[str, Json]:
    """Return a note as JSON, with its wording in a prompt."""
    fields = {name: value for name, value in asdict(note).items() if name != "vague"}
    return {"object": "note", **fields, "put": put(note)}
