"""Classify a turn as main or side, with the reason and a confidence. Pure.

A main turn is part of the conversation, its tool calls included. A side turn is work that a client does beside it:
titles, summaries, heartbeats, memory flushes, scheduled jobs, sub-agents. The client's declaration has precedence;
otherwise the first matching rule decides. In doubt a turn is main: turns without a declaration must still train.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.collect.normalise import RuntimeLine, clean, fold, has_timestamp, requeued, runtime_line
from openclaw_rl.types import Kind, Message, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadContext:
    """The known state of a turn's thread.

    ``parent`` is the kind of the preceding turn, None if no known turn precedes it; ``reason`` is that turn's reason.
    ``tools`` is True if the preceding main turn had tools.
    """

    parent: Kind | None = None
    reason: str = ""
    tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """A turn's kind, the reason, and the confidence in 0 .. 1."""

    kind: Kind
    reason: str
    confidence: float


@dataclass(frozen=True, slots=True)
class _Features:
    """A turn with the parts that the rules test."""

    turn: Turn
    context: ThreadContext
    system: str
    request: str
    human: bool
    rewritten: bool
    last: str
    opening: bool
    runtime: RuntimeLine | None

    @property
    def tools(self) -> bool:
        return bool(self.turn.prompt.tools)

    @property
    def key(self) -> str:
        return f":{self.runtime.key}:" if self.runtime else ""


_Rule = tuple[str, float, Callable[[_Features], bool]]

_HEAD = 400  # a system prompt states the call's purpose within this length; summaries and titles may occur later
_TITLE = re.compile(
    r"you are an? [\w -]{0,20}title generator|(?:generate|create|write|suggest|produce|come up with) (?:an? |the )?"
    r"(?:[\w, -]{0,40} )?title (?:for|of|that|based|from|to|summari[sz]ing) (?:this|the|our|a|following|above|my)\b"
    r"[\w ]{0,20}(?:conversation|chat|session|thread|dialog|message|request|prompt|exchange|task)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(
    r"context summari[sz]ation assistant|context checkpoint compaction|detailed prompt for continuing our conversation"
    # only as an instruction: a system prompt may well mention summaries
    r"|(?:^|[.!?:>]\s{1,20}|\n\s{0,20}|task is to )(?:please |now )?(?:"
    r"(?:create|write|provide|produce|give) (?:an? |the )?(?:[\w, -]{0,30} )?(?:summary|recap) of "
    r"|(?:summari[sz]e|recap|compact) )(?:the|this|our) (?:conversation|chat|session|dialog|thread)",
    re.IGNORECASE,
)
_UTILITY = re.compile(  # OpenClaw's literal prompts
    r"generate an? (?:concise|very short) (?:session title|topic label) \(|write an activity recap for "
    r"|you write the live status line for |you judge the trajectory of a running ai agent session"
    r"|you are labeling the supplied message|answering an ephemeral /btw side question",
    re.IGNORECASE,
)
_HEARTBEAT = re.compile(r"follow the heartbeat monitor|read heartbeat\.md", re.IGNORECASE)
_COMPACTED = re.compile(
    r"<summary>|summary of (?:the|our|this) (?:\w+ )?(?:conversation|session|chat|history|context)"
    r"|(?:conversation|session|history|context)[\w ]{0,30} (?:was|were|is|has been|have been) "
    r"(?:compacted|summari[sz]ed)"
    r"|compaction summary",
    re.IGNORECASE,
)
REWRITTEN = "rewritten after a failed call"
_FEW_TOKENS = 4  # a reply this short is a label, not conversation


def classify(turn: Turn, context: ThreadContext | None = None) -> Classification:
    """Return the declared kind for ``turn``, else that of the first matching rule, else main.

    A request that the client rewrote is side even if declared main: its wording is not the user's.
    """
    features = _features(turn, context or ThreadContext())
    if turn.declared is not None and not features.rewritten:
        return Classification(kind=turn.declared, reason="declared", confidence=1.0)
    for reason, confidence, fits in _SIDE:
        if fits(features):
            return Classification(kind="side", reason=reason, confidence=confidence)
    if features.context.parent == "side" and features.last == "tool":
        return Classification(kind="side", reason=features.context.reason, confidence=0.9)
    return _main(features)


