"""Tools of MCP servers, through the official SDK (`pip install mcp`): a program that is started, or an address.

One connection to a server is kept for each event loop, and all episodes of it share the server: one that remembers
what it was asked is not for them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Tool

SECONDS = 60.0
"""how long a server may take to begin, and for one call"""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Where a server is: a ``url``, or a ``command`` that is started in ``folder`` and speaks over its pipes."""

    url: str | None
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    folder: Path

    def client(self) -> Any:
        """A client of it, not connected yet. Raises ConfigError where the SDK is missing."""
        try:
            from mcp import Client, StdioServerParameters
        except ImportError as error:
            raise ConfigError("tools of MCP servers need the package mcp", remedy="pip install mcp") from error
        if self.url is not None:
            return Client(self.url)
        program, *words = self.command
        return Client(StdioServerParameters(command=program, args=words, env=dict(self.env), cwd=self.folder))

    def tools(self) -> list[Tool]:
        """What it offers. Raises ConfigError where it cannot be reached."""
        try:
            return list(_apart(asyncio.wait_for(self._listed(), SECONDS)))
        except ConfigError:
            raise
        except Exception as error:  # it is anyone's program, and its owner is told how it failed
            raise ConfigError(f"the MCP server {self.shown} cannot be asked: {_said(error)}") from error

    async def _listed(self) -> list[Tool]:
        async with self.client() as client:
            found = (await client.list_tools()).tools
        return [Tool(name=one.name, description=one.description or "", parameters=one.input_schema) for one in found]

    @property
    def shown(self) -> str:
        return self.url or " ".join(self.command)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of a result. Raises ConnectionError where the server is away, ValueError where it refuses."""
        return await _connection(self).call(name, dict(arguments))


@dataclass(slots=True)
class _HeldServer:
    """A server as one event loop holds it: a task of its own begins and ends what must be ended where it began."""

    server: McpServer
    _calls: asyncio.Queue[tuple[str, dict[str, Any], asyncio.Future[Any]]] = field(default_factory=asyncio.Queue)
    _working: asyncio.Task[None] | None = None

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._calls.put((name, arguments, answer))
        found = await asyncio.wait_for(answer, SECONDS)
        text = "\n".join(part.text for part in found.content if getattr(part, "text", None))
        if found.is_error:
            raise ValueError(text or "it failed")
        return text

    async def _work(self) -> None:
        answer: asyncio.Future[Any] | None = None
        try:
            async with self.server.client() as client:
                while True:
                    name, arguments, answer = await self._calls.get()
                    found = await client.call_tool(name, arguments)
                    if not answer.done():
                        answer.set_result(found)
        except Exception as error:  # whoever waits is told; the next call begins anew
            waiting = [answer] if answer is not None else []
            while not self._calls.empty():
                waiting.append(self._calls.get_nowait()[2])
            for one in waiting:
                if not one.done():
                    one.set_exception(ConnectionError(f"the MCP server {self.server.shown} failed: {_said(error)}"))


_connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[McpServer, _HeldServer]] = (
    weakref.WeakKeyDictionary()
)


def _connection(server: McpServer) -> _HeldServer:
    return _connections.setdefault(asyncio.get_running_loop(), {}).setdefault(server, _HeldServer(server))


def read_server(given: Mapping[str, Any], folder: Path, where: str, remedy: str) -> McpServer:
    """A server as a configuration names it. Raises ConfigError for what is missing."""
    url, command = given.get("url"), given.get("command")
    if (url is None) == (command is None):
        raise ConfigError(f'{where} needs "url" or "command"', remedy=remedy)
    words: Sequence[Any] = [] if command is None else [command, *given.get("args", ())]
    if not all(isinstance(word, str) for word in (*words, *filter(None, [url]))):
        raise ConfigError(f"{where}: url, command and args are texts", remedy=remedy)
    env = tuple(sorted((str(key), str(value)) for key, value in given.get("env", {}).items()))
    return McpServer(url=url, command=tuple(words), env=env, folder=folder)


def _apart(work: Any) -> Any:
    """Wait for something though an event loop may be running here: in a thread with one of its own."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:  # it is raised again where it was asked for
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _said(error: BaseException) -> str:
    """What went wrong at the bottom of groups of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
