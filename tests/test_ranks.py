"""Several ranks: they do together what one process does, and any number of them goes on where another has stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import trainer_args
from safetensors.torch import load_file
from test_local_trainer import HINT, alive, half_the_ratio, lesson, load, order, sample, version
from tiny import save_tiny
from torch import Tensor

from openclaw_rl.backends.hf import adapters as train_manifest
from openclaw_rl.backends.local.training import model as train_model
from openclaw_rl.backends.local.training import ranks
from openclaw_rl.backends.local.training.model import PolicyModel
from openclaw_rl.backends.local.training.ranks import Ranks, join
from openclaw_rl.backends.local.training.settings import RankPlace, StepRequest, TrainerArgs
from openclaw_rl.backends.local.training.trainer import LocalTrainer
from openclaw_rl.backends.local.training.worker import TrainWorker
from openclaw_rl.errors import BackendError
from openclaw_rl.losses import LossInputs
from openclaw_rl.losses.tree import TokenPath, divide, pack
from openclaw_rl.ports import StepResult
from openclaw_rl.testing import wait_until
from openclaw_rl.types import Sample, Version

# --- a batch is divided


def paths(*lines: str) -> list[TokenPath]:
    return [TokenPath(tokens=tuple(map(ord, line)), reply=1) for line in lines]


def computed(some: list[TokenPath], dealt: list[list[int]]) -> list[int]:
    """The distinct tokens that each part computes."""
    return [sum(tree.size for tree in pack([some[at] for at in part])) for part in dealt]


def test_sessions_are_dealt_out_whole_where_that_is_even() -> None:
    some = paths("systemAbbbb.", "systemZyyyy.", "systemAbbbbcccc.", "systemZyyyyxxxx.")
    dealt = divide(some, [0] * 4, 2)
    assert [sorted(part) for part in dealt] == [[0, 2], [1, 3]]
    assert computed(some, dealt) == [15, 15]  # "system" is all that is computed twice


def test_a_single_session_is_cut_once_and_as_evenly_as_its_tokens_allow() -> None:
    some = paths(*(f"ab{tail}........" for tail in "cdef"))  # "ab" and 8 tokens of each
    dealt = divide(some, [0] * 4, 2)
    assert computed(some, dealt) == [18, 18]
    assert sorted(at for part in dealt for at in part) == [0, 1, 2, 3]


def test_what_a_turn_costs_beside_its_own_tokens_counts_too() -> None:
    some = paths("aaaa.", "bbbb.", "cccc.", "dddd.")
    assert [len(part) for part in divide(some, [0] * 4, 2)] == [2, 2]
    assert [len(part) for part in divide(some, [8, 0, 0, 0], 2)] == [1, 3]


def test_more_ranks_than_turns_leave_some_without_any() -> None:
    assert divide(paths("ab", "cd"), [0, 0], 4) == [[0], [1]]
    assert divide([], [], 2) == []


def test_small_gradients_travel_together_and_each_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_MESSAGE", 6)
    sent: list[int] = []

    class Twin(Ranks):
        """Beside another rank that has the same gradients."""

        def add_up(self, tensor: Tensor) -> Tensor:
            sent.append(tensor.numel())
            return tensor.mul_(2)

    sizes = [(2, 2), (2,), (3,), (9,), (1,)]
    some = [torch.zeros(size, requires_grad=True) for size in sizes]
    some.append(torch.zeros(2, dtype=torch.float64, requires_grad=True))
    for number, parameter in enumerate(some, 1):
        parameter.grad = torch.full_like(parameter, number)
    some[1].grad = None
    ranks.add_up_whole(some, Twin(count=2))
    assert sent == [6, 3, 9, 1, 2], "no more than six numbers, but for one that is longer; one kind at a time"
    assert [None if one.grad is None else one.grad.unique().tolist() for one in some] == [
        [2],
        [0],
        [6],
        [8],
        [10],
        [12],
    ]


# --- two ranks over gloo


MANY = [
    *lesson(),
    sample((9, 9, 8, 7, 6, 5), (33, 34, 35, 2), turn="t7", advantage=-0.5, logprobs=(-4.0,) * 4, version=9),
    sample((9, 9, 8, 7, 6, 5, 33, 34, 4), (36, 2), turn="t8", teachers=(HINT,), logprobs=(-4.0,) * 2, version=9),
]
"""two sessions: three replies to one prompt, and two turns of which one extends the other"""


PRELOADED = [
    "openclaw_rl.backends.local.training.worker",
    "peft",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
]
"""imported once for both ranks"""


def settings(folder: str, **change: Any) -> TrainerArgs:
    given = {"model": folder, "cache_dir": folder, "loader": load, "seed": 7, "lr": 5e-4, "threads": 1}
    return trainer_args(**({**given, "gap_alarm": 99.0, "ess_alarm": 0.0, "norm_alarm": 1e9} | change))


def serve_rank(pipe: Connection, place: RankPlace) -> None:
    torch.set_num_threads(1)
    ranks = join(place, torch.device("cpu"))
    while (asked := pipe.recv()) is not None:
        args, requests = asked
        worker = TrainWorker(args, ranks)
        pipe.send(([worker.step(request) for request in requests], frozen_divided(worker)))


def frozen_divided(worker: TrainWorker) -> bool:
    """Whether weights that are not trained, a LoRA's base or a full tune's reference, are divided among the ranks."""
    base = worker.policy.base().model
    return any(ranks.is_sharded(parameter) for parameter in base.parameters() if not parameter.requires_grad)


class TwoRanks:
    """Two processes that take the steps they are given as ranks of one trainer."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipes, self.processes = [], []
        self.frozen_divided: bool | None = None
        for number in range(2):
            ours, theirs = context.Pipe()
            place = RankPlace(number=number, count=2, meeting=(folder / "meeting").as_uri())
            process = context.Process(target=serve_rank, args=(theirs, place), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def steps(self, args: TrainerArgs, *requests: StepRequest) -> list[StepResult]:
        for pipe in self.pipes:
            pipe.send((args, requests))
        (first, self.frozen_divided), (second, _) = (pipe.recv() for pipe in self.pipes)
        assert [one.metrics.keys() for one in first] == [one.metrics.keys() for one in second]
        found: list[StepResult] = first
        return found

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    ranks = TwoRanks(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.end()


def chain(where: Path, *batches: list[Sample], first: int = 1, parent: Version | None = None) -> list[StepRequest]:
    """Steps of which each begins where the one before it ended."""
    found = []
    for number, samples in enumerate(batches, first):
        found.append(order(samples, where / f"v{number}", number=number, parent=parent))
        parent = version(number, str(where / f"v{number}"))
    return found


def alone(args: TrainerArgs, *requests: StepRequest) -> list[StepResult]:
    worker = TrainWorker(args)
    return [worker.step(request) for request in requests]


def weights(done: StepResult) -> dict[str, Tensor]:
    assert done.adapter is not None, done.skipped
    folder = Path(done.adapter)
    lora = (folder / train_manifest.ADAPTER).exists()
    return load_file(folder / (train_manifest.ADAPTER if lora else train_manifest.MODEL))


def same(ours: StepResult, theirs: StepResult) -> None:
    """To five decimals; few weights as far apart as that, those whose gradient is all but zero."""
    for name in ("loss", "grad_norm", "loss_opd", "loss_rl", "loss_kl", "signal", "distillation"):
        if name in theirs.metrics:
            assert ours.metrics[name] == pytest.approx(theirs.metrics[name], abs=1e-5), name
    mine, wanted = weights(ours), weights(theirs)
    assert mine.keys() == wanted.keys()
    for name, value in wanted.items():
        apart = (mine[name] - value).abs()
        assert float(apart.max()) < 1e-5, name
        assert float(apart.mean()) < 1e-7, name


def test_what_is_not_trained_is_divided_where_a_copy_takes_a_quarter_of_the_memory(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = PolicyModel(settings(folder))
    size = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    for room, divided in ((4 * size, False), (4 * size - 4, True)):
        monkeypatch.setattr(train_model, "total", lambda device, room=room: room)
        assert policy._divides_frozen(policy.model) is divided


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lora", "tree", "shard_frozen"),
    [
        pytest.param(True, True, True, id="lora, tree, all divided"),
        pytest.param(True, False, True, id="lora, turn by turn, all divided"),
        pytest.param(True, True, None, id="lora, tree, a small base whole"),
        pytest.param(False, True, None, id="full, tree, a small reference whole"),
        pytest.param(False, False, True, id="full, turn by turn, all divided"),
    ],
)
def test_two_ranks_take_the_step_of_one_process(
    two: TwoRanks, folder: str, tmp_path: Path, lora: bool, tree: bool, shard_frozen: bool | None
) -> None:
    # so few tokens at once that the two need different numbers of passes; the last batch leaves one without a turn
    args = settings(folder, lora=lora, tree=tree, lr=5e-4 if lora else 5e-5, micro_tokens=16, recompute=tree)
    args = replace(args, shard_frozen=shard_frozen)
    batches = [MANY, MANY[::-1], MANY[:1]]
    together = two.steps(args, *chain(tmp_path / "two", *batches))
    assert two.frozen_divided is bool(shard_frozen)
    for ours, theirs in zip(together, alone(args, *chain(tmp_path / "one", *batches)), strict=True):
        same(ours, theirs)
        assert (ours.metrics["ranks"], theirs.metrics["ranks"]) == (2.0, 1.0)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"teacher": "ema", "ema_decay": 0.5, "average": 2, "lr_by_signal": False},
        {"lora": False, "lr": 5e-5, "average": 2, "lr_by_signal": False, "offload_optimizer": True},
    ],
    ids=["lora", "full"],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    two: TwoRanks, folder: str, tmp_path: Path, change: dict[str, Any]
) -> None:
    args = settings(folder, **change)
    distilled = [replace(one, distills="n1") for one in lesson(None)]
    batches = [MANY, distilled, MANY, MANY]
    steady = alone(args, *chain(tmp_path / "steady", *batches))
    steps = chain(tmp_path / "changing", *batches)
    changing = [*two.steps(args, steps[0]), *alone(args, steps[1]), *two.steps(args, steps[2]), *alone(args, steps[3])]
    for ours, theirs in zip(changing, steady, strict=True):
        same(ours, theirs)
    kept = torch.load(tmp_path / "changing" / "v4" / train_manifest.STATE, weights_only=True)
    assert {int(state["step"]) for state in kept["optimizer"]["state"].values()} == {4}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
