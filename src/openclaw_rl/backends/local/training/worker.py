"""The training worker: one step at a time, from a request to a published version or the reason for skipping it."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.hf.batches import (
    HISTORY,
    LEAST,
    StepSkipped,
    TeacherPrompts,
    TrainBatch,
    batch_alarm,
    batch_weight,
    choose_loss,
    collate,
    distils_alone,
    finite,
    lag,
    norm_alarm,
    render_teachers,
)
from openclaw_rl.backends.hf.models import text_config
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.backends.hf.trainer_settings import ADAM_EPS, DISTILLATION_BETA1
from openclaw_rl.backends.local.training.batch import Share, gradient
from openclaw_rl.backends.local.training.checkpoint import Checkpoints, TrainerState, random_state, to_cpu
from openclaw_rl.backends.local.training.memory import plan_for
from openclaw_rl.backends.local.training.model import PolicyModel, Weights
from openclaw_rl.backends.local.training.ranks import (
    ALONE,
    RankBatch,
    Ranks,
    add_up_whole,
    gradient_norm,
    rank_batch,
    with_gradients,
)
from openclaw_rl.backends.local.training.references import ComputedTokens, Net, References, run_references
from openclaw_rl.backends.local.training.settings import StepRequest, TrainerArgs
from openclaw_rl.errors import BackendError
from openclaw_rl.losses import (
    FORWARD,
    LossInputs,
    health,
)
from openclaw_rl.losses.tree import TokenPath, distinct
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Sample

# A step's update: from a gradient to new weights, optimizer state and averages.

OptimizerState = dict[str, Any]


def update(
    policy: PolicyModel, state: TrainerState, settings: TrainerArgs, *, weight: float, signal: float, distillation: bool
) -> tuple[TrainerState, dict[str, float]]:
    """Check the gradient's norm, clip it, take one optimizer step and update the averages; return the new state and
    metrics.

    ``weight`` is the batch's signal strength 0 .. 1, and ``signal`` the same scaled by urgency. Raise `StepSkipped` for
    an abnormal norm. Prompt distillation (``distillation``) has its own rate and average, and its gradients do not
    count as a reference for turns'.
    """
    s = settings
    add_up_whole(policy.parameters.values(), policy.ranks)
    norm = gradient_norm(policy.parameters, policy.ranks)
    weighed = norm / max(weight, LEAST)  # a correction after many thanks is no alarm
    why = norm_alarm(weighed, [] if distillation else state.norms, s.norm_alarm)
    if why is not None:
        raise StepSkipped(why, {"grad_norm": norm})
    parameters = with_gradients(policy.parameters.values())
    if s.grad_clip > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, s.grad_clip, torch.tensor(norm, device=parameters[0].device))
    lr = s.distillation_rate(policy.width) * signal if distillation else s.lr * signal if s.lr_by_signal else s.lr
    beta1 = DISTILLATION_BETA1 if distillation else s.adam_beta1
    group = {"lr": lr, "betas": (beta1, s.adam_beta2), "eps": ADAM_EPS, "weight_decay": s.weight_decay}
    stepped = (_step_one_by_one if s.offload_optimizer else _step)(parameters, state.optimizer, group)
    policy.forget_gradients()
    most = round(1 / (1 - s.distillation_decay)) if distillation else s.average
    average, averaged = _average(policy, state, most, signal if s.lr_by_signal and not distillation else 0.0)
    new = TrainerState(
        optimizer=stepped,
        random=policy.ranks.said_by_first(random_state(policy.device)),
        norms=state.norms if distillation else [*state.norms, weighed][-HISTORY:],
        ema=_ema(policy, state.ema or {}, s.ema_decay) if s.keeps_ema else None,
        average=average,
        averaged=averaged,
    )
    return new, {"grad_norm": norm, "lr": lr}


def _step(parameters: Sequence[Tensor], saved: OptimizerState | None, group: Mapping[str, Any]) -> OptimizerState:
    """Take one AdamW step from the saved state; return the new state."""
    optimizer = torch.optim.AdamW(parameters, **group)
    if saved is not None:
        optimizer.load_state_dict(saved)
        optimizer.param_groups[0].update(group)  # today's settings, not those of the saved state
    optimizer.step()
    return optimizer.state_dict()


def _step_one_by_one(
    parameters: Sequence[Tensor], saved: OptimizerState | None, group: Mapping[str, Any]
) -> OptimizerState:
    """As `_step`, with the state in main memory: the device has one parameter's state at a time, and a gradient is
    freed once used. So the update needs no more memory than the backward pass before it."""
    state = torch.optim.AdamW(parameters, **group).state_dict()
    for at, parameter in enumerate(parameters):
        before = None if saved is None else saved["state"].get(at)
        single = {"state": {0: before} if before else {}, "param_groups": [{**state["param_groups"][0], "params": [0]}]}
        after = _step([parameter], single, group)["state"]
        if after:  # a parameter without a gradient has no state
            state["state"][at] = to_cpu(after[0])
        parameter.grad = None
    return state


@torch.no_grad()
def _ema(policy: PolicyModel, old: Weights, decay: float) -> Weights:
    """Return the teacher's moving average."""
    now = policy.weights()
    return {name: old[name].to(value).mul_(decay).add_(value, alpha=1 - decay) for name, value in now.items()}


