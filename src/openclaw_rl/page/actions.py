"""A person's actions on the page: each is a call of the public API with that person's key, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from openclaw_rl.clients.api import ApiClient
from openclaw_rl.errors import NotInLedger, OpenClawError, RequestError
from openclaw_rl.page.door import Person
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Json, Message, Prompt, Role, new_id
from openclaw_rl.web import parse_json, read_number

OpenLedger: TypeAlias = Callable[[], LedgerReader]
OpenApi: TypeAlias = "Callable[[str | None], ApiClient]"
"""an API client that acts with a key"""
Act: TypeAlias = "Callable[[Request, Person, Mapping[str, Json]], Awaitable[Response]]"

LARGEST = 8 * 2**20
"""size limit of a request body in bytes"""
_DEPTH, _VALUES = 32, 100_000
"""limits of a body's nesting depth and of its number of values"""
_PATIENCE, _LOOK = 8.0, 0.2
"""seconds to wait for a command's effect, and between two checks"""
_PROMPTS = 8
_COMPARED = 160
"""limits of a comparison: its number of prompts, and the tokens of each reply"""
_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}


class Actions:
    """The actions, by their addresses under /do."""

    def __init__(self, ledger: OpenLedger, api: OpenApi) -> None:
        self._ledger = ledger
        self._api = api
        self.by_path: Mapping[str, Act] = {
            "/do/talk": self.talk,
            "/do/feedback": self.feedback,
            "/do/notes": self.add_note,
            "/do/notes/{number}": self.switch_note,
            "/do/notes/{number}/accept": self.accept_note,
            "/do/notes/{number}/decline": self.decline_note,
            "/do/notes/{number}/remove": self.remove_note,
            "/do/again": self.again,
            "/do/control": self.control,
            "/do/compare": self.compare,
            "/do/tokens": self.tokens,
            "/do/delete": self.delete,
        }

    async def talk(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Stream a reply as lines of JSON; a closed browser connection stops it."""
        session = _word(given, "session") if given.get("session") else new_id()
        prompt = Prompt(messages=_messages(given.get("messages")))
        return StreamingResponse(self._reply(person, prompt, session), media_type="application/x-ndjson")

    async def _reply(self, person: Person, prompt: Prompt, session: str) -> AsyncIterator[str]:
        try:
            async with self._api(person.key) as api, api.stream(prompt, session=session) as reply:
                yield _line(session=session, turn=reply.turn, version=reply.version, notes=reply.notes)
                async for delta in reply.deltas:
                    yield _line(text=delta)
                yield _line(end=True, version=reply.version)
        except OpenClawError as error:
            yield _line(error=str(error))

    async def feedback(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Send a thumb, a comment or an edit on a turn."""
        fields = {name: _word(given, name) for name in ("thumb", "comment", "edit") if given.get(name) is not None}
        async with self._api(person.key) as api:
            await api.send_feedback(_word(given, "turn"), **fields)
        return JSONResponse({"said": "Noted. Learning shows its effect."})

    async def add_note(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Add a note by the person."""
        async with self._api(person.key) as api:
            note = await api.add_note(_word(given, "text"))
        return JSONResponse({"said": f"Note {note.number} is in your next prompt."})

    async def switch_note(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Switch a note on or off."""
        async with self._api(person.key) as api:
            note = await api.switch_note(_note(request), given.get("enabled") is True)
        return JSONResponse({"said": f"Note {note.number} is {note.state}."})

    async def accept_note(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Accept a proposed note for all replies."""
        async with self._api(person.key) as api:
            note = await api.accept_note(_note(request))
        return JSONResponse({"said": f"Note {note.number} is in your next prompt."})

    async def decline_note(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Decline a proposed note for all replies."""
        async with self._api(person.key) as api:
            note = await api.decline_note(_note(request), only_here=given.get("only_here") is True)
        return JSONResponse({"said": f"Note {note.number} will not be asked about again."})

    async def remove_note(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Remove a note for good."""
        async with self._api(person.key) as api:
            await api.remove_note(_note(request))
        return JSONResponse({"said": "The note is removed."})

    async def again(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Answer a turn's prompt with the live version; the reply never trains."""
        name = _word(given, "turn")
        turn = await asyncio.to_thread(self._own_turn, person, name)
        async with self._api(person.key) as api:
            reply = await api.complete(turn, train=False)
        return JSONResponse({"version": reply.version, "text": reply.text})

    async def control(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Send a command to the run; wait briefly, so that its effect is seen."""
        command, version, turn = _word(given, "command"), given.get("version"), given.get("turn")
        reason = _word(given, "reason") if given.get("reason") else None
        async with self._api(person.key) as api:
            number = await api.control(command, version=version, turn=turn, reason=reason)
        carried_out = await self._carried_out(number)
        later = "a running trainer applies it at its next tick"
        return JSONResponse({"said": f"{command}: done." if carried_out else f"{command}: recorded; {later}."})

    async def _carried_out(self, number: int) -> bool:
        def look() -> bool:
            with self._ledger() as ledger:
                return ledger.carried_out(number)

        for _ in range(int(_PATIENCE / _LOOK)):
            if await asyncio.to_thread(look):
                return True
            await asyncio.sleep(_LOOK)
        return False

    async def compare(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Answer the same prompts with two versions; the replies never train."""
        lines = [line.strip() for line in _word(given, "prompts").splitlines() if line.strip()][:_PROMPTS]
        versions = [_number(given, name) for name in ("first", "second")]
        async with self._api(person.key) as api:
            model = (await api.models())[0].name

            async def ask(line: str, version: int) -> str:
                prompt = Prompt(messages=(Message(role="user", content=line),))
                options = {"model": f"{model}@{version}", "seed": 0, "max_tokens": _COMPARED}
                return (await api.complete(prompt, train=False, notes=False, options=options)).text

            requests = [ask(line, version) for line in lines for version in versions]
            replies = iter(await asyncio.gather(*requests))
        rows = [{"prompt": line, "first": next(replies), "second": next(replies)} for line in lines]
        return JSONResponse({"versions": versions, "rows": rows})

    async def tokens(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Return a reply's tokens with their log-probs."""
        async with self._api(person.key) as api:
            pieces = await api.tokens(_word(given, "turn"))
        return JSONResponse({"tokens": [[piece.text, round(piece.logprob, 3)] for piece in pieces]})

    async def delete(self, request: Request, person: Person, given: Mapping[str, Json]) -> Response:
        """Delete a session for good, with all its rows."""
        async with self._api(person.key) as api:
            summary = await api.delete_session(_word(given, "session"), user=_word(given, "user"))
        return JSONResponse({"said": f"{summary[0].upper()}{summary[1:]}.", "go": "/sessions"})

    def _own_turn(self, person: Person, name: str) -> Prompt:
        with self._ledger() as ledger:
            turn = ledger.turn(name)
        if person.scope not in (None, turn.user):
            raise NotInLedger(f"there is no turn {name!r} of yours")
        return turn.prompt


async def read_json(request: Request) -> Mapping[str, Json]:
    """Read the body as an object; raise RequestError for any other body."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise RequestError(f"the body is larger than {LARGEST} bytes", status=413)
    return parse_json(body or b"{}", depth=_DEPTH, values=_VALUES)


def _word(given: Mapping[str, Json], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{name}: is missing or not a text", field=name)
    return value


def _note(request: Request) -> int:
    number = read_number(request.path_params["number"])
    if number is None:
        raise NotInLedger("there is no such note")
    return number


def _number(given: Mapping[str, Json], name: str) -> int:
    value = given.get(name)
    if isinstance(value, str):
        value = read_number(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name}: is not a version", field=name)
    return value


def _messages(given: Json) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise RequestError("messages: is not a list of messages", field="messages")
    try:
        return tuple(Message(role=_ROLES[message["role"]], content=str(message["content"])) for message in given)
    except (KeyError, TypeError) as error:
        raise RequestError(f"messages: a message has a role and a content: {error}", field="messages") from error


def _line(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"
