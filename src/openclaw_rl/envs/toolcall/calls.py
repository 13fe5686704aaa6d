"""Calls as text, for models that do not make tool calls: ``name(key=value)`` in a fenced block, one to a line."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.envs.actions import Action, block_of
from openclaw_rl.tasks.tool_use import schema_error
from openclaw_rl.types import Tool

INTERPRETER = "python"
"""the tool that runs a program"""


def written_calls(text: str, tools: Sequence[Tool]) -> tuple[Action, ...]:
    """The calls in the fenced block of a text, or in its single line; none where it holds no call of these tools.

    A block that is no call is a program where there is the interpreter.
    """
    block = block_of(text)
    if block is None:
        return ()
    known = {tool.name: tool for tool in tools}
    found = [_call(line, known) for line in block.splitlines() if line.strip()]
    calls = [each for each in found if each is not None]
    if calls and len(calls) == len(found):
        return tuple(calls)
    if INTERPRETER in known and ("```" in text or "print(" in block):
        return (Action(tool=INTERPRETER, arguments={"code": block}),)
    return ()


def _call(line: str, tools: Mapping[str, Tool]) -> Action | None:
    """The call of one line; None for what is no call of a known tool."""
    try:
        node = ast.parse(line.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in tools):
        return None
    tool = tools[node.func.id]
    try:
        arguments = _arguments(node, tool)
    except ValueError as error:
        return Action(tool=tool.name, arguments={}, fault=str(error))
    return Action(tool=tool.name, arguments=arguments, fault=schema_error(tool.parameters, arguments) or "")


def _arguments(node: ast.Call, tool: Tool) -> dict[str, Any]:
    names = list(tool.parameters.get("properties", {}))
    if len(node.args) > len(names) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f"{tool.name} takes {', '.join(names) or 'nothing'}")
    values = [*zip(names, node.args, strict=False), *((keyword.arg, keyword.value) for keyword in node.keywords)]
    try:
        return {str(name): ast.literal_eval(value) for name, value in values}
    except (ValueError, TypeError, MemoryError, RecursionError) as error:  # TypeError: a list as a key, {[]: 1}
        raise ValueError("an argument is no plain value") from error


def as_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as it is written.

    >>> as_call("add", {"a": 1, "b": 2})
    'add(a=1, b=2)'
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def signature(tool: Tool) -> str:
    """A tool as one line of a prompt.

    >>> signature(Tool(name="add", description="Add two numbers.", parameters={"properties": {"a": {}, "b": {}}}))
    'add(a, b): Add two numbers.'
    """
    return f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}"


def same_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Equal calls give equal text: texts without case and full stops, numbers by value."""
    plain = {key: _plain(value) for key, value in arguments.items()}
    return f"{name} {json.dumps(plain, sort_keys=True, default=str)}"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().strip(".").casefold()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
