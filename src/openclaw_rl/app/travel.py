"""How versions reach gateways on other machines: by the shelf that store.versions names."""

from __future__ import annotations

from openclaw_rl.config import Config
from openclaw_rl.store import LedgerReader, TrainLedger
from openclaw_rl.versions import FetchedVersions, LiveVersions, VersionShelf


def served_versions(config: Config, ledger: LedgerReader) -> LiveVersions:
    """The versions as a gateway loads them: where they lie, or fetched to the run's directory."""
    if config.store.versions is None:
        return LiveVersions(ledger)
    return FetchedVersions(ledger, VersionShelf(config.store.versions), config.run.dir / "versions")


def shelve_versions(config: Config, ledger: TrainLedger) -> None:
    """From now on a version is on the shelf before it is live; the one that is live is put there now."""
    if config.store.versions is None:
        return
    shelf = VersionShelf(config.store.versions)
    live = LiveVersions(ledger).live()
    if live is not None:
        shelf.told(live, "live")
    ledger.before_state = shelf.told
