"""POST /v1/feedback, /v1/sessions/{id}/reward and /end: what a person or an environment reports about turns."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from openclaw_rl.errors import InvalidValue, RequestError
from openclaw_rl.serve.endpoints import AdmittedRequest, read_body
from openclaw_rl.serve.fields import Name, Number, RequestModel, Unless, parse
from openclaw_rl.serve.headers import session_name
from openclaw_rl.serve.redact import redact_feedback
from openclaw_rl.serve.state import ServerState
from openclaw_rl.types import Feedback, SessionReward, Turn, environment_of

_LARGEST = 2**20
"""bytes of a body; a comment and an edited reply are no longer than that"""


OWN_KEY = "give the environment a key of its own: env:NAME:KEY in serve.keys_file"
_NAMES = ("turn", "turn_id", "response_id")
"""where a turn is named, the first that is given; the others may be ids of the client's own"""


class FeedbackRequest(RequestModel):
    """A thumb, a score, a comment or an edited reply for a turn of the caller's own."""

    model_config = ConfigDict(json_schema_extra={"required": ["turn"]})

    turn: Name | None = Field(default=None, description="the id of a turn, or of a response in any format")
    turn_id: Annotated[Name | None, Unless(_NAMES[:1])] = None
    response_id: Annotated[Name | None, Unless(_NAMES[:2])] = None
    id: Annotated[Name | None, Unless(_NAMES[:3])] = None
    thumb: Literal["up", "down"] | None = None
    score: Annotated[float, Number(-1, 1)] | None = Field(
        default=None, description="-1 .. 1, from a person or an environment"
    )
    source: Literal["explicit", "environment"] | None = None
    comment: str | None = Field(default=None, description="what would have made the reply better")
    hint: Annotated[str | None, Unless(("comment",))] = None
    edit: str | None = Field(default=None, description="the reply as it should have been")
    edited_reply: Annotated[str | None, Unless(("edit",))] = None

    @property
    def named(self) -> str:
        """The id of the turn or response."""
        found = self.turn or self.turn_id or self.response_id or self.id
        if found is None:
            raise RequestError("turn: is missing: give the id of a turn or response", field="turn")
        return found


class FeedbackHandler:
    """Takes feedback for a turn of the caller's own."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, admitted: AdmittedRequest) -> None:
        limits = self._server.limits
        given = await read_body(
            self._server, admitted.exchange, lambda body: parse(FeedbackRequest, body, limits), limit=_LARGEST
        )
        if self._server.keys.open and given.source != "environment" and environment_of(admitted.user) is not None:
            what = "source: without keys an environment pays rewards; only a person rates"
            raise RequestError(what, field="source", status=403, remedy="say environment")
        turn = await self._server.turn(given.named, admitted.user)
        kept = await keep_feedback(self._server, given, turn)
        taken = {"object": "feedback", "turn": turn.id, "score": kept.score, "source": kept.source}
        await admitted.exchange.reply_json(200, taken)


async def keep_feedback(server: ServerState, given: FeedbackRequest, turn: Turn) -> Feedback:
    """Write what a request reports about a turn; what was written, durable when this returns."""
    answerer = server.answerer
    feedback = feedback_of(given, turn, at=answerer.clock())
    redact = answerer.recording.redact
    kept = await asyncio.to_thread(redact_feedback, feedback, redact) if redact else feedback
    await answerer.write(lambda: answerer.recorder.then(lambda: answerer.ledger.add_feedback(kept)))
    return kept


def feedback_of(given: FeedbackRequest, turn: Turn, *, at: float) -> Feedback:
    """What a request reports about a turn; a thumb is a score of 1 or -1."""
    score = given.score
    if given.thumb and score is not None:
        raise RequestError("thumb: say a thumb or a score, not both", field="thumb")
    if given.thumb:
        score = 1.0 if given.thumb == "up" else -1.0
    environment = given.source == "environment"
    if environment and environment_of(turn.user) is None:
        raise RequestError(
            "source: only the key of an environment may pay a reward",
            field="source",
            status=403,
            remedy=f"leave source out, or {OWN_KEY}",
        )
    try:
        return Feedback(
            turn=turn.id,
            score=score,
            hint=given.comment or given.hint or None,
            edit=given.edit or given.edited_reply or None,
            source="environment" if environment else "explicit",
            at=at,
        )
    except InvalidValue as error:
        raise RequestError(str(error), field=error.field) from error


class RewardRequest(RequestModel):
    """What a whole session was worth, or why that cannot be said."""

    score: Annotated[float, Number(-1, 1)] | None = Field(
        default=None, description="the outcome, -1 .. 1; it reaches every main turn of the session"
    )
    failed: str | None = Field(
        default=None,
        description="why the session is worth nothing through no fault of the policy's: it never trains",
    )
    group: str | None = Field(
        default=None,
        description="joins the rollouts of one task, for a program whose requests cannot send x-openclaw-rl-group",
    )


class RewardHandler:
    """Takes the outcome of a session from the environment that it belongs to."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, admitted: AdmittedRequest) -> None:
        limits, answerer = self._server.limits, self._server.answerer
        if environment_of(admitted.user) is None:
            raise RequestError("only the key of an environment may pay a reward", status=403, remedy=OWN_KEY)
        given = await read_body(
            self._server, admitted.exchange, lambda body: parse(RewardRequest, body, limits), limit=_LARGEST
        )
        named = session_name(admitted.exchange.scope["path_params"]["id"], "id")
        session = await self._server.known_session(named, admitted.user)
        reward = _reward_of(given, session, admitted.user, at=answerer.clock())
        if not await answerer.write(lambda: answerer.recorder.then(lambda: answerer.ledger.add_reward(reward))):
            raise RequestError(
                "a turn of this session has trained: its reward stays as it is",
                status=409,
                remedy="pay a session before it trains, that is before it ends",
            )
        taken = {"object": "session.reward", "session": session, "score": reward.score, "failed": reward.failed}
        await admitted.exchange.reply_json(200, taken)


def _reward_of(given: RewardRequest, session: str, user: str, *, at: float) -> SessionReward:
    group = session_name(given.group.strip(), "group") if given.group is not None else None
    try:
        failed = given.failed or None
        return SessionReward(session=session, user=user, score=given.score, failed=failed, group=group, at=at)
    except InvalidValue as error:
        raise RequestError(str(error), field=error.field, remedy="give a score, or failed with the reason") from error


class SessionEndHandler:
    """Takes note that nothing more comes of a session."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, admitted: AdmittedRequest) -> None:
        named = session_name(admitted.exchange.scope["path_params"]["id"], "id")
        session = await self._server.known_session(named, admitted.user)
        answerer = self._server.answerer
        ledger = answerer.ledger
        await answerer.write(lambda: answerer.recorder.then(lambda: ledger.add_ending(session, admitted.user)))
        await admitted.exchange.reply_json(200, {"object": "session.ended", "session": session})
