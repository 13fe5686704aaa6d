"""The life of a version: which one is live, for whom; promote, refuse, roll back, retain; checkpoints.

`LiveVersions` answers, for everybody; `VersionManager` changes, in the train process alone; by a `VersionShelf` weights
reach other machines.
"""

from __future__ import annotations

from openclaw_rl.versions.manager import LiveVersions, RetentionPolicy, VersionLedger, VersionManager, VersionReader
from openclaw_rl.versions.shelf import FetchedVersions, VersionShelf

__all__ = [
    "FetchedVersions",
    "LiveVersions",
    "RetentionPolicy",
    "VersionLedger",
    "VersionManager",
    "VersionReader",
    "VersionShelf",
]
