"""The update of a step: from a gradient to new weights, optimizer state and averages."""

from __future__ import annotations

import torch

from openclaw_rl.backends.local.training.alarms import StepSkipped, norm_alarm
from openclaw_rl.backends.local.training.checkpoint import TrainerState, random_state, to_cpu
from openclaw_rl.backends.local.training.model import PolicyModel, Weights
from openclaw_rl.backends.local.training.settings import ADAM_EPS, TrainerArgs

_HISTORY = 32
"""gradient norms that the running median looks back on"""
_REHEARSAL_BETA1 = 0.5
"""a rehearsal is a few large steps: a longer memory of gradients would point where the policy no longer is"""
_LEAST = 0.05
"""gradients are compared for what their batches have to say, and for this at least"""


def update(
    policy: PolicyModel, state: TrainerState, settings: TrainerArgs, *, weight: float, signal: float, rehearsal: bool
) -> tuple[TrainerState, dict[str, float]]:
    """Check the gradient's norm, clip it, take one optimizer step; the averages follow. The new state and metrics.

    ``weight`` is how much the batch has to say and ``signal`` the same by its urgency. Raises StepSkipped.
    A ``rehearsal`` has its own rate and average, and its gradients are no measure for those of turns.
    """
    s, parameters = settings, list(policy.parameters.values())
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    weighed = norm / max(weight, _LEAST)  # a correction after many thanks is no alarm
    why = norm_alarm(weighed, [] if rehearsal else state.norms, s.norm_alarm)
    if why is not None:
        raise StepSkipped(why, {"grad_norm": norm})
    if s.grad_clip > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, s.grad_clip, torch.tensor(norm, device=parameters[0].device))
    lr = s.rehearse_lr if rehearsal else s.lr * signal if s.lr_by_signal else s.lr
    optimizer = _optimizer(policy, state, s, lr, _REHEARSAL_BETA1 if rehearsal else s.adam_beta1)
    optimizer.step()
    policy.forget_gradients()
    most = round(1 / (1 - s.rehearse_decay)) if rehearsal else s.average
    average, averaged = _average(policy, state, most, signal if s.lr_by_signal and not rehearsal else 0.0)
    new = TrainerState(
        optimizer=to_cpu(optimizer.state_dict()) if s.offload_optimizer else optimizer.state_dict(),
        random=random_state(policy.device),
        norms=state.norms if rehearsal else [*state.norms, weighed][-_HISTORY:],
        ema=_ema(policy, state.ema or {}, s.ema_decay) if s.keeps_ema else None,
        average=average,
        averaged=averaged,
    )
    return new, {"grad_norm": norm, "lr": lr}


def _optimizer(policy: PolicyModel, state: TrainerState, s: TrainerArgs, lr: float, beta1: float) -> torch.optim.AdamW:
    group = {"lr": lr, "betas": (beta1, s.adam_beta2), "eps": ADAM_EPS, "weight_decay": s.weight_decay}
    optimizer = torch.optim.AdamW(policy.parameters.values(), **group)  # type: ignore[arg-type]
    if state.optimizer is not None:
        optimizer.load_state_dict(state.optimizer)
        optimizer.param_groups[0].update(group)  # as they are set today, not those of the day it was saved
    return optimizer


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
