"""GPU assignment for each part. A list of device numbers is used as given, counts are assigned in order.

    GPUs on the machine   trainer   engine   judge   teacher
                      8   0-3       4, 5     6       7
                      4   0, 1      2        3       3
                      2   0         1        1       0
                 1 or 0   every part uses policy.device and train.local.device

The built-in engine uses one GPU, the first of its share; vLLM and SGLang use all of theirs, by tensor parallelism. The
trainer uses all GPUs assigned to it by name, one rank on each; in a default layout it uses the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from openclaw_rl import config as settings
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.machine import count_gpus

SEVERAL_GPUS: Final = ("sglang", "vllm")
"""policies that use all GPUs of their share"""
PARTS: Final = ("train", "rollout", "judge", "teacher")
_UNSPECIFIC: Final = ("auto", "cuda")
_ALONE: Final = 0.9
_BESIDE_TRAINER: Final = 0.4
"""share of one GPU's memory: the trainer beside it needs weights, adapter gradients and a batch's activations"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLayout:
    """The device numbers for each part; empty without a division."""

    train: tuple[int, ...] = ()
    rollout: tuple[int, ...] = ()
    judge: tuple[int, ...] = ()
    teacher: tuple[int, ...] = ()


def visible_gpus() -> int:
    """Return the number of GPUs available to this process."""
    return count_gpus(settings.environment("CUDA_VISIBLE_DEVICES"))


def gpu_layout(config: Config, *, visible: int) -> GpuLayout:
    """Return the layout in the settings, or a default that fits; raises ConfigError if there are too few GPUs."""
    gpus = config.gpus
    shares = {part: getattr(gpus, part) for part in PARTS if part != "train" or config.train.local.nodes == 1}
    if gpus.total is not None and gpus.total > visible:
        raise _too_few(f"gpus.total = {gpus.total}", visible)
    if all(share is None for share in shares.values()):
        return default_layout(visible if gpus.total is None else gpus.total)
    named = {number for share in shares.values() if isinstance(share, tuple) for number in share}
    free = [number for number in range(visible) if number not in named]
    dealt: dict[str, tuple[int, ...]] = {}
    for part, share in shares.items():
        if isinstance(share, int):
            if share > len(free):
                raise _too_few(f"gpus.{part} = {share}, after what the others have,", visible)
            dealt[part], free = tuple(free[:share]), free[share:]
        elif share is not None:
            if max(share) >= visible:
                raise _too_few(f"gpus.{part} = {','.join(map(str, share))}", visible)
            dealt[part] = share
    return GpuLayout(**dealt)


def default_layout(count: int) -> GpuLayout:
    """Return the default layout for a number of GPUs."""
    if count < 2:
        return GpuLayout()
    train, rollout = count // 2, max(count // 4, 1)
    remaining = tuple(range(train + rollout, count))
    engine = tuple(range(train, train + rollout))
    judge = remaining[:1] or engine[-1:]
    return GpuLayout(
        train=tuple(range(train)),
        rollout=engine,
        judge=judge,
        teacher=remaining[1:2] or remaining[:1] or tuple(range(train)),
    )


def _too_few(what: str, visible: int) -> ConfigError:
    there = f"has {visible} GPU{'s' * (visible > 1)}" if visible else "has no NVIDIA GPU"
    return ConfigError(
        f"{what} is more than there is: this machine {there}",
        remedy=f"{_fitting(visible)}take out gpus.* and NUM_GPUS, ACTOR_GPUS, TRAIN_GPUS, ROLLOUT_GPUS, PRM_GPUS,"
        " PRM_TEACHER_GPUS, and it runs on what there is",
    )


def _fitting(visible: int) -> str:
    """Return shares that fit, in shell syntax; an empty text with fewer than two GPUs."""
    if visible < 2:
        return ""
    layout = default_layout(visible)
    names = (("TRAIN_GPUS", layout.train), ("ROLLOUT_GPUS", layout.rollout), ("PRM_GPUS", layout.judge))
    return " ".join(f"{name}={','.join(map(str, share))}" for name, share in names) + " fits; or "


def engine_device(config: Config, *, visible: int) -> str:
    """Return the device for the serving engine: ``policy.device``, or the first GPU of its share."""
    return _device(config.policy.device, gpu_layout(config, visible=visible).rollout)


def engine_gpus(config: Config, *, visible: int) -> tuple[int, ...]:
    """Return the GPUs for an engine that can use several: its share, or the one named in ``policy.device``."""
    share = gpu_layout(config, visible=visible).rollout
    device = config.policy.device
    if device.startswith("cuda:"):
        return (int(device.removeprefix("cuda:")),)
    return share or ((0,) if visible and device in _UNSPECIFIC else ())


def engine_memory(config: Config, *, visible: int) -> float | None:
    """Return the share of a GPU's memory for an engine: nearly all, or less beside a trainer."""
    beside = shared_gpus(config, visible=visible) and not config.gpus.turns
    return config.policy.memory_share or (_BESIDE_TRAINER if beside else _ALONE)


def shared_gpus(config: Config, *, visible: int) -> list[int]:
    """Return the GPUs used by both the engine and the trainer."""
    trains = gpu_layout(config, visible=visible).train or ((0,) if visible else ())
    return sorted(set(trains) & set(engine_gpus(config, visible=visible)))


