"""Who gets which GPU: the settings' word, else a layout that fits the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.app.devices import (
    GpuLayout,
    device_notes,
    engine_device,
    engine_gpus,
    engine_memory,
    gpu_layout,
    refuse_useless_turns,
    trainer_device,
    trainer_devices,
)
from openclaw_rl.config import Config, load
from openclaw_rl.errors import ConfigError
from openclaw_rl.machine import count_gpus


def config(*sets: str, **environ: str) -> Config:
    return load(environ=environ, sets=sets).config


@pytest.mark.parametrize(
    ("count", "layout"),
    [
        (0, GpuLayout()),
        (1, GpuLayout()),
        (2, GpuLayout(train=(0,), rollout=(1,), judge=(1,), teacher=(0,))),
        (4, GpuLayout(train=(0, 1), rollout=(2,), judge=(3,), teacher=(3,))),
        (8, GpuLayout(train=(0, 1, 2, 3), rollout=(4, 5), judge=(6,), teacher=(7,))),
    ],
)
def test_a_machine_divides_its_gpus_up_by_itself(count: int, layout: GpuLayout) -> None:
    assert gpu_layout(config(), visible=count) == layout


def test_the_counts_of_an_eight_gpu_node_are_its_default_layout() -> None:
    typed = {"NUM_GPUS": "8", "ACTOR_GPUS": "4", "ROLLOUT_GPUS": "2", "PRM_GPUS": "1", "PRM_TEACHER_GPUS": "1"}
    assert gpu_layout(config(**typed), visible=8) == gpu_layout(config(), visible=8)


def test_lists_are_taken_as_they_stand_and_counts_from_the_rest() -> None:
    listed = config(TRAIN_GPUS="0,1,2,3", ROLLOUT_GPUS="4,5,6,7")
    assert gpu_layout(listed, visible=8) == GpuLayout(train=(0, 1, 2, 3), rollout=(4, 5, 6, 7))
    mixed = config("gpus.train=[1]", "gpus.rollout=2", "gpus.judge=1")
    assert gpu_layout(mixed, visible=4) == GpuLayout(train=(1,), rollout=(0, 2), judge=(3,))


@pytest.mark.parametrize(
    ("sets", "visible", "said"),
    [
        ("gpus.total=8", 0, "gpus.total = 8 is more than there is: this machine has no NVIDIA GPU; take out gpus.*"),
        (
            "gpus.total=8",
            2,
            "gpus.total = 8 is more than there is: this machine has 2 GPUs; TRAIN_GPUS=0 ROLLOUT_GPUS=1 PRM_GPUS=1 fits; or",
        ),
        ("gpus.train=[0,4]", 4, "gpus.train = 0,4 is more than there is: this machine has 4 GPUs"),
        ("gpus.rollout=2", 1, "gpus.rollout = 2, after what the others have, is more than there is"),
    ],
)
def test_gpus_that_are_not_there_are_refused_with_the_remedy(sets: str, visible: int, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gpu_layout(config(sets), visible=visible)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("and it runs on what there is")


def test_a_part_uses_the_first_gpu_of_its_share_unless_a_device_is_named() -> None:
    assert (trainer_device(config(), visible=8), engine_device(config(), visible=8)) == ("cuda:0", "cuda:4")
    assert (trainer_device(config(), visible=1), engine_device(config(), visible=0)) == ("auto", "auto")
    assert engine_device(config("policy.device=cuda:7"), visible=8) == "cuda:7"
    assert engine_device(config("policy.device=cpu"), visible=8) == "cpu"


def test_an_engine_of_others_uses_all_gpus_of_its_share_and_what_the_trainer_leaves() -> None:
    typed = config("policy.backend=vllm", TRAIN_GPUS="0,1", ROLLOUT_GPUS="2,3")
    assert (engine_gpus(typed, visible=4), engine_memory(typed, visible=4)) == ((2, 3), 0.9)
    assert not [note for note in device_notes(typed, visible=4) if "gpus.rollout" in note]
    assert (engine_gpus(config(), visible=0), engine_gpus(config("policy.device=cuda:1"), visible=2)) == ((), (1,))
    alone = config("policy.backend=vllm")
    assert (engine_gpus(alone, visible=1), engine_memory(alone, visible=1)) == ((0,), 0.4)
    assert list(device_notes(alone, visible=1)) == [
        "vllm and the trainer share GPU 0: 40% of its memory is the engine's (policy.memory_share), 60% the trainer's"
    ]
    assert engine_memory(config("policy.memory_share=0.7"), visible=1) == 0.7


def test_what_a_share_cannot_do_is_said() -> None:
    notes = list(device_notes(config("gpus.train=2", "gpus.rollout=1", "gpus.teacher=1"), visible=4))
    assert notes == [
        "gpus.teacher changes nothing: the teacher runs in the trainer, on its GPU",
    ]
    named = config("gpus.rollout=1", "policy.device=cuda:1")
    assert list(device_notes(named, visible=2)) == [
        "gpus.rollout changes nothing: policy.device = cuda:1 selects the device"
    ]
    assert list(device_notes(config(), visible=1)) == []


def test_the_trainer_has_a_rank_on_each_gpu_that_it_was_given() -> None:
    assert trainer_devices(config("gpus.train=4"), visible=8) == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert trainer_devices(config(TRAIN_GPUS="2,5"), visible=8) == ("cuda:2", "cuda:5")
    assert trainer_devices(config("gpus.train=4", "train.local.ranks=2"), visible=8) == ("cuda:0", "cuda:1")
    for one in (["gpus.train=1"], ["gpus.train=4", "train.local.ranks=1"], ["gpus.train=4", "train.local.device=cpu"]):
        assert trainer_devices(config(*one), visible=8) == ()
    with pytest.raises(ConfigError, match=r"train.local.ranks = 3, but the trainer has 1 GPU; give it as many GPUs"):
        trainer_devices(config("train.local.ranks=3"), visible=1)


def test_a_layout_that_nobody_asked_for_trains_on_its_first_gpu_and_says_so() -> None:
    assert trainer_devices(config(), visible=8) == ()
    assert trainer_devices(config("train.local.ranks=4"), visible=8) == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert "the trainer uses GPU 0; gpus.train = 4 would train over 4, sharded" in device_notes(config(), visible=8)


def test_ranks_without_gpus_are_processes_on_the_cpu() -> None:
    assert trainer_devices(config(), visible=0) == ()
    assert trainer_devices(config("train.local.ranks=2"), visible=0) == ("cpu", "cpu")


def test_gpus_are_counted_by_their_device_files_and_by_what_is_visible(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert count_gpus(None, devices=tmp_path) == 3
    assert count_gpus("0,1", devices=tmp_path) == 2
    assert count_gpus("", devices=tmp_path) == 0


def test_an_engine_in_turns_with_the_trainer_has_the_gpu_alone_and_the_user_is_told() -> None:
    shared = config("policy.backend=vllm", "policy.url=http://127.0.0.1:1", "gpus.turns=on")
    assert engine_memory(shared, visible=1) == 0.9
    refuse_useless_turns(shared, visible=1)
    assert list(device_notes(shared, visible=1)) == [
        "vllm and the trainer take turns on GPU 0: requests wait for each step"
    ]
    for visible in (0, 2):
        with pytest.raises(ConfigError, match="share no GPU; take it out"):
            refuse_useless_turns(shared, visible=visible)
