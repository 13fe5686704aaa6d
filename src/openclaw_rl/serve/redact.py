"""Remove sensitive text from a turn before it is written.

Text is replaced by a word in brackets. Token ids would still spell the replaced text, so a turn with a replacement is
stored without its tokens, marked ``redacted``, and never trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from openclaw_rl.formats.reply_parser import Reasoning
from openclaw_rl.ports import ConversationReader, Generate
from openclaw_rl.serve.patterns import patterns
from openclaw_rl.types import Completion, Feedback, Json, Message, Prompt, Sampling, Tool, ToolCall, Turn

__all__ = ["REDACTED", "Redact", "patterns", "redact_feedback", "redact_session", "redact_turn"]

Redact: TypeAlias = Callable[[str], str]

REDACTED = "redacted"
_HIDDEN = (0,)


def redact_turn(turn: Turn, redact: Redact) -> Turn:
    """Return the turn as it may be stored; the same object if nothing was replaced.

    Its names (session, group, client) occur in no token, so a turn with replacements in them alone may still train.
    """
    completion = turn.completion
    prompt, reply = _prompt(turn.prompt, redact), _message(completion.reply, redact)
    sampling = _sampling(completion.sampling, redact)
    noted = None if turn.noted is None else replace(turn.noted, text=redact(turn.noted.text))
    turn = _renamed(turn, redact)
    if (prompt, reply, sampling, noted) == (turn.prompt, completion.reply, completion.sampling, turn.noted):
        return turn
    hidden = _hidden(replace(completion, sampling=sampling), reply)
    return replace(turn, prompt=prompt, noted=noted, completion=hidden, trainable=False)


def _renamed(turn: Turn, redact: Redact) -> Turn:
    session = turn.session and redact_session(turn.session, redact)
    group = turn.group and redact_session(turn.group, redact)
    client = redact(turn.client)
    if (session, group, client) == (turn.session, turn.group, turn.client):
        return turn
    return replace(turn, session=session, group=group, client=client)


def _hidden(completion: Completion, reply: Message) -> Completion:
    flaws = (*completion.flaws, REDACTED)
    return replace(completion, reply=reply, prompt_tokens=_HIDDEN, reply_tokens=(), logprobs=(), flaws=flaws)


def redact_feedback(feedback: Feedback, redact: Redact) -> Feedback:
    def maybe(text: str | None) -> str | None:
        return None if text is None else redact(text)

    return replace(feedback, hint=maybe(feedback.hint), edit=maybe(feedback.edit))


def redact_session(session: str, redact: Redact) -> str:
    """Replace a name that identifies a person by a digest: still one name for one session, group or call."""
    if redact(session) == session:
        return session
    return "redacted-" + hashlib.sha256(session.encode("utf-8", "replace")).hexdigest()[:24]


def _sampling(sampling: Sampling, redact: Redact) -> Sampling:
    stop = tuple(redact(text) for text in sampling.stop)
    schema = sampling.json_schema and _json(dict(sampling.json_schema), redact)
    return (
        sampling
        if (stop, schema) == (sampling.stop, sampling.json_schema)
        else replace(sampling, stop=stop, json_schema=schema)
    )


def _prompt(prompt: Prompt, redact: Redact) -> Prompt:
    return replace(
        prompt,
        messages=tuple(_message(message, redact) for message in prompt.messages),
        tools=tuple(_tool(tool, redact) for tool in prompt.tools),
        tool_choice=_choice(prompt.tool_choice, redact),
        template=_json(dict(prompt.template), redact),
        opening=redact(prompt.opening),
    )


def _choice(choice: str, redact: Redact) -> str:
    kind, named, name = choice.partition(":")
    return f"{kind}:{redact_session(name, redact)}" if named else choice


def _tool(tool: Tool, redact: Redact) -> Tool:
    return replace(
        tool,
        name=redact_session(tool.name, redact),
        description=redact(tool.description),
        parameters=_json(dict(tool.parameters), redact),
    )


def _message(message: Message, redact: Redact) -> Message:
    return replace(
        message,
        content=redact(message.content),
        reasoning=None if message.reasoning is None else redact(message.reasoning),
        name=None if message.name is None else redact(message.name),
        tool_call_id=None if message.tool_call_id is None else redact_session(message.tool_call_id, redact),
        tool_calls=tuple(_call(call, redact) for call in message.tool_calls),
    )


def _call(call: ToolCall, redact: Redact) -> ToolCall:
    return replace(
        call,
        id=redact_session(call.id, redact),
        name=redact_session(call.name, redact),
        arguments=_arguments(call.arguments, redact),
    )


def _arguments(written: str, redact: Redact) -> str:
    """Redact a call's arguments; JSON stays JSON, and stays as written if nothing is replaced."""
    try:
        parsed = json.loads(written)
        redacted = _json(parsed, redact)
    except (ValueError, RecursionError):
        return redact(written)  # not JSON, or nested too deep for it: redact as plain text
    if redacted == parsed:
        return written
    text = json.dumps(redacted, ensure_ascii=False)
    return text if _whole(text) else json.dumps(redacted)


def _whole(text: str) -> bool:
    """Return True if the text contains no half of a surrogate pair."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _json(value: Json, redact: Redact) -> Json:
    """Redact every text inside, alone and together with its key, and every number that resembles sensitive data."""
    match value:
        case str():
            return redact(value)
        case list():
            return [_json(item, redact) for item in value]
        case dict():
            return {redact(key): _named(key, item, redact) for key, item in value.items()}
        case int() if not isinstance(value, bool) and abs(value) >= 10**9:
            return value if redact(str(value)) == str(value) else redact(str(value))
    return value


def _named(key: str, value: Json, redact: Redact) -> Json:
    """Redact a value together with its key: ``password`` and ``hunter2`` are sensitive only as a pair."""
    result = _json(value, redact)
    if isinstance(value, str) and result == value:
        line = f'{key}: "{value}'
        redacted = redact(line)
        if redacted != line and redacted.startswith(f'{key}: "'):
            return redacted.removeprefix(f'{key}: "')
    return result


# One server's settings, grouped by the decision that they control. Only ``app`` fills these.


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """The rules for API access, applied to a request's headers before its body is read.

    ``keys`` maps each key to its user; without keys all callers are one user and only loopback names are answered.
    ``own_keys`` does the same for the environments that this process runs. ``admins`` may control the run.
    """

    keys: Mapping[str, str]
    own_keys: Mapping[str, str]
    admins: Collection[str]
    cors_origins: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRules:
    """The rules for generating a reply.

    ``defaults`` are the sampling parameters for a request that sets none; ``any_model`` answers unknown model names
    too; ``generate``, if set, is called between the API and the policy.
    """

    model_name: str
    any_model: bool
    defaults: Sampling
    reasoning: Reasoning
    generate: Generate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineFeedbackRules:
    """The rules for inline feedback commands: their switch, and the shortest and longest text that becomes a rule."""

    enabled: bool
    shortest: int
    longest: int
    reader: ConversationReader


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRules:
    """The rules for storing an answered turn, applied when it is finished, independent of how it was answered.

    ``intercept`` False stores nothing; ``optout_users`` are never trained on. ``shared``: other gateways answer too, so
    that a session's permissions are read from the ledger each time.
    """

    intercept: bool
    redact: Redact | None
    store_optouts: bool
    optout_users: Collection[str]
    shared: bool
