"""The serving loop: loads each new live version. Replies are generated in the API."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Final, Protocol

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from openclaw_rl.errors import BackendDown, BackendError, ConfigError, FatalRequest, NotInLedger
from openclaw_rl.ports import Policy, ReportsOutage, ReportsRunner, SupportsVersions
from openclaw_rl.serve.request import ApiError, error_shape
from openclaw_rl.serve.sse import dumps
from openclaw_rl.types import Json, Version

log = logging.getLogger(__name__)

RETRY = 60.0
"""seconds before a version that could not be loaded is tried again"""


class VersionSource(Protocol):
    """The recorded versions, numbered consecutively."""

    def live(self, user: str | None = None) -> Version | None: ...

    def versions(self) -> list[Version]: ...

    def version(self, number: int) -> Version: ...

    def ancestors(self, version: Version) -> Iterable[Version]: ...


class ServeLoop:
    """Keeps the policy on the newest live version; requests in flight finish on the version they began with.

    If the live version cannot be loaded, its nearest loadable ancestor answers instead: turns record the version that
    answered them, and `status` reports the difference. The live version is tried again every `RETRY` seconds, unless
    it killed the engine. A policy that supports versions receives every version in the ledger, so that each can be
    requested by its number, even from before a restart.
    """

    name = "serve"

    def __init__(
        self,
        policy: Policy,
        versions: VersionSource,
        *,
        alarms: Callable[[], list[dict[str, Json]]] = list,
        busy: Callable[[], bool] = lambda: False,
        load: Callable[[], Mapping[str, float]] = dict,
        url: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._knowing = policy if isinstance(policy, SupportsVersions) else None
        self._alarms = alarms
        self._busy = busy
        self._load_now = load
        self._url = url
        self._versions = versions
        self._clock = clock
        self._newest: int | None = None
        self._unloadable: tuple[int, str] | None = None
        self._retry_at = 0.0

    async def tick(self) -> int:
        """Load the live version if it changed; return 1 if another version was loaded, else 0."""
        unknown, live = await asyncio.to_thread(self._look)
        for version in unknown:
            assert self._knowing is not None
            self._knowing.know(version)
            self._newest = version.number
        return await self._take_up(live)

    def _look(self) -> tuple[list[Version], Version | None]:
        """Return the versions that are new to the policy, and the live one, in a single visit to the ledger."""
        return self._unknown_versions() if self._knowing is not None else [], self._versions.live()

    async def _take_up(self, version: Version | None) -> int:
        if version is None or version.number == self._policy.live:
            self._unloadable = None
            return 0
        if self._unloadable is not None and self._unloadable[0] == version.number and self._clock() < self._retry_at:
            return 0
        error = await self._load(version)
        if error is None:
            self._unloadable = None
            return 1
        self._unloadable = (version.number, error.what)
        self._retry_at = math.inf if isinstance(error, FatalRequest) else self._clock() + RETRY
        for older in await asyncio.to_thread(self._before, version):
            if older.number == self._policy.live:
                return 0  # the current version is the nearest loadable one
            if await self._load(older) is None:
                return 1
        return 0

    def _before(self, version: Version) -> list[Version]:
        """Return the versions that it was trained from, which were live before it, newest first."""
        return [older for older in self._versions.ancestors(version) if older.state != "deleted"]

    async def _load(self, version: Version) -> BackendError | None:
        """Load a version and return its error, None on success; raise BackendDown, which no version causes."""
        before = self._policy.live
        try:
            await self._policy.load(version)
        except BackendDown:
            raise
        except BackendError as error:
            log.error("version not loaded version=%d: %s", version.number, error)
            return error
        log.info("loaded version=%d before=%d", version.number, before)
        return None

    async def status(self) -> Mapping[str, Json]:
        """Return the status: alarms for an outage, for a live version that cannot be loaded, and for lost turns.

        ``busy`` signals other processes that a caller waits for a reply, ``load`` the number of requests and tokens.
        ``url`` is the address, ``runner`` the way the model is run, if the policy reports it.
        """
        alarms = self._alarms()
        if isinstance(self._policy, ReportsOutage) and self._policy.outage:
            remedy = "see the log; it is tried again automatically, and at once by 'openclaw-rl rollback'"
            alarms.append({"what": self._policy.outage, "remedy": remedy})
        if self._unloadable is not None:
            number, why = self._unloadable
            what = f"version {number} is live but cannot be loaded, version {self._policy.live} answers: {why}"
            alarms.append({"what": what, "remedy": "restore its folder, or 'openclaw-rl rollback'"})
        runner = self._policy.runner if isinstance(self._policy, ReportsRunner) else None
        facts = {"runner": runner, "url": self._url(), "load": dict(self._load_now())}
        return {"alarms": alarms, "busy": self._busy(), **{name: value for name, value in facts.items() if value}}

    def _unknown_versions(self) -> list[Version]:
        """Return the versions that are new to the policy, oldest first: all of them once, then the later ones."""
        if self._newest is None:
            return self._versions.versions()
        versions: list[Version] = []
        while True:
            try:
                versions.append(self._versions.version(self._newest + len(versions) + 1))
            except NotInLedger:
                return versions


# Short garbage collections: thousands of open streams are objects that Python would traverse again and again.
#
# A full collection stops every reply in the process. With 5,000 idle streams one took up to three seconds; none of the
# objects that it traverses is garbage, since a stream that ends is freed at once.

LONGEST: Final = 0.05
"""maximum seconds for a full collection; after a longer one its survivors are not traversed again"""


class ShortCollections:
    """Excludes the survivors of a long full collection from the next ones, until half of the connections are closed."""

    def __init__(self, connections: Sized, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._connections = connections
        self._clock = clock
        self._began = 0.0
        self._frozen_with: int | None = None

    def begin(self) -> None:
        """Start watching this process's collections."""
        gc.callbacks.append(self._watch)

    def end(self) -> None:
        """Stop watching, and make all objects collectable again. Safe to call twice."""
        if self._watch in gc.callbacks:
            gc.callbacks.remove(self._watch)
            self._thaw()

    def connection_closed(self) -> None:
        """Make all objects collectable again once half of the connections are closed: some may be garbage now."""
        if self._frozen_with is not None and len(self._connections) * 2 <= self._frozen_with:
            self._thaw()

    def _watch(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began > LONGEST:
            gc.freeze()
            self._frozen_with = max(len(self._connections), self._frozen_with or 0)

    def _thaw(self) -> None:
        if self._frozen_with is not None:
            self._frozen_with = None
            gc.unfreeze()


# The socket: the addresses that may be bound without a key, and a server that stops properly.
#
# Each connection is an open file, and a process without a free file cannot write its ledger. So the server accepts
# fewer connections than it may open files, and refuses requests on further connections with 503.

RESERVED_FILES: Final = 256
"""open files reserved for the ledger, for child processes, and for connections that are being refused"""
CONNECTIONS: Final = 768
"""maximum connections if a process may open 1,024 files, the default on most systems"""
REFUSED_AT_ONCE: Final = 64
"""connections beyond the limit whose request is read and then refused; further connections are closed at once"""
ALWAYS_ANSWERED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""paths answered beyond the limit: a server without room must not be stopped and restarted"""


def refuse_open_listener(host: str, keys: Mapping[str, str]) -> None:
    """Raise ConfigError if the host is reachable from outside and there is no key."""
    if keys or is_loopback(host):
        return
    raise ConfigError(
        f"serve.host = {host!r} is reachable from outside and there is no key",
        remedy="set OPENCLAW_API_KEY or serve.keys_file, or listen on 127.0.0.1",
    )


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ConfigError with the remedy if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}", remedy="choose another with --port, or --port 0"
        ) from error
    listener.listen(2048)
    return listener


async def refuse_connection(scope: Scope, _: Receive, send: Send) -> None:
    """Answer 503: this process has its maximum of connections open."""
    message = (
        "this server has as many connections as it can; try again later, or raise its limit of open files (ulimit -n)"
    )
    shape = error_shape(scope["path"])
    body = dumps(shape(ApiError(status=503, message=message, code="too_many_connections"))).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), "retry-after": "5"}
    raw = [(name.encode(), value.encode()) for name, value in {**head, "connection": "close"}.items()]
    await send({"type": "http.response.start", "status": 503, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def timed_head_protocol(
    seconds: float, head_bytes: int, connections: int, closed: Callable[[], None]
) -> type[HttpToolsProtocol]:
    """Return a connection protocol that limits a request's head to ``seconds`` and ``head_bytes``.

    The API times the request's remainder, but sees a request only once its head is complete. Requests beyond this many
    ``connections`` at once are refused. ``closed`` is called at the end of each connection.
    """

    class TimedHeadProtocol(HttpToolsProtocol):
        _waiting: asyncio.TimerHandle | None = None
        _read = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections + REFUSED_AT_ONCE:
                transport.abort()
                return
            self._wait()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait()

        def on_headers_complete(self) -> None:
            self._head_done()
            if len(self.connections) > connections and self.url.split(b"?")[0].decode("latin-1") not in ALWAYS_ANSWERED:
                self.app = refuse_connection
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_done()
            super().connection_lost(exc)
            closed()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._waiting is not None:
                self._read += len(data)
                if self._read > head_bytes:
                    self._refuse("431 Request Header Fields Too Large")

        def _wait(self) -> None:
            if self._waiting is None:
                self._read = 0
                self._waiting = self.loop.call_later(seconds, self._refuse, "408 Request Timeout")

        def _head_done(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _refuse(self, status: str) -> None:
            self._head_done()
            self.transport.write(f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
            self.transport.close()

    return TimedHeadProtocol


class _SignalFreeServer(uvicorn.Server):
    """uvicorn without its signal handling, which is the runner's task."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """The HTTP server on a bound socket. A request's head is limited to ``head_seconds`` and ``head_bytes``.

    At most ``connections`` are open at once, which should leave the process `RESERVED_FILES`.
    """

    def __init__(
        self,
        api: Any,
        listener: socket.socket,
        *,
        grace: float,
        head_seconds: float,
        head_bytes: int,
        connections: int = CONNECTIONS,
    ) -> None:
        settings = uvicorn.Config(
            api,
            http=timed_head_protocol(head_seconds, head_bytes, connections, lambda: self._pauses.connection_closed()),
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(grace)),
            timeout_keep_alive=75,
            server_header=False,
        )
        self._server = _SignalFreeServer(settings)
        self._pauses = ShortCollections(self._server.server_state.connections)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        host, port = listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    async def begin(self) -> None:
        """Start serving; return once requests are answered."""
        self._pauses.begin()
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise ConfigError("the API server failed to start; see its log")
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Accept no more requests, let streams finish, close. Safe to call twice."""
        self._server.should_exit = True
        self._pauses.end()
        if self._task is not None:
            await self._task
