"""Reduce all renderings of one conversation to their common content. Pure.

Clients do not return a history unchanged: timestamps and envelopes vary, reasoning is stripped, arguments are
re-serialised, ids are mangled, neighbouring user messages are joined. `prompt_path` maps a prompt to a *path*
of atoms that such changes leave alone: one 8-byte atom per user line, per assistant text, per call and per tool result.
The first byte is the role, the other bytes are a digest. System prompts have no atoms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from openclaw_rl.types import Message, Tool, ToolCall, canonical

ATOM = 8
"""bytes per atom"""
USER, IMAGE, TEXT, CALL, RESULT = (ord(letter) for letter in "uiact")
_REPLY = (TEXT, CALL)
_MANY_LINES = 400  # a longer text is one atom: a pasted file needs no digest per line

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_CLOCK = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[A-Za-z0-9+:/_-]{1,20})?"
_STAMP = re.compile(rf"^\[{_DAY} {_CLOCK}\] ?", re.MULTILINE)
_ANY_STAMP = re.compile(rf"\[(?:[^\[\]\n]{{1,80}} )?{_CLOCK}\] ?")
_RUNTIME = re.compile(r"(?:^|\n\n?)Runtime: agent=[^\n]* \| [^\n]*(?=\n|\Z)")
_REQUEUED = re.compile(  # OpenClaw's envelope around a user message that it resends after a failed call
    r"\A\[Queued user message from a previous active turn[^\]\n]*\]\n(.*?)"
    r"(?:\n\nContinue the current task from [^\n]*)?\Z",
    re.DOTALL,
)
_RESUMED = re.compile(  # the note that OpenClaw adds when it resumes after a gateway restart
    r"(?:^|\n)\[System\] Your previous turn was interrupted by a gateway restart\b[^\n]*", re.MULTILINE
)
_BLOCKS = (
    ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"),
    ("<system-reminder>", "</system-reminder>"),
)
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_THINK_OPENED_BY_TEMPLATE = re.compile(r"\A(?:(?!<think>).)*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuntimeLine:
    """OpenClaw's Runtime line: the session's key and id, each empty if missing."""

    key: str
    session: str


@dataclass(frozen=True, slots=True)
class PromptPath:
    """A prompt as a path. ``owners[n]`` is the message index for atom n, ``sizes[n]`` its character count.

    ``ends`` are the atom counts at which a reply ends, shallowest first. ``context`` is a digest over the tools and
    the system prompts without their digits; it serves only to break ties.
    """

    path: bytes
    owners: tuple[int, ...]
    sizes: tuple[int, ...]
    ends: tuple[int, ...]
    context: bytes


def fold(text: str) -> str:
    """Collapse every run of white space to one space."""
    return " ".join(text.split())


def clean(text: str) -> str:
    """Return a user's text without client envelopes: timestamps, Runtime lines, injected blocks."""
    for begin, end in _BLOCKS:
        if begin in text:
            text = _without(text, begin, end)
    if "Runtime: agent=" in text:
        text = _RUNTIME.sub("", text)
    if "[" in text:
        text = _RESUMED.sub("", text)
        text = _STAMP.sub("", _ANY_STAMP.sub("", text, count=1) if _ANY_STAMP.match(text) else text)
    return _REQUEUED.sub(r"\1", text.strip()).strip()


def requeued(text: str) -> bool:
    """Return True if OpenClaw rewrote this user text after a failed or interrupted call."""
    return bool(_REQUEUED.match(_ANY_STAMP.sub("", text.strip(), count=1)) or _RESUMED.search(text))


def has_timestamp(text: str) -> bool:
    """Return True if a client put a timestamp before the text, as OpenClaw does for typed messages."""
    return _ANY_STAMP.match(text.lstrip()) is not None


def without_reasoning(text: str) -> str:
    """Return an assistant's text without its reasoning and without a leading timestamp, which a client may remove."""
    if "think>" in text:
        text = _THINK.sub("", _THINK_OPENED_BY_TEMPLATE.sub("", text))
    text = text.lstrip()
    return _ANY_STAMP.sub("", text, count=1) if _ANY_STAMP.match(text) else text


def without_envelope(message: Message) -> Message | None:
    """Return the message as feedback, a user's text without envelopes; None if nothing remains."""
    if message.role != "user":
        return message
    text = clean(message.content)
    if not text and not message.images:
        return None
    return Message(role="user", content=text, name=message.name, images=message.images)


