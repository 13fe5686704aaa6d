"""The lifecycle of versions: which is live, and for whom; promote, refuse, roll back, retain; checkpoints.

`LiveVersions` reads for every process; `VersionManager` writes, in the train process alone; a `ArtifactStore` transfers
weights to other machines.
"""

from __future__ import annotations

from openclaw_rl.versions.artifact_store import ArtifactStore, FetchedVersions
from openclaw_rl.versions.manager import LiveVersions, RetentionPolicy, VersionLedger, VersionManager, VersionReader

__all__ = [
    "ArtifactStore",
    "FetchedVersions",
    "LiveVersions",
    "RetentionPolicy",
    "VersionLedger",
    "VersionManager",
    "VersionReader",
]
