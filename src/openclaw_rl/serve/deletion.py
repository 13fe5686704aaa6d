"""DELETE /v1/sessions/{id}: a session goes with everything of it; its user's to do, or an admin's."""

from __future__ import annotations

import asyncio
from typing import Protocol
from urllib.parse import parse_qs

from starlette.routing import Route

from openclaw_rl.errors import NotInLedger, RequestError
from openclaw_rl.serve.api_errors import openai_error
from openclaw_rl.serve.endpoints import AdmittedRequest, ApiEndpoint
from openclaw_rl.serve.headers import session_name
from openclaw_rl.serve.state import ServerState
from openclaw_rl.types import Deletion


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
