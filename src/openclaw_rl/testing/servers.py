"""The API on a free local port for a block's duration, and readers of its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette

from openclaw_rl.app.application import App, ledger_place
from openclaw_rl.app.factories import build_generation, build_inline_feedback, build_limits, build_recording
from openclaw_rl.config import Config, load
from openclaw_rl.serve import RequestLimits, build_app
from openclaw_rl.serve.control import DeletesSession, SubmitsControl
from openclaw_rl.serve.notes import StandingNotes
from openclaw_rl.serve.redact import AccessRules
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing.ledgers import MemoryLedger
from openclaw_rl.testing.policies import ScriptedPolicy
from openclaw_rl.testing.rows import PATIENCE
from openclaw_rl.views import status as views


class RunningServer:
    """A running server with its client, policy and ledger."""

    def __init__(self, policy: Any, ledger: Any, url: str, app: Any) -> None:
        self.policy = policy
        self.ledger = ledger
        self.url = url
        self.app = app
        self._clients: list[httpx2.Client] = []
        self._client = self.client()

    def client(self, **headers: str) -> httpx2.Client:
        """Open another client, with its own headers; it is closed with the server at the latest."""
        self._clients.append(httpx2.Client(base_url=self.url, headers=headers, timeout=30, verify=False))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """POST as JSON (bytes unchanged); ``x_session_id="s"`` is the header X-Session-Id."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._client.post(path, content=content, headers={"content-type": "application/json", **_names(headers)})

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self._client.get(path, headers=_names(headers))

    def chat(self, text: str = "hi", *, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        """Request a chat completion of one user message; ``fields`` are the request's own."""
        body = {"model": "toy", "messages": [{"role": "user", "content": text}], **fields}
        return self._client.post("/v1/chat/completions", json=body, headers=headers or {})


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def request_limits(**changes: Any) -> RequestLimits:
    """Return the limits of a server with default settings, except for ``changes``.

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
    """Build the API with default settings, but without redaction.

    ``options`` change fields of `AccessRules`, `GenerationRules`, `RecordingRules` and `InlineFeedbackRules`.
    """
    config = Config()
    access = AccessRules(keys={}, own_keys={}, admins=(), cors_origins=())
    recording = replace(build_recording(config), redact=None)
    rules: list[Any] = [access, build_generation(config, policy, None), recording, build_inline_feedback(config)]
    changes = [{name: options.pop(name) for name in group.__slots__ if name in options} for group in rules]
    assert not options, f"no rule is called {', '.join(options)}"
    access, generation, recording, inline_feedback = (
        replace(group, **fields) for group, fields in zip(rules, changes, strict=True)
    )
    return build_app(
        policy=policy,
        ledger=ledger,
        access=access,
        limits=limits or request_limits(),
        generation=generation,
        recording=recording,
        inline_feedback=inline_feedback,
        notes=notes,
        control=control,
        delete=delete,
        health=health,
    )


@contextlib.contextmanager
def serving(policy: Any = None, *, ledger: Any = None, **options: Any) -> Iterator[RunningServer]:
    """Serve the API over ``policy`` and ``ledger`` (by default fakes); ``options`` are those of `fake_api`.

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
    """Stops within milliseconds of the request, where uvicorn checks ten times a second: a suite stops hundreds."""

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def listening(app: Any, *, port: int = 0, abrupt: bool = False) -> Iterator[str]:
    """Serve any ASGI app on a local port (0: a free one), in a thread; yield its URL.

    With ``abrupt`` it ends without waiting for running requests.
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
    r"""Return the server-sent events in ``text``: name and data, with JSON parsed and comments left out.

    >>> sse_events('event: delta\ndata: {"a": 1}\n\n: still there\n\ndata: [DONE]\n\n')
    [('delta', {'a': 1}), (None, '[DONE]')]
    """
    events: list[tuple[str | None, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return events


def chat_chunks(text: str) -> Sequence[Any]:
    """Return the chunks of a streamed chat completion, which must end with [DONE]."""
    chunks = [data for _, data in sse_events(text)]
    assert chunks[-1] == "[DONE]"
    return chunks[:-1]


# The whole application on fakes: ticked by hand, or running on a free port.

FAKES = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules", "store.sync=normal")
"""settings that need no weights and no endpoint"""


def fake_config(root: Path, *settings: str) -> Config:
    """Return the configuration of a run in ``root`` on fakes, with ``settings`` in the format of ``--set``.

    >>> fake_config(Path("run"), "train.batch_size=2").train.batch_size
    2
    """
    return load(environ={}, sets=[f"run.dir={root}", *FAKES, *settings]).config


class RunningApp:
    """The application, a client of its API, and its ledger for reading."""

    def __init__(self, app: App, client: httpx2.AsyncClient, ledger: LedgerReader) -> None:
        self.app, self.client, self.ledger = app, client, ledger

    async def ask(self, *contents: str, headers: Mapping[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """Request a chat completion of alternating user and assistant messages; ``fields`` are the request's own."""
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
        body = {"model": "fake", "messages": messages, **fields}
        response = await self.client.post("/v1/chat/completions", json=body, headers=dict(headers or {}))
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def show(self, turn: str) -> dict[str, Any]:
        """Return everything that the ledger holds on a turn, as ``openclaw-rl turn`` shows it."""
        return views.turn(self.ledger, turn)


@asynccontextmanager
async def ticking_app(root: Path, *settings: str) -> AsyncIterator[RunningApp]:
    """Start the application without a port: it acts only in `App.tick` or `App.finish`, so a test never waits.

    >>> import tempfile
    >>> from openclaw_rl.versions import LiveVersions
    >>> async def correct(root):
    ...     async with ticking_app(Path(root), "train.batch_size=1") as run:
    ...         first = await run.ask("Tell me about tea")
    ...         reply = first["choices"][0]["message"]["content"]
    ...         await run.ask("Tell me about tea", reply, "Too long. Please keep it under 30 words.")
    ...         await run.app.finish()
    ...         return run.show(first["id"])["verdict"]["score"], LiveVersions(run.ledger).live().number
    >>> with tempfile.TemporaryDirectory() as root:
    ...     asyncio.run(correct(root))
    (-1.0, 1)
    """
    app = App(fake_config(root, *settings))
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app.api), base_url="http://localhost", verify=False)
    async with app.started(), client:
        with LedgerReader(ledger_place(app.config)) as ledger:
            yield RunningApp(app, client, ledger)


@asynccontextmanager
async def running_app(root: Path, *settings: str) -> AsyncIterator[RunningApp]:
    """Run the application on a free port with all its loops, as ``openclaw-rl up`` does; stop it after the block.

    >>> import tempfile
    >>> async def live(root):
    ...     async with running_app(Path(root)) as run:
    ...         return (await run.client.get("/healthz")).status_code
    >>> with tempfile.TemporaryDirectory() as root:
    ...     asyncio.run(live(root))
    200
    """
    app, stop = App(fake_config(root, "serve.port=0", "run.poll=0.01", *settings)), asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(app.run(stop, listening=address.set_result))
    async with httpx2.AsyncClient(base_url=(await address).removesuffix("/v1"), timeout=30, verify=False) as client:
        with LedgerReader(ledger_place(app.config)) as ledger:
            try:
                yield RunningApp(app, client, ledger)
            finally:
                stop.set()
                async with asyncio.timeout(PATIENCE):
                    await running
