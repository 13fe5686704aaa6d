"""Chromium driven by playwright."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.envs.gui.chromium import ANSWER_SECONDS, FLAGS
from openclaw_rl.errors import EnvFailed, MissingExtra


class PlaywrightBrowser:
    """The `Browser` for playwright."""

    def __init__(self, playwright: Any, browser: Any) -> None:
        self._playwright, self._browser = playwright, browser

    @classmethod
    async def launch(cls, launcher: Path) -> PlaywrightBrowser:
        """Start the browser with this script."""
        try:
            from playwright.async_api import Error, async_playwright
        except ImportError as error:
            raise MissingExtra("playwright", "gui") from error
        playwright = await async_playwright().start()
        try:
            browser = await playwright.chromium.launch(
                executable_path=str(launcher),
                args=list(FLAGS),
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            await playwright.stop()
            raise EnvFailed(f"Chromium cannot be started: {_short(error)}") from error
        return cls(playwright, browser)

    def alive(self) -> bool:
        return bool(self._browser.is_connected())

    async def tab(self) -> PlaywrightTab:
        from playwright.async_api import Error

        try:
            context = await self._browser.new_context()
            page = await context.new_page()
            return PlaywrightTab(context, await context.new_cdp_session(page))
        except Error as error:
            raise EnvFailed(f"Chromium cannot open a page: {_short(error)}") from error

    async def close(self) -> None:
        try:
            await self._browser.close()
        finally:
            await self._playwright.stop()


class PlaywrightTab:
    """The `Tab` for playwright."""

    def __init__(self, context: Any, session: Any) -> None:
        self._context, self._session = context, session

    async def send(self, method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        from playwright.async_api import Error

        try:
            sent = self._session.send(method, dict(arguments))
            answer: Mapping[str, Any] = await asyncio.wait_for(sent, ANSWER_SECONDS)
        except Error as error:
            raise EnvFailed(f"{method}: {_short(error)}") from error
        except TimeoutError as error:
            raise EnvFailed(f"{method}: the page has not answered within {ANSWER_SECONDS:g} s") from error
        return answer

    async def close(self) -> None:
        from playwright.async_api import Error

        with contextlib.suppress(Error):  # the browser is gone, and its pages with it
            await self._context.close()


def _short(error: Exception) -> str:
    """Return the first line of playwright's message; the other lines are its log."""
    return str(error).strip().splitlines()[0][:300]
