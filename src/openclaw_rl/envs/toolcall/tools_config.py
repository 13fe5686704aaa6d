"""Reads a user's own tools from ``TOOLS_CONFIG``, a JSON file.

    {"tools": [{"type": "function", "file": "tools.py", "function": "convert"},
               {"type": "python"},
               {"type": "http", "name": "stock", "url": "http://127.0.0.1:9000/stock",
                "description": "How many of an item there are.", "parameters": {...a JSON schema...}},
               {"type": "mcp", "command": "python3", "args": ["server.py"]}],
     "tasks": "tasks.jsonl", "steps": 8}

Paths are relative to the file. Functions are the user's code and run in this process; programs run in the sandbox.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import json
import sys
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from openclaw_rl.envs.actions import Action, block_of
from openclaw_rl.envs.sandbox import programs
from openclaw_rl.envs.toolcall.mcp_servers import McpServer, read_server
from openclaw_rl.errors import ConfigError
from openclaw_rl.tasks.coding import TOOLS, schema_error
from openclaw_rl.types import Tool

# Calls as text, for models without tool calls: ``name(key=value)`` in a fenced block, one per line.

INTERPRETER = "python"
"""the tool that runs a program"""


def written_calls(text: str, tools: Sequence[Tool]) -> tuple[Action, ...]:
    """Return the calls in a text's fenced block or single line; empty if it contains no call of these tools.

    If the interpreter is among the tools, a block without calls is a program for it.
    """
    block = block_of(text)
    if block is None:
        return ()
    by_name = {tool.name: tool for tool in tools}
    parsed = [_call(line, by_name) for line in block.splitlines() if line.strip()]
    calls = [call for call in parsed if call is not None]
    if calls and len(calls) == len(parsed):
        return tuple(calls)
    if INTERPRETER in by_name and ("```" in text or "print(" in block):
        return (Action(tool=INTERPRETER, arguments={"code": block}),)
    return ()


def _call(line: str, tools: Mapping[str, Tool]) -> Action | None:
    """Parse the call in a line; return None if it is no call of a known tool."""
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
    """Return a call in its text form.

    >>> as_call("add", {"a": 1, "b": 2})
    'add(a=1, b=2)'
    """
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def signature(tool: Tool) -> str:
    """Return a tool's description as one line of a prompt.

    >>> signature(Tool(name="add", description="Add two numbers.", parameters={"properties": {"a": {}, "b": {}}}))
    'add(a, b): Add two numbers.'
    """
    return f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}"


def same_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a canonical text that is equal for equal calls: texts ignoring case and full stops, numbers by value."""
    plain = {key: _plain(value) for key, value in arguments.items()}
    return f"{name} {json.dumps(plain, sort_keys=True, default=str)}"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().strip(".").casefold()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# The parts of a tool-call episode: the tools, their effects, and the record of calls.

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
"""the tools of the curriculum"""


class ToolWorld(Protocol):
    """One episode's tools: executes calls and scores their effect."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Execute a call that fits its schema; return the text for the agent."""
        ...

    async def score(self, answer: str | None) -> float:
        """Score the calls so far and the answer, if there is one, from 0 to 1."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class SupportsTurns(Protocol):
    """A world whose user makes several requests in succession."""

    async def next_request(self) -> str | None:
        """Finish the current request; return the next one, or None after the last."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCall:
    """A call that a curriculum task requires."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class CurriculumWorld:
    """Solved when exactly the required calls were made; lookups are free.

    ``facts`` are lookup results by tool and key. ``printed`` replaces the calls: a program must print it.
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
        return float(Counter(self._made) == Counter(same_call(call.tool, call.arguments) for call in self.wanted))

    async def close(self) -> None:
        """Do nothing."""


REMEDY: Final = "docs/environments.md shows the format"
SECONDS = 60.0
"""most seconds for one call of a function or an address"""
_TYPES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}

