"""The promises of a port, and which of them a plugin breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from openclaw_rl import plugins
from openclaw_rl.errors import PluginError


class Promises:
    """What a plugin has broken so far; one of the wrong shape raises at once, for nothing else could be tried."""

    def __init__(self, kind: plugins.Kind, thing: Any) -> None:
        self.kind = kind
        self.name = str(getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__)
        self.broken: list[str] = []
        try:
            plugins.refuse_wrong_shape(kind, self.name, thing)
        except PluginError as error:
            raise AssertionError(str(error)) from error

    def hold(self, kept: bool, fault: str) -> bool:
        """Note ``fault`` unless ``kept``."""
        if not kept and fault not in self.broken:
            self.broken.append(fault)
        return kept

    async def tried(self, what: str, work: Awaitable[Any]) -> Any:
        """What the work gives; None and a fault where it fails."""
        try:
            return await work
        except Exception as error:  # a plugin may fail in any way; its author is told how
            self.hold(False, f"{what} raises {type(error).__name__}: {error}")
            return None

    async def closes(self, what: str, close: Any) -> None:
        """What is safe to call twice is called twice."""
        for time in ("first", "second"):
            await self.tried(f"the {time} {what}()", close())

    def plain_numbers(self, metrics: Any) -> None:
        """Metrics are numbers by name; NaN is one, for what could not be measured."""
        plain = isinstance(metrics, Mapping) and all(
            isinstance(key, str) and isinstance(value, int | float) for key, value in metrics.items()
        )
        self.hold(plain, "the metrics are not plain numbers by name")

    def report(self, work: Coroutine[Any, Any, None] | None = None) -> None:
        """Do the work of an asynchronous check, then raise AssertionError with all that is broken."""
        if work is not None:
            asyncio.run(work)
        if self.broken:
            port = plugins.PORTS[self.kind].__name__
            lines = "".join(f"\n- {fault}" for fault in self.broken)
            raise AssertionError(f"{self.kind} {self.name!r} breaks what openclaw_rl.ports.{port} promises:{lines}")
