"""A version's adapter as files, where the service gives it away: for an engine of one's own."""

from __future__ import annotations

import asyncio
import io
import tarfile
import urllib.request
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from openclaw_rl.backends.tinker.remote import RemoteWeights
from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.errors import BackendError

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
