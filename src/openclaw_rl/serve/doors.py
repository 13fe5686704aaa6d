"""Who may come in, and how many at once."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from types import TracebackType
from urllib.parse import SplitResult, urlsplit

from openclaw_rl.errors import NotAllowed, RequestError, TooMany
from openclaw_rl.serve.asked import Limits
from openclaw_rl.serve.metrics import Metrics

OPEN_USER = "local"
"""who everybody is where no keys are set"""

Headers = Mapping[str, str]


def headers_of(raw: Collection[tuple[bytes, bytes]], limit: int) -> dict[str, str]:
    """Headers by lower-case name; too many bytes of them are refused."""
    if sum(len(name) + len(value) for name, value in raw) > limit:
        raise RequestError(f"the headers are larger than {limit} bytes", status=431)
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


class Keys:
    """Knows a user by the key; compares in constant time.

    A user called ``env:NAME`` is an environment: only whoever writes the keys can make one. ``own`` are the keys of
    environments that this process runs itself; they open the door to them and close it to nobody.
    """

    def __init__(self, keys: Mapping[str, str], own: Mapping[str, str] | None = None) -> None:
        self._keys = [(key.encode(), user) for key, user in {**keys, **(own or {})}.items()]
        self.open = not keys

    def user(self, headers: Headers) -> str:
        given = _given_key(headers).encode("latin-1")
        found = None
        for key, user in self._keys:  # all of them, so that time tells nothing
            if hmac.compare_digest(key, given):
                found = user
        if found is None and self.open:
            return OPEN_USER
        if found is None:
            what = "this key is not known" if given else "a key is needed"
            raise NotAllowed(what, remedy="send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        return found


def _given_key(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip()


def refuse_foreign_page(headers: Headers, origins: Collection[str]) -> None:
    """Without keys, a web page that the user happens to visit must not reach the server through the browser."""
    host = headers.get("host", "")
    name = _split("host", f"//{host}").hostname or ""
    if not _is_here(name):
        raise RequestError(f"no key is set, so only loopback names are served, not {name!r}", status=403)
    origin = headers.get("origin")
    if origin is None or origin in origins or _split("origin", origin).netloc == host:
        return
    raise RequestError("this origin is not allowed", status=403, remedy="name it in the CORS origins or set a key")


def _split(header: str, address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise RequestError(f"the {header} header is no address: {error}", field=header) from error


def _is_here(name: str) -> bool:
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Crowd:
    """The requests of one user: some are answered, some wait in line, the rest are sent away."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._running = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._limits = limits
        self._metrics = metrics

    def check(self) -> None:
        """Raises TooMany if neither a place nor room in the line is left."""
        full = self._running >= self._limits.streams_per_key
        if full and len(self._line) >= self._limits.queue_per_key:
            raise TooMany(
                f"{self._running} requests of this key are running and {len(self._line)} are waiting",
                remedy="wait and try again",
            )

    async def __aenter__(self) -> None:
        self.check()
        if self._running < self._limits.streams_per_key:
            self._running += 1
        else:
            await self._wait()
        self._metrics.running.inc()

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._metrics.waiting.inc()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # the place came at the same moment: hand it on
            elif place in self._line:
                self._line.remove(place)
            raise
        finally:
            self._metrics.waiting.dec()

    def _leave(self) -> None:
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)  # the place passes to the next in line
                return
        self._running -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.running.dec()
        self._leave()


class Recent:
    """A mapping of a user's sessions that forgets what was not used for the longest time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()

    def get(self, key: tuple[str, str]) -> str | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: tuple[str, str], value: str) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
