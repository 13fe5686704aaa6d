"""Check that a trainer, a loss and a judge fulfil their ports' contracts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl import plugins
from openclaw_rl.app.factories import loss_config
from openclaw_rl.app.judges import hint_limits
from openclaw_rl.config import Config, load
from openclaw_rl.judge.custom import as_judge
from openclaw_rl.ports import Case, StepResult
from openclaw_rl.testing.checks.env import Promises
from openclaw_rl.testing.rows import make_case, make_message, make_sample
from openclaw_rl.types import Verdict, Version


def check_trainer(trainer: Any, *, base: str = "base", weights: str = "*") -> None:
    """Check a trainer: one step from ``base``, twice; ``weights`` is the pattern of files that must be the same.

    The directory is complete and the metrics are finite numbers. A skipped step gives its reason and leaves no files.

    >>> from openclaw_rl.testing import FakeTrainer
    >>> check_trainer(FakeTrainer())
    """
    promises = Promises("trainer", trainer)
    with tempfile.TemporaryDirectory() as folder:
        promises.report(_trainer_keeps(promises, trainer, Path(folder) / "000001", base, weights))


async def _trainer_keeps(promises: Promises, trainer: Any, target: Path, base: str, weights: str) -> None:
    await promises.tried("start()", trainer.start())
    samples = [make_sample(1.0), make_sample(None, "Be brief, please.")]
    parent = Version(number=0, parent=None, base=base, state="live")
    try:
        results = []
        for _ in range(2):
            work = trainer.step(samples, number=1, parent=parent, target=str(target))
            _step_keeps(promises, await promises.tried("step()", work), target)
            results.append(_files(target, weights))
            shutil.rmtree(target, ignore_errors=True)
        promises.hold(results[0] == results[1], "the same step twice gives different weights")
    finally:
        await promises.closes("stop", trainer.stop)


def _files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.rglob(pattern)) if file.is_file()}


def _step_keeps(promises: Promises, trained: Any, target: Path) -> None:
    if not isinstance(trained, StepResult):
        promises.hold(trained is None, f"step() gives {type(trained).__name__}, not a StepResult")
        return
    promises.plain_numbers(trained.metrics)
    if trained.adapter is None:
        promises.hold(bool(trained.skipped), "a step without an adapter gives no reason in `skipped`")
        promises.hold(not target.exists(), "a skipped step leaves its directory behind")
    else:
        promises.hold(trained.adapter == str(target), f"the adapter is {trained.adapter}, not the target {target}")
        promises.hold(target.is_dir(), "the target directory is not there after the step")


# Check of a loss.


def check_loss(loss: Any, *, config: Mapping[str, Any] | None = None) -> None:
    """Check a loss of either contract: batches with both signals, one, none, and with invalid values under the mask.

    It returns a finite scalar with a finite gradient and plain metrics, the same each time, and changes no input.
    ``config`` is the content of ``train.loss.config``.

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
        except Exception as error:  # a plugin may fail in any way; the report shows how
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
    """Return names, the logits that receive the gradient, and inputs."""
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
    """Return the same inputs with NaN at these tokens."""
    nan = float("nan")
    tokens = {name: getattr(inputs, name).masked_fill(where, nan) for name in ("current", "old", "kl", "reference")}
    wide = {name: getattr(inputs, name).masked_fill(where[:, None], nan) for name in ("student_old", "student_current")}
    deep = ("student_teacher", "teacher_top", "teacher_old", "teacher_current")
    teachers = {name: getattr(inputs, name).masked_fill(where[None, :, None], nan) for name in deep}
    return replace(inputs, **tokens, **wide, **teachers, teacher=inputs.teacher.masked_fill(where[None], nan))


# Check of a judge.


def cases() -> list[Case]:
    """Return typical cases: praise, a correction, a failed tool, silence, another language, a very long text."""
    state = [
        (make_message("user", "Thanks, that's perfect!"),),
        (make_message("user", "Too long. Please keep it under 30 words."),),
        (make_message("tool", "Traceback (most recent call last): ValueError", tool_call_id="c"),),
        (),
        (make_message("user", "太长了，请简短一点。"),),
        (make_message("user", "and then " * 20_000),),
    ]
    return [*(make_case(*messages) for messages in state), make_case(reply="")]


def check_judge(judge: Any) -> None:
    """Check a judge, or a function ``(prompt, reply, next_state) -> score``.

    It returns a `Verdict` of the case's own turn, also for many cases at once. Its score is None or in -1 .. 1.

    >>> from openclaw_rl.testing import FakeJudge
    >>> check_judge(FakeJudge(1.0))
    >>> check_judge(lambda prompt, reply, next_state: 7)
    Traceback (most recent call last):
    AssertionError: judge '<lambda>' breaks what openclaw_rl.ports.Judge promises:
    - a score is 7.0, which is not in -1 .. 1
    """
    judge = as_judge(judge, limits=hint_limits(load(environ={}).config), name=getattr(judge, "__name__", "custom"))
    promises = Promises("judge", judge)
    promises.report(_judge_keeps(promises, judge))


async def _judge_keeps(promises: Promises, judge: Any) -> None:
    tried = cases()
    verdicts = await asyncio.gather(*(promises.tried("judge(case)", judge.judge(case)) for case in tried))
    for case, verdict in zip(tried, verdicts, strict=True):
        if not isinstance(verdict, Verdict):
            promises.hold(verdict is None, f"judge(case) gives {type(verdict).__name__}, not a Verdict")
            continue
        promises.hold(verdict.turn == case.turn.id, "a verdict names another turn than the one it was given")
        fine = verdict.score is None or -1.0 <= verdict.score <= 1.0
        promises.hold(fine, f"a score is {verdict.score}, which is not in -1 .. 1")
        wrong = verdict.score is None and (" raised " in verdict.note or "no finite number" in verdict.note)
        promises.hold(not wrong, f"the function fails: {verdict.note}")
