"""Short garbage collections: thousands of open streams are objects that Python would traverse again and again.

A full collection stops every reply of the process. With 5,000 idle streams one took up to three seconds; none of what
it traverses is garbage, since a stream that ends is freed at once.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sized
from typing import Any, Final

LONGEST: Final = 0.05
"""seconds of a full collection after which the objects that survived it are not traversed again"""


class ShortCollections:
    """Takes what survives a long full collection out of the next ones, until half of the connections are closed."""

    def __init__(self, connections: Sized, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._connections = connections
        self._clock = clock
        self._began = 0.0
        self._frozen_with: int | None = None

    def begin(self) -> None:
        """Watch the collections of this process."""
        gc.callbacks.append(self._watch)

    def end(self) -> None:
        """Watch no more, and let everything be collected again. Safe to call twice."""
        if self._watch in gc.callbacks:
            gc.callbacks.remove(self._watch)
            self._thaw()

    def connection_closed(self) -> None:
        """Let everything be collected again once half of the connections are gone: garbage may be among it now."""
        if self._frozen_with is not None and len(self._connections) * 2 <= self._frozen_with:
            self._thaw()

    def _watch(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began > LONGEST:
            gc.freeze()
            self._frozen_with = max(len(self._connections), self._frozen_with or 0)

    def _thaw(self) -> None:
        if self._frozen_with is not None:
            self._frozen_with = None
            gc.unfreeze()
