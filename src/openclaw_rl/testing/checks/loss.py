"""Whether a loss keeps its port's promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from openclaw_rl import plugins
from openclaw_rl.app.factories import loss_config
from openclaw_rl.config import Config
from openclaw_rl.testing.checks.promises import Promises


def check_loss(loss: Any, *, config: Mapping[str, Any] | None = None) -> None:
    """A loss of either contract: batches with both signals, one, none, and with rubbish where it may not look.

    It gives a finite scalar with a finite gradient and plain metrics, the same each time, and changes no input.
    ``config`` is what ``train.loss.config`` would hold for it.

    >>> def reinforce(inputs):
    ...     used = inputs.mask & inputs.has_advantage[inputs.sample]
    ...     return -(inputs.advantage[inputs.sample] * inputs.current)[used].sum(), {"tokens": float(used.sum())}
    >>> check_loss(reinforce)
    >>> check_loss(lambda inputs: (inputs.current.sum() * inputs.advantage.sum(), {}))
    Traceback (most recent call last):
    AssertionError: loss '<lambda>' breaks what openclaw_rl.ports.Loss promises:
    - with rubbish under the mask, the loss is not finite: look only where `mask` and `has_teacher` are true
    """
    promises = Promises("loss", loss)
    loss = _ready(loss, config or {})
    for name, logits, inputs in _batches():
        try:
            _loss_keeps(promises, name, loss, logits, inputs)
        except Exception as error:  # a plugin may fail in any way; its author is told how
            promises.hold(False, f"{name}, it raises {type(error).__name__}: {error}")
    promises.report()


def _ready(loss: Any, config: Mapping[str, Any]) -> Any:
    from openclaw_rl.losses import as_loss

    settings = Config()
    contract, mismatch = plugins.loss_contract(loss), settings.train.loss.max_mismatch
    return as_loss(loss, contract, {**loss_config(settings), **config}, max_mismatch=mismatch)


def _loss_keeps(promises: Promises, name: str, loss: Callable[[Any], Any], logits: Any, inputs: Any) -> None:
    import torch

    before = {field: getattr(inputs, field).clone() for field in ("old", "advantage", "teacher")}
    total, metrics = loss(inputs)
    scalar = isinstance(total, torch.Tensor) and total.dim() == 0
    if not promises.hold(scalar, f"{name}, the loss is no scalar tensor"):
        return
    promises.plain_numbers(metrics)
    remedy = ": look only where `mask` and `has_teacher` are true" if "rubbish" in name else ""
    if not promises.hold(bool(torch.isfinite(total)), f"{name}, the loss is not finite{remedy}"):
        return
    if promises.hold(total.requires_grad, f"{name}, the loss has no gradient; add `inputs.current.sum() * 0`"):
        (gradient,) = torch.autograd.grad(total, logits, retain_graph=True, allow_unused=True)
        fine = gradient is None or bool(torch.isfinite(gradient).all())
        promises.hold(fine, f"{name}, the gradient is not finite{remedy}")
    again = torch.equal(loss(inputs)[0], total)
    promises.hold(again, f"{name}, the same inputs give another loss the second time")
    same = all(torch.equal(old.nan_to_num(), getattr(inputs, field).nan_to_num()) for field, old in before.items())
    promises.hold(same, f"{name}, the loss changes its inputs")


def _batches() -> list[tuple[str, Any, Any]]:
    """A name, the logits that the gradient goes to, the inputs."""
    import torch

    from openclaw_rl.losses import small_batch

    mask = torch.tensor([True, False, True, True, True])
    logits, inputs = small_batch(mask=mask)
    return [
        ("with advantages and a teacher", *small_batch()),
        ("with advantages only", *small_batch(teacher=False)),
        ("with a teacher only", *small_batch(advantage=False)),
        ("without any signal", *small_batch(advantage=False, teacher=False)),
        ("with rubbish under the mask", logits, _with_rubbish(inputs, ~mask)),
    ]


def _with_rubbish(inputs: Any, where: Any) -> Any:
    """The same inputs with NaN at these tokens."""
    nan = float("nan")
    tokens = {name: getattr(inputs, name).masked_fill(where, nan) for name in ("current", "old", "kl", "reference")}
    wide = {name: getattr(inputs, name).masked_fill(where[:, None], nan) for name in ("student_old", "student_current")}
    deep = ("student_teacher", "teacher_top", "teacher_old", "teacher_current")
    theirs = {name: getattr(inputs, name).masked_fill(where[None, :, None], nan) for name in deep}
    return replace(inputs, **tokens, **wide, **theirs, teacher=inputs.teacher.masked_fill(where[None], nan))
