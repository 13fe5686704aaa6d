"""Takes what should not be kept out of a turn before it is written.

Text is replaced by a word in brackets. Token ids would still spell what was replaced, so a turn in which anything
was replaced is kept without its tokens, marked ``redacted``, and never trained.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from openclaw_rl.types import Completion, Feedback, Json, Message, Prompt, Tool, ToolCall, Turn

Redact: TypeAlias = Callable[[str], str]

REDACTED = "redacted"
_HIDDEN = (0,)

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
# an address that nobody reads gives nobody away, and agents write one into every prompt (who a commit is by)
_NOBODY = re.compile(r"(?:no|do-?not)[._-]?reply@", re.IGNORECASE)
_KEY = re.compile(
    r"\b(?:(?:sk|pk|rk|tml|xoxb|xoxp|glpat|npm|hf|gsk|whsec)[-_][A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,8000}-----END [A-Z ]{0,30}PRIVATE KEY-----",
)
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ -]?\d){12,18}(?![\w-])")  # a 1 begins a time in milliseconds, not a card
_PHONE = re.compile(
    r"(?<![\w.+/-])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,4}"
    r"|\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}[.-]\d{3}[.-]\d{4})(?![\w-])"
)


def _luhn(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _card(match: re.Match[str]) -> str:
    return "[card]" if _luhn(re.sub(r"\D", "", match[0])) else match[0]


def patterns(text: str) -> str:
    """The default: e-mail addresses that lead to somebody, card numbers that check, telephone numbers, access keys."""
    if "@" in text:
        text = _EMAIL.sub(lambda found: found[0] if _NOBODY.match(found[0]) else "[e-mail]", text)
    text = _KEY.sub("[key]", text)
    return _PHONE.sub("[phone]", _CARD.sub(_card, text))


def redact_turn(turn: Turn, redact: Redact) -> Turn:
    """The turn as it may be kept; the very same object if there was nothing to replace."""
    prompt = _prompt(turn.prompt, redact)
    reply = _message(turn.completion.reply, redact)
    if prompt == turn.prompt and reply == turn.completion.reply:
        return turn
    return replace(turn, prompt=prompt, completion=_hidden(turn.completion, reply), trainable=False)


def _hidden(completion: Completion, reply: Message) -> Completion:
    flaws = (*completion.flaws, REDACTED)
    return replace(completion, reply=reply, prompt_tokens=_HIDDEN, reply_tokens=(), logprobs=(), flaws=flaws)


def redact_feedback(feedback: Feedback, redact: Redact) -> Feedback:
    def maybe(text: str | None) -> str | None:
        return None if text is None else redact(text)

    return replace(feedback, hint=maybe(feedback.hint), edit=maybe(feedback.edit))


def redact_session(session: str, redact: Redact) -> str:
    """A session's name that gives a person away becomes a digest: still one name for one session."""
    if redact(session) == session:
        return session
    return "redacted-" + hashlib.sha256(session.encode()).hexdigest()[:24]


def _prompt(prompt: Prompt, redact: Redact) -> Prompt:
    return replace(
        prompt,
        messages=tuple(_message(message, redact) for message in prompt.messages),
        tools=tuple(_tool(tool, redact) for tool in prompt.tools),
        template=_json(dict(prompt.template), redact),
    )


def _tool(tool: Tool, redact: Redact) -> Tool:
    return replace(tool, description=redact(tool.description), parameters=_json(dict(tool.parameters), redact))


def _message(message: Message, redact: Redact) -> Message:
    return replace(
        message,
        content=redact(message.content),
        reasoning=None if message.reasoning is None else redact(message.reasoning),
        name=None if message.name is None else redact(message.name),
        tool_calls=tuple(_call(call, redact) for call in message.tool_calls),
    )


def _call(call: ToolCall, redact: Redact) -> ToolCall:
    try:
        told = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return replace(call, arguments=redact(call.arguments))  # not JSON: plain text then
    kept = _json(told, redact)
    return call if kept == told else replace(call, arguments=json.dumps(kept, ensure_ascii=False))


def _json(value: Json, redact: Redact) -> Json:
    """Every text inside, and every number that reads like something to hide."""
    match value:
        case str():
            return redact(value)
        case list():
            return [_json(item, redact) for item in value]
        case dict():
            return {redact(key): _json(item, redact) for key, item in value.items()}
        case int() if not isinstance(value, bool) and abs(value) >= 10**9:
            return value if redact(str(value)) == str(value) else redact(str(value))
    return value
