"""Which versions' weights are kept on disk. The ledger's rows stay for ever and say what was deleted."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.types import Version

log = logging.getLogger(__name__)

GRACE = 600.0
"""seconds after a version stopped being live in which a request may still be answered by it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """``keep`` newest versions and as many ancestors of the live one; every ``interval``-th step; what is pinned."""

    keep: int
    interval: int
    grace: float = GRACE


def expired(
    versions: Sequence[Version],
    *,
    live: Version,
    live_history: Sequence[tuple[int, float]],
    pinned: Collection[int],
    now: float,
    policy: RetentionPolicy,
) -> list[str]:
    """The adapters that no rule keeps, oldest first. Several versions may share one: it goes only if all may go.

    ``live_history`` are the versions that were made live, with the time of each, oldest first.
    """
    by_number = {version.number: version for version in versions}
    adapters = list(dict.fromkeys(v.adapter for v in versions if v.adapter and v.state != "deleted"))
    kept = {live.adapter, *_newest(versions, policy.keep), *_ancestors(live, by_number, policy.keep)}
    kept |= {v.adapter for v in versions if v.state == "candidate" or v.number in pinned}
    kept |= {v.adapter for v in versions if v.step is not None and v.step % policy.interval == 0}
    kept |= {by_number[number].adapter for number in _live_after(live_history, now - policy.grace)}
    return [adapter for adapter in adapters if adapter not in kept]


def _newest(versions: Sequence[Version], count: int) -> list[str]:
    return list(dict.fromkeys(v.adapter for v in reversed(versions) if v.adapter))[:count]


def _ancestors(version: Version, by_number: Mapping[int, Version], count: int) -> list[str]:
    """The nearest adapters on the way back from a version: what a rollback would go to."""
    found: dict[str, None] = {}
    parent = version.parent
    while parent is not None and len(found) < count:
        before = by_number[parent]
        if before.adapter and before.adapter != version.adapter:
            found[before.adapter] = None
        parent = before.parent
    return list(found)


def _live_after(live_history: Sequence[tuple[int, float]], since: float) -> set[int]:
    """Versions that were live at ``since`` or after it."""
    ended = [at for _, at in live_history[1:]] + [float("inf")]
    return {number for (number, _), end in zip(live_history, ended, strict=True) if end >= since}


def inside(adapter: str, directory: Path) -> bool:
    """Whether an adapter lies in the directory of this run's versions."""
    return Path(adapter).absolute().is_relative_to(directory.absolute())


def remove(adapter: Path, directory: Path) -> bool:
    """Delete a version's directory if it lies inside ``directory``; whether it was there."""
    if not inside(str(adapter), directory):
        return False
    going = adapter.with_name(f".{adapter.name}.deleted")
    there = adapter.is_dir()
    if there:
        adapter.rename(going)
        log.info("version directory %s deleted by retention", adapter)
    shutil.rmtree(going, ignore_errors=True)
    return there