@torch.no_grad()
def _average(policy: PolicyModel, state: TrainerState, most: int, signal: float) -> tuple[Weights | None, int]:
    """Return the mean of the first ``most`` weights, later a moving average; and the number of weights in it.

    A stronger signal enters the served average faster: an average lags, and is meant for the time when little is left
    to learn.
    """
    if most == 1:
        return None, 0
    now, old = policy.weights(), state.average
    count = min(state.averaged + 1, most)
    if old is None or count == 1:
        return now, 1
    return {name: old[name].to(value).lerp_(value, max(1 / count, signal)) for name, value in now.items()}, count


log = logging.getLogger(__name__)


class TrainWorker:
    """The trainer proper: synchronous, one step at a time; in one process, or as one of several ranks."""

    def __init__(self, settings: TrainerArgs, ranks: Ranks = ALONE) -> None:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.ranks = ranks
        self.policy = PolicyModel(settings, ranks)
        self._chat = ChatTemplate(self.policy.tokenizer)
        self.loss, self._weigh, self._max_hints = choose_loss(settings, settings.loss, settings.loss_config)
        self.plan = plan_for(self.policy)
        self.budget = settings.micro_tokens or self.plan.tokens
        self.checkpoints = Checkpoints(self.policy)

    def step(self, request: StepRequest) -> StepResult:
        """Train and publish; a skipped step changes neither weights nor optimizer."""
        began = time.monotonic()
        published = self.ranks.said_by_first(self.checkpoints.published(request))
        if published is not None:
            return published
        metrics: dict[str, float] = {
            "samples": float(len(request.samples)),
            **lag(request.samples, request.parent.number),
        }
        prompts = self.teacher_prompts(request.samples)
        result = partial(StepResult, dropped=prompts.dropped)
        try:
            averaging = self.settings.average > 1 or distils_alone(request.samples)
            self.checkpoints.load(request.parent, averaging=averaging)
            self._train(request, prompts, metrics)
        except StepSkipped as skip:
            self.policy.forget_gradients()
            metrics |= skip.metrics
            return result(adapter=None, metrics=finite(metrics), seconds=time.monotonic() - began, skipped=skip.reason)
        metrics["seconds"] = time.monotonic() - began
        self.checkpoints.publish(request, finite(metrics), prompts.dropped)
        return result(adapter=request.target, metrics=finite(metrics), seconds=time.monotonic() - began)

    def teacher_prompts(self, samples: Sequence[Sample]) -> TeacherPrompts:
        """Render each sample's hinted prompts for the loss."""
        config = text_config(self.policy.model)
        most = self.settings.max_hints if self._max_hints is None else self._max_hints
        room = getattr(config, "max_position_embeddings", None)
        return render_teachers(self._chat, samples, most=most, room=room, vocabulary=config.vocab_size)

    def _train(self, request: StepRequest, prompts: TeacherPrompts, metrics: dict[str, float]) -> None:
        """Compute the gradient and apply the update; ``metrics`` receive the measurements."""
        weight = batch_weight(self._weigh, request.samples, prompts.views)
        samples, views = prompts.kept()
        if weight == 0 or not samples:
            nothing = "no teacher's prompt could be rendered" if prompts.missing else "there is no hint"
            raise StepSkipped(f"no signal: every advantage is zero and {nothing}")
        wide = torch.float64 if self.policy.compute == torch.float64 else torch.float32
        flatten = partial(collate, version=request.parent.number, device=self.policy.device, wide=wide)
        batch = flatten(samples, views)
        metrics |= self._gradient(batch, rank_batch(batch, samples, views, self.ranks, flatten))
        signal = batch_weight(self._weigh, request.samples, prompts.views, by_urgency=True)
        state, applied = update(
            self.policy,
            self.checkpoints.state,
            self.settings,
            weight=weight,
            signal=signal,
            distillation=distils_alone(request.samples),
        )
        self.checkpoints.updated(state)
        metrics |= {"teachers_missing": float(prompts.missing), "signal": signal, **applied}

    # --- the gradient

    def _gradient(self, batch: TrainBatch, part: RankBatch | None = None) -> dict[str, float]:
        """Compute the batch's gradient, this rank only its ``part``; if memory runs out, retry with half as many tokens
        at once."""
        while True:
            try:
                return self._try_gradient(batch, part)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                self._shrink(part.batch if part else batch, str(error))

    def _try_gradient(self, batch: TrainBatch, part: RankBatch | None) -> dict[str, float]:
        count, s = ComputedTokens(), self.settings
        full = self._comparable(batch)
        part_batch = full if part is None else self._comparable(part.batch)
        share = None if part is None else Share(whole=full, at=part.at, heard=part.heard)
        self.policy.recompute(self.plan.recompute and self.ranks.most(self._tokens(part_batch)) > self.plan.spared)
        references = self._references(full, part_batch, count)
        measured: dict[str, float] = {}

        def stop(inputs: LossInputs) -> str | None:
            measured.update(health(inputs, s.max_mismatch))
            return batch_alarm(measured, gap=s.gap_alarm, ess=s.ess_alarm)

        student = self.policy.student()
        loss_metrics, why = gradient(
            part_batch, student, references, self.loss, stop, k=s.k, budget=self.budget, count=count, share=share
        )
        if why is not None:
            raise StepSkipped(why, measured)
        counts = self.ranks.told((count.packed, count.sequential, count.passes))
        packed, sequential, passes = (float(sum(column)) for column in zip(*counts, strict=True))
        return {
            **loss_metrics,
            **measured,
            "tokens_computed": packed,
            "tokens_one_by_one": sequential,
            "passes": passes,
            "tree": float(self.policy.tree),
            "ranks": float(self.ranks.count),
        }

    def _comparable(self, batch: TrainBatch) -> TrainBatch:
        """If an average is served, do not compare prompt distillation replies with the engine's log-probs.

        Their loss has no ratio that a gap would distort, and a pass through the average would serve the comparison
        alone.
        """
        if self.checkpoints.state.averaged <= 1:
            return batch
        return replace(batch, same_weights=batch.same_weights & ~batch.distilled)

    def _references(self, batch: TrainBatch, mine: TrainBatch, count: ComputedTokens) -> References:
        """Run the student's references: the teacher, the base, and the served weights if these are an average.

        Passes that the whole ``batch`` needs run on every rank, over ``mine``.
        """
        s, state = self.settings, self.checkpoints.state
        base = self.policy.base()
        teacher = self.policy.teacher(s.teacher, base, ema=state.ema)
        reference = base if s.compares_with_base and not bool(batch.distilled.all()) else None
        average = state.average if state.averaged > 1 and bool(batch.same_weights.any()) else None
        served = self.policy.served(average) if average is not None else None
        distillation = (self._distillation_teacher(base), self._forward(batch)) if batch.noted else None
        return run_references(mine, teacher, reference, served, distillation, k=s.k, budget=self.budget, count=count)

    def _forward(self, batch: TrainBatch) -> bool:
        """Return True if the teacher is first in prompt distillation's KL: always if the replies are its own."""
        return FORWARD[self.settings.distillation_loss] or not bool(batch.recorded[batch.distilled].any())

    def _distillation_teacher(self, base: Net) -> Net:
        s, live = self.settings, self.checkpoints.frozen
        if s.distillation_teacher == "live" and live is None:
            raise BackendError(
                "prompt distillation's live teacher is no longer in memory",
                remedy="restart prompt distillation",
            )
        return self.policy.teacher(s.distillation_teacher, base, ema=self.checkpoints.state.ema, live=live)

    def _shrink(self, batch: TrainBatch, error: str) -> None:
        if self.ranks.count > 1:  # the other ranks are in a pass that this rank has left
            raise BackendError(
                f"rank {self.ranks.number} of {self.ranks.count} ran out of memory ({self.plan}): {error}",
                remedy=f"set train.local.micro_tokens below {self.budget}, or train.local.recompute = true",
            )
        self.policy.forget_gradients()
        gc.collect()
        if self.policy.device.type == "cuda":
            torch.cuda.empty_cache()
        if self._tokens(batch) <= self.plan.spared:
            self.plan = replace(self.plan, spared=0)
            log.warning("out of memory: layers are recomputed from now on")
            return
        longest = max(len(path.tokens) for path in _paths(batch))
        if self.budget <= longest:
            raise BackendError(
                f"out of memory with a single turn of {longest} tokens at once ({self.plan}): {error}",
                remedy="switch recompute on, shorten the context, or train on a larger device",
            )
        self.budget = max(longest, min(self.budget, self._tokens(batch)) // 2)
        log.warning("out of memory: %d tokens at once from now on", self.budget)

    def _tokens(self, batch: TrainBatch) -> int:
        """Count the student's tokens: in a tree, tokens that turns share are computed once."""
        return distinct(batch.plain) if self.policy.tree else sum(len(path.tokens) for path in batch.plain)


def _paths(batch: TrainBatch) -> Iterator[TokenPath]:
    """Yield every sequence that any weights run over."""
    yield from batch.plain
    yield from (path for _, _, path in batch.hinted)
    yield from (path for _, path in batch.noted)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
