"""What an episode of tool calls is about: the tools, what they do, and what was done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.envs.sandbox import programs
from openclaw_rl.envs.toolcall.calls import INTERPRETER, same_call
from openclaw_rl.tasks.tool_use import TOOLS
from openclaw_rl.types import Tool

PYTHON = Tool(
    name=INTERPRETER,
    description="Run a Python program and see what it prints.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)


def _lookup(name: str, description: str, key: str) -> Tool:
    parameters = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    return Tool(name=name, description=description, parameters=parameters)


FIND_CONTACT = _lookup("find_contact", "Look up the e-mail address of a person.", "name")
GET_PRICE = _lookup("get_price", "Look up the price of an item.", "item")
KNOWN: Mapping[str, Tool] = {**TOOLS, **{tool.name: tool for tool in (PYTHON, FIND_CONTACT, GET_PRICE)}}
"""the tools of the ladder"""


class ToolWorld(Protocol):
    """One episode's tools: carries out calls and says what they have come to."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call that fits its schema; what the agent is shown."""
        ...

    async def score(self, answer: str | None) -> float:
        """From 0 to 1, of what was done so far and the answer, where one was given."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class SupportsTurns(Protocol):
    """A world whose user asks for several things, one after the other."""

    async def next_request(self) -> str | None:
        """A request is done with: what the user asks next, None where that was all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCall:
    """A call that a task of the ladder is about."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class LadderWorld:
    """Done when exactly the wanted calls were made; looking things up is free.

    ``facts`` are what a lookup gives, by tool and key. ``printed`` in place of calls: a program has to print it.
    """

    wanted: Sequence[WantedCall]
    facts: Mapping[str, Mapping[str, str]]
    printed: str | None
    _made: list[str] = field(default_factory=list)
    _output: str = ""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name == INTERPRETER:
            ran = await programs.run(arguments["code"])
            self._output = ran.output
            return ran.output.rstrip("\n") + f"\n[exit code {ran.code}]"
        if name in self.facts:
            return self.facts[name].get(str(next(iter(arguments.values()))).strip().casefold(), "nothing found")
        self._made.append(same_call(name, arguments))
        return "done"

    async def score(self, answer: str | None) -> float:
        if self.printed is not None:
            return float(self._output.strip() == self.printed)
        return float(Counter(self._made) == Counter(same_call(one.tool, one.arguments) for one in self.wanted))

    async def close(self) -> None:
        """Nothing to clean up."""