Carry = Callable[[Mapping[str, Any]], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTool:
    """A tool as the model sees it, and the function that executes its calls."""

    tool: Tool
    carry_out: Carry


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    """A file's settings: the tools, the task file, and the most replies per task."""

    tools: Sequence[OwnTool]
    tasks: Path
    steps: int


@lru_cache(maxsize=8)
def read_tools_config(path: Path) -> ToolsConfig:
    """Read and validate the file, once per process; raise ConfigError that names the problem."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"env.tools_config: there is no file {path}", remedy=REMEDY) from error
    except (OSError, UnicodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}", remedy=REMEDY) from error
    if not isinstance(config, dict) or not isinstance(config.get("tools"), list):
        raise ConfigError(f'{path} is not an object with a list "tools"', remedy=REMEDY)
    if unknown := config.keys() - {"tools", "tasks", "steps"}:
        raise ConfigError(f"{path}: unknown {', '.join(sorted(unknown))}", remedy="known: tools, tasks, steps")
    if not isinstance(config.get("tasks"), str):
        raise ConfigError(f'{path} names no "tasks"', remedy="write a JSONL file of tasks and name it there; " + REMEDY)
    steps = config.get("steps", 8)
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"{path}: steps is {steps!r}", remedy="a whole number from 1 up")
    folder = path.resolve().parent  # the file's own folder, with links resolved
    tools = [
        tool
        for number, entry in enumerate(config["tools"])
        for tool in _tools(entry, folder, f"{path}: tools[{number}]")
    ]
    return ToolsConfig(tools=tools, tasks=folder / config["tasks"], steps=steps)


def _tools(given: Any, folder: Path, where: str) -> Sequence[OwnTool]:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "python":
        return (INTERPRETER_TOOL,)
    if kind == "function":
        return (_function(given, folder, where),)
    if kind == "http":
        return (_http(given, where),)
    if kind == "mcp":
        return _mcp(given, folder, where)
    raise ConfigError(f"{where} has type {kind!r}", remedy="known: function, python, http, mcp")


async def _program(arguments: Mapping[str, Any]) -> str:
    ran = await programs.run(arguments["code"])
    return f"{ran.output.rstrip()}\n[exit code {ran.code}]"


INTERPRETER_TOOL: Final = OwnTool(tool=PYTHON, carry_out=_program)
"""the interpreter, in the sandbox"""


# --- the user's functions ---


def _function(given: Mapping[str, Any], folder: Path, where: str) -> OwnTool:
    lacking = [name for name in ("file", "function") if not isinstance(given.get(name), str)]
    if lacking:
        raise ConfigError(f"{where} lacks {' and '.join(lacking)}", remedy=REMEDY)
    function = load_function(folder / given["file"], given["function"], where)
    tool = Tool(
        name=given.get("name", given["function"]),
        description=given.get("description") or (inspect.getdoc(function) or "").partition("\n")[0],
        parameters=given.get("parameters") or _schema(function),
    )

    async def carry_out(arguments: Mapping[str, Any]) -> str:
        if inspect.iscoroutinefunction(function):
            return _text(await asyncio.wait_for(function(**arguments), SECONDS))
        return _text(await asyncio.wait_for(asyncio.to_thread(function, **arguments), SECONDS))

    return OwnTool(tool=tool, carry_out=carry_out)


def load_function(file: Path, name: str, where: str) -> Callable[..., Any]:
    """Return a function from a Python file; raise ConfigError if it cannot be loaded."""
    if not file.is_file():
        raise ConfigError(f"{where}: there is no file {file}", remedy="paths are relative to the file that names them")
    spec = importlib.util.spec_from_file_location(f"openclaw_rl_tools_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything; the message shows its author the failure
        raise ConfigError(f"{where}: {file} fails with {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{where}: {file} has no function {name}")
    return typing.cast("Callable[..., Any]", function)


def _schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a signature."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    properties = {name: {"type": _TYPES[hints[name]]} if hints.get(name) in _TYPES else {} for name in parameters}
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    return {"type": "object", "properties": properties, "required": required}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# --- addresses ---


def _http(given: Mapping[str, Any], where: str) -> OwnTool:
    lacking = [name for name in ("name", "url", "parameters") if not given.get(name)]
    if lacking:
        raise ConfigError(f"{where} lacks {' and '.join(lacking)}", remedy=REMEDY)
    method = str(given.get("method", "POST")).upper()
    tool = Tool(name=given["name"], description=given.get("description", ""), parameters=given["parameters"])

    async def carry_out(arguments: Mapping[str, Any]) -> str:
        import httpx2

        data = dict(arguments)
        params, body = (data, None) if method == "GET" else (None, data)
        try:
            async with httpx2.AsyncClient(timeout=SECONDS) as client:
                reply = await client.request(
                    method, given["url"], headers=given.get("headers"), params=params, json=body
                )
        except httpx2.TransportError as error:
            raise ConnectionError(f"{given['url']}: {error or type(error).__name__}") from error
        if reply.status_code >= 500:
            raise ConnectionError(f"{given['url']} answers {reply.status_code}")
        return reply.text

    return OwnTool(tool=tool, carry_out=carry_out)


# --- MCP servers ---


def _mcp(given: Mapping[str, Any], folder: Path, where: str) -> Sequence[OwnTool]:
    """Return a server's tools, or only those listed."""
    server = read_server(given, folder, where, REMEDY)
    offered = {tool.name: tool for tool in server.tools()}
    wanted = given.get("tools", list(offered))
    if lacking := [name for name in wanted if name not in offered]:
        raise ConfigError(f"{where}: {server.shown} has no tool {lacking[0]}", remedy=f"it has: {', '.join(offered)}")
    return [OwnTool(tool=offered[name], carry_out=_through(server, name)) for name in wanted]


def _through(server: McpServer, name: str) -> Carry:
    return lambda arguments: server.call(name, arguments)
