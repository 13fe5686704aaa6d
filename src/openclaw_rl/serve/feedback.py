"""POST /v1/feedback, /v1/sessions/{id}/reward and /end: reports on turns by a person or an environment."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from openclaw_rl.errors import InvalidValue, LedgerError, RequestError
from openclaw_rl.ports import ConversationReader
from openclaw_rl.serve.auth import session_name
from openclaw_rl.serve.endpoints import AdmittedRequest, read_body
from openclaw_rl.serve.fields import Name, Number, RequestModel, Unless, parse
from openclaw_rl.serve.redact import InlineFeedbackRules, redact_feedback, redact_turn
from openclaw_rl.serve.request import Caller, GenerationRequest, ReplyFinished
from openclaw_rl.serve.state import ServerState
from openclaw_rl.serve.wire.responses import answer_id
from openclaw_rl.types import Completion, Feedback, Message, Prompt, SessionReward, Tokens, Turn, environment_of

_LARGEST = 2**20
"""maximum bytes in a body, enough for a comment and an edited reply"""


OWN_KEY = "give the environment a key of its own: env:NAME:KEY in serve.keys_file"
_NAMES = ("turn", "turn_id", "response_id")
"""fields that name a turn; the first one set has precedence, later fields may contain ids of the client's own"""


class FeedbackRequest(RequestModel):
    """A thumb, a score, a comment or an edited reply for one of the caller's turns."""

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
    comment: str | None = Field(default=None, description="a correction that would have made the reply better")
    hint: Annotated[str | None, Unless(("comment",))] = None
    edit: str | None = Field(default=None, description="the reply as it should have been")
    edited_reply: Annotated[str | None, Unless(("edit",))] = None

    @property
    def named(self) -> str:
        """The id of the turn or response."""
        reference = self.turn or self.turn_id or self.response_id or self.id
        if reference is None:
            raise RequestError("turn: is missing: give the id of a turn or response", field="turn")
        return reference


class FeedbackHandler:
    """Records feedback for one of the caller's turns."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, admitted: AdmittedRequest) -> None:
        limits = self._server.limits
        report = await read_body(
            self._server, admitted.exchange, lambda body: parse(FeedbackRequest, body, limits), limit=_LARGEST
        )
        if self._server.keys.open and report.source != "environment" and environment_of(admitted.user) is not None:
            what = "source: without keys an environment pays rewards; only a person rates"
            raise RequestError(what, field="source", status=403, remedy="set source to environment")
        turn = await self._server.turn(report.named, admitted.user)
        feedback = await keep_feedback(self._server, report, turn)
        taken = {"object": "feedback", "turn": turn.id, "score": feedback.score, "source": feedback.source}
        await admitted.exchange.reply_json(200, taken)


async def keep_feedback(server: ServerState, given: FeedbackRequest, turn: Turn) -> Feedback:
    """Record a request's feedback on a turn; return it as stored, durable when this returns."""
    answerer = server.answerer
    feedback = feedback_of(given, turn, at=answerer.clock())
    redact = answerer.recording.redact
    redacted = await asyncio.to_thread(redact_feedback, feedback, redact) if redact else feedback
    await answerer.write(lambda: answerer.recorder.then(lambda: answerer.ledger.add_feedback(redacted)))
    return redacted


def feedback_of(given: FeedbackRequest, turn: Turn, *, at: float) -> Feedback:
    """Convert a request to feedback on a turn; a thumb is a score of 1 or -1."""
    score = given.score
    if given.thumb and score is not None:
        raise RequestError("thumb: set a thumb or a score, not both", field="thumb")
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
    """A session's score, or the reason why it has none."""

    score: Annotated[float, Number(-1, 1)] | None = Field(
        default=None, description="the outcome, -1 .. 1; it applies to every main turn of the session"
    )
    failed: str | None = Field(
        default=None,
        description="reason why the session has no score through no fault of the policy; it never trains",
    )
    group: str | None = Field(
        default=None,
        description="joins the rollouts of one task, for a program whose requests cannot send x-openclaw-rl-group",
    )


class RewardHandler:
    """Records a session's outcome, reported by its environment."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, admitted: AdmittedRequest) -> None:
        limits, answerer = self._server.limits, self._server.answerer
        if environment_of(admitted.user) is None:
            raise RequestError("only the key of an environment may pay a reward", status=403, remedy=OWN_KEY)
        report = await read_body(
            self._server, admitted.exchange, lambda body: parse(RewardRequest, body, limits), limit=_LARGEST
        )
        named = session_name(admitted.exchange.scope["path_params"]["id"], "id")
        session = await self._server.known_session(named, admitted.user)
        reward = _reward_of(report, session, admitted.user, at=answerer.clock())
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
    """Records that a session is over."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    async def __call__(self, admitted: AdmittedRequest) -> None:
        named = session_name(admitted.exchange.scope["path_params"]["id"], "id")
        session = await self._server.known_session(named, admitted.user)
        answerer = self._server.answerer
        ledger = answerer.ledger
        await answerer.write(lambda: answerer.recorder.then(lambda: ledger.add_ending(session, admitted.user)))
        await admitted.exchange.reply_json(200, {"object": "session.ended", "session": session})


