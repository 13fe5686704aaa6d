"""A page in the browser: its content, and actions on it by mouse and keyboard."""

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
"""milliseconds without a change after which a page has settled"""
SETTLE_SECONDS: Final = 2.0
"""seconds that an action waits for it; a page that never settles is read as it is"""
LOAD_SECONDS: Final = 20.0
_LOOK_MS: Final = 500
"""milliseconds for which a script in the page watches for changes: repeated polling would cost more"""
_BUTTONS: Final = {"left": 1, "right": 2}
_STEPS: Final = 8
"""mouse moves in a drag"""
_AT_START: Final = """
window.alert = () => undefined; window.confirm = () => true; window.prompt = () => "";
window.open = address => { location.assign(address); return window; };
addEventListener("click", event => event.target.closest?.("a[target]")?.removeAttribute("target"), true);
"""
"""opens new windows in the page itself and suppresses dialogs"""

Point = tuple[float, float]


class Refused(Exception):
    """The action is impossible on this page; the agent receives the reason."""


class GuiPage:
    """A page, driven through the DevTools protocol alone."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab
        self._world: int | None = None

    async def prepare(self, *, width: int, height: int) -> None:
        """Set the page's size, once, before it is opened."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._tab.send("Page.enable", {})
        await self._tab.send("Emulation.setDeviceMetricsOverride", size)
        await self._tab.send("Emulation.setFocusEmulationEnabled", {"enabled": True})
        await self._tab.send("Page.addScriptToEvaluateOnNewDocument", {"source": _AT_START})

    async def open(self, address: str) -> None:
        """Open an address and wait until it has loaded; clear the history, so that `back` cannot leave it."""
        answer = await self._tab.send("Page.navigate", {"url": address})
        if answer.get("errorText"):
            raise EnvFailed(f"{address} cannot be opened: {answer['errorText']}")
        self._world = None
        if not await self._rests(0, LOAD_SECONDS):
            raise EnvFailed(f"{address} has not loaded within {LOAD_SECONDS:g} s")
        await self._tab.send("Page.resetNavigationHistory", {})

    async def run(self, script: str) -> Any:
        """Return an expression's value, evaluated among the page's own scripts."""
        call = {"expression": script, "returnByValue": True, "awaitPromise": True}
        return _value(await self._tab.send("Runtime.evaluate", call), script)

    async def screen(self, ignore: str = "") -> Screen:
        """Return the page's content, except for elements that match the selector ``ignore``."""
        return Screen.read(await self._ours("screen", ignore))

    async def screenshot(self) -> bytes:
        """Return the page as a PNG picture."""
        answer = await self._tab.send("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(answer["data"])

    async def settle(self) -> None:
        """Wait until the page settles, or until the time limit."""
        await asyncio.sleep(0.03)
        await self._rests(QUIET_MS, SETTLE_SECONDS)

    async def _rests(self, quiet: float, seconds: float) -> bool:
        """Return True if the page loads and stays unchanged for ``quiet`` ms, within this time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not await self._ours("rests", quiet, _LOOK_MS):
            if loop.time() > end:
                return False
        return True

    async def locate(self, number: int) -> Point:
        """Scroll an element into view and return a clickable point on it; raise Refused if there is none."""
        location = await self._told("locate", number)
        x, y = location["point"]
        return x, y

    async def click(self, at: Point, *, button: str = "left", count: int = 1) -> None:
        """Move to a point and click ``count`` times."""
        await self._mouse("mouseMoved", at)
        for number in range(1, count + 1):
            await self._mouse("mousePressed", at, button=button, count=number)
            await self._mouse("mouseReleased", at, button=button, count=number)

    async def hover(self, at: Point) -> None:
        """Move to a point through a neighbouring one: hover menus react to movement."""
        await self._mouse("mouseMoved", (at[0] + 1, at[1] + 1))
        await self._mouse("mouseMoved", at)

    async def drag(self, start: Point, end: Point) -> None:
        """Press at one point, move, and release at the other."""
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
        reported = "left" if held else button
        event = {"type": kind, "x": at[0], "y": at[1], "button": reported, "buttons": buttons, "clickCount": count}
        await self._tab.send("Input.dispatchMouseEvent", event)

    async def type(self, number: int, text: str) -> None:
        """Type a text into a field key by key, replacing its content."""
        await self.click(await self.locate(number))
        field = await self._told("mark", number)
        if field["by"] == "value":
            await self._told("fill", number, text)
            return
        await self.keys(text or None)

    async def keys(self, text: str | None) -> None:
        """Type with the current keyboard focus; None deletes the selection."""
        for event in typed(text) if text is not None else pressed("Delete") or ():
            await self._tab.send("Input.dispatchKeyEvent", event)

    async def press(self, combination: str) -> None:
        """Press a key or a combination; raise Refused if there is no such key."""
        events = pressed(combination)
        if events is None:
            raise Refused(f"there is no key {combination!r}; such as Enter, Tab, ArrowDown, Control+a")
        for event in events:
            await self._tab.send("Input.dispatchKeyEvent", event)

    async def select(self, number: int, option: str) -> None:
        """Choose an option from a list; raise Refused if it has no option with that name."""
        await self._told("select", number, option)

    async def scroll(self, number: int | None, right: int, down: int) -> None:
        """Scroll an element, or the page, by most of its visible part; raise Refused if it is at its end."""
        await self._told("scroll", number, right, down)

    async def back(self) -> None:
        """Return to the previous page; raise Refused if there is none."""
        past = await self._tab.send("Page.getNavigationHistory", {})
        if past["currentIndex"] < 1:
            raise Refused("there is no page before this one")
        before = past["entries"][past["currentIndex"] - 1]["id"]
        await self._tab.send("Page.navigateToHistoryEntry", {"entryId": before})

    async def close(self) -> None:
        """Close the page with its context. Safe to call twice."""
        await self._tab.close()

    async def _told(self, function: str, *arguments: Any) -> Mapping[str, Any]:
        """Return the result of a function in `page.js`; raise Refused for its fault."""
        result: Mapping[str, Any] = await self._ours(function, *arguments)
        if result.get("fault"):
            raise Refused(str(result["fault"]))
        return result

    async def _ours(self, function: str, *arguments: Any) -> Any:
        """Return the result of a function in `page.js`, evaluated in the current document."""
        call = f"gui.{function}({', '.join(map(json.dumps, arguments))})"
        for _ in range(50):
            try:
                if self._world is None:
                    self._world = await self._enter()
                request = {"expression": call, "contextId": self._world, "returnByValue": True, "awaitPromise": True}
                return _value(await self._tab.send("Runtime.evaluate", request), call)
            except EnvFailed as error:
                if not _left(error):
                    raise
                self._world = None  # the page has loaded another document
                await asyncio.sleep(0.05)
        raise EnvFailed("the page keeps loading new documents")

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
    """Return an answer's value; raise EnvFailed if the script threw an exception."""
    if "exceptionDetails" in found:
        details = found["exceptionDetails"]
        message = details.get("exception", {}).get("description") or details.get("text", "")
        raise EnvFailed(f"{script[:80]!r} fails on the page: {message.splitlines()[0][:200]}")
    return found["result"].get("value")


def _left(error: EnvFailed) -> bool:
    """Return True if the error shows that the document has changed; browsers report this in several ways."""
    words = ("context", "navigated", "gui is not defined", "No frame")
    return any(word in error.what for word in words)
