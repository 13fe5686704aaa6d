"""Actions in a reply: calls of tools for models that make them, a fenced block for those that do not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openclaw_rl.tasks.coding import schema_error
from openclaw_rl.types import Message, Prompt, Tool, ToolCall
from openclaw_rl.web import is_deeper

ActionForm = Literal["tools", "text"]
DEEPEST = 64
"""levels of a call's arguments"""

_BLOCK = re.compile(r"```[ \t]*([a-zA-Z]*)[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)

_FAILED = re.compile(
    r"""\Aerror: |                                   # it could not be carried out
        \[exit[ ]code[ ](?!0[,\]])[^\[\]\n]*\]\Z |     # a command or a program failed
        \[(?!exit[ ]code)[^\[\]\n]*,[ ][\d.]+[ ]s\]\Z  # a command was stopped""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do: a tool and its arguments. ``call`` is the id of the tool call, None of a fenced block.

    ``fault`` says why it cannot be done as it was written.
    """

    tool: str
    arguments: Mapping[str, Any]
    call: str | None = None
    fault: str = ""


def calls_of(reply: Message, tools: Sequence[Tool]) -> tuple[Action, ...]:
    """The calls of a reply, those that cannot be carried out with the reason."""
    return tuple(_action(call, {tool.name: tool for tool in tools}) for call in reply.tool_calls)


def _action(call: ToolCall, tools: Mapping[str, Tool]) -> Action:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        return Action(tool=call.name, arguments={}, call=call.id, fault=f"the arguments are no JSON: {error}")
    if is_deeper(arguments, DEEPEST):
        return Action(tool=call.name, arguments={}, call=call.id, fault=f"the arguments have over {DEEPEST} levels")
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(tools)
        return Action(tool=call.name, arguments={}, call=call.id, fault=f"no tool {call.name}; there are: {known}")
    fault = schema_error(tool.parameters, arguments) or ""
    return Action(tool=call.name, arguments=arguments if not fault else {}, call=call.id, fault=fault)


def block_of(text: str) -> str | None:
    """What the first fenced block of a text holds; without one, the text where it is a single line; else None.

    >>> block_of("Sure:\\n```bash\\nls -l\\n```")
    'ls -l'
    >>> block_of("$ pwd")
    'pwd'
    >>> block_of("I am done.\\nGood bye.") is None
    True
    """
    found = _BLOCK.search(text)
    if found is not None:
        return found[2].strip() or None
    line = text.strip().removeprefix("$ ").strip("`").strip()
    return line if line and "\n" not in line else None


def result_of(action: Action, text: str, *, images: tuple[str, ...] = ()) -> Message:
    """What an action came to, as the next message: the result of its call, or plain text."""
    if action.call is None:
        return Message(role="user", content=text, images=images)
    return Message(role="tool", content=text, tool_call_id=action.call, name=action.tool, images=images)


def call_of(tool: str, arguments: Mapping[str, Any], number: int) -> Message:
    """A reply that makes one call, the ``number``-th of a solution."""
    call = ToolCall(id=f"gold_{number}", name=tool, arguments=json.dumps(dict(arguments)))
    return Message(role="assistant", tool_calls=(call,))


def vote_on(results: Sequence[Message]) -> float:
    """A vote on a step by what its actions came to: 1 where all were carried out, -1 where one failed or none was.

    >>> vote_on([Message(role="user", content="[exit code 0, 0.1 s]")])
    1.0
    >>> vote_on([Message(role="user", content="rm: missing operand\\n[exit code 1, 0.0 s]")]), vote_on([])
    (-1.0, -1.0)
    """
    return 1.0 if results and not any(_FAILED.search(each.content) for each in results) else -1.0


def worked_prompt(how: str, examples: Sequence[tuple[str, str]], task: str) -> Prompt:
    """A prompt for the text form: how to reply, solved tasks as turns of the conversation, then the task."""
    messages = [Message(role="system", content=how)]
    for asked, done in examples:
        messages += [Message(role="user", content=asked), Message(role="assistant", content=done)]
    return Prompt(messages=(*messages, Message(role="user", content=task)))


def bounded(text: str, most: int) -> str:
    """At most ``most`` characters: of a longer text the head and the tail, with what is left out counted.

    >>> bounded("abcdefghij", 4)
    'ab\\n[... 6 characters left out ...]\\nij'
    """
    if len(text) <= most:
        return text
    half = max(1, most // 2)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