# Inline feedback commands, in any client: /good, /bad, 👍, 👎, /fix TEXT.
#
# Such a message rates the preceding turn. The gateway records it as explicit feedback and answers it with one line;
# the model never reads it, neither now nor in a later history, and it is no turn.

log = logging.getLogger(__name__)

_MARKS = ("/good", "/bad", "/fix", "👍", "👎")
_COMMAND = re.compile(r"/(good|bad)[.!]*", re.IGNORECASE)
_FIX = re.compile(r"/fix(?:[:\s]\s*(.*))?", re.IGNORECASE | re.DOTALL)
_TONE = re.compile(r"[\s\ufe0f\U0001f3fb-\U0001f3ff]+")
_MOST_THUMBS = 5
_LONGEST = 65_536  # maximum characters in a message, envelopes included, for it to be a command
_IN_SESSION, _OF_USER = 32, 64  # turns searched for the preceding one
_NOTHING_READ: Tokens = (0,)

GOOD = "noted: the reply before was good."
BAD = "noted: the reply before was bad."
FIX = "noted: the reply before was bad, and what would have made it better."
_NO_RULE = "noted: the reply before was bad. Nothing is learned from the text:"
_NOTHING = "nothing noted:"
NO_TEXT = f"{_NOTHING} write what would have made the reply better after /fix."
NO_TURN = f"{_NOTHING} there is no reply before this one that could be rated."
NOT_KEPT = f"{_NOTHING} this conversation is not kept."
LATER = f"{_NOTHING} the ledger cannot be written now. Send it again later."
_ANSWERS = (GOOD, BAD, FIX, _NO_RULE, _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """An inline feedback command on the preceding turn: a thumb, and a correction if it has one."""

    thumb: str
    text: str | None = None


def read_remark(words: str) -> Remark | None:
    """Parse an inline feedback command, None for any other message; ``words`` is a user's text without envelopes."""
    words = words.strip()
    if command := _COMMAND.fullmatch(words):
        return Remark(thumb="up" if command[1].lower() == "good" else "down")
    if fix := _FIX.fullmatch(words):
        return Remark(thumb="down", text=(fix[1] or "").strip())
    thumbs = _TONE.sub("", words)
    if thumbs and len(thumbs) <= _MOST_THUMBS and thumbs.strip(thumbs[0]) == "" and thumbs[0] in "👍👎":
        return Remark(thumb="up" if thumbs[0] == "👍" else "down")
    return None


def without_remarks(messages: Sequence[Message], reader: ConversationReader, *, unanswered: bool) -> list[Message]:
    """Return a history without feedback commands and the gateway's answers; the last message, the request, stays.

    ``unanswered`` also removes a command that the user's next message follows directly, its answer having been lost.
    """
    dropped: set[int] = set()
    for at, message in enumerate(messages):
        if _remark_of(message, reader) is None:
            continue
        after = next((n for n in range(at + 1, len(messages)) if _speaks(messages[n], reader)), None)
        if after is None:
            continue
        if _is_answer(messages[after]):
            dropped |= {at, after}
        elif unanswered and messages[after].role == "user":
            dropped.add(at)
    return [message for at, message in enumerate(messages) if at not in dropped]


def _may_be(message: Message) -> bool:
    """Check cheaply if a message may be a command: most are not, and some are long."""
    if message.role != "user" or message.images or len(message.content) > _LONGEST:
        return False
    folded = message.content.lower()
    return any(mark in folded for mark in _MARKS)


def _remark_of(message: Message, reader: ConversationReader) -> Remark | None:
    return read_remark(reader.words(message.content)) if _may_be(message) else None


def _speaks(message: Message, reader: ConversationReader) -> bool:
    return message.role != "user" or bool(message.images) or bool(reader.words(message.content))


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls and message.content.strip().startswith(_ANSWERS)


class InlineFeedback:
    """Handles inline feedback commands in place of the policy."""

    def __init__(self, server: ServerState, rules: InlineFeedbackRules) -> None:
        self._server = server
        self._rules = rules

    def without(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request without the inline feedback commands in its history."""
        messages = request.prompt.messages
        remaining = without_remarks(messages, self._rules.reader, unanswered=self._rules.enabled)
        if len(remaining) == len(messages) or not remaining:
            return request
        return replace(request, prompt=replace(request.prompt, messages=tuple(remaining)))

    async def note(self, request: GenerationRequest, caller: Caller) -> ReplyFinished | None:
        """Record the command that a request ends with, and answer it; None if the request is for the policy."""
        remark = self._remark(request, caller)
        if remark is None:
            return None
        turn = self._as_turn(request, caller)
        try:
            side, before = await self._before(turn)
            if side:
                return None
            line = await self._keep(remark, before, caller)
            if caller.done and caller.session is not None:
                await self._end(caller.session, caller.user)
        except LedgerError as error:
            log.error("feedback command not recorded user=%s: %s", caller.user, type(error).__name__)
            before, line = None, LATER
        return ReplyFinished(_answered(turn, before, line))

    def _remark(self, request: GenerationRequest, caller: Caller) -> Remark | None:
        """Return the command; None for side calls, environments and rollouts, or if JSON or a tool call is required."""
        if not self._rules.enabled or caller.declared == "side" or caller.group is not None:
            return None
        if environment_of(caller.user) is not None or request.sampling.json_schema is not None:
            return None
        if request.prompt.tool_choice not in ("auto", "none"):
            return None
        ending = list(takewhile(lambda message: message.role == "user", reversed(request.prompt.messages)))
        if not any(map(_may_be, ending)):
            return None
        last = next((message for message in ending if _speaks(message, self._rules.reader)), None)
        return None if last is None else _remark_of(last, self._rules.reader)

    def _as_turn(self, request: GenerationRequest, caller: Caller) -> Turn:
        """Return the request as a turn that is never written: a request and a turn are placed by the same rules."""
        completion = Completion(
            reply=Message(role="assistant"),
            prompt_tokens=_NOTHING_READ,
            reply_tokens=(),
            logprobs=(),
            sampling=request.sampling,
            finish="stop",
            version=self._server.policy.live,
        )
        return Turn(
            prompt=request.prompt,
            completion=completion,
            user=caller.user,
            session=caller.session,
            client=caller.client,
            declared=caller.declared,
            at=self._server.answerer.clock(),
        )

    async def _before(self, asked: Turn) -> tuple[bool, Turn | None]:
        """Return True for a side call, and the preceding turn: in its session, else among its user's latest turns."""
        redact = self._server.answerer.recording.redact
        if redact is not None:  # the stored turns that it is compared with were redacted too
            asked = await asyncio.to_thread(redact_turn, asked, redact)
        scopes = [(asked.session, _IN_SESSION)] if asked.session is not None else []
        side = False
        for session, limit in (*scopes, (None, _OF_USER)):
            turns = await self._latest(asked.user, session, limit)
            placed = await asyncio.to_thread(self._rules.reader.place, asked, turns)
            side = side or placed.kind == "side"
            if side or placed.before is not None:
                return side, next((turn for turn in turns if turn.id == placed.before), None)
        return side, None

    async def _latest(self, user: str, session: str | None, limit: int) -> Sequence[Turn]:
        ledger = self._server.answerer.ledger
        return await self._server.answerer.write(lambda: ledger.latest_turns(user, session=session, limit=limit))

    async def _keep(self, remark: Remark, before: Turn | None, caller: Caller) -> str:
        """Record the command and return the answer, which states the reason if it was not recorded."""
        if before is None:
            stored = self._server.answerer.recording.intercept and caller.stored
            return NO_TURN if stored else NOT_KEPT
        if remark.text == "":
            return NO_TEXT
        report = FeedbackRequest.model_validate({"turn": before.id, "thumb": remark.thumb, "comment": remark.text})
        await keep_feedback(self._server, report, before)
        log.info("feedback command turn=%s thumb=%s", before.id, remark.thumb)
        if remark.text is None:
            return GOOD if remark.thumb == "up" else BAD
        length = len(" ".join(remark.text.split()))
        if self._rules.shortest <= length <= self._rules.longest:
            return FIX
        return f"{_NO_RULE} it has {length} characters, a rule has {self._rules.shortest} to {self._rules.longest}."

    async def _end(self, session: str, user: str) -> None:
        answerer = self._server.answerer
        await answerer.write(lambda: answerer.recorder.then(lambda: answerer.ledger.add_ending(session, user)))


def _answered(asked: Turn, before: Turn | None, line: str) -> Turn:
    """Return the answer in the form of a turn, which is never stored.

    Its id refers to the preceding turn, so that a conversation continues from there. Clients decide by the prompt's
    tokens when to compact, so the answer reports as many tokens as the conversation had.
    """
    read = _NOTHING_READ
    if before is not None:
        read = (*before.completion.prompt_tokens, *before.completion.reply_tokens)
    reply = Message(role="assistant", content=line)
    return replace(
        asked,
        id=answer_id(before.id if before is not None else None),
        prompt=Prompt(messages=asked.prompt.messages),
        completion=replace(asked.completion, reply=reply, prompt_tokens=read),
    )
