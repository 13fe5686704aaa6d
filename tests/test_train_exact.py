"""A run is the same however it is interrupted, in half precision a tree is its turns, and the engine agrees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import loss_settings
from test_local_models import embedded, quiet  # noqa: F401 (a fixture)
from test_local_trainer import SHAPES, by_tree, lesson, order, same_files, some_batch, version, worker
from tiny import save_tiny, tiny
from torch import Tensor
from training import train_loop

from openclaw_rl.backends.hf import adapters as train_manifest
from openclaw_rl.backends.hf import models
from openclaw_rl.backends.hf.batches import collate
from openclaw_rl.backends.hf.template import ChatTemplate, ends_of
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.messages import Finished
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.backends.local.engine.scheduler import Generation
from openclaw_rl.backends.local.training import forward as train_forward
from openclaw_rl.backends.local.training import worker as train_update
from openclaw_rl.backends.local.training.settings import StepRequest
from openclaw_rl.ports import StepResult
from openclaw_rl.store import TrainLedger
from openclaw_rl.testing import TemporaryLedger
from openclaw_rl.train.loop import TrainLoop
from openclaw_rl.types import Completion, Drop, Message, Prompt, Sample, Sampling, Step, Version
from openclaw_rl.versions import LiveVersions

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


# --- half precision


def gradients(model: Any) -> Tensor:
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])


def ran(shape: str, dtype: torch.dtype, *, tree: bool) -> tuple[Tensor, Tensor]:
    """Log-probs of a batch's replies and its gradient, by one tree or turn by turn."""
    samples, views = some_batch(random.Random(11))
    student, base = tiny(shape).to(dtype), tiny(shape, seed=1).to(dtype)
    if tree:
        assert train_forward.enable_tree(student) is None
        assert train_forward.enable_tree(base) is None
    batch = collate(samples, views, version=9, device=torch.device("cpu"), wide=torch.float32)
    settings = loss_settings(hint_selection="shortest")  # one that rounding cannot tip over
    found, _, _ = by_tree(student, base, batch, settings, k=4, budget=None, tree=tree)
    return found.current.detach().double(), gradients(student)


@pytest.mark.parametrize("shape", SHAPES)
def test_in_half_precision_a_tree_is_as_near_the_truth_as_its_turns(shape: str) -> None:
    truth, pull = ran(shape, torch.float32, tree=False)
    alone, pulled_alone = ran(shape, torch.bfloat16, tree=False)
    together, pulled = ran(shape, torch.bfloat16, tree=True)
    rounding = float((alone - truth).abs().mean())
    assert 1e-4 < rounding < 0.1, "half precision rounds, and not beyond reason"
    assert float((together - truth).abs().mean()) < 1.5 * rounding
    assert float((together - alone).abs().mean()) < 2 * rounding
    along = torch.nn.functional.cosine_similarity
    assert float(along(pulled, pull, dim=0)) > 0.98
    assert float(along(pulled, pull, dim=0)) > float(along(pulled_alone, pull, dim=0)) - 0.01


# --- interrupted anywhere


class Died(Exception):
    """The process is gone."""


class Here:
    """The real worker as a trainer in this process; it may die before a step, or after it has published one."""

    def __init__(self, folder: str, dies: str | None = None) -> None:
        self._folder, self._dies = folder, dies

    async def start(self) -> None:
        self._worker = worker(self._folder, lora_dropout=0.2, lr=5e-3)

    async def stop(self) -> None: ...

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        if self._dies == "before the step":
            raise Died
        if self._dies == "while it is written":
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            (Path(target).parent / f".{Path(target).name}.1.tmp").mkdir()
            raise Died
        done = self._worker.step(StepRequest(samples=tuple(samples), number=number, parent=parent, target=target))
        if self._dies == "after it is written":
            raise Died
        return done


class Run(TemporaryLedger):
    """A ledger with three batches to train, and a loop that is begun anew whenever it dies."""

    def __init__(self, root: Path, folder: str) -> None:
        super().__init__(root)
        self.root, self.model = root, folder
        for at, one in enumerate(lesson() * 2):
            done = Completion(
                reply=Message(role="assistant", content="x"),
                prompt_tokens=one.prompt_tokens,
                reply_tokens=one.reply_tokens,
                logprobs=one.logprobs,
                sampling=Sampling(),
                finish="stop",
                version=0,
            )
            hints = ("w9 w9 w8 w7",) if at % 2 else ()
            self.add(1.0 if at % 3 else -1.0, *hints, id=f"t{at}", prompt=one.prompt, completion=done)

    def begin(self, dies: str | None = None) -> TrainLoop:
        ledger = Mortal(self.train, dies)
        return train_loop(ledger, Here(self.model, dies), self.root, base="tiny", max_wait=0.0)  # type: ignore[arg-type]

    async def through(self, dies: str | None = None, at: int = 0) -> tuple[str, dict[str, float]]:
        """All three steps; with ``dies``, the process dies there in step ``at`` and another goes on."""
        loop = self.begin()
        for number in range(1, 4):
            if number == at:
                with pytest.raises(Died):
                    await self.begin(dies).tick()
                loop = self.begin()
            while self._taken() < number:
                await loop.tick()
        await loop.tick()
        live, last = LiveVersions(self.train).live(), self.train.last_step()
        assert live is not None
        assert last is not None
        assert (live.number, last.number) == (3, 3)
        return str(live.adapter), dict(last.baselines)

    def _taken(self) -> int:
        last = self.train.last_step()
        return last.number if last else 0


