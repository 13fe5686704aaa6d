"""A trainer's view of a batch: prompts as ids, tensors, the loss, metrics, and reasons to skip a step."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from openclaw_rl import plugins
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.errors import RequestError
from openclaw_rl.losses import LossFunction, LossSettings, as_loss, loss, needs, weight_of, with_distillation
from openclaw_rl.losses.tree import TokenPath
from openclaw_rl.types import Prompt, Sample, Tokens

# Reasons to skip a step: a batch that must not be trained on, a gradient that must not be applied.

HISTORY = 32
"""gradient norms in the running median"""
LEAST = 0.05
"""smallest batch weight by which a gradient norm is divided"""
_ENOUGH = 3
"""gradient norms before their median may raise an alarm"""


class StepSkipped(Exception):
    """A reason to skip a step, with the measurements so far; not an error."""

    def __init__(self, reason: str, metrics: Mapping[str, float] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.metrics = metrics or {}


def batch_alarm(health: Mapping[str, float], *, gap: float, ess: float) -> str | None:
    """Return the reason not to train on a batch, before its backward pass, or None."""
    if health["masked_non_finite"]:
        return f"alarm: {health['masked_non_finite']:.0f} log-probs are not finite"
    if health["gap_mean"] > gap:
        return f"alarm: trainer and engine differ by {health['gap_mean']:.3f} a token (above {gap})"
    if not health["kept"]:
        return "no signal: every token is masked"
    if health["ess"] < ess:
        return f"alarm: effective sample size {health['ess']:.2f} (below {ess})"
    return None


def norm_alarm(norm: float, history: Sequence[float], times: float) -> str | None:
    """Return the reason not to apply this gradient, or None: it is not finite, or far above its running median."""
    if not math.isfinite(norm):
        return "alarm: the gradient is not finite"
    usual = statistics.median(history) if len(history) >= _ENOUGH else 0.0
    if usual > 0 and norm > times * usual:  # without recent learning there is no reference
        beyond = f"is above {times:g} times its median {usual:.3g}"
        return f"alarm: gradient norm {norm:.3g}, relative to its batch's signal, {beyond}"
    return None


# A batch's figures: its signal strength, its age, its measurements.


def batch_weight(
    weigh: Callable[..., float],
    samples: Sequence[Sample],
    views: Sequence[Sequence[Tokens | None]],
    *,
    by_urgency: bool = False,
) -> float:
    """Return the batch's signal strength, 0 .. 1: the mean over its samples, optionally weighted by urgency.

    Prompt distillation samples in a step of turns do not count: they preserve earlier learning, whatever the turns'
    weight.
    """
    only_notes = distils_alone(samples)
    weights = [
        (sample.urgency if by_urgency else 1.0)
        if sample.distills is not None
        else weigh(
            hinted=any(view is not None for view in row),
            advantage=sample.advantage,
            urgency=sample.urgency if by_urgency else 1.0,
        )
        for sample, row in zip(samples, views, strict=True)
        if only_notes or sample.distills is None
    ]
    return statistics.fmean(weights) if weights else 0.0


def distils_alone(samples: Sequence[Sample]) -> bool:
    """Return True if all samples are prompt distillation, and none is a turn."""
    return all(sample.distills is not None for sample in samples)


def lag(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Return the samples' distance behind ``version``, in versions."""
    lags = [version - sample.version for sample in samples]
    return {"lag_mean": sum(lags) / len(lags), "lag_max": float(max(lags))} if lags else {}


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop metrics that could not be measured."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


# Samples as flat tensors: all samples' `N` reply tokens in sequence, `S` samples.

Views = Sequence[Sequence[Tokens | None]]
"""for each sample, each hinted prompt's ids; None if it could not be rendered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """Samples as flat tensors; ``spans[s]`` are sample s's tokens among the N."""

    tokens: Tensor
    sample: Tensor
    mask: Tensor
    old: Tensor
    recorded: Tensor
    """[N] bool: False if the reply was sampled under another prompt, so that ``old`` is the student's own"""
    same_weights: Tensor
    temperature: Tensor
    advantage: Tensor
    has_advantage: Tensor
    score: Tensor
    spans: tuple[slice, ...]
    plain: tuple[TokenPath, ...]
    hinted: tuple[tuple[int, int, TokenPath], ...]
    """(hint, sample, path) of every teacher view of a turn"""
    hints: int
    distilled: Tensor
    """[N] bool: prompt distillation replies' tokens"""
    noted: tuple[tuple[int, TokenPath], ...]
    """(sample, path) of each such reply in the teacher's view"""


