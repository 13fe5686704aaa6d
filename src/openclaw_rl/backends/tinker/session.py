"""A session with the service, through its own SDK: opened when it is needed, opened again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from openclaw_rl.backends.tinker.settings import CloudAccess, TinkerPolicySettings
from openclaw_rl.backends.tinker.troubles import (
    BillingNotices,
    SessionLost,
    installed_version,
    load_sdk,
    too_slow,
    translated,
    unpaid,
)
from openclaw_rl.errors import BackendDown, BackendGone, ModelRefused, OpenClawError
from openclaw_rl.ports import EngineFinding

# What the service has been asked to do today, in tokens and by estimate in money; and where it ends.

KINDS: Final = ("prefill", "sample", "train")
"""what is done with a token, as prices name it"""
_SECONDS: Final = 1.0
"""between two writes of the file, and two looks at those of other processes"""
_MILLION: Final = 1e6


class Spending:
    """The tokens of today (UTC), of this process and of others of the same run. Each writes a file of its own."""

    def __init__(
        self,
        run_dir: Path,
        *,
        prices: Mapping[str, float],
        budget: float | None,
        clock: Callable[[], float] = time.time,
        owner: str | None = None,
    ) -> None:
        self._folder = run_dir / "cloud"
        self._prices, self._budget, self._clock = prices, budget, clock
        self._owner = owner or f"{os.getpid()}-{id(self)}"
        self._day = ""
        self._own = dict.fromkeys(KINDS, 0)
        self._others = 0.0
        self._written = self._looked = float("-inf")

    def add(self, **tokens: int) -> None:
        """Count tokens by what was done with them: ``add(prefill=12, sample=3)``."""
        self._turn_page()
        for kind, count in tokens.items():
            self._own[kind] += count
        if self._clock() - self._written >= _SECONDS:
            self.write()

    def cost(self, tokens: Mapping[str, int]) -> float:
        """The money for so many tokens, by the prices that were given."""
        return sum(count * self._prices.get(kind, 0.0) for kind, count in tokens.items()) / _MILLION

    @property
    def tokens(self) -> Mapping[str, int]:
        """Of this process, today."""
        self._turn_page()
        return dict(self._own)

    @property
    def today(self) -> float:
        """The money that today's tokens of all processes cost, by estimate."""
        self._turn_page()
        if self._clock() - self._looked >= _SECONDS:
            self._looked, self._others = self._clock(), self._of_others()
        return self.cost(self._own) + self._others

    def refuse_beyond(self) -> None:
        """Raise BackendGone once the budget of the day is spent."""
        if self._budget is not None and self.today >= self._budget:
            raise BackendGone(
                f"cloud.daily_budget = {self._budget:g} is spent: {self.today:.2f} by estimate since midnight (UTC)",
                remedy="raise it, or wait for tomorrow",
            )

    def write(self) -> None:
        """Put what this process has used where others see it."""
        self._written = self._clock()
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{self._owner}.tmp"
        draft.write_text(json.dumps(self._own))
        draft.replace(self._file(self._owner))

    def _turn_page(self) -> None:
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        if day != self._day:
            self._day, self._own, self._others = day, dict.fromkeys(KINDS, 0), 0.0
            self._written = self._looked = float("-inf")

    def _of_others(self) -> float:
        mine = self._file(self._owner)
        return sum(self.cost(_read(file)) for file in self._folder.glob(f"{self._day}.*.json") if file != mine)

    def _file(self, owner: str) -> Path:
        return self._folder / f"{self._day}.{owner}.json"


def _read(file: Path) -> Mapping[str, int]:
    try:
        found: dict[str, int] = json.loads(file.read_text())
    except (OSError, ValueError):  # it is being replaced: the next look finds it
        return {}
    return found


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


# What can be said of the service before anybody relies on it: for `openclaw-rl doctor`.


async def examine(session: TinkerSession, settings: TinkerPolicySettings) -> Sequence[EngineFinding]:
    """The SDK, the address, the key and the model; a session is opened and closed, nothing is sampled."""
    try:
        _ = session.sdk
        known = await session.models()
    except OpenClawError as error:
        return [EngineFinding(fine=False, what=error.what, remedy=error.remedy or "")]
    finally:
        await session.close()
    found = [EngineFinding(fine=True, what=f"tinker {installed_version()} reaches {session.url}: {len(known)} models")]
    if settings.model not in known:
        what = f"it has no model {settings.model!r}"
        found.append(EngineFinding(fine=False, what=what, remedy=f"it has {', '.join(sorted(known)[:8])}"))
    if settings.cloud_budget is not None and not any(settings.cloud_prices.values()):
        what = "cloud.daily_budget is set, but cloud.price_per_million names no price"
        found.append(EngineFinding(fine=False, what=what, remedy="give the prices of the model, or no budget"))
    return found
