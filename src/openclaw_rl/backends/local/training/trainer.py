"""The trainer on this machine: a port before a worker process of lower priority, so that serving keeps its pace."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Container, Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from openclaw_rl.backends.local.training.process import Failure, serve
from openclaw_rl.backends.local.training.settings import LoraSettings, TrainSettings
from openclaw_rl.backends.local.training.worker import Order
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused
from openclaw_rl.losses import LossSettings
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Sample, Version

log = logging.getLogger(__name__)

_FAREWELL = 5.0  # seconds a worker has to end by itself


@dataclass(kw_only=True, eq=False, repr=False)
class LocalTrainer:
    """LoRA or full fine-tuning of a Hugging Face model, as a `Trainer`. Its fields are the settings of `train`.

    The worker starts with `start` or with the first step. When it dies, the step at hand raises BackendError with the
    end of its traceback and the next one starts a new worker: a step needs only its parent's directory.
    """

    model: str
    cache_dir: str | Path
    loader: str = "openclaw_rl.backends.hf.models:load"
    """``module:function`` with the signature of `models.load`, called in the worker; gives ``model``, ``tokenizer``"""
    chat_template: str | Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    niceness: int = 10
    seed: int = 0
    method: str = "topk"
    loss: str | None = None
    """``module:function`` or ``file.py:function`` in place of ``method``"""
    w_rl: float = 1.0
    w_opd: float = 1.0
    k: int = 4
    max_hints: int = 3
    clip: float = 1.0
    hint_selection: str = "sequence_optimal"
    subset: str = "student"
    kl: str = "full"
    kl_coef: float = 0.05
    aggregate: str = "token"
    eps_low: float = 0.2
    eps_high: float = 0.28
    max_mismatch: float = 2.0
    lr: float | None = None
    """None: 5e-4 for an adapter, a tenth of it for a full tune"""
    lr_by_signal: bool = True
    average: int = 1
    """steps over which what is published is averaged"""
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    grad_clip: float = 1.0
    teacher: str = "base"
    teacher_model: str | None = None
    ema_decay: float = 0.99
    lora: bool = True
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_targets: Sequence[str] = ()
    tree: bool = True
    micro_tokens: int | None = None
    recompute: bool | None = None
    compile: bool | None = None
    offload_optimizer: bool = False
    gap_alarm: float = 0.05
    ess_alarm: float = 0.3
    norm_alarm: float = 10.0

    def __post_init__(self) -> None:
        self.settings = self._settings()
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._turn = anyio.Lock()

    def _settings(self) -> TrainSettings:
        """The settings as one value that travels to the worker; raises ConfigError for one that leads nowhere."""
        made = {
            "cache_dir": str(self.cache_dir),
            "chat_template": None if self.chat_template is None else str(self.chat_template),
            "losses": LossSettings(**self._named(LossSettings)),
            "lr": self.lr if self.lr is not None else 5e-4 if self.lora else 5e-5,
            "lora": self._adapter() if self.lora else None,
        }
        return TrainSettings(**{**self._named(TrainSettings, but=made), **made})

    def _adapter(self) -> LoraSettings:
        return LoraSettings(
            rank=self.lora_rank, alpha=self.lora_alpha, dropout=self.lora_dropout, targets=tuple(self.lora_targets)
        )

    def _named(self, kind: Any, but: Container[str] = ()) -> dict[str, Any]:
        """The settings that ``kind`` has under the same names."""
        return {each.name: getattr(self, each.name) for each in fields(kind) if each.name not in but}

    @property
    def process_id(self) -> int | None:
        """The worker's, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the worker and load the model; raises ModelRefused with the memory plan when it cannot fit."""
        async with self._turn:
            await self._ensure()

    async def stop(self) -> None:
        """End the worker. Safe to call twice; a step in flight is broken off and leaves nothing behind."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            await anyio.to_thread.run_sync(_end, process)

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """One step from ``parent`` into ``target``; see `ports.Trainer`."""
        async with self._turn:
            pipe = await self._ensure()
            answer = await self._ask(pipe, Order(samples=tuple(samples), number=number, parent=parent, target=target))
            if not isinstance(answer, StepResult):
                raise BackendError(f"the training worker answered with {type(answer).__name__}")
            return answer

    async def _ensure(self) -> Connection:
        if self._pipe is not None and self._process is not None and self._process.is_alive():
            return self._pipe
        await self.stop()
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(
            target=serve, args=(theirs, self.settings, self.niceness), daemon=True, name="openclaw-train"
        )
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        plan, note = await self._ask(ours, None)
        log.info("trainer ready: %s", plan)
        if note is not None:
            log.warning("the token tree is not used for %s: %s; one sequence per turn", self.settings.model, note)
        return ours

    async def _ask(self, pipe: Connection, order: Order | None) -> Any:
        """Send (nothing, to a worker that is starting) and wait; whatever goes wrong, no worker is left behind."""
        try:
            answer = await anyio.to_thread.run_sync(_exchange, pipe, order, abandon_on_cancel=True)
        except (EOFError, OSError) as error:
            code = await self._farewell()
            raise BackendError(
                f"the training worker died (exit code {code}); the next step starts a new one"
            ) from error
        except BaseException:  # cancelled: its answer would be taken for that of the next order
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise
        if isinstance(answer, Failure):
            await self._farewell()
            kind = ModelRefused if answer.refused else BackendDown if answer.outside else BackendError
            raise kind(answer.what, remedy=answer.remedy)
        return answer

    async def _farewell(self) -> int | None:
        process = self._process
        if process is not None:
            await anyio.to_thread.run_sync(process.join, _FAREWELL)
        code = process.exitcode if process is not None else None
        await self.stop()
        return code


def _exchange(pipe: Connection, order: Order | None) -> Any:
    if order is not None:
        pipe.send(order)
    return pipe.recv()


def _end(process: SpawnProcess) -> None:
    process.terminate()
    process.join(_FAREWELL)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
