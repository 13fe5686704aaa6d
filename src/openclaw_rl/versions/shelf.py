"""Versions on their way between machines: a folder or an object store that all of them reach.

The train process puts the weights of a version there before anybody is told that it is live; a gateway fetches them
before it loads them. A manifest is written last and names every file with its digest: what has none is not there yet,
and what does not match it is not used.

    SHELF/000007/adapter_model.safetensors    as in RUN_DIR/versions/000007
    SHELF/000007.json                         {"files": {"adapter_model.safetensors": "sha256 ..."}}
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


class VersionShelf:
    """Where versions travel through, by its address: a folder, or what fsspec knows (s3://, gs://).

    Raises MissingExtra where the package for such an address is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._store, self._root = _opened(address)

    def told(self, version: Version, state: VersionState) -> None:
        """Called before a version's state is written: the weights of a live one come, those of a deleted one go."""
        if version.adapter is None:
            return
        if state == "live":
            self.put(Path(version.adapter))
        elif state == "deleted":
            self.drop(Path(version.adapter).name)

    def put(self, folder: Path) -> None:
        """Put a version's folder there, unless it is there already; raises BackendDown where that fails."""
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
        """Make ``target`` the folder of a version, whole and as it was put, or raise BackendDown."""
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
        """Take a version away, the manifest first; what is not there is no trouble."""
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
            found: dict[str, str] = json.loads(read.read())["files"]
        return found

    def _manifest_place(self, name: str) -> str:
        return f"{self._root}/{name}.json"

    @contextmanager
    def _troubles(self, name: str) -> Iterator[None]:
        """What a store raises, in words; each of them has errors of its own."""
        try:
            yield
        except BackendDown:
            raise
        except Exception as error:
            raise BackendDown(
                f"version {name} cannot travel by {self.address}: {type(error).__name__}: {error}",
                remedy="see that it can be reached and written from here (store.versions); it is tried again",
            ) from error


class FetchedVersions(LiveVersions):
    """The versions of a run whose weights lie on another machine: the live one is fetched before it is named."""

    def __init__(self, ledger: VersionReader, shelf: VersionShelf, directory: Path) -> None:
        super().__init__(ledger)
        self._shelf = shelf
        self._directory = directory

    def live(self, user: str | None = None) -> Version | None:
        """The version that answers new requests, with its weights in ``directory``; raises BackendDown."""
        found = super().live(user)
        if found is None or found.adapter is None:
            return found
        here = self._here(found)
        assert here.adapter is not None
        if not Path(here.adapter).is_dir():
            self._shelf.fetch(Path(here.adapter).name, Path(here.adapter))
            self._forget()
        return here

    def version(self, number: int) -> Version:
        return self._here(super().version(number))

    def versions(self) -> list[Version]:
        return [self._here(version) for version in super().versions()]

    def _here(self, version: Version) -> Version:
        """The version as it lies on this machine: where the ledger says, or among those that were fetched."""
        if version.adapter is None or Path(version.adapter).is_dir():
            return version
        return replace(version, adapter=str(self._directory / Path(version.adapter).name))

    def _forget(self) -> None:
        """Delete what was fetched once and what the train process has deleted since."""
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
