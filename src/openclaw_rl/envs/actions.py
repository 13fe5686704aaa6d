"""Actions in a reply: tool calls for models that support them, a fenced block for others."""

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
"""deepest nesting of a call's arguments"""

_BLOCK = re.compile(r"```[ \t]*([a-zA-Z]*)[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)

_FAILED = re.compile(
    r"""\Aerror: |                                   # it could not be carried out
        \[exit[ ]code[ ](?!0[,\]])[^\[\]\n]*\]\Z |     # a command or a program failed
        \[(?!exit[ ]code)[^\[\]\n]*,[ ][\d.]+[ ]s\]\Z  # a command was stopped""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A tool and its arguments. ``call`` is the id of the tool call, or None for a fenced block.

    ``fault`` is the reason why the action cannot be executed as written.
    """

    tool: str
    arguments: Mapping[str, Any]
    call: str | None = None
    fault: str = ""


def calls_of(reply: Message, tools: Sequence[Tool]) -> tuple[Action, ...]:
    """Return the calls of a reply; those that cannot be executed carry the reason."""
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
        names = ", ".join(tools)
        return Action(tool=call.name, arguments={}, call=call.id, fault=f"no tool {call.name}; there are: {names}")
    fault = schema_error(tool.parameters, arguments) or ""
    return Action(tool=call.name, arguments=arguments if not fault else {}, call=call.id, fault=fault)


def block_of(text: str) -> str | None:
    """Return the content of the first fenced block; without one, the text if it is a single line, else None.

    >>> block_of("Sure:\\n```bash\\nls -l\\n```")
    'ls -l'
    >>> block_of("$ pwd")
    'pwd'
    >>> block_of("I am done.\\nGood bye.") is None
    True
    """
    block = _BLOCK.search(text)
    if block is not None:
        return block[2].strip() or None
    line = text.strip().removeprefix("$ ").strip("`").strip()
    return line if line and "\n" not in line else None


def result_of(action: Action, text: str, *, images: tuple[str, ...] = ()) -> Message:
    """Return an action's result as the next message: a tool result for a call, else plain text."""
    if action.call is None:
        return Message(role="user", content=text, images=images)
    return Message(role="tool", content=text, tool_call_id=action.call, name=action.tool, images=images)


def call_of(tool: str, arguments: Mapping[str, Any], number: int) -> Message:
    """Return a reply with one call, the ``number``-th of a solution."""
    call = ToolCall(id=f"gold_{number}", name=tool, arguments=json.dumps(dict(arguments)))
    return Message(role="assistant", tool_calls=(call,))


def vote_on(results: Sequence[Message]) -> float:
    """Return a vote on a step: 1 if all its actions succeeded, -1 if one failed or there was none.

    >>> vote_on([Message(role="user", content="[exit code 0, 0.1 s]")])
    1.0
    >>> vote_on([Message(role="user", content="rm: missing operand\\n[exit code 1, 0.0 s]")]), vote_on([])
    (-1.0, -1.0)
    """
    return 1.0 if results and not any(_FAILED.search(result.content) for result in results) else -1.0


def worked_prompt(how: str, examples: Sequence[tuple[str, str]], task: str) -> Prompt:
    """Return a prompt for the text form: reply instructions, solved tasks as turns of the conversation, the task."""
    messages = [Message(role="system", content=how)]
    for question, answer in examples:
        messages += [Message(role="user", content=question), Message(role="assistant", content=answer)]
    return Prompt(messages=(*messages, Message(role="user", content=task)))


def bounded(text: str, most: int) -> str:
    """Cut a text to ``most`` characters: the head and the tail, with the number of characters between them.

    >>> bounded("abcdefghij", 4)
    'ab\\n[... 6 characters left out ...]\\nij'
    """
    if len(text) <= most:
        return text
    half = max(1, most // 2)
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
