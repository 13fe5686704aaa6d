"""A session with the service through its own SDK: opened on demand, reopened after a loss."""

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

# Today's use of the service, in tokens and in estimated money; and its limit.

KINDS: Final = ("prefill", "sample", "train")
"""the uses of a token, as prices name them"""
_SECONDS: Final = 1.0
"""seconds between two writes of the file, and two reads of other processes' files"""
_MILLION: Final = 1e6


class Spending:
    """Today's tokens (UTC), for this process and others in the same run. Each process writes its own file."""

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
        """Count tokens by use: ``add(prefill=12, sample=3)``."""
        self._turn_page()
        for kind, count in tokens.items():
            self._own[kind] += count
        if self._clock() - self._written >= _SECONDS:
            self.write()

    def cost(self, tokens: Mapping[str, int]) -> float:
        """Return the tokens' cost at the configured prices."""
        return sum(count * self._prices.get(kind, 0.0) for kind, count in tokens.items()) / _MILLION

    @property
    def tokens(self) -> Mapping[str, int]:
        """Return this process's tokens today."""
        self._turn_page()
        return dict(self._own)

    @property
    def today(self) -> float:
        """Return the estimated cost of all processes' tokens today."""
        self._turn_page()
        if self._clock() - self._looked >= _SECONDS:
            self._looked, self._others = self._clock(), self._of_others()
        return self.cost(self._own) + self._others

    def refuse_beyond(self) -> None:
        """Raise BackendGone once the daily budget is spent."""
        if self._budget is not None and self.today >= self._budget:
            raise BackendGone(
                f"cloud.daily_budget = {self._budget:g} is spent: {self.today:.2f} by estimate since midnight (UTC)",
                remedy="raise it, or wait for tomorrow",
            )

    def write(self) -> None:
        """Write this process's use to a file that other processes read."""
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
        own_file = self._file(self._owner)
        return sum(self.cost(_read(file)) for file in self._folder.glob(f"{self._day}.*.json") if file != own_file)

    def _file(self, owner: str) -> Path:
        return self._folder / f"{self._day}.{owner}.json"


def _read(file: Path) -> Mapping[str, int]:
    try:
        tokens: dict[str, int] = json.loads(file.read_text())
    except (OSError, ValueError):  # it is being replaced: the next read succeeds
        return {}
    return tokens


log = logging.getLogger(__name__)
T = TypeVar("T")

OWN_URL: Final = "https://tinker.thinkingmachines.dev/services/tinker-prod"
_GLANCE: Final = 0.5
"""seconds between two checks for a notice that the account must be paid"""
_REACH: Final = 15.0
_FAREWELL: Final = 5.0


