"""POST /v1/feedback and /v1/sessions/{id}/end: what a person or an environment says of a turn outright."""

from __future__ import annotations

import asyncio

from openclaw_rl.errors import InvalidValue, RequestError
from openclaw_rl.serve.endpoints import AdmittedRequest, read_body
from openclaw_rl.serve.fields import At
from openclaw_rl.serve.headers import session_name
from openclaw_rl.serve.redact import redact_feedback
from openclaw_rl.serve.state import ServerState
from openclaw_rl.types import Feedback, Turn, environment_of

_LARGEST = 2**20
"""bytes of a body; a comment and an edited reply are no longer than that"""


class FeedbackHandler:
    """Takes a thumb, a score, a comment or an edited reply for a turn of the caller's own."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, visit: AdmittedRequest) -> None:
        body = await read_body(self._server, visit.exchange, lambda body: body, limit=_LARGEST)
        turn = await self._server.turn(_turn_id(body), visit.user)
        feedback = parse_feedback(body, turn, at=self._server.answerer.clock())
        answerer = self._server.answerer
        kept = await asyncio.to_thread(redact_feedback, feedback, answerer.redact) if answerer.redact else feedback
        await answerer.write(lambda: answerer.recorder.then(lambda: answerer.ledger.add_feedback(kept)))
        told = {"object": "feedback", "turn": turn.id, "score": kept.score, "source": kept.source}
        await visit.exchange.reply_json(200, told)


def _turn_id(body: At) -> str:
    for name in ("turn", "turn_id", "response_id", "id"):
        if not body.key(name).absent:
            return body.key(name).name()
    raise body.key("turn").fault("is missing: give the id of a turn or response")


def parse_feedback(body: At, turn: Turn, *, at: float) -> Feedback:
    """What a body says of a turn; a thumb is a score of 1 or -1."""
    thumb = body.key("thumb").one_of("up", "down")
    score = body.key("score").number(-1, 1)
    if thumb and score is not None:
        raise body.key("thumb").fault("say a thumb or a score, not both")
    if thumb:
        score = 1.0 if thumb == "up" else -1.0
    source = body.key("source")
    environment = source.one_of("explicit", "environment") == "environment"
    if environment and environment_of(turn.user) is None:
        raise RequestError(
            "source: only the key of an environment may pay a reward",
            field=source.path,
            status=403,
            remedy="leave source out, or give the environment a key of its own: env:NAME:KEY in serve.keys_file",
        )
    try:
        return Feedback(
            turn=turn.id,
            score=score,
            hint=body.key("comment").text() or body.key("hint").text() or None,
            edit=body.key("edit").text() or body.key("edited_reply").text() or None,
            source="environment" if environment else "explicit",
            at=at,
        )
    except InvalidValue as error:
        raise RequestError(str(error), field=error.field) from error


class SessionEndHandler:
    """Says that nothing more will come of a session."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, visit: AdmittedRequest) -> None:
        named = session_name(visit.exchange.scope["path_params"]["id"], "id")
        session = await self._server.known_session(named, visit.user)
        answerer = self._server.answerer
        ledger = answerer.ledger
        await answerer.write(lambda: answerer.recorder.then(lambda: ledger.add_ending(session, visit.user)))
        await visit.exchange.reply_json(200, {"object": "session.ended", "session": session})