def collate(
    samples: Sequence[Sample], views: Views, *, version: int, device: torch.device, wide: torch.dtype
) -> TrainBatch:
    """Flatten samples; a temperature of 0 counts as 1. ``version`` is the version of the current weights."""
    lengths = [len(sample.reply_tokens) for sample in samples]
    starts = [sum(lengths[:at]) for at in range(len(lengths))]

    def flat(rows: Iterator[Sequence[Any]], dtype: torch.dtype) -> Tensor:
        return torch.tensor([value for row in rows for value in row], dtype=dtype, device=device)

    def each(value: Callable[[Sample], Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor([value(sample) for sample in samples], dtype=dtype, device=device)

    sample = flat(([at] * length for at, length in enumerate(lengths)), torch.int64)
    return TrainBatch(
        tokens=flat((item.reply_tokens for item in samples), torch.int64),
        sample=sample,
        mask=flat((item.mask for item in samples), torch.bool),
        old=flat((item.logprobs or (math.nan,) * len(item.reply_tokens) for item in samples), wide),
        recorded=each(lambda item: item.logprobs is not None, torch.bool)[sample],
        same_weights=each(lambda item: item.logprobs is not None and item.version == version, torch.bool)[sample],
        temperature=each(lambda item: item.temperature or 1.0, wide)[sample],
        advantage=each(lambda item: item.advantage or 0.0, wide),
        has_advantage=each(lambda item: item.advantage is not None, torch.bool),
        score=each(lambda item: (item.advantage or 0.0) if item.score is None else item.score, wide),
        spans=tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True)),
        plain=tuple(_path(item.prompt_tokens or (), item.reply_tokens) for item in samples),
        hinted=tuple(
            (h, s, _path(prompt, samples[s].reply_tokens))
            for s, view in enumerate(views)
            for h, prompt in enumerate(view)
            if prompt is not None and samples[s].distills is None
        ),
        hints=max((len(view) for item, view in zip(samples, views, strict=True) if item.distills is None), default=0),
        distilled=each(lambda item: item.distills is not None, torch.bool)[sample],
        noted=tuple(
            (s, _path(view[0], samples[s].reply_tokens))
            for s, view in enumerate(views)
            if samples[s].distills is not None and view and view[0] is not None
        ),
    )


def _path(prompt: Tokens, reply: Tokens) -> TokenPath:
    return TokenPath(tokens=(*prompt, *reply), reply=len(reply))


# Training inputs of a batch: each sample's prompts as ids, and the reason if a sample is unusable.

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TeacherPrompts:
    """``views`` has a row per sample: its teachers' prompts as ids, None for an unavailable prompt.

    ``samples`` have their own prompt's ids, even if the reply was sampled under another prompt. ``dropped`` has the
    reason for each turn that cannot be trained at all.
    """

    samples: list[Sample] = field(default_factory=list)
    views: list[list[Tokens | None]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Prompts that could not be rendered or do not fit."""
        return sum(view is None for row in self.views for view in row)

    def kept(self) -> tuple[list[Sample], list[list[Tokens | None]]]:
        """Return the usable samples, and their views."""
        pairs = zip(self.samples, self.views, strict=True)
        good = [(sample, row) for sample, row in pairs if sample.turn not in self.dropped]
        return [sample for sample, _ in good], [row for _, row in good]


def render_teachers(
    chat: ChatTemplate, samples: Sequence[Sample], *, most: int, room: int | None, vocabulary: int
) -> TeacherPrompts:
    """Render every teacher's prompt, at most ``most`` per turn, into ``room`` tokens together with the reply."""
    result = TeacherPrompts()
    for sample in samples:
        views: list[Tokens | None] = []
        why = ""
        for prompt in sample.teachers[: most if sample.distills is None else 1]:
            try:
                views.append(_view(chat, prompt, sample, room))
            except RequestError as error:
                log.warning("teacher of turn %s not rendered: %s", sample.turn, error)
                views.append(None)
                why = error.what
        result.views.append(views)
        try:
            tokens = sample.prompt_tokens or _view(chat, sample.prompt, sample, room)
        except RequestError as error:
            tokens, result.dropped[sample.turn] = None, f"its prompt without the note is unavailable: {error.what}"
        result.samples.append(replace(sample, prompt_tokens=tokens))
        if tokens is None:
            continue
        if max(*tokens, *sample.reply_tokens) >= vocabulary:
            result.dropped[sample.turn] = "a token id lies outside the model's vocabulary"
        elif sample.advantage is None and views and not any(views):
            result.dropped[sample.turn] = f"its hinted prompt is unavailable: {why}"
    return result


def _view(chat: ChatTemplate, prompt: Prompt, sample: Sample, room: int | None) -> Tokens:
    ids = chat.encode(prompt)
    if room is not None and len(ids) + len(sample.reply_tokens) > room:
        raise RequestError(f"{len(ids)} tokens and a reply of {len(sample.reply_tokens)} do not fit {room}")
    return ids


# The trainer's loss: a built-in one, or the user's own.

LossChoice: TypeAlias = tuple[LossFunction, Callable[..., float], int | None]
"""a loss, a sample's weight in it, and the number of hints that it uses (None: all)"""


def choose_loss(settings: LossSettings, custom: str | None, config: Mapping[str, Any]) -> LossChoice:
    """Return the loss to train with; a ``custom`` loss gets ``config``.

    It gets every input and may use them all; under the published contract, scores alone.
    """
    if custom is not None:
        return _custom_loss(settings, custom, config)
    return with_distillation(partial(loss, settings=settings)), partial(weight_of, settings), needs(settings)[0]


def _custom_loss(settings: LossSettings, name: str, config: Mapping[str, Any]) -> LossChoice:
    function = plugins.resolve("loss", name)
    contract = plugins.loss_contract(function)
    ready = with_distillation(as_loss(function, contract, config, max_mismatch=settings.max_mismatch))
    if contract == "published":
        return ready, partial(weight_of, replace(settings, method="binary")), 0
    return ready, partial(weight_of, replace(settings, method="combine", w_rl=1.0, w_opd=1.0)), None
