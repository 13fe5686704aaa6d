"""The artifact store for versions: a folder or an object store that all machines can access.

The train process uploads a version's weights before the version is announced as live; a gateway fetches them before it
loads them. A manifest is written last and lists every file with its digest: a version without a manifest is not
available yet, and a file that does not match its digest is not used.

    STORE/000007/adapter_model.safetensors    as in RUN_DIR/versions/000007
    STORE/000007.json                         {"files": {"adapter_model.safetensors": "sha256 ..."}}
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

from openclaw_rl import files
from openclaw_rl.errors import BackendDown, MissingExtra
from openclaw_rl.types import Version, VersionState
from openclaw_rl.versions.manager import LiveVersions, VersionReader

log = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20
_EXTRAS: Final = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "gcs": ("gcsfs", "gs")}


class ArtifactStore:
    """The artifact store at an address: a folder, or a URL that fsspec supports (s3://, gs://).

    Raises MissingExtra if the package for such an address is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._store, self._root = _opened(address)

    def told(self, version: Version, state: VersionState) -> None:
        """Upload a live version's weights or delete a deleted version's; called before the state is written."""
        if version.adapter is None:
            return
        if state == "live":
            self.put(Path(version.adapter))
        elif state == "deleted":
            self.drop(Path(version.adapter).name)

    def put(self, folder: Path) -> None:
        """Upload a version's folder unless it exists already; raises BackendDown on failure."""
        with self._troubles(folder.name):
            digests = {str(file.relative_to(folder)): _digest(file) for file in _files(folder)}
            there = self._manifest(folder.name)
            if there is not None and there != digests:
                raise BackendDown(
                    f"{self.address} holds another version {folder.name} than this run",
                    remedy="give each run a place of its own (store.versions)",
                )
            if there is None:
                self._upload(folder, digests)

    def _upload(self, folder: Path, digests: dict[str, str]) -> None:
        for name in digests:
            place = f"{self._root}/{folder.name}/{name}"
            self._store.makedirs(place.rpartition("/")[0], exist_ok=True)
            with (folder / name).open("rb") as read, self._store.open(place, "wb") as write:
                shutil.copyfileobj(read, write, _CHUNK)
        with self._store.open(self._manifest_place(folder.name), "wb") as write:
            write.write(json.dumps({"files": digests}, indent=1).encode())
        log.info("version directory %s put to %s", folder.name, self.address)

    def fetch(self, name: str, target: Path) -> None:
        """Download a version to ``target``, complete and verified, or raise BackendDown."""
        with self._troubles(name):
            digests = self._manifest(name)
            if digests is None:
                raise BackendDown(
                    f"the weights of version {name} are not at {self.address}",
                    remedy="see that the train process has the same store.versions",
                )
            with files.directory(target) as draft:
                for file, digest in digests.items():
                    self._download(name, file, digest, draft)
            log.info("version directory %s fetched from %s", name, self.address)

    def _download(self, name: str, file: str, digest: str, draft: Path) -> None:
        place = draft / file
        if not place.resolve().is_relative_to(draft.resolve()):
            raise BackendDown(f"{self.address}/{name}.json names a file outside of its folder: {file}")
        place.parent.mkdir(parents=True, exist_ok=True)
        with self._store.open(f"{self._root}/{name}/{file}", "rb") as read, place.open("wb") as write:
            shutil.copyfileobj(read, write, _CHUNK)
        if _digest(place) != digest:
            raise BackendDown(
                f"{self.address}/{name}/{file} is not what was put there",
                remedy="delete it and its manifest there; the train process puts it again when it starts",
            )

    def drop(self, name: str) -> None:
        """Delete a version, the manifest first; a missing one is ignored."""
        with self._troubles(name):
            for place in (self._manifest_place(name), f"{self._root}/{name}"):
                if self._store.exists(place):
                    self._store.rm(place, recursive=True)

    def _manifest(self, name: str) -> dict[str, str] | None:
        place = self._manifest_place(name)
        self._store.invalidate_cache()
        if not self._store.exists(place):
            return None
        with self._store.open(place, "rb") as read:
            digests: dict[str, str] = json.loads(read.read())["files"]
        return digests

    def _manifest_place(self, name: str) -> str:
        return f"{self._root}/{name}.json"

    @contextmanager
    def _troubles(self, name: str) -> Iterator[None]:
        """Convert a store's errors, which differ between stores, to `BackendDown`."""
        try:
            yield
        except BackendDown:
            raise
        except Exception as error:
            raise BackendDown(
                f"version {name} cannot be transferred through {self.address}: {type(error).__name__}: {error}",
                remedy="check that it can be reached and written from here (store.versions); the transfer is retried",
            ) from error


class FetchedVersions(LiveVersions):
    """The versions in a run with remote weights: the live version is fetched before it is returned."""

    def __init__(self, ledger: VersionReader, store: ArtifactStore, directory: Path) -> None:
        super().__init__(ledger)
        self._store = store
        self._directory = directory

    def live(self, user: str | None = None) -> Version | None:
        """Return the version that answers new requests, with its weights in ``directory``; raises BackendDown."""
        version = super().live(user)
        if version is None or version.adapter is None:
            return version
        here = self._here(version)
        assert here.adapter is not None
        if not Path(here.adapter).is_dir():
            self._store.fetch(Path(here.adapter).name, Path(here.adapter))
            self._forget()
        return here

    def version(self, number: int) -> Version:
        return self._here(super().version(number))

    def versions(self) -> list[Version]:
        return [self._here(version) for version in super().versions()]

    def _here(self, version: Version) -> Version:
        """Return the version with its path on this machine: the ledger's path, or the one of the fetched copy."""
        if version.adapter is None or Path(version.adapter).is_dir():
            return version
        return replace(version, adapter=str(self._directory / Path(version.adapter).name))

    def _forget(self) -> None:
        """Delete fetched copies of versions that the train process has deleted."""
        for version in self.versions():
            if version.state == "deleted" and version.adapter and Path(version.adapter).parent == self._directory:
                shutil.rmtree(version.adapter, ignore_errors=True)


def _opened(address: str) -> tuple[Any, str]:
    try:
        import fsspec

        store, root = fsspec.url_to_fs(address)
    except ImportError as error:
        package, extra = _EXTRAS.get(address.partition("://")[0], ("fsspec", "remote"))
        raise MissingExtra(package, extra) from error
    return store, root.rstrip("/")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest(file: Path) -> str:
    with file.open("rb") as read:
        return f"sha256 {_sha256(read)}"


def _sha256(read: IO[bytes]) -> str:
    return hashlib.file_digest(read, "sha256").hexdigest()  # type: ignore[arg-type]