def runtime_line(messages: Sequence[Message]) -> RuntimeLine | None:
    """Return the first Runtime line in a user message, None without one."""
    for message in messages:
        if message.role == "user" and "Runtime: agent=" in message.content:
            line = _RUNTIME.search(message.content)
            if line:
                parts = dict(part.strip().partition("=")[::2] for part in line.group().split("|"))
                return RuntimeLine(parts.get("session", ""), parts.get("sessionId", ""))
    return None


def call_text(call: ToolCall) -> str:
    """Return a call as its name and normalised arguments; ids do not count."""
    try:
        arguments = canonical(json.loads(call.arguments)) if call.arguments.strip() else "{}"
    except (ValueError, RecursionError):
        arguments = fold(call.arguments)
    return f"{call.name}({arguments})"


def atoms(message: Message) -> list[tuple[bytes, int]]:
    """Return a message's atoms with their sizes; empty for a system prompt or an empty message."""
    if message.role == "system":
        return []
    if message.role == "assistant":
        text = fold(without_reasoning(message.content))
        texts = [(TEXT, text)] if text else []
        return [_atom(role, text) for role, text in (*texts, *((CALL, call_text(call)) for call in message.tool_calls))]
    images = [(IMAGE, image) for image in message.images]
    if message.role == "tool":
        return [_atom(role, text) for role, text in (*images, (RESULT, fold(message.content)))]
    return [_atom(role, text) for role, text in (*images, *((USER, line) for line in _lines(clean(message.content))))]


def prompt_path(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> PromptPath:
    """Return a prompt's path: equal for equal conversations, however a client renders them."""
    path = bytearray()
    owners: list[int] = []
    sizes: list[int] = []
    ends: list[int] = []
    context = blake2b(_bytes("\n".join(sorted(tool.name for tool in tools))), digest_size=ATOM)
    before: int | None = None
    for at, message in enumerate(messages):
        if message.role == "system":
            context.update(_bytes(message.content.translate(_NO_DIGITS)))
        for atom, size in atoms(message):
            if before in _REPLY and atom[0] not in _REPLY:
                ends.append(len(owners))
            before = atom[0]
            path += atom
            owners.append(at)
            sizes.append(size)
    if before in _REPLY:
        ends.append(len(owners))
    return PromptPath(bytes(path), tuple(owners), tuple(sizes), tuple(ends), context.digest())


def reply_path(reply: Message) -> bytes:
    """Return a reply's atoms; empty for a reply without text and calls."""
    return b"".join(atom for atom, _ in atoms(reply))


def reply_start(path: bytes) -> int:
    """Return the byte offset at which the reply at the end of ``path`` begins."""
    at = len(path)
    while at and path[at - ATOM] in _REPLY:
        at -= ATOM
    return at


def run_start(path: bytes, reply: int) -> int:
    """Return the byte offset at which the user lines and tool results begin that the reply at ``reply`` answers."""
    at = reply
    while at and path[at - ATOM] not in _REPLY:
        at -= ATOM
    return at


def skeleton(path: bytes) -> list[bytes]:
    """Return a path's atoms without tool results, which clients prune from old history."""
    return [path[at : at + ATOM] for at in range(0, len(path), ATOM) if path[at] != RESULT]


_NO_DIGITS = {ord(digit): None for digit in "0123456789"}


def _without(text: str, begin: str, end: str) -> str:
    """Return the text without its blocks; an unclosed block counts as the user's text."""
    pieces, at = [], 0
    while (start := text.find(begin, at)) >= 0 and (stop := text.find(end, start)) >= 0:
        pieces.append(text[at:start])
        at = stop + len(end)
    return "".join((*pieces, text[at:]))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if len(lines) > _MANY_LINES:
        return [fold(text)]
    # A message that a client joined to its neighbour has its timestamp in the middle of the text.
    folded = (fold(_ANY_STAMP.sub("", line, count=1) if line.startswith("[") else line) for line in lines)
    return [line for line in folded if line]


def _atom(role: int, text: str) -> tuple[bytes, int]:
    return bytes((role,)) + blake2b(_bytes(text), digest_size=ATOM - 1).digest(), len(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
