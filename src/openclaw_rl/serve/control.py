"""POST /v1/control, GET /v1/turns/{id}/tokens: commands to a run, and a reply's exact tokens."""

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
    """Records a command to the run and returns its number; raises NotInLedger if the target does not exist."""

    def __call__(self, word: ControlWord, /, *, version: int | None, turn: str | None, reason: str) -> int: ...


class RunControlRequest(RequestModel):
    """A command to the run: roll back, pause or resume training, pin or unpin a version or a turn."""

    command: ControlWord
    version: Annotated[int, Whole(0)] | None = Field(
        default=None, description="version to roll back to (absent: the weights before), or to pin or unpin"
    )
    turn: Name | None = Field(default=None, description="turn whose reply is pinned or unpinned")
    reason: str | None = Field(default=None, description="reason, for the ledger")


def control_routes(server: ServerState, submit: SubmitsControl | None) -> list[Route]:
    """Return the endpoints; without ``submit`` there is no control endpoint."""
    handle = ControlHandlers(server, submit)
    routes = [
        Route("/v1/turns/{id}/tokens", ApiEndpoint(server, "tokens", handle.tokens, openai_error), methods=["GET"])
    ]
    if submit is not None:
        endpoint = ApiEndpoint(server, "control", handle.control, openai_error)
        routes.append(Route("/v1/control", endpoint, methods=["POST"]))
    return routes


class ControlHandlers:
    """Handles one request each. Only an admin controls a run; a turn is readable by its user and by an admin."""

    def __init__(self, server: ServerState, submit: SubmitsControl | None) -> None:
        self._server = server
        self._submit = submit

    async def control(self, admitted: AdmittedRequest) -> None:
        limits = self._server.limits
        request: RunControlRequest = await read_body(
            self._server, admitted.exchange, lambda body: parse(RunControlRequest, body, limits), limit=_LARGEST
        )
        if not self._server.is_admin(admitted.user):
            raise RequestError(
                f"{admitted.user} may not control this run", status=403, remedy="name the user in serve.admins"
            )
        _refuse_unfit(request)
        reason = f"{request.reason or 'on request'} (by {admitted.user})"
        assert self._submit is not None
        submit = self._submit
        try:
            number = await asyncio.to_thread(
                lambda: submit(request.command, version=request.version, turn=request.turn, reason=reason)
            )
        except NotInLedger as error:
            raise RequestError(str(error), status=404) from error
        await admitted.exchange.reply_json(200, {"object": "control", "command": request.command, "request": number})

    async def tokens(self, admitted: AdmittedRequest) -> None:
        name = admitted.exchange.scope["path_params"]["id"]
        turn = await self._server.turn(name, admitted.user, others=self._server.is_admin(admitted.user))
        completion = turn.completion
        tokens = completion.reply_tokens[:_MOST_TOKENS]
        texts = {token: await self._server.policy.decode((token,)) for token in dict.fromkeys(tokens)}
        reply: list[Json] = [
            {"token": token, "text": texts[token], "logprob": logprob}
            for token, logprob in zip(tokens, completion.logprobs, strict=False)
        ]
        await admitted.exchange.reply_json(
            200,
            {
                "object": "turn.tokens",
                "turn": turn.id,
                "version": completion.version,
                "prompt_tokens": len(completion.prompt_tokens),
                "reply_tokens": len(completion.reply_tokens),
                "reply": reply,
            },
        )


def _refuse_unfit(given: RunControlRequest) -> None:
    """Raise RequestError for an argument that the command does not use, or lacks."""
    pins = given.command in ("pin", "unpin")
    if pins and (given.version is None) == (given.turn is None):
        raise RequestError(f"{given.command}: name a version or a turn", field="version")
    if given.command in ("pause", "resume") and given.version is not None:
        raise RequestError(f"version: {given.command} takes none", field="version")
    if not pins and given.turn is not None:
        raise RequestError(f"turn: {given.command} takes none", field="turn")


# DELETE /v1/sessions/{id}: deletes a session with all its data; for its user, or an admin.


class DeletesSession(Protocol):
    """Deletes a user's session and returns the deletion; raises NotInLedger if the session does not exist."""

    def __call__(self, session: str, user: str, /, *, by: str) -> Deletion: ...


def deletion_routes(server: ServerState, delete: DeletesSession | None) -> list[Route]:
    """Return the endpoint; none without ``delete``."""
    if delete is None:
        return []
    endpoint = ApiEndpoint(server, "sessions", DeletionHandler(server, delete), openai_error)
    return [Route("/v1/sessions/{id:path}", endpoint, methods=["DELETE"])]


class DeletionHandler:
    """Deletes a session. Another user's session is accessible only to an admin who names that user."""

    def __init__(self, server: ServerState, delete: DeletesSession) -> None:
        self._server = server
        self._delete = delete

    async def __call__(self, admitted: AdmittedRequest) -> None:
        named = session_name(admitted.exchange.scope["path_params"]["id"], "id")
        session, user = self._server.stored_name(named), self._user(admitted)
        try:
            deletion = await asyncio.to_thread(lambda: self._delete(session, user, by=admitted.user))
        except NotInLedger as error:
            raise RequestError("no such session", field="id", status=404) from error
        await admitted.exchange.reply_json(
            200,
            {
                "object": "session.deleted",
                "session": session,
                "user": user,
                "turns": deletion.turns,
                "notes": deletion.notes,
                "trained": deletion.trained,
                "versions": list(deletion.versions),
                "message": f"{deletion.extent} deleted; {deletion.remains}",
            },
        )

    def _user(self, admitted: AdmittedRequest) -> str:
        """Return the session's user: the caller, unless an admin names another."""
        query = parse_qs(admitted.exchange.scope["query_string"].decode("latin-1"))
        user = str(query.get("user", [admitted.user])[0])
        if user != admitted.user and not self._server.is_admin(admitted.user):
            raise RequestError(
                f"{admitted.user} may not delete another user's session",
                status=403,
                remedy="name the user in serve.admins",
            )
        return user
