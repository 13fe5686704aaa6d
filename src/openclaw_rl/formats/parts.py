"""The parts of a streaming reply, and the message assembled from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from openclaw_rl.types import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Text:
    """Further text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Further reasoning before the text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArgs:
    """Further arguments of a call, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call's arguments are complete."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that began turned out malformed: discard it; its text follows as `Text`."""

    index: int


Part: TypeAlias = Text | Thought | CallStart | CallArgs | CallEnd | CallBroken


class Assembly:
    """Assembles parts into the stream's message."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thought: list[str] = []
        self._begun: dict[int, tuple[CallStart, list[str]]] = {}
        self._complete: list[int] = []

    def add(self, part: Part) -> None:
        if type(part) is Text:  # the most frequent part
            self._text.append(part.text)
            return
        match part:
            case Thought(text):
                self._thought.append(text)
            case CallStart(index):
                self._begun[index] = (part, [])
            case CallArgs(index, text):
                self._begun[index][1].append(text)
            case CallEnd(index):
                self._complete.append(index)
            case CallBroken(index):
                del self._begun[index]

    def message(self) -> Message:
        """Return the reply so far, without incomplete calls."""
        calls = tuple(
            ToolCall(id=start.id, name=start.name, arguments="".join(bits))
            for start, bits in (self._begun[index] for index in self._complete)
        )
        thought = "".join(self._thought)
        return Message(
            role="assistant",
            content="".join(self._text),
            reasoning=thought if thought else None,
            tool_calls=calls,
        )
