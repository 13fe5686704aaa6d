"""One step of training.

A step begins from its parent's directory (weights, optimizer, random state) and ends in a new one, so that it can be
interrupted anywhere and asked for again: the same arguments give the same weights.
"""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from openclaw_rl import files, plugins
from openclaw_rl.backends.hf.memory import available
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.backends.local.training import head as train_head
from openclaw_rl.backends.local.training.batch import (
    LossFunction,
    TokenCount,
    TrainBatch,
    collate,
    gradient,
    run_references,
)
from openclaw_rl.backends.local.training.memory import MemoryPlan, ModelShape, plan
from openclaw_rl.backends.local.training.model import PolicyModel, Weights
from openclaw_rl.backends.local.training.publish import STATE, read_manifest, write_manifest
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.backends.local.training.teacher_prompts import TeacherPrompts, render_teachers
from openclaw_rl.errors import BackendError
from openclaw_rl.losses import LossInputs, health, loss, needs, weight_of
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Sample, Tokens, Version

log = logging.getLogger(__name__)

_SHARE = {"cuda": 0.85}  # of what is free; main memory is shared with whoever serves, so half of it
_HISTORY = 32  # gradient norms that the running median looks back on
_ENOUGH = 3  # of them before it may raise an alarm
_ADAM_EPS = 1e-8  # AdamW's own
_LEAST = 0.05  # gradients are compared for what their batches have to say, and for this at least


