"""Main or side, with the reason and how sure it is. Pure.

A main turn is part of the line of talk, its tool calls included. A side turn is work that a client does beside it:
titles, summaries, heartbeats, memory flushes, scheduled jobs, sub-agents. What the client declares wins; otherwise the
first rule that fits decides. In doubt a turn is main: a client that says nothing must still be learned from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.collect.normalise import Runtime, clean, fold, requeued, runtime, stamped
from openclaw_rl.types import Kind, Message, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is known of the thread that a turn stands in.

    ``parent`` is the kind of the turn it follows, None where it follows none that is known; ``reason`` is that turn's.
    ``tools`` says that the main turn before it had tools.
    """

    parent: Kind | None = None
    reason: str = ""
    tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The kind of a turn, why, and how sure that is in 0 .. 1."""

    kind: Kind
    reason: str
    confidence: float


@dataclass(frozen=True, slots=True)
class _Look:
    """A turn with the parts of it that the rules look at."""

    turn: Turn
    around: Around
    system: str
    asked: str
    human: bool
    rewritten: bool
    last: str
    opening: bool
    runtime: Runtime | None

    @property
    def tools(self) -> bool:
        return bool(self.turn.prompt.tools)

    @property
    def key(self) -> str:
        return f":{self.runtime.key}:" if self.runtime else ""


_Rule = tuple[str, float, Callable[[_Look], bool]]

_HEAD = 400  # where a system prompt says what the call is for; later on it may speak of summaries and titles at will
_TITLE = re.compile(
    r"you are an? [\w -]{0,20}title generator|(?:generate|create|write|suggest|produce|come up with) (?:an? |the )?"
    r"(?:[\w, -]{0,40} )?title (?:for|of|that|based|from|to|summari[sz]ing) (?:this|the|our|a|following|above|my)\b"
    r"[\w ]{0,20}(?:conversation|chat|session|thread|dialog|message|request|prompt|exchange|task)",
    re.IGNORECASE,
)
_SUMMARY = re.compile(
    r"context summari[sz]ation assistant|context checkpoint compaction|detailed prompt for continuing our conversation"
    # only as an order: a system prompt may well mention that somebody summarises
    r"|(?:^|[.!?:>]\s{1,20}|\n\s{0,20}|task is to )(?:please |now )?(?:"
    r"(?:create|write|provide|produce|give) (?:an? |the )?(?:[\w, -]{0,30} )?(?:summary|recap) of "
    r"|(?:summari[sz]e|recap|compact) )(?:the|this|our) (?:conversation|chat|session|dialog|thread)",
    re.IGNORECASE,
)
_UTILITY = re.compile(  # OpenClaw's own words, as it sends them
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
_FEW_TOKENS = 4  # a reply this short is a label, not talk


def rule(turn: Turn, around: Around | None = None) -> Ruling:
    """The kind of ``turn``: what was declared, else what the first fitting rule says, else main.

    A request that the client rewrote is side whoever began it: nobody said what stands there.
    """
    look = _look(turn, around or Around())
    if turn.declared is not None and not look.rewritten:
        return Ruling(kind=turn.declared, reason="declared", confidence=1.0)
    for reason, confidence, fits in _SIDE:
        if fits(look):
            return Ruling(kind="side", reason=reason, confidence=confidence)
    if look.around.parent == "side" and look.last == "tool":
        return Ruling(kind="side", reason=look.around.reason, confidence=0.9)
    return _main(look)


def machine_said(text: str) -> bool:
    """Whether a user message is a client's own: a heartbeat or the notice of a task, not somebody's words."""
    said = clean(text)
    return said.startswith(_HANDED_BACK) or (
        not stamped(text) and bool(_HEARTBEAT.search(text[:500]) or said.startswith(_ANNOUNCED))
    )


def compacted(messages: Sequence[Message]) -> bool:
    """Whether the history opens with a summary that stands for what was said before."""
    opening = next((message for message in messages if message.role in ("user", "assistant")), None)
    return opening is not None and bool(_COMPACTED.search(clean(opening.content)[:2000]))


def _main(look: _Look) -> Ruling:
    if look.turn.group is not None:
        return Ruling(kind="main", reason="rollout", confidence=1.0)
    if look.last == "tool":
        return Ruling(kind="main", reason="tool results", confidence=0.95)
    if look.human or look.around.parent == "main":
        return Ruling(kind="main", reason="talk", confidence=0.95)
    if not look.opening:
        return Ruling(kind="main", reason="talk with an unknown past", confidence=0.8)
    return Ruling(kind="main", reason="opening", confidence=0.85 if look.tools else 0.7)


def _look(turn: Turn, around: Around) -> _Look:
    messages = turn.prompt.messages
    asked = next((m.content for m in reversed(messages) if m.role == "user" and clean(m.content)), "")
    last = next((m.role for m in reversed(messages) if m.role != "user" or clean(m.content) or m.images), "user")
    return _Look(
        turn=turn,
        around=around,
        system=" ".join(m.content[:_HEAD] for m in messages if m.role == "system"),
        asked=fold(clean(asked)),
        human=stamped(asked),
        rewritten=requeued(asked),
        last=last,
        opening=not any(m.role == "assistant" for m in messages),
        runtime=runtime(messages),
    )


_ANNOUNCED = "A background task completed."
_HANDED_BACK = f"{_ANNOUNCED} Use this result to reply to the user"  # this one OpenClaw stamps like a person's words


def _says(pattern: re.Pattern[str]) -> Callable[[_Look], bool]:
    """A call without tools whose system prompt opens so, or that asks for it in words that no human stamped."""
    return lambda look: (
        not look.tools and bool(pattern.search(look.system) or (not look.human and pattern.search(look.asked[:2000])))
    )


def _talking(look: _Look) -> bool:
    return look.around.parent == "main" and look.last == "user"


_SIDE: tuple[_Rule, ...] = (
    ("memory flush", 1.0, lambda look: ":internal-session-effects:" in look.key),
    ("scheduled job", 1.0, lambda look: ":cron:" in look.key or (look.turn.session or "").startswith("openclaw-cron-")),
    ("sub-agent", 1.0, lambda look: ":subagent:" in look.key),
    ("heartbeat", 0.95, lambda look: not look.human and bool(_HEARTBEAT.search(look.asked[:500]))),
    (
        "notice of a background task",
        0.95,
        lambda look: look.asked.startswith(_ANNOUNCED if not look.human else _HANDED_BACK),
    ),
    (REWRITTEN, 0.95, lambda look: look.rewritten),
    ("utility call", 0.95, lambda look: _says(_UTILITY)(look)),
    ("title", 0.9, lambda look: look.opening and not look.tools and _says(_TITLE)(look)),
    # A person in a talk may well ask for a summary; a client asks with its own system prompt or without the tools.
    ("summary", 0.9, lambda look: _says(_SUMMARY)(look) and not (_talking(look) and not look.around.tools)),
    ("tools left out", 0.8, lambda look: look.around.tools and not look.tools and look.last == "user"),
    (
        "one-shot utility",
        0.6,
        lambda look: (
            look.opening
            and not look.tools
            and look.turn.group is None
            and (
                look.turn.completion.sampling.json_schema is not None
                or (look.turn.completion.sampling.max_tokens or _FEW_TOKENS + 1) <= _FEW_TOKENS
            )
        ),
    ),
)
