"""One browser for all episodes in a process, with a separate context for each running episode.

It starts with the first episode and ends some time after the last. Both drivers only provide access to Chromium's
DevTools protocol: observations and actions are decided in one module, `page`, and are the same with either.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from openclaw_rl.envs.gui.chromium import MEMORY, PROCESSES, BrowserSettings, OriginProxy, write_launcher
from openclaw_rl.envs.leftovers import browser_folder
from openclaw_rl.envs.sandbox import cgroups
from openclaw_rl.errors import EnvFailed

IDLE_SECONDS: Final = 300.0
"""seconds for which a browser without pages stays open: longer than most training steps, since sixteen new tabs occupy
both cores in a laptop for half a minute, and idle kept tabs use a fiftieth of one core
"""
START_SECONDS: Final = 60.0
EMPTY_SECONDS: Final = 5.0
EPISODES: Final = 32
"""episodes that one tab serves, if tabs are kept: a renderer grows with each page shown"""


class Tab(Protocol):
    """A page in its own context: it shares no cookie, storage or cache with others."""

    async def send(self, method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a DevTools protocol command; raise EnvFailed if the browser refuses it."""
        ...

    async def close(self) -> None:
        """Close the page and its context. Safe to call twice."""
        ...


class Browser(Protocol):
    """A running browser."""

    def alive(self) -> bool: ...

    async def tab(self) -> Tab: ...

    async def close(self) -> None: ...


class LentTab:
    """A page in the shared browser, returned when it is closed.

    ``prepared`` is True if the page is ready to be opened. The caller that prepares it sets this; only a prepared page
    may be reused by another episode.
    """

    def __init__(self, tab: Tab, shared: SharedBrowser, *, used: int) -> None:
        self._tab, self._used = tab, used
        self._shared: SharedBrowser | None = shared
        self.prepared = used > 0

    async def send(self, method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._tab.send(method, arguments)

    async def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            reused = False
            try:
                reused = self.prepared and await shared.keep(self._tab, self._used + 1)
            finally:
                try:
                    if not reused:
                        await self._tab.close()
                finally:
                    shared.give_back()


class SharedBrowser:
    """One event loop's browser: started when a page is requested, restarted after it has died."""

    def __init__(self, settings: BrowserSettings) -> None:
        self._settings = settings
        self._starting = asyncio.Lock()
        self._running: _Running | None = None
        self._lent = 0
        self._kept: list[tuple[Tab, int]] = []
        self._all_back = asyncio.Event()
        self._rests_since = 0.0
        self._ending: asyncio.Task[None] | None = None

    async def lend(self) -> LentTab:
        """Return a page in its own context; raise EnvFailed, with the remedy, if no browser is available."""
        self._lent += 1
        self._all_back.clear()
        try:
            browser = await self._browser()
            tab, used = self._kept.pop() if self._kept else (await browser.tab(), 0)
            return LentTab(tab, self, used=used)
        except BaseException:
            self.give_back()
            raise

    async def keep(self, tab: Tab, used: int) -> bool:
        """Empty a tab and keep it for another episode; return True on success."""
        if not self._settings.keeps or used >= EPISODES:
            return False
        running = self._running
        try:
            await asyncio.wait_for(empty(tab), EMPTY_SECONDS)
        except (EnvFailed, TimeoutError):  # its page is stuck; closing the tab ends it
            return False
        if running is None or running is not self._running:  # its browser has died meanwhile
            return False
        self._kept.append((tab, used))
        return True

    async def _browser(self) -> Browser:
        async with self._starting:
            if self._running is not None and not self._running.browser.alive():
                dead, self._running = self._running, None
                self._kept.clear()
                await dead.close()
            if self._running is None:
                self._running = await _start(self._settings)
            return self._running.browser

    def give_back(self) -> None:
        """Release one page. After the last release the browser ends, unless another page is requested soon."""
        self._lent -= 1
        if self._lent:
            return
        self._all_back.set()
        self._rests_since = asyncio.get_running_loop().time()
        if self._ending is None or self._ending.done():
            self._ending = asyncio.create_task(self._end_when_idle())

    async def _end_when_idle(self) -> None:
        """Close the browser after the idle time, or when the event loop ends, which cancels the wait."""
        try:
            while (remaining := self._rests_since + IDLE_SECONDS - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(remaining)
                await self._all_back.wait()
        finally:
            running, self._running = self._running, None
            self._kept.clear()
            if running is not None:
                await running.close()


async def empty(tab: Tab) -> None:
    """Remove an episode's data from a tab: its page, its storage, its mouse position."""
    await tab.send("Page.navigate", {"url": "about:blank"})
    await tab.send("Runtime.evaluate", {"expression": "0"})  # a stuck page accepts the navigation but does not leave
    await tab.send("Storage.clearDataForOrigin", {"origin": "file://", "storageTypes": "all"})
    await tab.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 0, "y": 0})


class _Running:
    """A browser with its proxy, control group and folder."""

    def __init__(self, browser: Browser, proxy: OriginProxy, group: cgroups.ControlGroup, folder: Path) -> None:
        self.browser = browser
        self._proxy, self._group, self._folder = proxy, group, folder

    async def close(self) -> None:
        try:
            await self.browser.close()
        finally:
            await self._proxy.close()
            self._group.close()
            shutil.rmtree(self._folder, ignore_errors=True)


async def _start(settings: BrowserSettings) -> _Running:
    folder = browser_folder()
    group = cgroups.make_group(memory=MEMORY, processes=PROCESSES)
    proxy = OriginProxy(settings.origins)
    try:
        launcher = write_launcher(folder, settings, group)
        browser = await asyncio.wait_for(_launch(settings, launcher), START_SECONDS)
        await proxy.listen_inside(folder / "pid")
    except BaseException as error:
        group.close()
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, TimeoutError):
            raise EnvFailed(f"Chromium did not start within {START_SECONDS:g} s") from error
        raise
    return _Running(browser, proxy, group, folder)


async def _launch(settings: BrowserSettings, launcher: Path) -> Browser:
    if settings.driver == "selenium":
        from openclaw_rl.envs.gui.by_selenium import SeleniumBrowser

        return await SeleniumBrowser.launch(launcher)
    from openclaw_rl.envs.gui.by_playwright import PlaywrightBrowser

    return await PlaywrightBrowser.launch(launcher)


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[BrowserSettings, SharedBrowser]] = WeakKeyDictionary()


async def open_tab(settings: BrowserSettings) -> LentTab:
    """Return a page in this event loop's shared browser."""
    browsers = _shared.setdefault(asyncio.get_running_loop(), {})
    return await browsers.setdefault(settings, SharedBrowser(settings)).lend()
