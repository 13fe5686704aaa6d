"""POST /v1/control, GET /v1/turns/{id}/tokens: what a run is told to do, and the very tokens of a reply."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, Protocol
from urllib.parse import parse_qs

from pydantic import Field
from starlette.routing import Route

from openclaw_rl.errors import NotInLedger, RequestError
from openclaw_rl.serve.auth import session_name
from openclaw_rl.serve.endpoints import AdmittedRequest, ApiEndpoint, read_body
from openclaw_rl.serve.fields import Name, RequestModel, Whole, parse
from openclaw_rl.serve.request import openai_error
from openclaw_rl.serve.state import ServerState
from openclaw_rl.types import Deletion, Json

_LARGEST = 2**16
_MOST_TOKENS = 8192
ControlWord = Literal["rollback", "pause", "resume", "pin", "unpin"]


class SubmitsControl(Protocol):
    """Writes down what a run is to do; the number of the request. Raises NotInLedger for what is not there."""

    def __call__(self, word: ControlWord, /, *, version: int | None, turn: str | None, reason: str) -> int: ...


class RunControlRequest(RequestModel):
    """What a run is to do: roll back, pause or resume training, keep a version or a turn or let it go."""

    command: ControlWord
    version: Annotated[int, Whole(0)] | None = Field(
        default=None, description="what to roll back to (not given: the weights before), or what is pinned"
    )
    turn: Name | None = Field(default=None, description="a turn whose reply is pinned")
    reason: str | None = Field(default=None, description="why, for the ledger")


def control_routes(server: ServerState, submit: SubmitsControl | None) -> list[Route]:
    """The endpoints; without somebody to tell there is none for control."""
    handle = ControlHandlers(server, submit)
    found = [
        Route("/v1/turns/{id}/tokens", ApiEndpoint(server, "tokens", handle.tokens, openai_error), methods=["GET"])
    ]
    if submit is not None:
        endpoint = ApiEndpoint(server, "control", handle.control, openai_error)
        found.append(Route("/v1/control", endpoint, methods=["POST"]))
    return found


class ControlHandlers:
    """Each answers one request. Only an admin controls a run; a turn is its user's, and an admin's."""

    def __init__(self, server: ServerState, submit: SubmitsControl | None) -> None:
        self._server = server
        self._submit = submit

    async def control(self, admitted: AdmittedRequest) -> None:
        limits = self._server.limits
        given: RunControlRequest = await read_body(
            self._server, admitted.exchange, lambda body: parse(RunControlRequest, body, limits), limit=_LARGEST
        )
        if not self._server.is_admin(admitted.user):
            raise RequestError(
                f"{admitted.user} may not control this run", status=403, remedy="name the user in serve.admins"
            )
        _refuse_unfit(given)
        reason = f"{given.reason or 'on request'} (by {admitted.user})"
        assert self._submit is not None
        submit = self._submit
        try:
            number = await asyncio.to_thread(
                lambda: submit(given.command, version=given.version, turn=given.turn, reason=reason)
            )
        except NotInLedger as error:
            raise RequestError(str(error), status=404) from error
        await admitted.exchange.reply_json(200, {"object": "control", "command": given.command, "request": number})

    async def tokens(self, admitted: AdmittedRequest) -> None:
        name = admitted.exchange.scope["path_params"]["id"]
        turn = await self._server.turn(name, admitted.user, others=self._server.is_admin(admitted.user))
        done = turn.completion
        kept = done.reply_tokens[:_MOST_TOKENS]
        texts = {token: await self._server.policy.decode((token,)) for token in dict.fromkeys(kept)}
        reply: list[Json] = [
            {"token": token, "text": texts[token], "logprob": logprob}
            for token, logprob in zip(kept, done.logprobs, strict=False)
        ]
        await admitted.exchange.reply_json(
            200,
            {
                "object": "turn.tokens",
                "turn": turn.id,
                "version": done.version,
                "prompt_tokens": len(done.prompt_tokens),
                "reply_tokens": len(done.reply_tokens),
                "reply": reply,
            },
        )


def _refuse_unfit(given: RunControlRequest) -> None:
    """A command takes what it can use and nothing else."""
    pins = given.command in ("pin", "unpin")
    if pins and (given.version is None) == (given.turn is None):
        raise RequestError(f"{given.command}: name a version or a turn", field="version")
    if given.command in ("pause", "resume") and given.version is not None:
        raise RequestError(f"version: {given.command} takes none", field="version")
    if not pins and given.turn is not None:
        raise RequestError(f"turn: {given.command} takes none", field="turn")


# DELETE /v1/sessions/{id}: a session goes with everything of it; its user's to do, or an admin's.


class DeletesSession(Protocol):
    """Deletes a user's session; what went. Raises NotInLedger where there is none."""

    def __call__(self, session: str, user: str, /, *, by: str) -> Deletion: ...


def deletion_routes(server: ServerState, delete: DeletesSession | None) -> list[Route]:
    """The endpoint; none without somebody who deletes."""
    if delete is None:
        return []
    endpoint = ApiEndpoint(server, "sessions", DeletionHandler(server, delete), openai_error)
    return [Route("/v1/sessions/{id:path}", endpoint, methods=["DELETE"])]


class DeletionHandler:
    """Deletes a session. Another user's is not there, but for an admin who names that user."""

    def __init__(self, server: ServerState, delete: DeletesSession) -> None:
        self._server = server
        self._delete = delete

    async def __call__(self, admitted: AdmittedRequest) -> None:
        named = session_name(admitted.exchange.scope["path_params"]["id"], "id")
        session, user = self._server.stored_name(named), self._user(admitted)
        try:
            done = await asyncio.to_thread(lambda: self._delete(session, user, by=admitted.user))
        except NotInLedger as error:
            raise RequestError("no such session", field="id", status=404) from error
        await admitted.exchange.reply_json(
            200,
            {
                "object": "session.deleted",
                "session": session,
                "user": user,
                "turns": done.turns,
                "notes": done.notes,
                "trained": done.trained,
                "versions": list(done.versions),
                "message": f"{done.extent} deleted; {done.remains}",
            },
        )

    def _user(self, admitted: AdmittedRequest) -> str:
        """Whose session is meant: the caller's, unless an admin says otherwise."""
        query = parse_qs(admitted.exchange.scope["query_string"].decode("latin-1"))
        user = str(query.get("user", [admitted.user])[0])
        if user != admitted.user and not self._server.is_admin(admitted.user):
            raise RequestError(
                f"{admitted.user} may not delete what is another's", status=403, remedy="name the user in serve.admins"
            )
        return user
