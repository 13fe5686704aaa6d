"""The update of a step: from a gradient to new weights, optimizer state and averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.hf.adam import ADAM_EPS, REHEARSAL_BETA1
from openclaw_rl.backends.hf.alarms import HISTORY, LEAST, StepSkipped, norm_alarm
from openclaw_rl.backends.local.training.checkpoint import TrainerState, random_state
from openclaw_rl.backends.local.training.model import PolicyModel, Weights
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.backends.local.training.sharded_state import to_cpu
from openclaw_rl.backends.local.training.shards import add_up_whole, gradient_norm, with_gradients

OptimizerState = dict[str, Any]


def update(
    policy: PolicyModel, state: TrainerState, settings: TrainerArgs, *, weight: float, signal: float, rehearsal: bool
) -> tuple[TrainerState, dict[str, float]]:
    """Check the gradient's norm, clip it, take one optimizer step; the averages follow. The new state and metrics.

    ``weight`` is how much the batch has to say and ``signal`` the same by its urgency. Raises StepSkipped.
    A ``rehearsal`` has its own rate and average, and its gradients are no measure for those of turns.
    """
    s = settings
    add_up_whole(policy.parameters.values(), policy.ranks)
    norm = gradient_norm(policy.parameters, policy.ranks)
    weighed = norm / max(weight, LEAST)  # a correction after many thanks is no alarm
    why = norm_alarm(weighed, [] if rehearsal else state.norms, s.norm_alarm)
    if why is not None:
        raise StepSkipped(why, {"grad_norm": norm})
    parameters = with_gradients(policy.parameters.values())
    if s.grad_clip > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, s.grad_clip, torch.tensor(norm, device=parameters[0].device))
    lr = s.rehearsal_rate(policy.width) * signal if rehearsal else s.lr * signal if s.lr_by_signal else s.lr
    beta1 = REHEARSAL_BETA1 if rehearsal else s.adam_beta1
    group = {"lr": lr, "betas": (beta1, s.adam_beta2), "eps": ADAM_EPS, "weight_decay": s.weight_decay}
    stepped = (_step_one_by_one if s.offload_optimizer else _step)(parameters, state.optimizer, group)
    policy.forget_gradients()
    most = round(1 / (1 - s.rehearse_decay)) if rehearsal else s.average
    average, averaged = _average(policy, state, most, signal if s.lr_by_signal and not rehearsal else 0.0)
    new = TrainerState(
        optimizer=stepped,
        random=policy.ranks.said_by_first(random_state(policy.device)),
        norms=state.norms if rehearsal else [*state.norms, weighed][-HISTORY:],
        ema=_ema(policy, state.ema or {}, s.ema_decay) if s.keeps_ema else None,
        average=average,
        averaged=averaged,
    )
    return new, {"grad_norm": norm, "lr": lr}


def _step(parameters: Sequence[Tensor], saved: OptimizerState | None, group: Mapping[str, Any]) -> OptimizerState:
    """One step of AdamW from the saved state; its state after it."""
    optimizer = torch.optim.AdamW(parameters, **group)
    if saved is not None:
        optimizer.load_state_dict(saved)
        optimizer.param_groups[0].update(group)  # as they are set today, not those of the day it was saved
    optimizer.step()
    return optimizer.state_dict()


def _step_one_by_one(
    parameters: Sequence[Tensor], saved: OptimizerState | None, group: Mapping[str, Any]
) -> OptimizerState:
    """The same, with the state in main memory: only that of one parameter at a time is on the device, and its gradient
    goes as soon as it is used. So the update needs no more room than the backward pass before it."""
    whole = torch.optim.AdamW(parameters, **group).state_dict()
    for at, parameter in enumerate(parameters):
        before = None if saved is None else saved["state"].get(at)
        mine = {"state": {0: before} if before else {}, "param_groups": [{**whole["param_groups"][0], "params": [0]}]}
        after = _step([parameter], mine, group)["state"]
        if after:  # a parameter without a gradient has no state
            whole["state"][at] = to_cpu(after[0])
        parameter.grad = None
    return whole


@torch.no_grad()
def _ema(policy: PolicyModel, old: Weights, decay: float) -> Weights:
    """The moving average that teaches."""
    now = policy.weights()
    return {name: old[name].to(value).mul_(decay).add_(value, alpha=1 - decay) for name, value in now.items()}


@torch.no_grad()
def _average(policy: PolicyModel, state: TrainerState, most: int, signal: float) -> tuple[Weights | None, int]:
    """The mean of the first so many weights, then a moving one; and how many are in it.

    The more a batch had to say, the more of it is served at once: an average lags, and is for the time when
    there is little left to learn.
    """
    if most == 1:
        return None, 0
    now, old = policy.weights(), state.average
    count = min(state.averaged + 1, most)
    if old is None or count == 1:
        return now, 1
    return {name: old[name].to(value).lerp_(value, max(1 / count, signal)) for name, value in now.items()}, count
