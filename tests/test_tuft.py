"""TuFT, another server of Tinker's protocol, as a second opinion: `make test-tuft` runs it with SDK 0.25.

What TuFT calls its CPU mode makes every number up. Here its own training model, losses, LoRA, AdamW and checkpoints run on
the CPU, in this process in place of a Ray actor on a GPU; only what its samplers say is made up, as in its CPU mode.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

tuft = pytest.importorskip("tuft", reason="make test-tuft runs it, with TuFT in an environment of its own")

import torch  # noqa: E402
from fakes.tinker import KEY, tinker_server  # noqa: E402
from test_tinker_training import HINTS, Weights, alike, lesson, local_gradient, recorded, some_adapter, step  # noqa: E402
from test_tinker_training import version as numbered  # noqa: E402
from tinkering import LEAKS, policy_at, sdk_leaves_sockets_open, tiny_folder, trainer_at  # noqa: E402, F401

from openclaw_rl.backends.tinker.passes import TargetRows  # noqa: E402
from openclaw_rl.backends.tinker.remote import read_remote  # noqa: E402
from openclaw_rl.backends.tinker.trainer import TinkerTrainer  # noqa: E402
from openclaw_rl.ports import whole_reply  # noqa: E402
from openclaw_rl.testing.servers import listening  # noqa: E402
from openclaw_rl.types import Message, Prompt, Sample, Sampling, Version  # noqa: E402

pytestmark = [
    *LEAKS,
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of torch, in TuFT: sparse tensors
]
ASK = Prompt(messages=(Message(role="user", content="w1 w2"),))


async def nothing(*_: Any) -> None:
    """In place of ending an actor: asking Ray for that starts a cluster."""


class TrainedHere:
    """A Ray actor's handle over TuFT's training model in this process; ``applied`` are the gradients of the last step."""

    def __init__(self, config: Any) -> None:
        from tuft.backends.hf_training_model import HFTrainingModel

        self.actor = HFTrainingModel(config)
        self.applied: Weights = {}

    def __getattr__(self, name: str) -> Any:
        if name == "optim_step":
            return SimpleNamespace(remote=self._step)
        return SimpleNamespace(remote=getattr(self.actor, name))

    async def _step(self, adam: Any, adapter: str, context: Any) -> Any:
        self.applied = {name: p.grad.clone() for name, p in self.parameters(adapter).items() if p.grad is not None}
        return await self.actor.optim_step(adam, adapter, context)

    def parameters(self, adapter: str) -> dict[str, Any]:
        """Of one adapter, by the names that ours have."""
        found = {name: p for name, p in self.actor.model.named_parameters() if f".{adapter}." in name}
        return {
            name.removeprefix("base_model.model.").replace(f".{adapter}.", ".default."): p for name, p in found.items()
        }


class TuftServer(SimpleNamespace):
    """Where TuFT listens, the model that it has, and what trains it."""

    url: str
    model: str
    trained: TrainedHere


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TuftServer]:
    from tuft.backends.base_backend import BaseTrainingBackend
    from tuft.backends.hf_training_model import HFTrainingModel
    from tuft.backends.training_backend import HFTrainingBackend
    from tuft.config import AppConfig, ModelConfig
    from tuft.server import create_root_app

    there = TuftServer(model=str(folder))

    def begun(config: Any) -> TrainedHere:
        there.trained = TrainedHere(config)
        return there.trained

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUFT_CPU_TEST", "1")
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
        patch.setattr(HFTrainingModel, "get_actor", begun)
        patch.setattr(HFTrainingBackend, "shutdown", nothing)
        patch.setattr(BaseTrainingBackend, "create_backend", lambda config, *_, **__: HFTrainingBackend(config))
        model = ModelConfig(model_name=str(folder), model_path=folder, max_model_len=2048, max_lora_rank=16)
        config = AppConfig(
            checkpoint_dir=tmp_path_factory.mktemp("checkpoints"),
            supported_models=[model],
            authorized_users={KEY: "me"},
        )
        with listening(create_root_app(config), abrupt=True) as there.url:
            yield there


async def gradient_there(
    server: TuftServer, root: Path, samples: list[Sample], **settings: Any
) -> tuple[dict[str, float], Weights]:
    """What a step at TuFT found, from the same adapter as `local_gradient`."""
    trainer = trainer_at(server, root, **settings)  # type: ignore[arg-type]

    async def at_that_adapter(_: Version) -> None:
        if trainer._student is None:
            trainer._student, trainer._at = await trainer._opened(None), ""
            there = server.trained.parameters(trainer._student.model_id)
            for name, value in some_adapter(there).items():
                there[name].data.copy_(value)

    trainer._load = at_that_adapter  # type: ignore[method-assign, assignment]
    done = await step(trainer, root, samples=samples)
    assert done.skipped is None, done.skipped
    await trainer.stop()
    return dict(done.metrics), server.trained.applied


METHODS: list[dict[str, Any]] = [
    {"method": "binary"},
    {"method": "opd"},
    {"method": "combine"},
    {"method": "combine", "aggregate": "sample"},
]


@pytest.mark.parametrize("settings", METHODS, ids=lambda one: "-".join(map(str, one.values())))
async def test_a_methods_loss_and_gradient_there_are_those_of_the_local_trainer(
    server: TuftServer, folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    found, ours = local_gradient(folder, lesson(teachers=HINTS), **settings)
    said, theirs = await gradient_there(server, tmp_path, lesson(teachers=HINTS), **settings)
    assert said["loss"] == pytest.approx(found["loss"], abs=1e-4)
    alike(ours, theirs)


async def test_its_own_clipped_surrogate_is_ours(server: TuftServer, folder: Path, tmp_path: Path) -> None:
    with tinker_server(folder) as ours:
        samples = recorded(ours, (0.5, -0.5), version=9)
    settings = {"method": "binary", "kl_coef": 0.0}
    found, here = local_gradient(folder, samples, **settings)
    said, theirs = await gradient_there(server, tmp_path, samples, **settings)
    assert said["loss"] == pytest.approx(found["loss"], abs=1e-4)
    alike(here, theirs)


async def test_its_log_probs_are_the_models(server: TuftServer, tmp_path: Path) -> None:
    trainer = trainer_at(server, tmp_path)  # type: ignore[arg-type]
    client = await trainer._begun()
    ids, targets = (1, 4, 8, 9, 2, 1, 5, 11, 12), torch.tensor([[11, 30], [12, 40]])
    (found,) = await trainer._passes.forward(client, [TargetRows(tokens=ids, ids=targets)])
    await trainer.stop()
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    wanted = model(torch.tensor([ids[:-1]])).logits[0, -2:].log_softmax(-1).gather(1, targets)
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("method", ["combine", "topk"])
async def test_a_trainer_that_was_killed_goes_on_there_bit_for_bit(
    server: TuftServer, tmp_path: Path, method: str
) -> None:
    trainer = trainer_at(server, tmp_path, method=method)  # type: ignore[arg-type]
    first = numbered(1, (await step(trainer, tmp_path)).adapter)
    whole = await step(trainer, tmp_path, 2, parent=first)
    standing = {k: v.clone() for k, v in server.trained.parameters(trainer._student.model_id).items()}
    await trainer.session.close()
    again = trainer_at(server, tmp_path, method=method)  # type: ignore[arg-type]
    parted = await step(again, tmp_path / "again", 2, parent=first)
    after = server.trained.parameters(again._student.model_id)
    assert whole.metrics["loss"] == pytest.approx(parted.metrics["loss"], abs=1e-6)
    assert all(torch.equal(standing[name], after[name]) for name in standing)
    await again.stop()


async def test_what_no_version_names_any_more_is_deleted_there(server: TuftServer, tmp_path: Path) -> None:
    trainer = trainer_at(server, tmp_path, method="combine")  # type: ignore[arg-type]
    first = await step(trainer, tmp_path)
    gone = read_remote(Path(str(first.adapter)))
    second = await step(trainer, tmp_path, 2, parent=numbered(1, first.adapter))
    kept = read_remote(Path(str(second.adapter)))
    assert {gone.state, gone.sampler, kept.state, kept.sampler} <= await listed(trainer, gone.state)
    shutil.rmtree(str(first.adapter))
    await step(trainer, tmp_path, 3, parent=numbered(2, second.adapter))
    left = await listed(trainer, gone.state)
    assert ({gone.state, gone.sampler} & left, {kept.state, kept.sampler} <= left) == (set(), True)
    await trainer.stop()


async def listed(trainer: TinkerTrainer, address: str) -> set[str]:
    """The checkpoints that the server has of the run that an address is of."""
    rest, run = await trainer.session.rest(), address.removeprefix("tinker://").split("/")[0]
    found = await trainer.session.blocking(lambda: rest.list_checkpoints(run).result(), "listing checkpoints")
    return {each.tinker_path for each in found.checkpoints}


async def test_a_version_is_taken_up_and_answers(server: TuftServer, tmp_path: Path) -> None:
    trainer, policy = trainer_at(server, tmp_path, method="combine"), policy_at(server, tmp_path)  # type: ignore[arg-type]
    await policy.start()
    done = await step(trainer, tmp_path)
    await policy.load(numbered(1, done.adapter))
    reply = await whole_reply(policy.generate(ASK, Sampling(max_tokens=4, seed=1)))
    assert (reply.version, len(reply.reply_tokens) > 0) == (1, True)
    assert read_remote(Path(str(done.adapter))).sampler.startswith("tinker://")
    await policy.stop()
    await trainer.stop()
