"""Chromium driven by selenium: one chromedriver, one command at a time for all pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from openclaw_rl.envs.gui.chromium import ANSWER_SECONDS, FLAGS, find_chromedriver
from openclaw_rl.envs.sandbox.holder import PATH
from openclaw_rl.errors import EnvFailed, MissingExtra

T = TypeVar("T")


class SeleniumBrowser:
    """The `Browser` for selenium. Pages are tabs, each in its own user context."""

    def __init__(self, driver: Any, thread: ThreadPoolExecutor) -> None:
        self._driver, self._thread = driver, thread
        self._first: str = driver.current_window_handle
        self._current = self._first
        self._dead = False

    @classmethod
    async def launch(cls, launcher: Path) -> SeleniumBrowser:
        """Start the browser with this script and connect by a pipe: the browser has a separate network."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="selenium")
        try:
            driver = await asyncio.get_running_loop().run_in_executor(thread, _start, launcher)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(driver, thread)

    def alive(self) -> bool:
        return not self._dead

    async def tab(self) -> SeleniumTab:
        def begin() -> tuple[str, str]:
            context = self._driver.browser.create_user_context()
            return context, self._driver.browsing_context.create(type="tab", user_context=context)

        context, handle = await self.do(begin)
        return SeleniumTab(self, context, handle)

    async def do(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the driver's thread; raise EnvFailed if the driver refuses it."""
        from selenium.common.exceptions import InvalidSessionIdException, WebDriverException
        from urllib3.exceptions import HTTPError

        if self._dead:
            raise EnvFailed("Chromium is gone")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (InvalidSessionIdException, HTTPError) as error:
            self._dead = True
            raise EnvFailed(f"Chromium is gone: {_short(error)}") from error
        except WebDriverException as error:
            raise EnvFailed(_short(error)) from error

    def command(self, handle: str, method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a command to one page; called in the driver's thread."""
        self._to(handle)
        answer: Mapping[str, Any] = self._driver.execute_cdp_cmd(method, dict(arguments))
        return answer

    def _to(self, handle: str) -> None:
        if self._current != handle:
            self._driver.switch_to.window(handle)
            self._current = handle

    def end(self, handle: str, context: str) -> None:
        """Close a page with its context; called in the driver's thread."""
        self._to(handle)
        self._driver.close()
        self._to(self._first)
        self._driver.browser.remove_user_context(context)

    async def close(self) -> None:
        """End chromedriver, and with it the browser: its state is in memory, so nothing needs to be saved."""
        driver, self._dead = self._driver, True
        if (listening := getattr(driver, "_websocket_connection", None)) is not None:
            listening.close()
        driver.service.process.kill()
        driver.service.process.wait()
        driver.service.stop()
        driver.command_executor.close()
        self._thread.shutdown(wait=False)


class SeleniumTab:
    """The `Tab` for selenium."""

    def __init__(self, browser: SeleniumBrowser, context: str, handle: str) -> None:
        self._browser, self._context, self._handle = browser, context, handle
        self._open = True

    async def send(self, method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._browser.do(lambda: self._browser.command(self._handle, method, arguments))

    async def close(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(EnvFailed):  # the browser is gone, and its pages with it
                await self._browser.do(lambda: self._browser.end(self._handle, self._context))


def _start(launcher: Path) -> Any:
    try:
        from selenium import webdriver
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.chrome.service import Service
    except ImportError as error:
        raise MissingExtra("selenium", "gui") from error
    options = webdriver.ChromeOptions()
    options.binary_location = str(launcher)
    options.enable_bidi = True
    for flag in (*FLAGS, "--headless=new", "--remote-debugging-pipe"):
        options.add_argument(flag)
    try:
        driver = webdriver.Chrome(options=options, service=Service(find_chromedriver(), env=_environment(launcher)))
    except WebDriverException as error:
        raise EnvFailed(f"Chromium cannot be started: {_short(error)}") from error
    driver.command_executor.client_config.timeout = ANSWER_SECONDS
    return driver


def _environment(launcher: Path) -> dict[str, str]:
    """Return chromedriver's environment: it is killed, so its folders are beside the launcher, to be removed too."""
    return {"PATH": PATH, "HOME": str(launcher.parent), "TMPDIR": str(launcher.parent)}


def _short(error: Exception) -> str:
    """Return the first line of selenium's message; the other lines are a stack trace of addresses."""
    return str(error).strip().splitlines()[0][:300]