def test_a_skipped_step_is_skipped_by_every_rank_and_the_next_one_is_taken(
    two: TwoRanks, folder: str, tmp_path: Path
) -> None:
    masked = [replace(one, mask=(False,) * len(one.mask)) for one in MANY]
    first, second = two.steps(settings(folder), order(masked, tmp_path / "v1"), order(MANY, tmp_path / "v1"))
    assert "every token is masked" in str(first.skipped)
    same(second, *alone(settings(folder), order(MANY, tmp_path / "one")))


# --- a rank that dies


def waits_on_rank_one(inputs: LossInputs) -> tuple[Tensor, dict[str, float]]:
    """Rank 1 stops in mid-step, once, and says so; the others have gone on to wait for it."""
    stopped = Path(os.environ["OPENCLAW_TEST_STOPPED"])
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1 and not stopped.exists():
        stopped.touch()
        time.sleep(60)
    return half_the_ratio(inputs)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
@pytest.mark.anyio
async def test_a_rank_that_is_killed_in_mid_step_costs_the_step_and_it_is_taken_again(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anyio

    stopped = tmp_path / "stopped"
    monkeypatch.setenv("OPENCLAW_TEST_STOPPED", str(stopped))
    args = settings(folder, loss=f"{__name__}:waits_on_rank_one", devices=("cpu", "cpu"))
    trainer, base = LocalTrainer(args), Version(number=0, parent=None, base="tiny")
    step = {"number": 1, "parent": base, "target": str(tmp_path / "v1")}

    async def kill() -> None:
        while not stopped.exists():
            await anyio.sleep(0.05)
        ids.extend(trainer.process_ids)
        os.kill(ids[1], signal.SIGKILL)

    ids: list[int] = []
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            with pytest.raises(BackendError, match=r"rank 1 of the 2 training workers died \(exit code -9\); the next"):
                await trainer.step(MANY, **step)
        assert not (tmp_path / "v1").exists()
        assert trainer.process_ids == ()
        wait_until(lambda: not any(alive(each) for each in ids))
        done = await trainer.step(MANY, **step)
        assert trainer.runner == "a packed prefix tree, over 2 ranks"
        again = await trainer.step(MANY, **step)
    finally:
        await trainer.stop()
    assert again.metrics == done.metrics, "it was published: asked again, it is told and not trained"
    kept = torch.load(tmp_path / "v1" / train_manifest.STATE, weights_only=True)
    assert {int(state["step"]) for state in kept["optimizer"]["state"].values()} == {1}
    same(done, *alone(replace(args, devices=()), order(MANY, tmp_path / "here")))
