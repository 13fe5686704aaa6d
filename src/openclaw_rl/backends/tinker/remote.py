"""The address of a version's weights at the service: a file in the version's own directory."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from openclaw_rl import files
from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.errors import BackendError, ModelRefused

FILE: Final = "tinker.json"
SCHEME: Final = "tinker://"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWeights:
    """Addresses of weights for sampling, and of weights with optimizer state for training; past gradient norms."""

    sampler: str
    state: str
    norms: tuple[float, ...] = field(default=())


def write_remote(directory: Path, remote: RemoteWeights) -> None:
    """Write the addresses beside a version's manifest."""
    (directory / FILE).write_text(json.dumps(asdict(remote), indent=2) + "\n")


def read_remote(directory: Path) -> RemoteWeights:
    """Read the file that `write_remote` wrote; raise BackendError if it is unreadable."""
    try:
        content: Mapping[str, Any] = json.loads((directory / FILE).read_text())
        return RemoteWeights(
            sampler=str(content["sampler"]), state=str(content["state"]), norms=tuple(map(float, content["norms"]))
        )
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(
            f"{directory} does not record where its weights are: {type(error).__name__}: {error}",
            remedy=f"versions of the service have a {FILE}; set policy.backend to what served this one",
        ) from error


def sampler_path(adapter: str) -> str:
    """Return the address for sampling a version's weights; raise ModelRefused if its directory has none."""
    if adapter.startswith(SCHEME):
        return adapter
    try:
        return read_remote(Path(adapter)).sampler
    except BackendError as error:
        raise ModelRefused(error.what, remedy=error.remedy) from error


# The run's checkpoints at the service; those that no version on disk names any more may be deleted there.
#
# Retention is decided with the versions (`train.keep`, pins, the live version, versions that a request may still name);
# this module only follows it. A step that failed after saving leaves no version: its checkpoints are deleted too.


class SavedCheckpoints:
    """A file in the run's directory that maps each address to the directory of its version."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "cloud" / "saved.json"

    def add(self, address: str, target: Path) -> None:
        """Record a checkpoint as soon as it exists."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._write({**self._read(), address: str(target.absolute())})

    def drop(self, address: str) -> None:
        """Remove a deleted checkpoint from the record."""
        self._write({saved: target for saved, target in self._read().items() if saved != address})

    def unneeded(self) -> list[str]:
        """Return the addresses that no version names, oldest first; raise BackendError if a version is unreadable.

        A folder without any version counts as unavailable (disk unmounted or run moved): its checkpoints are left out.
        """
        saved = self._read()
        named = {folder: _named(folder) for folder in {Path(target).parent for target in saved.values()}}
        needed = set[str]().union(*named.values())
        return [address for address, target in saved.items() if named[Path(target).parent] and address not in needed]

    def _read(self) -> dict[str, str]:
        saved: dict[str, str] = json.loads(self._file.read_text()) if self._file.is_file() else {}
        return saved

    def _write(self, saved: Mapping[str, str]) -> None:
        files.write(self._file, json.dumps(saved, indent=1) + "\n")


def _named(folder: Path) -> set[str]:
    """Return the addresses that the versions in and around a folder name."""
    beside, below, above = folder.glob(f"*/{FILE}"), folder.glob(f"*/*/{FILE}"), folder.parent.glob(f"*/{FILE}")
    remotes = [read_remote(file.parent) for file in (*beside, *below, *above)]  # drafts are below versions
    return {address for remote in remotes for address in (remote.state, remote.sampler)}


# A version's adapter as files, if the service offers them: for use with an external engine.

WANTED: Final = ("adapter_model.safetensors", "adapter_config.json")
_HOURS: Final = 3600
_SECONDS: Final = 300


async def download_adapter(session: TinkerSession, client: Any, remote: RemoteWeights) -> Mapping[str, bytes]:
    """Return an adapter's files in peft's format; raise BackendError if the service does not provide them.

    Newer SDKs export weights file by file, older ones return the archive of a checkpoint for sampling.
    """
    rest_client = await session.rest()
    if hasattr(client, "save_weights_external"):
        name = remote.sampler.rpartition("/")[2]
        saved = await session.wait(client.save_weights_external(name, ttl_seconds=_HOURS), "exporting an adapter")
        urls = await session.blocking(
            lambda: rest_client.get_external_weights_urls(saved.path).result(), "asking for files"
        )
        contents = {name: await _fetched(session, url) for name, url in urls.urls.items()}
    else:
        ask = rest_client.get_checkpoint_archive_url_from_tinker_path
        export = await session.blocking(lambda: ask(remote.sampler).result(), "asking for files")
        archive = await _fetched(session, export.url)
        contents = await asyncio.to_thread(_unpacked, archive)
    by_name = {PurePosixPath(name).name: content for name, content in contents.items()}
    if missing := [name for name in WANTED if name not in by_name]:
        raise BackendError(
            f"the adapter arrived without {', '.join(missing)}", remedy="set cloud.download = false to do without it"
        )
    return {name: by_name[name] for name in WANTED}


async def _fetched(session: TinkerSession, url: str) -> bytes:
    def fetch() -> bytes:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            content: bytes = answer.read()
        return content

    return await session.blocking(fetch, "downloading an adapter")


def _unpacked(archive: bytes) -> dict[str, bytes]:
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for member in packed:
            content = packed.extractfile(member) if member.isfile() else None
            if content is not None:
                contents[member.name] = content.read()
    return contents
