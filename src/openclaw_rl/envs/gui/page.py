"""A page of the browser: what is on it, and what a person's mouse and keyboard do to it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from openclaw_rl.envs.gui.browsers import Tab
from openclaw_rl.envs.gui.commands import pressed, typed
from openclaw_rl.envs.gui.screen import Screen
from openclaw_rl.errors import EnvFailed

QUIET_MS: Final = 60
"""a page has settled when nothing of it has changed for so long"""
SETTLE_SECONDS: Final = 2.0
"""the longest that an action waits for it: a page that never rests is looked at as it is"""
LOAD_SECONDS: Final = 20.0
_LOOK_MS: Final = 500
"""for how long the page itself looks whether it rests: to ask it again and again would cost more than it does"""
_BUTTONS: Final = {"left": 1, "right": 2}
_STEPS: Final = 8
"""moves of the mouse in a drag"""
_AT_START: Final = """
window.alert = () => undefined; window.confirm = () => true; window.prompt = () => "";
window.open = address => { location.assign(address); return window; };
addEventListener("click", event => event.target.closest?.("a[target]")?.removeAttribute("target"), true);
"""
"""nothing opens beside the page, and no dialog stops it"""

Point = tuple[float, float]


class Refused(Exception):
    """What the agent wanted cannot be done on this page; the reason is told to it."""


class GuiPage:
    """A page, driven through the DevTools protocol alone."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab
        self._world: int | None = None

    async def prepare(self, *, width: int, height: int) -> None:
        """Give the page its size, once, before it is opened."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._tab.send("Page.enable", {})
        await self._tab.send("Emulation.setDeviceMetricsOverride", size)
        await self._tab.send("Emulation.setFocusEmulationEnabled", {"enabled": True})
        await self._tab.send("Page.addScriptToEvaluateOnNewDocument", {"source": _AT_START})

    async def open(self, address: str) -> None:
        """Go to an address and wait until it is there; nothing that was open before can be gone back to."""
        found = await self._tab.send("Page.navigate", {"url": address})
        if found.get("errorText"):
            raise EnvFailed(f"{address} cannot be opened: {found['errorText']}")
        self._world = None
        if not await self._rests(0, LOAD_SECONDS):
            raise EnvFailed(f"{address} has not loaded within {LOAD_SECONDS:g} s")
        await self._tab.send("Page.resetNavigationHistory", {})

    async def run(self, script: str) -> Any:
        """What an expression gives among the page's own scripts."""
        wanted = {"expression": script, "returnByValue": True, "awaitPromise": True}
        return _value(await self._tab.send("Runtime.evaluate", wanted), script)

    async def screen(self, ignore: str = "") -> Screen:
        """What is on the page, but for what the selector ``ignore`` names."""
        return Screen.read(await self._ours("screen", ignore))

    async def screenshot(self) -> bytes:
        """The page as a picture, PNG."""
        found = await self._tab.send("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(found["data"])

    async def settle(self) -> None:
        """Wait until the page rests, or for as long as is allowed."""
        await asyncio.sleep(0.03)
        await self._rests(QUIET_MS, SETTLE_SECONDS)

    async def _rests(self, quiet: float, seconds: float) -> bool:
        """Whether the page has loaded and nothing of it has changed for ``quiet`` ms, within these seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not await self._ours("rests", quiet, _LOOK_MS):
            if loop.time() > end:
                return False
        return True

    async def locate(self, number: int) -> Point:
        """A point of an element that a click would hit, scrolled to. Raises Refused where there is none."""
        found = await self._told("locate", number)
        x, y = found["point"]
        return x, y

    async def click(self, at: Point, *, button: str = "left", count: int = 1) -> None:
        """Move there and press, so many times."""
        await self._mouse("mouseMoved", at)
        for number in range(1, count + 1):
            await self._mouse("mousePressed", at, button=button, count=number)
            await self._mouse("mouseReleased", at, button=button, count=number)

    async def hover(self, at: Point) -> None:
        """Move there, by way of a point beside it: what opens under a mouse wants to see it move."""
        await self._mouse("mouseMoved", (at[0] + 1, at[1] + 1))
        await self._mouse("mouseMoved", at)

    async def drag(self, start: Point, end: Point) -> None:
        """Press at one point, move, and let go at the other."""
        if await self._ours("dragged", list(start), list(end)):
            return
        await self._mouse("mouseMoved", start)
        await self._mouse("mousePressed", start, button="left", count=1)
        for step in range(1, _STEPS + 1):
            part = step / _STEPS
            between = (start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part)
            await self._mouse("mouseMoved", between, held=1)
        await self._mouse("mouseReleased", end, button="left", count=1)

    async def _mouse(self, kind: str, at: Point, *, button: str = "none", count: int = 0, held: int = 0) -> None:
        buttons = _BUTTONS[button] if kind == "mousePressed" else held
        shown = "left" if held else button
        wanted = {"type": kind, "x": at[0], "y": at[1], "button": shown, "buttons": buttons, "clickCount": count}
        await self._tab.send("Input.dispatchMouseEvent", wanted)

    async def type(self, number: int, text: str) -> None:
        """Put a text into a field, in place of what it holds, key by key."""
        await self.click(await self.locate(number))
        found = await self._told("mark", number)
        if found["by"] == "value":
            await self._told("fill", number, text)
            return
        await self.keys(text or None)

    async def keys(self, text: str | None) -> None:
        """Type wherever the keyboard leads; None deletes what is selected."""
        for event in typed(text) if text is not None else pressed("Delete") or ():
            await self._tab.send("Input.dispatchKeyEvent", event)

    async def press(self, combination: str) -> None:
        """Press a key or a combination. Raises Refused for what is no key."""
        events = pressed(combination)
        if events is None:
            raise Refused(f"there is no key {combination!r}; such as Enter, Tab, ArrowDown, Control+a")
        for event in events:
            await self._tab.send("Input.dispatchKeyEvent", event)

    async def select(self, number: int, option: str) -> None:
        """Choose an option of a list. Raises Refused where it has none of that name."""
        await self._told("select", number, option)

    async def scroll(self, number: int | None, right: int, down: int) -> None:
        """Scroll an element, or the page, by most of what is seen of it. Raises Refused where it moves no further."""
        await self._told("scroll", number, right, down)

    async def back(self) -> None:
        """Go to the page before. Raises Refused where there is none."""
        past = await self._tab.send("Page.getNavigationHistory", {})
        if past["currentIndex"] < 1:
            raise Refused("there is no page before this one")
        before = past["entries"][past["currentIndex"] - 1]["id"]
        await self._tab.send("Page.navigateToHistoryEntry", {"entryId": before})

    async def close(self) -> None:
        """Close it with its context. Safe to call twice."""
        await self._tab.close()

    async def _told(self, function: str, *arguments: Any) -> Mapping[str, Any]:
        """What a function of `page.js` gives. Raises Refused for its fault."""
        found: Mapping[str, Any] = await self._ours(function, *arguments)
        if found.get("fault"):
            raise Refused(str(found["fault"]))
        return found

    async def _ours(self, function: str, *arguments: Any) -> Any:
        """What a function of `page.js` gives, in the document that is there now."""
        call = f"gui.{function}({', '.join(map(json.dumps, arguments))})"
        for _ in range(50):
            try:
                if self._world is None:
                    self._world = await self._enter()
                wanted = {"expression": call, "contextId": self._world, "returnByValue": True, "awaitPromise": True}
                return _value(await self._tab.send("Runtime.evaluate", wanted), call)
            except EnvFailed as error:
                if not _left(error):
                    raise
                self._world = None  # the page has gone to another document
                await asyncio.sleep(0.05)
        raise EnvFailed("the page goes from document to document and never stays")

    async def _enter(self) -> int:
        tree = await self._tab.send("Page.getFrameTree", {})
        frame = {"frameId": tree["frameTree"]["frame"]["id"], "worldName": "openclaw-rl"}
        world = int((await self._tab.send("Page.createIsolatedWorld", frame))["executionContextId"])
        await self._tab.send("Runtime.evaluate", {"expression": _script(), "contextId": world})
        return world


@cache
def _script() -> str:
    return Path(__file__).with_name("page.js").read_text(encoding="utf-8")


def _value(found: Mapping[str, Any], script: str) -> Any:
    """The value of an answer. Raises EnvFailed for what a script threw."""
    if "exceptionDetails" in found:
        details = found["exceptionDetails"]
        said = details.get("exception", {}).get("description") or details.get("text", "")
        raise EnvFailed(f"{script[:80]!r} fails on the page: {said.splitlines()[0][:200]}")
    return found["result"].get("value")


def _left(error: EnvFailed) -> bool:
    """Whether the document is another one than it was, as the browser says it in one way or the other."""
    words = ("context", "navigated", "gui is not defined", "No frame")
    return any(word in error.what for word in words)