def is_machine_message(text: str) -> bool:
    """Return True if a client wrote this user message: a heartbeat or a task notice, not a person's text."""
    cleaned = clean(text)
    return cleaned.startswith(_HANDED_BACK) or (
        not has_timestamp(text) and bool(_HEARTBEAT.search(text[:500]) or cleaned.startswith(_ANNOUNCED))
    )


def compacted(messages: Sequence[Message]) -> bool:
    """Return True if the history opens with a summary that replaces earlier messages."""
    opening = next((message for message in messages if message.role in ("user", "assistant")), None)
    return opening is not None and bool(_COMPACTED.search(clean(opening.content)[:2000]))


def _main(features: _Features) -> Classification:
    if features.turn.group is not None:
        return Classification(kind="main", reason="rollout", confidence=1.0)
    if features.last == "tool":
        return Classification(kind="main", reason="tool results", confidence=0.95)
    if features.human or features.context.parent == "main":
        return Classification(kind="main", reason="talk", confidence=0.95)
    if not features.opening:
        return Classification(kind="main", reason="talk with an unknown past", confidence=0.8)
    return Classification(kind="main", reason="opening", confidence=0.85 if features.tools else 0.7)


def _features(turn: Turn, context: ThreadContext) -> _Features:
    messages = turn.prompt.messages
    request = next((m.content for m in reversed(messages) if m.role == "user" and clean(m.content)), "")
    last = next((m.role for m in reversed(messages) if m.role != "user" or clean(m.content) or m.images), "user")
    return _Features(
        turn=turn,
        context=context,
        system=" ".join(m.content[:_HEAD] for m in messages if m.role == "system"),
        request=fold(clean(request)),
        human=has_timestamp(request),
        rewritten=requeued(request),
        last=last,
        opening=not any(m.role == "assistant" for m in messages),
        runtime=runtime_line(messages),
    )


_ANNOUNCED = "A background task completed."
_HANDED_BACK = f"{_ANNOUNCED} Use this result to reply to the user"  # OpenClaw stamps this notice like a typed message


def _requests(pattern: re.Pattern[str]) -> Callable[[_Features], bool]:
    """Match a call without tools if ``pattern`` fits its system prompt, or its request without a human's timestamp."""
    return lambda features: (
        not features.tools
        and bool(pattern.search(features.system) or (not features.human and pattern.search(features.request[:2000])))
    )


def _in_conversation(features: _Features) -> bool:
    return features.context.parent == "main" and features.last == "user"


_SIDE: tuple[_Rule, ...] = (
    ("memory flush", 1.0, lambda f: ":internal-session-effects:" in f.key),
    ("scheduled job", 1.0, lambda f: ":cron:" in f.key or (f.turn.session or "").startswith("openclaw-cron-")),
    ("sub-agent", 1.0, lambda f: ":subagent:" in f.key),
    ("heartbeat", 0.95, lambda f: not f.human and bool(_HEARTBEAT.search(f.request[:500]))),
    (
        "notice of a background task",
        0.95,
        lambda f: f.request.startswith(_ANNOUNCED if not f.human else _HANDED_BACK),
    ),
    (REWRITTEN, 0.95, lambda f: f.rewritten),
    ("utility call", 0.95, lambda f: _requests(_UTILITY)(f)),
    ("title", 0.9, lambda f: f.opening and not f.tools and _requests(_TITLE)(f)),
    # A user may ask for a summary in the conversation; a client uses its own system prompt or sends no tools.
    ("summary", 0.9, lambda f: _requests(_SUMMARY)(f) and not (_in_conversation(f) and not f.context.tools)),
    ("tools left out", 0.8, lambda f: f.context.tools and not f.tools and f.last == "user"),
    (
        "one-shot utility",
        0.6,
        lambda f: (
            f.opening
            and not f.tools
            and f.turn.group is None
            and (
                f.turn.completion.sampling.json_schema is not None
                or (f.turn.completion.sampling.max_tokens or _FEW_TOKENS + 1) <= _FEW_TOKENS
            )
        ),
    ),
)
