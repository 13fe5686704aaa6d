"""Parse a reply as it streams: reasoning first, then text and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from openclaw_rl.formats.calls import held_back
from openclaw_rl.formats.harmony import Harmony
from openclaw_rl.formats.parts import Assembly, Part, Thought
from openclaw_rl.formats.tools import Plain, ToolCallReader, tool_call_reader
from openclaw_rl.types import Message, Prompt

Reasoning = Literal["tags", "open", "off"]
"""tags: a reply may begin with <think>; open: the template has opened it already; off: leave it in the text

A model that writes harmony marks its reasoning with channels instead of tags."""

_OPEN, _CLOSE = "<think>", "</think>"
_SPACE = " \t\n\r"


class ReplyParser:
    """Parses a reply's raw text into parts, and assembles them into a message."""

    def __init__(self, prompt: Prompt, *, tool_format: str, reasoning: Reasoning) -> None:
        calls = bool(prompt.tools) and prompt.tool_choice != "none"
        channels = tool_format == "harmony" and reasoning != "off"
        self._reader = _reader(tool_format, calls=calls, channels=channels)
        self._assembly = Assembly()
        by_tags = reasoning != "off" and not channels
        self._step: Literal["start", "reasoning", "gap", "text"] = "start" if by_tags else "text"
        if reasoning == "open" and by_tags:
            self._step = "reasoning"
        if prompt.opening:  # a forced opening is no reasoning
            self._step = "text"
        self._held = ""
        self._begun = False
        self.fed = 0

    @property
    def flaws(self) -> tuple[str, ...]:
        return tuple(sorted(self._reader.flaws))

    def add_prefix(self, prefix: str) -> Sequence[Part]:
        """Parse the reply's forced opening, which the policy does not generate again."""
        return self._recorded(self._reader.feed(prefix)) if prefix else ()

    def feed(self, text: str) -> Sequence[Part]:
        self.fed += len(text)
        if self._step == "text":
            return self._recorded(self._reader.feed(text))
        parts: list[Part] = []
        text = self._held + text
        self._held = ""
        if self._step == "start":
            text = self._start(text)
        if self._step == "reasoning":
            text = self._think(text, parts)
        if self._step == "gap" and text:
            text = text.lstrip(_SPACE)
            self._step = "text" if text else "gap"
        if self._step == "text" and text:
            parts.extend(self._reader.feed(text))
        return self._recorded(parts)

    def _start(self, text: str) -> str:
        stripped = text.lstrip(_SPACE)
        if stripped.startswith(_OPEN):
            self._step = "reasoning"
            return stripped[len(_OPEN) :]
        if _OPEN.startswith(stripped):
            self._held = text
            return ""
        self._step = "text"
        return text

    def _think(self, text: str, parts: list[Part]) -> str:
        """Parse reasoning; space around it belongs to the tags."""
        if not self._begun:
            text = text.lstrip(_SPACE)
        at = text.find(_CLOSE)
        if at >= 0:
            self._thought(text[:at].rstrip(_SPACE), parts)
            self._step = "gap"
            return text[at + len(_CLOSE) :]
        keep = len(text[: len(text) - held_back(text, _CLOSE)].rstrip(_SPACE))
        self._thought(text[:keep], parts)
        self._held = text[keep:]
        return ""

    def _thought(self, text: str, parts: list[Part]) -> None:
        if text:
            self._begun = True
            parts.append(Thought(text))

    def end(self, *, cut: bool) -> Sequence[Part]:
        """Parse the text that was held back; ``cut`` is True if the reply ran out of tokens."""
        parts: list[Part] = []
        if self._step == "reasoning":
            self._thought(self._held, parts)
        elif self._held:
            parts.extend(self._reader.feed(self._held))
        parts.extend(self._reader.end(cut=cut))
        self._held = ""
        return self._recorded(parts)

    def _recorded(self, parts: list[Part]) -> list[Part]:
        for part in parts:
            self._assembly.add(part)
        return parts

    def message(self) -> Message:
        return self._assembly.message()


def _reader(tool_format: str, *, calls: bool, channels: bool) -> ToolCallReader:
    if channels:
        return Harmony(calls=calls)
    return tool_call_reader(tool_format) if calls else Plain()


def split(
    text: str, prompt: Prompt, *, tool_format: str, reasoning: Reasoning = "tags"
) -> tuple[Message, tuple[str, ...]]:
    """Parse a complete raw reply; return its message and its flaws."""
    parser = ReplyParser(prompt, tool_format=tool_format, reasoning=reasoning)
    parser.feed(text)
    parser.end(cut=False)
    return parser.message(), parser.flaws