@dataclass(slots=True)
class TrainerState:
    """All of a version beside its weights: what a resumed run must find again."""

    optimizer: dict[str, Any] | None = None
    random: dict[str, torch.Tensor] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    ema: Weights | None = None
    master: Weights | None = None
    """trained weights as they are, where the published ones are rounded or averaged"""
    average: Weights | None = None
    """what is published, where that is an average"""
    averaged: int = 0
    """how many weights are in it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """What a step is asked to do."""

    samples: tuple[Sample, ...]
    number: int
    parent: Version
    target: str


class StepSkipped(Exception):
    """A reason to take no step; not an error."""


class TrainWorker:
    """The trainer proper: synchronous, in one process, one step at a time."""

    def __init__(self, settings: TrainerArgs) -> None:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.policy = PolicyModel(settings)
        self._chat = ChatTemplate(self.policy.tokenizer)
        self.loss, self._weigh, self._most_hints = _loss(settings)
        self.plan = self._plan()
        self.budget = settings.micro_tokens or self.plan.tokens
        self._at: str | None = None
        self._state = self._first()

    # --- a step

    def step(self, order: StepRequest) -> StepResult:
        """Train, publish, and say what happened; a skipped step leaves weights and optimizer as they were."""
        began = time.monotonic()
        known = self._done_before(order)
        if known is not None:
            return known
        metrics: dict[str, float] = {"samples": float(len(order.samples)), **_lag(order)}
        taught = self._lessons(order.samples)
        done = partial(StepResult, dropped=taught.dropped)
        try:
            self._load(order.parent)
            metrics |= self._train(order, taught)
        except StepSkipped as skip:
            self._forget_gradients()
            found = {**metrics, **(skip.args[1] if len(skip.args) > 1 else {})}
            return done(adapter=None, metrics=_finite(found), seconds=time.monotonic() - began, skipped=skip.args[0])
        metrics["seconds"] = time.monotonic() - began
        self._publish(order, _finite(metrics), taught.dropped)
        return done(adapter=order.target, metrics=_finite(metrics), seconds=time.monotonic() - began)

    def _train(self, order: StepRequest, taught: TeacherPrompts) -> dict[str, float]:
        weight = self._weight(order.samples, taught.views)
        samples, views = taught.kept()
        if weight == 0 or not samples:
            nothing = "no teacher's prompt could be rendered" if taught.missing else "there is no hint"
            raise StepSkipped(f"no signal: every advantage is zero and {nothing}")
        batch = collate(samples, views, version=order.parent.number, device=self.policy.device, wide=self._wide())
        metrics = self._gradient(batch)
        signal = self._weight(order.samples, taught.views, news=True)
        applied = self._apply(metrics, weight=weight, signal=signal)
        return metrics | {"teachers_missing": float(taught.missing), "signal": signal, **applied}

    def _gradient(self, batch: TrainBatch) -> dict[str, float]:
        """The batch's gradient; when memory runs out, again with half as many tokens at once."""
        while True:
            try:
                return self._try_gradient(batch)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                self._shrink(batch, str(error))

    def _try_gradient(self, batch: TrainBatch) -> dict[str, float]:
        count, s = TokenCount(), self.settings
        self.policy.recompute(self.plan.recompute and _tokens(batch) > self.plan.spared)
        base = self.policy.base()
        teacher = self.policy.teacher(base, self._state.ema)
        reference = base if s.kl_coef > 0 else None
        apart = self._state.average if self._state.averaged > 1 and bool(batch.same_weights.any()) else None
        served = self.policy.served(apart) if apart is not None else None
        others = run_references(batch, teacher, reference, served, k=s.k, budget=self.budget, count=count)
        vitals: dict[str, float] = {}

        def stop(inputs: LossInputs) -> str | None:
            vitals.update(health(inputs, s.max_mismatch))
            return alarm(vitals, gap=s.gap_alarm, ess=s.ess_alarm)

        found, why = gradient(
            batch, self.policy.student(), others, self.loss, stop, k=s.k, budget=self.budget, count=count
        )
        if why is not None:
            raise StepSkipped(why, vitals)
        return {
            **vitals,
            **found,
            "tokens_computed": float(count.packed),
            "tokens_one_by_one": float(count.sequential),
            "passes": float(count.passes),
            "tree": float(self.policy.tree),
        }

    def _shrink(self, batch: TrainBatch, error: str) -> None:
        self._forget_gradients()
        gc.collect()
        if self.policy.device.type == "cuda":
            torch.cuda.empty_cache()
        if _tokens(batch) <= self.plan.spared:
            self.plan = replace(self.plan, spared=0)
            log.warning("out of memory: layers are recomputed from now on")
            return
        longest = max(len(path.tokens) for path in (*batch.plain, *(path for _, _, path in batch.hinted)))
        if self.budget <= longest:
            raise BackendError(
                f"out of memory with a single turn of {longest} tokens at once ({self.plan}): {error}",
                remedy="switch recompute on, shorten the context, or train on a larger device",
            )
        self.budget = max(longest, min(self.budget, _tokens(batch)) // 2)
        log.warning("out of memory: %d tokens at once from now on", self.budget)

    def _weight(
        self, samples: Sequence[Sample], views: Sequence[Sequence[Tokens | None]], *, news: bool = False
    ) -> float:
        """How much a batch has to say, 0 .. 1: what its samples have, on average; with ``news``, by their urgency."""
        said = [
            self._weigh(
                hinted=any(view is not None for view in row),
                advantage=sample.advantage,
                urgency=sample.urgency if news else 1.0,
            )
            for sample, row in zip(samples, views, strict=True)
        ]
        return statistics.fmean(said) if said else 0.0

    def _apply(self, metrics: dict[str, float], *, weight: float, signal: float) -> dict[str, float]:
        """Check the gradient's norm, clip it, update; the averages follow."""
        s, parameters = self.settings, list(self.policy.parameters.values())
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        weighed = norm / max(weight, _LEAST)  # a correction after many thanks is no alarm
        why = norm_alarm(weighed, self._state.norms, s.norm_alarm)
        if why is not None:
            raise StepSkipped(why, {**metrics, "grad_norm": norm})
        if s.grad_clip > 0:
            torch.nn.utils.clip_grads_with_norm_(
                parameters, s.grad_clip, torch.tensor(norm, device=parameters[0].device)
            )
        lr = s.lr * (signal if s.lr_by_signal else 1.0)
        optimizer = self._optimizer(lr)
        optimizer.step()
        self._forget_gradients()
        average, averaged = self._averaged(signal if s.lr_by_signal else 0.0)
        self._state = TrainerState(
            optimizer=_to_cpu(optimizer.state_dict()) if s.offload_optimizer else optimizer.state_dict(),
            random=self._random(),
            norms=[*self._state.norms, weighed][-_HISTORY:],
            ema=self._moved_average(),
            average=average,
            averaged=averaged,
        )
        self._at = None  # in memory now, on disk only when published
        return {"grad_norm": norm, "lr": lr}

    def _optimizer(self, lr: float) -> torch.optim.AdamW:
        s = self.settings
        group = {"lr": lr, "betas": (s.adam_beta1, s.adam_beta2), "eps": _ADAM_EPS, "weight_decay": s.weight_decay}
        optimizer = torch.optim.AdamW(self.policy.parameters.values(), **group)  # type: ignore[arg-type]
        if self._state.optimizer is not None:
            optimizer.load_state_dict(self._state.optimizer)
            optimizer.param_groups[0].update(group)  # as they are set today, not those of the day it was saved
        return optimizer

    @torch.no_grad()
    def _moved_average(self) -> Weights | None:
        if self.settings.teacher != "ema":
            return None
        decay, old = self.settings.ema_decay, self._state.ema or {}
        now = self.policy.weights()
        return {name: old[name].to(value).mul_(decay).add_(value, alpha=1 - decay) for name, value in now.items()}

    @torch.no_grad()
    def _averaged(self, signal: float) -> tuple[Weights | None, int]:
        """The mean of the first so many weights, then a moving one; and how many are in it.

        The more a batch had to say, the more of it is served at once: an average lags, and is for the time when
        there is little left to learn.
        """
        most = self.settings.average
        if most == 1:
            return None, 0
        now, old = self.policy.weights(), self._state.average
        count = min(self._state.averaged + 1, most)
        if old is None or count == 1:
            return now, 1
        return {name: old[name].to(value).lerp_(value, max(1 / count, signal)) for name, value in now.items()}, count

    def _forget_gradients(self) -> None:
        for parameter in self.policy.parameters.values():
            parameter.grad = None

    # --- what a step is made of

    def _lessons(self, samples: Sequence[Sample]) -> TeacherPrompts:
        config = self.policy.model.config
        most = self.settings.max_hints if self._most_hints is None else self._most_hints
        room = getattr(config, "max_position_embeddings", None)
        return render_teachers(self._chat, samples, most=most, room=room, vocabulary=config.vocab_size)

    def _wide(self) -> torch.dtype:
        return torch.float64 if self.policy.compute == torch.float64 else torch.float32

    def _plan(self) -> MemoryPlan:
        model, s, device = self.policy.model, self.settings, self.policy.device
        trained = list(self.policy.parameters.values())
        held = (not s.lora and s.kl_coef > 0) + (s.teacher_model is not None)
        held += not s.lora and s.average > 1
        shape = ModelShape(
            parameters=sum(p.numel() for p in model.parameters()),
            trainable=sum(p.numel() for p in trained),
            layers=model.config.num_hidden_layers,
            hidden=model.config.hidden_size,
            intermediate=getattr(model.config, "intermediate_size", 4 * model.config.hidden_size),
            vocabulary=model.config.vocab_size,
            weight_bytes=self.policy.compute.itemsize,
            trainable_bytes=trained[0].element_size(),
            copies=held,
            ema=s.teacher == "ema",
            offload=s.offload_optimizer,
        )
        free = int(available(device) * _SHARE.get(device.type, 0.5))
        return plan(shape, free, recompute=s.recompute, chunk=train_head.ELEMENTS.get(device.type, 1 << 24))

    # --- versions

    def _first(self) -> TrainerState:
        torch.manual_seed(self.settings.seed)
        return TrainerState(
            random=self._random(), ema=self.policy.weights() if self.settings.teacher == "ema" else None
        )

    def _load(self, parent: Version) -> None:
        """Stand where ``parent`` stood. What is in memory already is not read again."""
        where = parent.adapter or ""
        if self._at != where:
            if parent.adapter is None:
                self.policy.put(self.policy.begin())
                self._state = self._first()
            else:
                self._state = self._read(Path(parent.adapter), parent.base)
            self._at = where
        torch.set_rng_state(self._state.random["cpu"])
        if "cuda" in self._state.random and self.policy.device.type == "cuda":
            torch.cuda.set_rng_state(self._state.random["cuda"], self.policy.device)

    def _read(self, directory: Path, base: str) -> TrainerState:
        manifest = read_manifest(directory)
        if manifest is not None and manifest["base"] != base:
            raise BackendError(f"{directory} was trained on {manifest['base']!r}, its version says {base!r}")
        weights = self.policy.read(directory)
        if not (directory / STATE).exists():
            self.policy.put(weights)
            return self._first()
        state = TrainerState(**torch.load(directory / STATE, map_location="cpu", weights_only=True))
        if state.averaged and self.settings.average == 1:  # no longer averaged: go on from what is served
            state.master, state.average, state.averaged = None, None, 0
        elif state.averaged and state.average is None:
            state.average = {name: value.to(self.policy.device) for name, value in weights.items()}
        self.policy.put(state.master or weights)
        if state.ema is None and self.settings.teacher == "ema":
            state.ema = self.policy.weights()
        return state

    def _publish(self, order: StepRequest, metrics: dict[str, float], dropped: Mapping[str, str]) -> None:
        rounded = not self.settings.lora and self.policy.compute != next(iter(self.policy.parameters.values())).dtype
        average = self._state.average
        state = {name: getattr(self._state, name) for name in ("optimizer", "random", "norms", "ema", "averaged")}
        state["master"] = self.policy.weights() if rounded or average is not None else None
        state["average"] = average if rounded else None  # else it is the very file that is published
        with files.directory(Path(order.target)) as directory:
            with self.policy.lent(average or {}):
                self.policy.write(directory)
            torch.save(_to_cpu(state), directory / STATE)
            write_manifest(directory, {**self._identity(order), "metrics": metrics, "dropped": dropped})
        self._at = order.target

    def _identity(self, order: StepRequest) -> dict[str, Any]:
        return {
            "kind": "lora" if self.settings.lora else "full",
            "base": order.parent.base,
            "parent": order.parent.number,
            "parent_adapter": order.parent.adapter,
            "step": order.number,
            "turns": [sample.turn for sample in order.samples],
            "config": _plain(self.settings.record()),
        }

    def _done_before(self, order: StepRequest) -> StepResult | None:
        """What this very step gave when it was asked for earlier and its caller did not live to hear of it."""
        target = Path(order.target)
        manifest = read_manifest(target) if target.is_dir() else None
        if manifest is None or any(manifest[name] != value for name, value in self._identity(order).items()):
            return None
        dropped = manifest.get("dropped", {})
        return StepResult(adapter=order.target, metrics=manifest["metrics"], seconds=0.0, dropped=dropped)

    def _random(self) -> dict[str, torch.Tensor]:
        found = {"cpu": torch.get_rng_state()}
        if self.policy.device.type == "cuda":
            found["cuda"] = torch.cuda.get_rng_state(self.policy.device)
        return found


# --- decisions


def _loss(settings: TrainerArgs) -> tuple[LossFunction, Callable[..., float], int | None]:
    """The loss to train with, how much a sample has to say to it, and how many hints it looks at (None: all).

    A custom one is given everything, and may make something of all of it.
    """
    if settings.loss is not None:
        everything = replace(settings, method="combine", w_rl=1.0, w_opd=1.0)
        return plugins.resolve("loss", settings.loss), partial(weight_of, everything), None
    return partial(loss, settings=settings), partial(weight_of, settings), needs(settings)[0]


def alarm(vitals: Mapping[str, float], *, gap: float, ess: float) -> str | None:
    """Why a batch must not be trained on, seen before its backward pass; None if nothing is wrong."""
    if vitals["masked_non_finite"]:
        return f"alarm: {vitals['masked_non_finite']:.0f} log-probs are not finite"
    if vitals["gap_mean"] > gap:
        return f"alarm: trainer and engine differ by {vitals['gap_mean']:.3f} a token (above {gap})"
    if not vitals["kept"]:
        return "no signal: every token is masked"
    if vitals["ess"] < ess:
        return f"alarm: effective sample size {vitals['ess']:.2f} (below {ess})"
    return None


def norm_alarm(norm: float, history: Sequence[float], times: float) -> str | None:
    """Why this gradient must not be applied: not finite, or far beyond its running median."""
    if not math.isfinite(norm):
        return "alarm: the gradient is not finite"
    usual = statistics.median(history) if len(history) >= _ENOUGH else 0.0
    if usual > 0 and norm > times * usual:  # where nothing was learned lately there is nothing to compare with
        beyond = f"is above {times:g} times its median {usual:.3g}"
        return f"alarm: gradient norm {norm:.3g}, by what its batch has to say, {beyond}"
    return None


def _tokens(batch: TrainBatch) -> int:
    """Of all its turns, one by one."""
    return sum(len(path.tokens) for path in batch.plain)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _lag(order: StepRequest) -> dict[str, float]:
    lags = [order.parent.number - sample.version for sample in order.samples]
    return {"lag_mean": sum(lags) / len(lags), "lag_max": float(max(lags))} if lags else {}


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """What could not be measured is absent, not a number."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _to_cpu(one) for key, one in value.items()}
    return [_to_cpu(one) for one in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """As JSON will give it back: tuples are lists."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
