"""The files of a repository at a commit, from a mirror or an archive on this machine."""

from __future__ import annotations

import io
import subprocess
import tarfile
from functools import lru_cache
from pathlib import Path, PurePosixPath

from openclaw_rl.envs.swe.instances import Instance
from openclaw_rl.errors import EnvFailed

MIRRORS, ARCHIVES = "repos", "archives"
GIT_SECONDS = 120
KEPT = 8
"""trees that are kept in memory, since the episodes of a task begin together"""


def tree(folder: Path, instance: Instance) -> bytes:
    """The files of an instance's repository, as a tar. Raises EnvFailed, with the places looked in, without them."""
    return _tree(folder, instance.name, instance.commit)


@lru_cache(maxsize=KEPT)
def _tree(folder: Path, name: str, commit: str) -> bytes:
    for mirror in (folder / MIRRORS / name, folder / MIRRORS / f"{name}.git"):
        if mirror.is_dir():
            return git("-C", str(mirror), "archive", "--format=tar", commit)
    archive = folder / ARCHIVES / f"{name}-{commit}.tar.gz"
    if archive.is_file():
        return unpacked(archive)
    raise EnvFailed(
        f"there is neither a mirror {folder / MIRRORS / name} nor an archive {archive}",
        remedy=f"git clone --mirror ADDRESS {folder / MIRRORS / name}.git",
    )


def unpacked(archive: Path) -> bytes:
    """The plain files of a packed tar, as a tar, without the one folder that all of them are in."""
    found = io.BytesIO()
    with tarfile.open(archive) as packed, tarfile.open(fileobj=found, mode="w") as plain:
        files = [member for member in packed.getmembers() if member.isfile()]
        heads = {PurePosixPath(member.name).parts[0] for member in files}
        for member in files:
            place = PurePosixPath(member.name)
            entry = tarfile.TarInfo(str(place.relative_to(place.parts[0]) if len(heads) == 1 else place))
            entry.size, entry.mode = member.size, 0o755 if member.mode & 0o100 else 0o644
            plain.addfile(entry, packed.extractfile(member))
    return found.getvalue()


def unpack(files: bytes, folder: Path) -> None:
    """Write a tar's files below a folder."""
    with tarfile.open(fileobj=io.BytesIO(files)) as plain:
        plain.extractall(folder, filter="data")


def git(*words: str) -> bytes:
    """What git prints. Raises EnvFailed where it fails."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, timeout=GIT_SECONDS, check=False)
    except FileNotFoundError as error:
        raise EnvFailed("the program git is not on this machine", remedy="apt-get install git") from error
    if done.returncode != 0:
        raise EnvFailed(
            f"git {words[2] if words[0] == '-C' else words[0]} failed: {done.stderr.decode(errors='replace').strip()}"
        )
    return done.stdout
