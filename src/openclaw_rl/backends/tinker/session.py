"""A session with the service, through its own SDK: opened when it is needed, opened again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from openclaw_rl.backends.tinker.access import CloudAccess
from openclaw_rl.backends.tinker.sdk import load_sdk
from openclaw_rl.backends.tinker.spending import Spending
from openclaw_rl.backends.tinker.troubles import BillingNotices, SessionLost, too_slow, translated, unpaid
from openclaw_rl.errors import BackendDown, ModelRefused

log = logging.getLogger(__name__)
T = TypeVar("T")

OWN_URL: Final = "https://tinker.thinkingmachines.dev/services/tinker-prod"
_GLANCE: Final = 0.5
"""seconds between two looks at whether the SDK waits for the account to be paid"""
_REACH: Final = 15.0
_FAREWELL: Final = 5.0


class TinkerSession:
    """One session: the samplers made in it, and how to wait for what it is asked. ``spending`` counts its tokens."""

    def __init__(self, access: CloudAccess) -> None:
        self.access = access
        self.spending = Spending(access.run_dir, prices=access.prices, budget=access.budget)
        self._sdk: Any = None
        self._service: Any = None
        self._rest: Any = None
        self._samplers: dict[str | None, Any] = {}
        self._lock = asyncio.Lock()
        self._notices = BillingNotices()

    @property
    def url(self) -> str:
        """Where the service is."""
        return self.access.url or OWN_URL

    @property
    def sdk(self) -> Any:
        """The package; raises where there is none, or one of a release we cannot work with."""
        if self._sdk is None:
            self._sdk = load_sdk()
        return self._sdk

    # --- life

    async def service(self) -> Any:
        """The SDK's client of a session that is open."""
        async with self._lock:
            if self._service is None:
                await self._open()
            return self._service

    async def _open(self) -> None:
        if self.access.key is None:
            raise ModelRefused("there is no key for the service", remedy="set TINKER_API_KEY")
        sdk = self.sdk
        await self._reach()
        self._notices.listen()

        def begin() -> Any:
            service = sdk.ServiceClient(
                user_metadata={"client": "openclaw-rl"}, base_url=self.url, api_key=self.access.key
            )
            return service if service.holder is not None else None  # its holder is what opens a session

        self._service = await self.blocking(begin, "opening a session")
        self._samplers.clear()
        self._rest = None
        log.info("cloud.session url=%s sdk=%s", self.url, sdk.__version__)

    async def _reach(self) -> None:
        """Raise at once where nobody listens: the SDK would try for minutes."""
        place = urlsplit(self.url)
        port = place.port or (443 if place.scheme == "https" else 80)
        try:
            async with asyncio.timeout(_REACH):
                _, writer = await asyncio.open_connection(place.hostname, port)
        except (OSError, TimeoutError) as error:
            why = str(error) or "no answer"
            raise BackendDown(f"cannot reach the service at {self.url}: {why}", remedy="see TINKER_BASE_URL") from error
        writer.close()

    async def reopen(self) -> None:
        """Leave a session that was lost; the next request opens another."""
        async with self._lock:
            service, self._service = self._service, None
            self._samplers.clear()
        if service is not None:
            await _leave(service)

    async def close(self) -> None:
        """End the session. Safe to call twice."""
        await self.reopen()
        self._notices.close()
        if any(self.spending.tokens.values()):
            self.spending.write()

    # --- what is asked

    async def models(self) -> Mapping[str, int | None]:
        """The models that the service has, with the most tokens of each."""
        service = await self.service()
        found = await self.blocking(service.get_server_capabilities, "asking for the models")
        return {each.model_name: getattr(each, "max_context_length", None) for each in found.supported_models}

    async def sampler(self, path: str | None) -> Any:
        """What samples from the weights at ``path``, None for the base model; made once in a session."""
        service = await self.service()
        if path not in self._samplers:
            where = {"base_model": self.access.model} if path is None else {"model_path": path}
            made = await self.blocking(lambda: service.create_sampling_client(**where), "opening a sampler")
            self._samplers.setdefault(path, made)
        return self._samplers[path]

    async def rest(self) -> Any:
        """What gives away and deletes checkpoints; made once in a session."""
        service = await self.service()
        if self._rest is None:
            self._rest = await self.blocking(lambda: self._rest_client(service), "asking for checkpoints")
        return self._rest

    def _rest_client(self, service: Any) -> Any:
        """An older SDK makes it from a session."""
        kind = getattr(self.sdk, "RestClient", None)
        if kind is None or "api_key" not in inspect.signature(kind).parameters:
            return service.create_rest_client()
        return kind(base_url=self.url, api_key=self.access.key)

    async def surviving(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work``, and once more in a new session if the one at hand was lost under it."""
        try:
            return await work()
        except SessionLost as lost:
            log.warning("cloud.lost %s; a new session is opened", lost.what)
            await self.reopen()
            return await work()

    async def blocking(self, work: Callable[[], T], doing: str) -> T:
        """Do what blocks in a thread, for as long as patience lasts."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        return await self._in_time(task, doing)

    async def wait(self, given: Any, doing: str) -> Any:
        """The result of what the SDK has promised; breaking it off tells the service."""
        future = given.future() if hasattr(given, "future") else given
        return await self._in_time(asyncio.wrap_future(future), doing)

    async def _in_time(self, future: asyncio.Future[T], doing: str) -> T:
        began = time.monotonic()
        try:
            while not future.done():
                left = began + self.access.patience - time.monotonic()
                if left <= 0:
                    raise too_slow(doing, self.access.patience)
                if (why := self._notices.take()) is not None:
                    self._service = None  # it would say so once a minute only
                    self._samplers.clear()
                    raise unpaid(f"{doing}: {why}")
                await asyncio.wait({future}, timeout=min(_GLANCE, left))
            return future.result()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise translated(error, doing, key=self.access.key) from error
        finally:
            future.cancel()


async def _leave(service: Any) -> None:
    """Tell the service that the session is over; an older SDK only closes its connections."""

    def end() -> None:
        if hasattr(service, "close"):
            service.close("success").result(timeout=_FAREWELL)
        else:
            service.holder.close()

    with contextlib.suppress(Exception):  # it may be why we leave
        async with asyncio.timeout(_FAREWELL + 1):
            await asyncio.to_thread(end)
