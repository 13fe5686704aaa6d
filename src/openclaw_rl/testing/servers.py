"""The API on a free port of this machine, for the length of a block, and readers of its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette

from openclaw_rl.app.factories import build_generation, build_limits, build_outright, build_recording
from openclaw_rl.config import Config
from openclaw_rl.serve import RequestLimits, build_app
from openclaw_rl.serve.control import SubmitsControl
from openclaw_rl.serve.deletion import DeletesSession
from openclaw_rl.serve.notes import StandingNotes
from openclaw_rl.serve.rules import AccessRules
from openclaw_rl.testing.ledgers import MemoryLedger
from openclaw_rl.testing.policies import ScriptedPolicy


class RunningServer:
    """A server that runs, with a client of it, its policy and its ledger at hand."""

    def __init__(self, policy: Any, ledger: Any, url: str, app: Any) -> None:
        self.policy = policy
        self.ledger = ledger
        self.url = url
        self.app = app
        self._clients: list[httpx2.Client] = []
        self._client = self.client()

    def client(self, **headers: str) -> httpx2.Client:
        """One more client, with headers of its own; it is closed with the server at the latest."""
        self._clients.append(httpx2.Client(base_url=self.url, headers=headers, timeout=30, verify=False))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """POST as JSON (bytes as they are); ``x_session_id="s"`` is the header X-Session-Id."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._client.post(path, content=content, headers={"content-type": "application/json", **_names(headers)})

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self._client.get(path, headers=_names(headers))

    def chat(self, text: str = "hi", *, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        """A chat completion of one user message; ``fields`` are the request's own."""
        body = {"model": "toy", "messages": [{"role": "user", "content": text}], **fields}
        return self._client.post("/v1/chat/completions", json=body, headers=headers or {})


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def request_limits(**changes: Any) -> RequestLimits:
    """The limits of a server with the settings' defaults, but for ``changes``.

    >>> request_limits(messages=3).messages
    3
    """
    return replace(build_limits(Config()), **changes)


def fake_api(
    policy: Any,
    ledger: Any,
    *,
    limits: RequestLimits | None = None,
    notes: StandingNotes | None = None,
    control: SubmitsControl | None = None,
    delete: DeletesSession | None = None,
    health: Callable[[], Mapping[str, Any]] = dict,
    **options: Any,
) -> Starlette:
    """The API with the settings' defaults, but without redaction.

    ``options`` change fields of `AccessRules`, `GenerationRules`, `RecordingRules` and `OutrightRules`.
    """
    config = Config()
    access = AccessRules(keys={}, own_keys={}, admins=(), cors_origins=())
    recording = replace(build_recording(config), redact=None)
    rules: list[Any] = [access, build_generation(config, policy, None), recording, build_outright(config)]
    known = [{name: options.pop(name) for name in group.__slots__ if name in options} for group in rules]
    assert not options, f"no rule is called {', '.join(options)}"
    access, generation, recording, outright = (
        replace(group, **given) for group, given in zip(rules, known, strict=True)
    )
    return build_app(
        policy=policy,
        ledger=ledger,
        access=access,
        limits=limits or request_limits(),
        generation=generation,
        recording=recording,
        outright=outright,
        notes=notes,
        control=control,
        delete=delete,
        health=health,
    )


@contextlib.contextmanager
def serving(policy: Any = None, *, ledger: Any = None, **options: Any) -> Iterator[RunningServer]:
    """The API over ``policy`` and ``ledger`` (a `ScriptedPolicy` and a `MemoryLedger`); ``options`` to `fake_api`.

    >>> with serving(ScriptedPolicy("Tea is a plant.")) as server:
    ...     answer = server.chat("Tell me about tea").json()
    ...     server.ledger.wait_for_turns(1)
    >>> answer["choices"][0]["message"]["content"]
    'Tea is a plant.'
    >>> server.ledger.last.id == answer["id"]
    True
    """
    policy = policy or ScriptedPolicy()
    ledger = ledger or MemoryLedger()
    app = fake_api(policy, ledger, **{"limits": request_limits(hold_seconds=5.0), **options})
    with listening(app) as url, contextlib.closing(RunningServer(policy, ledger, url, app)) as server:
        yield server


class _PromptServer(uvicorn.Server):
    """Ends within milliseconds of being told, where uvicorn looks ten times a second: a suite stops hundreds."""

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def listening(app: Any, *, port: int = 0, abrupt: bool = False) -> Iterator[str]:
    """Any ASGI app on a port of this machine (0: a free one), in a thread; its URL.

    With ``abrupt`` it ends without waiting for requests that are under way.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    server = _PromptServer(
        uvicorn.Config(app, interface="asgi3", log_config=None, access_log=False, timeout_graceful_shutdown=5)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit, server.force_exit = True, abrupt
        thread.join(timeout=10)
        listener.close()


def sse_events(text: str) -> list[tuple[str | None, Any]]:
    r"""The server-sent events in ``text``: name and data, JSON read; comments left out.

    >>> sse_events('event: delta\ndata: {"a": 1}\n\n: still there\n\ndata: [DONE]\n\n')
    [('delta', {'a': 1}), (None, '[DONE]')]
    """
    found: list[tuple[str | None, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


def chat_chunks(text: str) -> Sequence[Any]:
    """The chunks of a streamed chat completion, which must end with [DONE]."""
    found = [data for _, data in sse_events(text)]
    assert found[-1] == "[DONE]"
    return found[:-1]