def refuse_useless_turns(config: Config, *, visible: int) -> None:
    """Raise ConfigError if the engine cannot sleep, or shares no GPU with the trainer."""
    if not config.gpus.turns:
        return
    if config.policy.backend not in SEVERAL_GPUS:
        what = f"gpus.turns is on, but policy.backend = {config.policy.backend} cannot sleep"
        raise ConfigError(what, remedy="take it out, or use vllm or sglang")
    if not shared_gpus(config, visible=visible):
        what = "gpus.turns is on, but the engine and the trainer share no GPU"
        raise ConfigError(what, remedy="take it out: neither has to wait for the other")


def trainer_device(config: Config, *, visible: int) -> str:
    """Return the trainer's device: ``train.local.device``, or the first GPU of its share."""
    return _device(config.train.local.device, gpu_layout(config, visible=visible).train)


def trainer_devices(config: Config, *, visible: int) -> tuple[str, ...]:
    """Return a device for each rank of the trainer; empty for one process. Raises ConfigError if too few."""
    local = config.train.local
    if local.nodes > 1:
        return _devices_by_node(config)
    first = trainer_device(config, visible=visible)
    kind = first.partition(":")[0] if first != "auto" else "cuda" if visible else "cpu"
    if kind == "cpu":
        return ("cpu",) * local.ranks if local.ranks and local.ranks > 1 else ()
    share = _trainer_share(config, visible) if local.device in _UNSPECIFIC else (0,)
    ranks = local.ranks or (len(share) if config.gpus.train is not None else 1)
    if ranks > len(share):
        remedy = f"give it as many GPUs (gpus.train = {ranks}), or take it out"
        raise ConfigError(f"train.local.ranks = {ranks}, but the trainer has {len(share)} GPU", remedy=remedy)
    return tuple(f"cuda:{number}" for number in share[:ranks]) if ranks > 1 else ()


def _devices_by_node(config: Config) -> tuple[str, ...]:
    """Return the devices for ranks on several nodes, each of which counts its own GPUs from 0."""
    local, gpus = config.train.local, config.gpus.train
    count = len(gpus) if isinstance(gpus, tuple) else gpus or 0
    ranks = local.ranks or count or local.nodes
    if ranks % local.nodes:
        what = f"train.local.nodes = {local.nodes}, but {ranks} ranks cannot be on them with as many on each"
        raise ConfigError(what, remedy=f"let gpus.train or train.local.ranks be a multiple of {local.nodes}")
    if count and ranks != count:
        what = f"train.local.ranks = {ranks}, but gpus.train gives {count} GPUs"
        raise ConfigError(what, remedy="on several nodes each GPU has a rank: leave train.local.ranks out")
    return tuple(f"cuda:{number % (ranks // local.nodes)}" if count else "cpu" for number in range(ranks))


def _trainer_share(config: Config, visible: int) -> tuple[int, ...]:
    return gpu_layout(config, visible=visible).train or (0,)


def judge_device(config: Config, number: int, *, visible: int) -> str:
    """Return the device for the judge's model ``number``: ``judge.models.device``, or one GPU of the judge's share."""
    share = gpu_layout(config, visible=visible).judge
    return _device(config.judge.models.device, share[number % len(share) :] if share else ())


def _device(said: str, share: tuple[int, ...]) -> str:
    return f"cuda:{share[0]}" if share and said in _UNSPECIFIC else said


def device_notes(config: Config, *, visible: int) -> Iterator[str]:
    """Yield notes on a GPU division that the settings request."""
    layout = gpu_layout(config, visible=visible)
    for part, setting, device in (
        ("train", "train.local.device", config.train.local.device),
        ("rollout", "policy.device", config.policy.device),
    ):
        share = getattr(layout, part)
        if getattr(config.gpus, part) is not None and share and device not in _UNSPECIFIC:
            yield f"gpus.{part} changes nothing: {setting} = {device} selects the device"
        elif len(share) > 1 and part == "rollout" and config.policy.backend not in SEVERAL_GPUS:
            yield f"gpus.{part}: of {', '.join(map(str, share))} it uses GPU {share[0]}; one is all it can use"
        elif len(share) > 1 and part == "train" and not trainer_devices(config, visible=visible):
            yield f"the trainer uses GPU {share[0]}; gpus.train = {len(share)} would train over {len(share)}, sharded"
    yield from _shared(config, visible)
    if config.gpus.teacher is not None:
        yield "gpus.teacher changes nothing: the teacher runs in the trainer, on its GPU"


def _shared(config: Config, visible: int) -> Iterator[str]:
    """Yield a note on the memory division for a GPU used by both the engine and the trainer."""
    gpus = shared_gpus(config, visible=visible)
    if gpus and config.policy.backend in SEVERAL_GPUS:
        share = engine_memory(config, visible=visible) or 0.0
        named = ", ".join(map(str, gpus))
        if config.gpus.turns:
            yield f"{config.policy.backend} and the trainer take turns on GPU {named}: requests wait for each step"
            return
        yield (
            f"{config.policy.backend} and the trainer share GPU {named}: {share:.0%} of its memory is the engine's"
            f" (policy.memory_share), {1 - share:.0%} the trainer's"
        )
