"""The channels of gpt-oss: reasoning in *analysis*, calls and preambles in *commentary*, the answer in *final*.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

The prompt ends with ``<|start|>assistant``, so a reply begins with a channel or with its recipient.
"""

from __future__ import annotations

import json
import re
from typing import Final, Literal

from openclaw_rl.formats.calls import SPACE, ToolCallParser, held_back
from openclaw_rl.formats.parts import Thought

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", START, CHANNEL)
"""markers that end a message's body; the last two begin the next message"""
_BEGINS: Final = (CHANNEL, START, "to=")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_GAP = "\n\n"


class Harmony(ToolCallParser):
    """Parser for all channels. Without ``calls``, a message to a tool is text; a reply without channels is text."""

    def __init__(self, *, calls: bool) -> None:
        super().__init__()
        self._calls = calls
        self._step: Literal["begin", "header", "body", "plain"] = "begin"
        self._kind: Literal["thought", "text", "call"] = "text"
        self._held = ""
        self._arguments = ""
        self._gap = ""
        self._seen: set[str] = set()

    def _take(self, text: str) -> None:
        text, self._held = self._held + text, ""
        steps = {"begin": self._begin, "header": self._read_header, "body": self._read_body, "plain": self._plain}
        while text:
            text = steps[self._step](text)

    def _begin(self, text: str) -> str:
        stripped = text.lstrip(SPACE)
        if stripped.startswith(_BEGINS):
            self._step = "header"
            return stripped
        if any(begin.startswith(stripped) for begin in _BEGINS):
            self._held = text
            return ""
        self._step = "plain"
        return text

    def _plain(self, text: str) -> str:
        self._add_text(text)
        return ""

    def _read_header(self, text: str) -> str:
        header, marker, body = text.partition(MESSAGE)
        if not marker:
            self._held = text
            return ""
        self._step = "body"
        self._open_message(header)
        return body

    def _open_message(self, header: str) -> None:
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        if recipient and self._calls:
            self._kind, self._arguments, self._raw = "call", "", [header + MESSAGE]
            self._start_call(recipient[1].removeprefix("functions."))
            return
        self._kind = "thought" if channel and channel[1] == "analysis" else "text"
        self._gap = _GAP if self._kind in self._seen else ""

    def _read_body(self, text: str) -> str:
        marks = [(at, mark) for mark in ENDS if (at := text.find(mark)) >= 0]
        if marks:
            at, mark = min(marks)
            self._say(text[:at])
            self._close_message(cut=False)
            return text[at:] if mark in (START, CHANNEL) else text[at + len(mark) :]
        keep = len(text) - max(held_back(text, mark) for mark in ENDS)
        self._say(text[:keep])
        self._held = text[keep:]
        return ""

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._kind == "call":
            self._arguments += text
            self._raw.append(text)
            self._add_arguments(text)
            return
        self._seen.add(self._kind)
        text, self._gap = self._gap + text, ""
        if self._kind == "thought":
            self._parts.append(Thought(text))
        else:
            self._add_text(text)

    def _close_message(self, *, cut: bool) -> None:
        self._step = "header"
        if self._kind != "call":
            return
        if not self._arguments.strip(SPACE) and not cut:
            self._arguments = "{}"
            self._add_arguments("{}")
        if _is_object(self._arguments):
            self._end_call()
        else:
            self._break_call(flaw=not cut)

    def _finish(self, *, cut: bool) -> None:
        pending, self._held = self._held, ""
        if self._step == "body":
            self._say(pending)
            self._close_message(cut=cut)
        elif self._step == "begin" or (pending.strip(SPACE) and not (cut and pending.startswith((CHANNEL, START)))):
            self._add_text(pending)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
