"""Versions trained at a server of Tinker's protocol: what is deleted there and what never is; served from files here."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes.tinker import KEY, TinkerServer, tinker_server
from fakes.tinker.lora import LoraModel
from test_tinker_training import step, version
from tinkering import BASE, LEAKS, sdk_leaves_sockets_open, thorough, tiny_folder, trainer_at  # noqa: F401

from openclaw_rl.backends.tinker.remote import RemoteWeights, SavedCheckpoints, read_remote, write_remote
from openclaw_rl.errors import BackendError
from openclaw_rl.store import TrainLedger, submit_request
from openclaw_rl.testing import ticking_app
from openclaw_rl.types import Version
from openclaw_rl.versions import RetentionPolicy, VersionManager

pytestmark = [*LEAKS, pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    with tinker_server(tiny_folder(tmp_path_factory.mktemp("tiny"))) as running:
        yield running


def written(saved: SavedCheckpoints, folder: Path) -> tuple[str, str]:
    """A version of its own: its addresses."""
    remote = RemoteWeights(
        state=f"tinker://r/weights/{folder.name}", sampler=f"tinker://r/sampler_weights/{folder.name}"
    )
    saved.add(remote.state, folder)
    saved.add(remote.sampler, folder)
    folder.mkdir(parents=True)
    write_remote(folder, remote)
    return remote.state, remote.sampler


def test_what_a_version_on_disk_names_is_needed_wherever_it_was_moved_to(tmp_path: Path) -> None:
    saved, versions = SavedCheckpoints(tmp_path), tmp_path / "versions"
    first, _ = (written(saved, versions / name) for name in ("000001", "000002"))
    draft = written(saved, versions / "distillation" / "step-1")
    assert saved.unneeded() == []
    (versions / "distillation" / "step-1").rename(versions / "000003")
    (versions / "distillation").rmdir()
    assert saved.unneeded() == [], "a draft that became a version"
    shutil.rmtree(versions / "000001")
    assert saved.unneeded() == list(first)
    shutil.rmtree(versions / "000003")
    assert saved.unneeded() == [*first, *draft]
    saved.drop(first[0])
    assert SavedCheckpoints(tmp_path).unneeded() == [first[1], *draft], "another process knows it too"


def test_where_the_versions_are_away_or_cannot_be_read_nothing_is_deleted(tmp_path: Path) -> None:
    saved, versions = SavedCheckpoints(tmp_path), tmp_path / "disk" / "versions"
    for name in ("000001", "000002"):
        written(saved, versions / name)
    shutil.move(versions, tmp_path / "elsewhere")
    assert saved.unneeded() == []
    versions.mkdir()
    assert saved.unneeded() == [], "an empty disk is there in its place"
    shutil.rmtree(versions)
    shutil.move(tmp_path / "elsewhere", versions)
    shutil.rmtree(versions / "000001")
    (versions / "000002" / "tinker.json").write_text("half a fi")
    with pytest.raises(BackendError, match="does not record where its weights are"):
        saved.unneeded()


def addresses(directory: Path) -> set[str]:
    remote = read_remote(directory)
    return {remote.state, remote.sampler}


async def test_what_retention_deletes_here_is_deleted_there_never_what_is_live_pinned_or_can_be_gone_back_to(
    server: TinkerServer, tmp_path: Path
) -> None:
    trainer, versions, parent = trainer_at(server, tmp_path, method="binary"), tmp_path / "versions", BASE
    with TrainLedger(tmp_path / "ledger.db", sync="normal") as ledger:
        ledger.add_version(replace(BASE, state="live"))
        for number in (1, 2, 3, 4):
            made = await step(trainer, versions, number, parent=parent)
            parent = Version(number=number, parent=number - 1, base="tiny", adapter=made.adapter, state="live")
            ledger.add_version(parent)
        there = {number: addresses(versions / f"{number:06d}") for number in (1, 2, 3, 4)}
        submit_request(tmp_path / "ledger.db", "pin version", version=1)
        rules = RetentionPolicy(keep=1, interval=1000)
        manager, soon, later = VersionManager(ledger), time.time(), time.time() + 3600
        assert manager.retain(versions, rules, now=soon) == 0, "a request may still be answered by it"
        await step(trainer, versions, 5, parent=parent)
        assert all(each <= set(server.checkpoints) for each in there.values())
        assert manager.retain(versions, rules, now=later) == 1
        await step(trainer, versions, 6, parent=parent)
    await trainer.stop()
    left = set(server.checkpoints)
    assert [number for number, each in there.items() if each <= left] == [1, 3, 4]
    assert not there[2] & left


async def test_what_a_failed_step_left_is_deleted_and_what_cannot_be_deleted_waits(
    server: TinkerServer, tmp_path: Path
) -> None:
    trainer = trainer_at(server, tmp_path, method="binary")
    server.fail("save_weights_for_sampler", "server: it fell over")
    with pytest.raises(BackendError, match="fell over"):
        await step(trainer, tmp_path / "versions")
    (orphan,) = server.checkpoints
    server.fail("training_runs", 405)
    first = await step(trainer, tmp_path / "versions")
    assert orphan in server.checkpoints, "it was refused, and costs the step nothing"
    second = await step(trainer, tmp_path / "versions", 2, parent=version(1, first.adapter))
    await trainer.stop()
    assert set(server.checkpoints) == addresses(Path(str(first.adapter))) | addresses(Path(str(second.adapter)))


LINE = ("train.batch_size=1", "train.idle_wait=3600", "train.train_truncated=on", "policy.sampling.max_tokens=12")
FREE = ("gate.mode=off", "notes.enabled=off", "train.prompt_distillation.enabled=off", "policy.dtype=float32")


@thorough
async def test_the_local_engine_serves_what_was_trained_there(server: TinkerServer, tmp_path: Path) -> None:
    there = (f"cloud.tinker_endpoint={server.url}", f"cloud.tinker_api_key={KEY}", f"policy.model={server.model}")
    mixed = ("policy.backend=local", "train.backend=tinker", "cloud.download=on", "train.optim.lr=0.05")
    async with ticking_app(tmp_path / "run", *there, *mixed, *LINE, *FREE) as walk:
        first = await walk.ask("w1 w2 w3")
        words = str(first["choices"][0]["message"]["content"])
        await walk.ask("w1 w2 w3", words, "Too long. Please keep it under 30 words.")
        await walk.app.finish()
        calls = len(server.calls)
        learned = await walk.ask("w1 w2 w3", seed=1)
        assert learned["system_fingerprint"] == "openclaw-rl-v1"
        assert "asample" not in server.calls[calls:], "the reply was made here"
        (taught,) = (each for each in walk.ledger.versions() if each.number == 1)
        done = walk.ledger.turn(learned["id"]).completion
    weights = server.checkpoints[read_remote(Path(str(taught.adapter))).sampler]
    model = LoraModel(server.base, weights.shape)
    model.load(weights, optimizer=False)
    reply = torch.tensor(done.reply_tokens)[:, None]
    wanted = model.score([*done.prompt_tokens, *done.reply_tokens])[len(done.prompt_tokens) - 1 : -1].gather(1, reply)
    assert torch.allclose(torch.tensor(done.logprobs), wanted[:, 0], atol=1e-4), "by the weights that are there"