class Mortal:
    """A ledger whose writer may die before it writes a step, or right after."""

    def __init__(self, ledger: TrainLedger, dies: str | None) -> None:
        self._ledger, self._dies = ledger, dies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def add_step(self, step: Step, version: Version | None, drops: Sequence[Drop] = ()) -> None:
        if self._dies == "before the row":
            raise Died
        self._ledger.add_step(step, version, drops)
        if self._dies == "after the row":
            raise Died


POINTS = ["before the step", "while it is written", "after it is written", "before the row", "after the row"]


@pytest.mark.anyio
async def test_a_run_that_dies_anywhere_ends_with_the_same_weights_optimizer_and_baselines(
    folder: str, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    whole, baselines = await Run(tmp_path / "whole", folder).through()
    assert baselines["u1"].mean != 0.0
    for point in POINTS:
        place = tmp_path / point.replace(" ", "-")
        place.mkdir()
        broken, after = await Run(place, folder).through(point, at=2)
        assert same_files(broken, whole), point
        assert after == baselines, point
        assert _states_equal(broken, whole), point


def _states_equal(a: str, b: str) -> bool:
    found = [torch.load(Path(one) / train_manifest.STATE, weights_only=True) for one in (a, b)]
    moments = [[value for entry in state["optimizer"]["state"].values() for value in entry.values()] for state in found]
    same = all(torch.equal(x, y) for x, y in zip(*moments, strict=True))
    return same and torch.equal(found[0]["random"]["cpu"], found[1]["random"]["cpu"])


def test_optimizer_state_in_main_memory_changes_nothing(folder: str, tmp_path: Path) -> None:
    def two(where: str, **settings: Any) -> str:
        trainer = worker(folder, **settings)
        first = trainer.step(order(lesson(), tmp_path / where / "v1"))
        done = trainer.step(order(lesson(), tmp_path / where / "v2", number=2, parent=version(1, first.adapter)))
        return str(done.adapter)

    assert same_files(two("off", offload_optimizer=True), two("on"))


def test_optimizer_state_in_main_memory_is_brought_over_one_parameter_at_a_time(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, at_once = train_update._step, list[int]()

    def noted(parameters: Any, saved: Any, group: Any) -> Any:
        at_once.append(len(parameters))
        return real(parameters, saved, group)

    monkeypatch.setattr(train_update, "_step", noted)
    trainer = worker(folder, offload_optimizer=True)
    trainer.step(order(lesson(), tmp_path / "v1"))
    assert at_once == [1] * len(trainer.policy.parameters)
    assert all(parameter.grad is None for parameter in trainer.policy.parameters.values())


# --- the engine's own log-probs


def test_on_policy_replies_of_the_embedded_model_are_as_likely_to_the_trainer_as_to_the_engine(
    embedded: Path,  # noqa: F811 (the fixture)
    tmp_path: Path,
) -> None:
    loaded = models.load("embedded", cache_dir=embedded, device="cpu", dtype="float32", progress=quiet)
    chat = ChatTemplate(loaded.tokenizer, ends_of(loaded.model, loaded.tokenizer))
    asked = [Prompt(messages=(Message(role="user", content=text),)) for text in ("What is tea?", "Why?")]
    engine = Engine(model_runner_of(loaded.model), loaded.model, cache_tokens=1024, max_batch=4)
    sampling = Sampling(temperature=0.8, max_tokens=12, seed=5)
    for at, prompt in enumerate(asked):
        job = Generation.of(at, 0, chat.encode(prompt), sampling, context=512, ends=chat.ends, decode=chat.decode)
        engine.submit(job)
    done: dict[int, Finished] = {}
    while not engine.idle:
        done.update({event.job: event for event in engine.step() if isinstance(event, Finished)})
    samples = [
        Sample(
            turn=f"t{at}",
            user="u1",
            prompt=prompt,
            prompt_tokens=done[at].prompt,
            reply_tokens=done[at].tokens,
            logprobs=done[at].logprobs,
            mask=(True,) * len(done[at].tokens),
            advantage=1.0,
            teachers=(),
            temperature=0.8,
            version=0,
        )
        for at, prompt in enumerate(asked)
    ]
    trainer = worker("embedded", cache_dir=embedded, loader=models.load, dtype="float32", lora_rank=1, kl_coef=0.0)
    step = trainer.step(order(samples, tmp_path / "v1", base="embedded"))
    assert step.skipped is None
    assert step.metrics["kept"] == sum(len(one.reply_tokens) for one in samples)
    assert step.metrics["gap_mean"] < 0.02