class TinkerSession:
    """One session with its samplers, requests and waits. ``spending`` counts its tokens."""

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
        """Return the service's address."""
        return self.access.url or OWN_URL

    @property
    def sdk(self) -> Any:
        """Return the package; raise if it is missing, or in an unsupported release."""
        if self._sdk is None:
            self._sdk = load_sdk()
        return self._sdk

    # --- life

    async def service(self) -> Any:
        """Return the SDK's client for an open session."""
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
            return service if service.holder is not None else None  # creating its holder opens a session

        self._service = await self.blocking(begin, "opening a session")
        self._samplers.clear()
        self._rest = None
        log.info("cloud.session url=%s sdk=%s", self.url, sdk.__version__)

    async def _reach(self) -> None:
        """Raise at once if the address does not accept connections: the SDK would try for minutes."""
        place = urlsplit(self.url)
        port = place.port or (443 if place.scheme == "https" else 80)
        try:
            async with asyncio.timeout(_REACH):
                _, writer = await asyncio.open_connection(place.hostname, port)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer"
            raise BackendDown(
                f"cannot reach the service at {self.url}: {reason}", remedy="see TINKER_BASE_URL"
            ) from error
        writer.close()

    async def reopen(self) -> None:
        """Close a lost session; the next request opens another."""
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

    # --- requests

    async def models(self) -> Mapping[str, int | None]:
        """Return the service's models, with each one's token limit."""
        service = await self.service()
        capabilities = await self.blocking(service.get_server_capabilities, "asking for the models")
        return {model.model_name: getattr(model, "max_context_length", None) for model in capabilities.supported_models}

    async def sampler(self, path: str | None) -> Any:
        """Return the sampler for the weights at ``path``, None for the base model; created once per session."""
        service = await self.service()
        if path not in self._samplers:
            where = {"base_model": self.access.model} if path is None else {"model_path": path}
            client = await self.blocking(lambda: service.create_sampling_client(**where), "opening a sampler")
            self._samplers.setdefault(path, client)
        return self._samplers[path]

    async def rest(self) -> Any:
        """Return the client that exports and deletes checkpoints; created once per session."""
        service = await self.service()
        if self._rest is None:
            self._rest = await self.blocking(lambda: self._rest_client(service), "asking for checkpoints")
        return self._rest

    def _rest_client(self, service: Any) -> Any:
        """Create the client for checkpoints, from a session with an older SDK."""
        kind = getattr(self.sdk, "RestClient", None)
        if kind is None or "api_key" not in inspect.signature(kind).parameters:
            return service.create_rest_client()
        return kind(base_url=self.url, api_key=self.access.key)

    async def surviving(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work``, and once more in a new session if the current one was lost."""
        try:
            return await work()
        except SessionLost as lost:
            log.warning("cloud.lost %s; a new session is opened", lost.what)
            await self.reopen()
            return await work()

    async def blocking(self, work: Callable[[], T], doing: str) -> T:
        """Run blocking ``work`` in a thread, within the time limit."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        return await self._in_time(task, doing)

    async def wait(self, given: Any, doing: str) -> Any:
        """Return the result that the SDK's future promises; cancelling cancels the request at the service."""
        future = given.future() if hasattr(given, "future") else given
        return await self._in_time(asyncio.wrap_future(future), doing)

    async def _in_time(self, future: asyncio.Future[T], doing: str) -> T:
        began = time.monotonic()
        try:
            while not future.done():
                remaining = began + self.access.patience - time.monotonic()
                if remaining <= 0:
                    raise too_slow(doing, self.access.patience)
                if (notice := self._notices.take()) is not None:
                    self._service = None  # the SDK would repeat the notice only once a minute
                    self._samplers.clear()
                    raise unpaid(f"{doing}: {notice}")
                await asyncio.wait({future}, timeout=min(_GLANCE, remaining))
            return future.result()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise translated(error, doing, key=self.access.key) from error
        finally:
            future.cancel()


async def _leave(service: Any) -> None:
    """End the session at the service; an older SDK only closes its connections."""

    def end() -> None:
        if hasattr(service, "close"):
            service.close("success").result(timeout=_FAREWELL)
        else:
            service.holder.close()

    with contextlib.suppress(Exception):  # a failure here may be the reason for leaving
        async with asyncio.timeout(_FAREWELL + 1):
            await asyncio.to_thread(end)


# Checks before the service is used: for `openclaw-rl doctor`.


async def examine(session: TinkerSession, settings: TinkerPolicySettings) -> Sequence[EngineFinding]:
    """Check the SDK, the address, the key and the model; open and close a session without sampling."""
    try:
        _ = session.sdk
        models = await session.models()
    except OpenClawError as error:
        return [EngineFinding(fine=False, what=error.what, remedy=error.remedy or "")]
    finally:
        await session.close()
    findings = [
        EngineFinding(fine=True, what=f"tinker {installed_version()} reaches {session.url}: {len(models)} models")
    ]
    if settings.model not in models:
        what = f"it has no model {settings.model!r}"
        findings.append(EngineFinding(fine=False, what=what, remedy=f"it has {', '.join(sorted(models)[:8])}"))
    if settings.cloud_budget is not None and not any(settings.cloud_prices.values()):
        what = "cloud.daily_budget is set, but cloud.price_per_million names no price"
        findings.append(EngineFinding(fine=False, what=what, remedy="give the prices of the model, or no budget"))
    return findings
