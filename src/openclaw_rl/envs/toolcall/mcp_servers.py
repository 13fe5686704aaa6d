"""Tools of MCP servers, through the official SDK (`pip install mcp`): a local program, or an address.

Each event loop has one connection per server, which all its episodes share: servers that keep state between calls are
unsuitable.
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
"""most seconds for a server to start, and for one call"""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server's location: a ``url``, or a ``command`` that starts in ``folder`` and uses its pipes."""

    url: str | None
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    folder: Path

    def client(self) -> Any:
        """Return a client that is not connected yet; raise ConfigError if the SDK is missing."""
        try:
            from mcp import Client, StdioServerParameters
        except ImportError as error:
            raise ConfigError("tools of MCP servers need the package mcp", remedy="pip install mcp") from error
        if self.url is not None:
            return Client(self.url)
        program, *words = self.command
        return Client(StdioServerParameters(command=program, args=words, env=dict(self.env), cwd=self.folder))

    def tools(self) -> list[Tool]:
        """Return the server's tools; raise ConfigError if it is unreachable."""
        try:
            return list(_apart(asyncio.wait_for(self._listed(), SECONDS)))
        except ConfigError:
            raise
        except Exception as error:  # third-party program; the message shows its owner the failure
            raise ConfigError(f"the MCP server {self.shown} cannot be queried: {_said(error)}") from error

    async def _listed(self) -> list[Tool]:
        async with self.client() as client:
            listing = (await client.list_tools()).tools
        return [
            Tool(name=tool.name, description=tool.description or "", parameters=tool.input_schema) for tool in listing
        ]

    @property
    def shown(self) -> str:
        return self.url or " ".join(self.command)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a result's text; raise ConnectionError if the server is unreachable, ValueError if it refuses."""
        return await _connection(self).call(name, dict(arguments))


@dataclass(slots=True)
class _HeldServer:
    """A server's connection in one event loop: one task opens and closes it, as the SDK requires."""

    server: McpServer
    _calls: asyncio.Queue[tuple[str, dict[str, Any], asyncio.Future[Any]]] = field(default_factory=asyncio.Queue)
    _working: asyncio.Task[None] | None = None

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._calls.put((name, arguments, answer))
        result = await asyncio.wait_for(answer, SECONDS)
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None))
        if result.is_error:
            raise ValueError(text or "it failed")
        return text

    async def _work(self) -> None:
        answer: asyncio.Future[Any] | None = None
        try:
            async with self.server.client() as client:
                while True:
                    name, arguments, answer = await self._calls.get()
                    result = await client.call_tool(name, arguments)
                    if not answer.done():
                        answer.set_result(result)
        except Exception as error:  # waiting callers receive the error; the next call reconnects
            waiting = [answer] if answer is not None else []
            while not self._calls.empty():
                waiting.append(self._calls.get_nowait()[2])
            for pending in waiting:
                if not pending.done():
                    pending.set_exception(ConnectionError(f"the MCP server {self.server.shown} failed: {_said(error)}"))


_connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[McpServer, _HeldServer]] = (
    weakref.WeakKeyDictionary()
)


def _connection(server: McpServer) -> _HeldServer:
    return _connections.setdefault(asyncio.get_running_loop(), {}).setdefault(server, _HeldServer(server))


def read_server(given: Mapping[str, Any], folder: Path, where: str, remedy: str) -> McpServer:
    """Read a server's configuration; raise ConfigError if a part is missing."""
    url, command = given.get("url"), given.get("command")
    if (url is None) == (command is None):
        raise ConfigError(f'{where} needs "url" or "command"', remedy=remedy)
    words: Sequence[Any] = [] if command is None else [command, *given.get("args", ())]
    if not all(isinstance(word, str) for word in (*words, *filter(None, [url]))):
        raise ConfigError(f"{where}: url, command and args are texts", remedy=remedy)
    env = tuple(sorted((str(key), str(value)) for key, value in given.get("env", {}).items()))
    return McpServer(url=url, command=tuple(words), env=env, folder=folder)


def _apart(work: Any) -> Any:
    """Run a coroutine to its end in a thread with its own event loop, since one may be running here."""
    results: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:  # raised again in the caller
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return results[0]


def _said(error: BaseException) -> str:
    """Return the first innermost error of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
