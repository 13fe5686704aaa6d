"""Versions travel by a folder or an object store: put before they are live, fetched whole, compared, kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from openclaw_rl.app.application import App
from openclaw_rl.app.factories import store_artifacts
from openclaw_rl.backends.fake import write_adapter
from openclaw_rl.errors import BackendDown, MissingExtra
from openclaw_rl.store import ServerPlace, TrainLedger
from openclaw_rl.testing import MemoryVersions, fake_config
from openclaw_rl.types import Version
from openclaw_rl.versions import ArtifactStore, FetchedVersions, VersionManager


@pytest.fixture(params=["folder", "object store"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder, and a store that has no folders, as S3 has none."""
    yield str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


def weights(folder: Path, name: str, *rules: str) -> Version:
    write_adapter(str(folder / name), rules=rules, turns=(), manifest={})
    (folder / name / "more").mkdir()
    (folder / name / "more" / "part.bin").write_bytes(b"\0\1" * 5000)
    return Version(number=int(name), parent=0, base="b", adapter=str(folder / name), state="live")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_version_arrives_as_it_left_and_is_fetched_once(tmp_path: Path, address: str) -> None:
    version = weights(tmp_path / "there", "000001", "be brief")
    ArtifactStore(address).told(version, "live")
    gone = Version(number=1, parent=0, base="b", adapter="/nowhere/versions/000001", state="live")
    store = ArtifactStore(address)
    here = FetchedVersions(MemoryVersions(gone), store, tmp_path / "here")
    assert here.versions()[0].adapter == str(tmp_path / "here" / "000001")
    assert not (tmp_path / "here").exists(), "what is only named is not fetched"
    live = here.live()
    assert live is not None
    assert contents(Path(live.adapter or "")) == contents(tmp_path / "there" / "000001")
    store.drop("000001")
    assert here.live() == live, "it is here by now"
    with pytest.raises(BackendDown, match=r"weights of version 000001 are not at .*same store\.versions"):
        store.fetch("000001", tmp_path / "again")


def test_what_was_changed_on_the_way_is_not_used(tmp_path: Path, address: str) -> None:
    store = ArtifactStore(address)
    store.put(Path(weights(tmp_path, "000001").adapter or ""))
    filesystem, root = fsspec.url_to_fs(address)
    with filesystem.open(f"{root}/000001/more/part.bin", "wb") as file:
        file.write(b"other")
    with pytest.raises(BackendDown, match=r"000001/more/part\.bin is not what was put there; delete it"):
        store.fetch("000001", tmp_path / "here")
    assert not (tmp_path / "here").exists()
    with filesystem.open(f"{root}/000001.json", "wb") as file:
        file.write(json.dumps({"files": {"../../out": "sha256 0"}}).encode())
    with pytest.raises(BackendDown, match="names a file outside of its folder"):
        store.fetch("000001", tmp_path / "here")


def test_a_version_without_its_manifest_is_not_there_yet(tmp_path: Path, address: str) -> None:
    store, version = ArtifactStore(address), weights(tmp_path, "000001")
    store.put(Path(version.adapter or ""))
    filesystem, root = fsspec.url_to_fs(address)
    filesystem.rm(f"{root}/000001.json")
    with pytest.raises(BackendDown, match="are not at"):
        store.fetch("000001", tmp_path / "here")
    store.put(Path(version.adapter or ""))  # as a train process does that was killed at it
    store.fetch("000001", tmp_path / "here")


def test_another_run_on_the_same_store_is_refused(tmp_path: Path, address: str) -> None:
    ArtifactStore(address).put(Path(weights(tmp_path / "a", "000001", "be brief").adapter or ""))
    ArtifactStore(address).put(tmp_path / "a" / "000001")
    with pytest.raises(BackendDown, match=r"holds another version 000001 .*; give each run a place of its own"):
        ArtifactStore(address).put(Path(weights(tmp_path / "b", "000001", "no lists").adapter or ""))


def test_nobody_hears_of_a_live_version_before_its_weights_are_there(tmp_path: Path, address: str) -> None:
    config = fake_config(tmp_path, f"store.versions={address}")
    with TrainLedger(tmp_path / "ledger.db", sync="normal") as train:
        store_artifacts(config, train)
        manager = VersionManager(train)
        manager.begin("b")
        one = Version(number=1, parent=0, base="b", adapter=str(tmp_path / "versions" / "000001"))
        train.add_version(one)
        with pytest.raises(BackendDown):
            ArtifactStore(address).fetch("000001", tmp_path / "early")
        weights(tmp_path / "versions", "000001", "be brief")
        manager.promote(one, "better")
        ArtifactStore(address).fetch("000001", tmp_path / "fetched")
        train.set_state(1, "deleted", "retention")
        with pytest.raises(BackendDown, match="are not at"):
            ArtifactStore(address).fetch("000001", tmp_path / "late")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(address: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "url_to_fs", missing)
    with pytest.raises(MissingExtra, match=r"'s3fs'.*openclaw-rl\[s3\]"):
        ArtifactStore("s3://bucket/run")
    with pytest.raises(MissingExtra, match=r"'gcsfs'.*openclaw-rl\[gs\]"):
        ArtifactStore("gs://bucket/run")


async def test_a_gateway_with_a_directory_of_its_own_answers_with_what_was_trained_elsewhere(
    tmp_path: Path, database: ServerPlace
) -> None:
    store = f"store.versions={tmp_path / 'store'}"
    url = f"store.url={database.url}"
    with TrainLedger(ServerPlace(url=database.url, root=tmp_path / "a"), sync="full") as train:
        store_artifacts(fake_config(tmp_path / "a", url, store), train)
        VersionManager(train).begin("fake")
        one = weights(tmp_path / "a" / "versions", "000001", "Keep it under 30 words.")
        train.add_version(one)
    app = App(fake_config(tmp_path / "b", url, store), loops=("serve",))
    async with app.started():
        assert app.policy is not None
        assert app.policy.live == 1
    assert contents(tmp_path / "b" / "versions" / "000001") == contents(tmp_path / "a" / "versions" / "000001")
