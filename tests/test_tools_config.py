"""Tools behind an address or an MCP server: a real server answers, and one that is away is nobody's fault."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from openclaw_rl.envs.toolcall.env import ToolCallEnv, toolcall
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.types import Message, ToolCall

pytestmark = pytest.mark.anyio
ITEM = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TASK = {"prompt": "How many nails are there?", "check": "number", "answer": 12}


class Stock(BaseHTTPRequestHandler):
    """Says how many there are; ``broken`` things it cannot count."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._say(body["item"])

    def do_GET(self) -> None:
        self._say(parse_qs(urlsplit(self.path).query)["item"][0])

    def _say(self, item: str) -> None:
        self.send_response(503 if item == "broken" else 404 if item == "unknown" else 200)
        self.end_headers()
        self.wfile.write(f"{self.command} {item}: 12, for {self.headers.get('x-shop')}".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing of it is for the test's output."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stock)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/stock"
    server.shutdown()
    thread.join()
    server.server_close()


def made(folder: Path, *tools: dict[str, Any]) -> ToolCallEnv:
    (folder / "tasks.jsonl").write_text(json.dumps(TASK) + "\n")
    (folder / "tools.json").write_text(json.dumps({"tools": tools, "tasks": "tasks.jsonl"}))
    given: dict[str, Any] = {
        "form": "tools",
        "examples": None,
        "levels": (),
        "per_level": 1,
        "output_chars": 400,
        "step_votes": False,
    }
    return toolcall(tools_config=folder / "tools.json", **given)


def ask(name: str, item: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c", name=name, arguments=json.dumps({"item": item})),))


async def begun(env: ToolCallEnv) -> ToolCallEnv:
    await env.reset("tasks/1", seed=0)
    return env


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_address_is_asked_and_what_it_says_is_the_next_state(
    tmp_path: Path, address: str, method: str
) -> None:
    tool = {"type": "http", "name": "stock", "url": address, "parameters": ITEM, "method": method}
    env = await begun(made(tmp_path, {**tool, "headers": {"x-shop": "north"}}))
    seen = await env.step(ask("stock", "nails"))
    assert [message.content for message in seen.messages] == [f"{method} nails: 12, for north"]
    assert (await env.step(ask("stock", "unknown"))).messages[0].content.startswith(f"{method} unknown"), "404 is said"
    assert (await env.step(Message(role="assistant", content="There are 12."))).reward == 1.0


async def test_an_address_that_is_broken_or_away_fails_the_episode_and_trains_nothing(
    tmp_path: Path, address: str
) -> None:
    tool = {"type": "http", "name": "stock", "url": address, "parameters": ITEM}
    with pytest.raises(EnvFailed, match="tool stock failed: .* answers 503"):
        await (await begun(made(tmp_path, tool))).step(ask("stock", "broken"))
    (tmp_path / "away").mkdir()
    away = made(tmp_path / "away", {**tool, "url": "http://127.0.0.1:9/stock"})
    with pytest.raises(EnvFailed, match="tool stock failed: http://127.0.0.1:9/stock"):
        await (await begun(away)).step(ask("stock", "nails"))


SERVER = '''
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
server = MCPServer("stock")
@server.tool()
def count(item: str) -> str:
    """How many of an item there are."""
    if item == "unknown":
        raise ToolError("nobody sells that")
    return f"{item}: 12"
@server.tool()
def order(item: str) -> str:
    """Order an item."""
    return "ordered"
server.run()
'''


@pytest.mark.slow
async def test_the_tools_of_an_mcp_server_are_offered_and_called(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="pip install mcp")
    (tmp_path / "server.py").write_text(SERVER)
    server = {"type": "mcp", "command": sys.executable, "args": ["server.py"]}
    env = made(tmp_path, {**server, "tools": ["count"]})
    prompt = await env.reset("tasks/1", seed=0)
    [tool] = prompt.tools
    assert (tool.name, tool.description) == ("count", "How many of an item there are.")
    assert (await env.step(ask("count", "nails"))).messages[0].content == "nails: 12"
    assert "nobody sells that" in (await env.step(ask("count", "unknown"))).messages[0].content
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"has no tool sell; it has: count, order|it has: count, order"):
        made(tmp_path / "other", {**server, "args": ["../server.py"], "tools": ["sell"]})


def test_an_mcp_server_is_a_command_or_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='needs "url" or "command"'):
        made(tmp_path, {"type": "mcp"})
