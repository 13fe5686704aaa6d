"""What all renderings of one conversation have in common. Pure.

Clients do not send a history back as it was: clocks and envelopes come and go, reasoning is stripped, arguments are
written anew, ids are mangled, neighbouring user messages are joined. `prompt_path` turns a prompt into a *path* of
atoms that such changes leave alone: one atom of 8 bytes per line of a user, per text and per call of the assistant and
per tool result. The first byte is the role, the others are a digest. System prompts have no atoms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from openclaw_rl.types import Message, Tool, ToolCall, canonical

ATOM = 8
"""bytes of one atom"""
USER, IMAGE, TEXT, CALL, RESULT = (ord(letter) for letter in "uiact")
_REPLY = (TEXT, CALL)
_MANY_LINES = 400  # a longer text is one atom: a pasted file is not worth a digest per line

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_CLOCK = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[A-Za-z0-9+:/_-]{1,20})?"
_STAMP = re.compile(rf"^\[{_DAY} {_CLOCK}\] ?", re.MULTILINE)
_ANY_STAMP = re.compile(rf"\[(?:[^\[\]\n]{{1,80}} )?{_CLOCK}\] ?")
_RUNTIME = re.compile(r"(?:^|\n\n?)Runtime: agent=[^\n]* \| [^\n]*(?=\n|\Z)")
_REQUEUED = re.compile(  # how OpenClaw sends a person's words again after a call that failed
    r"\A\[Queued user message from a previous active turn[^\]\n]*\]\n(.*?)"
    r"(?:\n\nContinue the current task from [^\n]*)?\Z",
    re.DOTALL,
)
_RESUMED = re.compile(  # what OpenClaw adds to them when it goes on after its gateway was restarted
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
    """OpenClaw's Runtime line: the session's key and id, either empty where it is missing."""

    key: str
    session: str


@dataclass(frozen=True, slots=True)
class PromptPath:
    """A prompt as a path. ``owners[n]`` is the message that atom n came from, ``sizes[n]`` how many characters it had.

    ``ends`` are the atom counts at which a reply ends, shallowest first. ``context`` is a digest of the tools and the
    system prompts without their digits, fit to break a tie and no more.
    """

    path: bytes
    owners: tuple[int, ...]
    sizes: tuple[int, ...]
    ends: tuple[int, ...]
    context: bytes


def fold(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def clean(text: str) -> str:
    """A user's text without the envelopes that clients put around it: time stamps, Runtime lines, injected blocks."""
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
    """Whether a user's text is one that OpenClaw rewrote after a call that failed or was interrupted."""
    return bool(_REQUEUED.match(_ANY_STAMP.sub("", text.strip(), count=1)) or _RESUMED.search(text))


def has_timestamp(text: str) -> bool:
    """Whether a client put a clock before the text, as OpenClaw does for what a human typed."""
    return _ANY_STAMP.match(text.lstrip()) is not None


def without_reasoning(text: str) -> str:
    """An assistant's text without its reasoning, and without a clock at its head, which a client may take away."""
    if "think>" in text:
        text = _THINK.sub("", _THINK_OPENED_BY_TEMPLATE.sub("", text))
    text = text.lstrip()
    return _ANY_STAMP.sub("", text, count=1) if _ANY_STAMP.match(text) else text


def without_envelope(message: Message) -> Message | None:
    """The message as feedback: a user's text without envelopes; None where nothing is left."""
    if message.role != "user":
        return message
    text = clean(message.content)
    if not text and not message.images:
        return None
    return Message(role="user", content=text, name=message.name, images=message.images)


def runtime_line(messages: Sequence[Message]) -> RuntimeLine | None:
    """The first Runtime line a user message carries, None without one."""
    for message in messages:
        if message.role == "user" and "Runtime: agent=" in message.content:
            found = _RUNTIME.search(message.content)
            if found:
                parts = dict(part.strip().partition("=")[::2] for part in found.group().split("|"))
                return RuntimeLine(parts.get("session", ""), parts.get("sessionId", ""))
    return None


def call_text(call: ToolCall) -> str:
    """A call by name and arguments, however the arguments were written; ids do not count."""
    try:
        arguments = canonical(json.loads(call.arguments)) if call.arguments.strip() else "{}"
    except (ValueError, RecursionError):
        arguments = fold(call.arguments)
    return f"{call.name}({arguments})"


def atoms(message: Message) -> list[tuple[bytes, int]]:
    """The atoms of one message with their sizes; none for a system prompt or an empty message."""
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
    """The path of a prompt: equal for equal conversations, whatever a client did to their rendering."""
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
    """The atoms of a reply, empty for one without text and calls."""
    return b"".join(atom for atom, _ in atoms(reply))


def reply_start(path: bytes) -> int:
    """Where, in bytes, the reply begins with which ``path`` ends."""
    at = len(path)
    while at and path[at - ATOM] in _REPLY:
        at -= ATOM
    return at


def run_start(path: bytes, reply: int) -> int:
    """Where, in bytes, the run of user lines and tool results begins that the reply at ``reply`` answers."""
    at = reply
    while at and path[at - ATOM] not in _REPLY:
        at -= ATOM
    return at


def skeleton(path: bytes) -> list[bytes]:
    """The atoms of a path without tool results, which clients prune from old history."""
    return [path[at : at + ATOM] for at in range(0, len(path), ATOM) if path[at] != RESULT]


_NO_DIGITS = {ord(digit): None for digit in "0123456789"}


def _without(text: str, begin: str, end: str) -> str:
    """The text without its blocks; one that is never closed is somebody's words."""
    kept, at = [], 0
    while (start := text.find(begin, at)) >= 0 and (stop := text.find(end, start)) >= 0:
        kept.append(text[at:start])
        at = stop + len(end)
    return "".join((*kept, text[at:]))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if len(lines) > _MANY_LINES:
        return [fold(text)]
    # A message that a client joined to its neighbour carries its stamp in the middle of the text.
    folded = (fold(_ANY_STAMP.sub("", line, count=1) if line.startswith("[") else line) for line in lines)
    return [line for line in folded if line]


def _atom(role: int, text: str) -> tuple[bytes, int]:
    return bytes((role,)) + blake2b(_bytes(text), digest_size=ATOM - 1).digest(), len(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
