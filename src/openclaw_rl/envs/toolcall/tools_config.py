"""The tools of a user's own: ``TOOLS_CONFIG``, a JSON file.

    {"tools": [{"type": "function", "file": "tools.py", "function": "convert"},
               {"type": "python"},
               {"type": "http", "name": "stock", "url": "http://127.0.0.1:9000/stock",
                "description": "How many of an item there are.", "parameters": {...a JSON schema...}},
               {"type": "mcp", "command": "python3", "args": ["server.py"]}],
     "tasks": "tasks.jsonl", "steps": 8}

Paths are relative to the file. A function is the user's code and runs in this process; a program runs in the sandbox.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from openclaw_rl.envs.sandbox import programs
from openclaw_rl.envs.toolcall.mcp_servers import McpServer, read_server
from openclaw_rl.envs.toolcall.worlds import PYTHON
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Tool

REMEDY: Final = "docs/environments.md shows the format"
SECONDS = 60.0
"""how long a function or an address may take for one call"""
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
    """A tool as the model sees it, and what carries out its calls."""

    tool: Tool
    carry_out: Carry


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    """What a file sets: the tools, the file of tasks, and the most replies of a task."""

    tools: Sequence[OwnTool]
    tasks: Path
    steps: int


@lru_cache(maxsize=8)
def read_tools_config(path: Path) -> ToolsConfig:
    """The file, all of it checked, read once in a process. Raises ConfigError that names what is wrong."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"env.tools_config: there is no file {path}", remedy=REMEDY) from error
    except (OSError, UnicodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}", remedy=REMEDY) from error
    if not isinstance(found, dict) or not isinstance(found.get("tools"), list):
        raise ConfigError(f'{path} is no table with a list "tools"', remedy=REMEDY)
    if unknown := found.keys() - {"tools", "tasks", "steps"}:
        raise ConfigError(f"{path}: unknown {', '.join(sorted(unknown))}", remedy="known: tools, tasks, steps")
    if not isinstance(found.get("tasks"), str):
        raise ConfigError(f'{path} names no "tasks"', remedy="write a JSONL file of tasks and name it there; " + REMEDY)
    steps = found.get("steps", 8)
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"{path}: steps is {steps!r}", remedy="a whole number from 1 up")
    tools = [
        tool
        for number, each in enumerate(found["tools"])
        for tool in _tools(each, path.parent, f"{path}: tools[{number}]")
    ]
    return ToolsConfig(tools=tools, tasks=path.parent / found["tasks"], steps=steps)


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


# --- functions of the user's ---


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
    """A function of a Python file. Raises ConfigError where it cannot be had."""
    if not file.is_file():
        raise ConfigError(f"{where}: there is no file {file}", remedy="paths are relative to the file that names them")
    spec = importlib.util.spec_from_file_location(f"openclaw_rl_tools_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # it is anyone's code, and its author is told how it failed
        raise ConfigError(f"{where}: {file} fails with {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{where}: {file} has no function {name}")
    return typing.cast("Callable[..., Any]", function)


def _schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The JSON schema that a signature means."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    properties = {name: {"type": _TYPES[hints[name]]} if hints.get(name) in _TYPES else {} for name in parameters}
    required = [name for name, each in parameters.items() if each.default is inspect.Parameter.empty]
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
    """The tools of a server, or those of them that are named."""
    server = read_server(given, folder, where, REMEDY)
    offered = {tool.name: tool for tool in server.tools()}
    wanted = given.get("tools", list(offered))
    if lacking := [name for name in wanted if name not in offered]:
        raise ConfigError(f"{where}: {server.shown} has no tool {lacking[0]}", remedy=f"it has: {', '.join(offered)}")
    return [OwnTool(tool=offered[name], carry_out=_through(server, name)) for name in wanted]


def _through(server: McpServer, name: str) -> Carry:
    return lambda arguments: server.call(name, arguments)
