"""What a reply is made of as it streams, and the message it adds up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from openclaw_rl.types import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Text:
    """More of the reply's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning before it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArgs:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call's arguments are whole."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that had begun turned out malformed: forget it; its text follows as `Text`."""

    index: int


Part: TypeAlias = Text | Thought | CallStart | CallArgs | CallEnd | CallBroken


class Assembly:
    """Adds parts up to the message of the whole stream."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thought: list[str] = []
        self._begun: dict[int, tuple[CallStart, list[str]]] = {}
        self._complete: list[int] = []

    def add(self, part: Part) -> None:
        if type(part) is Text:  # most are
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
        """The reply so far; a call that is not whole is not in it."""
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
