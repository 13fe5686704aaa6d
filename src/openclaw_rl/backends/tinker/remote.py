"""Where a version's weights lie at the service: a file in the version's own directory."""

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
    """Addresses of weights to sample from, and of weights with optimizer state to go on from; past gradient norms."""

    sampler: str
    state: str
    norms: tuple[float, ...] = field(default=())


def write_remote(directory: Path, remote: RemoteWeights) -> None:
    """Put the addresses beside a version's manifest."""
    (directory / FILE).write_text(json.dumps(asdict(remote), indent=2) + "\n")


def read_remote(directory: Path) -> RemoteWeights:
    """What `write_remote` wrote; raises BackendError where it cannot be read."""
    try:
        found: Mapping[str, Any] = json.loads((directory / FILE).read_text())
        return RemoteWeights(
            sampler=str(found["sampler"]), state=str(found["state"]), norms=tuple(map(float, found["norms"]))
        )
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(
            f"{directory} does not say where its weights are: {type(error).__name__}: {error}",
            remedy=f"versions of the service have a {FILE}; set policy.backend to what served this one",
        ) from error


def sampler_path(adapter: str) -> str:
    """The address to sample a version's weights from; raises ModelRefused where its directory has none."""
    if adapter.startswith(SCHEME):
        return adapter
    try:
        return read_remote(Path(adapter)).sampler
    except BackendError as error:
        raise ModelRefused(error.what, remedy=error.remedy) from error


# What this run has saved at the service, and what of it may be deleted there: what no version on disk names any more.
#
# Which versions are kept is decided where all versions are (`train.keep`, pins, what is live, what a request may still
# be answered by); here it is only followed. A step that failed after it had saved leaves no version: its checkpoints go
# too.


class SavedCheckpoints:
    """A file in the run's directory: each address with the directory of the version that it was saved for."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "cloud" / "saved.json"

    def add(self, address: str, target: Path) -> None:
        """Remember a checkpoint from the moment that it is there."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._write({**self._read(), address: str(target.absolute())})

    def drop(self, address: str) -> None:
        """It is not there any more."""
        self._write({known: target for known, target in self._read().items() if known != address})

    def unneeded(self) -> list[str]:
        """The addresses that no version names, oldest first; raises BackendError where a version cannot be read.

        Where no version at all is found, the disk may be away or the run was moved: nothing is said of what was there.
        """
        saved = self._read()
        named = {folder: _named(folder) for folder in {Path(target).parent for target in saved.values()}}
        needed = set[str]().union(*named.values())
        return [each for each, target in saved.items() if named[Path(target).parent] and each not in needed]

    def _read(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._file.read_text()) if self._file.is_file() else {}
        return found

    def _write(self, saved: Mapping[str, str]) -> None:
        files.write(self._file, json.dumps(saved, indent=1) + "\n")


def _named(folder: Path) -> set[str]:
    """The addresses that versions in and about a folder name."""
    beside, below, above = folder.glob(f"*/{FILE}"), folder.glob(f"*/*/{FILE}"), folder.parent.glob(f"*/{FILE}")
    found = [read_remote(file.parent) for file in (*beside, *below, *above)]  # drafts lie below versions
    return {address for remote in found for address in (remote.state, remote.sampler)}


# A version's adapter as files, where the service gives it away: for an engine of one's own.

WANTED: Final = ("adapter_model.safetensors", "adapter_config.json")
_HOURS: Final = 3600
_SECONDS: Final = 300


async def download_adapter(session: TinkerSession, client: Any, remote: RemoteWeights) -> Mapping[str, bytes]:
    """The files of an adapter in peft's format; raises BackendError where the service does not give them.

    Newer SDKs export weights file by file, older ones give an archive of a checkpoint to sample from.
    """
    rest = await session.rest()
    if hasattr(client, "save_weights_external"):
        name = remote.sampler.rpartition("/")[2]
        saved = await session.wait(client.save_weights_external(name, ttl_seconds=_HOURS), "exporting an adapter")
        urls = await session.blocking(lambda: rest.get_external_weights_urls(saved.path).result(), "asking for files")
        found = {name: await _fetched(session, url) for name, url in urls.urls.items()}
    else:
        ask = rest.get_checkpoint_archive_url_from_tinker_path
        given = await session.blocking(lambda: ask(remote.sampler).result(), "asking for files")
        archive = await _fetched(session, given.url)
        found = await asyncio.to_thread(_unpacked, archive)
    wanted = {PurePosixPath(name).name: content for name, content in found.items()}
    if missing := [name for name in WANTED if name not in wanted]:
        raise BackendError(
            f"the adapter came without {', '.join(missing)}", remedy="set cloud.download = false to do without it"
        )
    return {name: wanted[name] for name in WANTED}


async def _fetched(session: TinkerSession, url: str) -> bytes:
    def fetch() -> bytes:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            content: bytes = answer.read()
        return content

    return await session.blocking(fetch, "downloading an adapter")


def _unpacked(archive: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for member in packed:
            content = packed.extractfile(member) if member.isfile() else None
            if content is not None:
                found[member.name] = content.read()
    return found
