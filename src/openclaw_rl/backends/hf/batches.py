"""What a trainer makes of a batch: its prompts as ids, its tensors, its loss, its figures, and reasons to refuse it."""

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
from openclaw_rl.losses import LossFunction, LossSettings, as_loss, loss, needs, weight_of, with_rehearsal
from openclaw_rl.losses.tree import TokenPath
from openclaw_rl.types import Prompt, Sample, Tokens

# Reasons to take no step: a batch that must not be trained on, a gradient that must not be applied.

HISTORY = 32
"""gradient norms that the running median looks back on"""
LEAST = 0.05
"""gradients are compared for what their batches have to say, and for this at least"""
_ENOUGH = 3
"""gradient norms before their median may raise an alarm"""


class StepSkipped(Exception):
    """A reason to take no step, with what was measured up to there; not an error."""

    def __init__(self, reason: str, metrics: Mapping[str, float] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.metrics = metrics or {}


def batch_alarm(health: Mapping[str, float], *, gap: float, ess: float) -> str | None:
    """Why a batch must not be trained on, seen before its backward pass; None if nothing is wrong."""
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
    """Why this gradient must not be applied: not finite, or far beyond its running median."""
    if not math.isfinite(norm):
        return "alarm: the gradient is not finite"
    usual = statistics.median(history) if len(history) >= _ENOUGH else 0.0
    if usual > 0 and norm > times * usual:  # where nothing was learned lately there is nothing to compare with
        beyond = f"is above {times:g} times its median {usual:.3g}"
        return f"alarm: gradient norm {norm:.3g}, by what its batch has to say, {beyond}"
    return None


# Figures of a batch: how much it has to say, how old it is, what could be measured of it.


def batch_weight(
    weigh: Callable[..., float],
    samples: Sequence[Sample],
    views: Sequence[Sequence[Tokens | None]],
    *,
    by_urgency: bool = False,
) -> float:
    """How much a batch has to say, 0 .. 1: the mean of its samples, each by its urgency if that is to count.

    What a step of turns repeats of notes says nothing more: it holds what was learned, however far the turns go.
    """
    alone = rehearses_alone(samples)
    found = [
        (sample.urgency if by_urgency else 1.0)
        if sample.rehearses is not None
        else weigh(
            hinted=any(view is not None for view in row),
            advantage=sample.advantage,
            urgency=sample.urgency if by_urgency else 1.0,
        )
        for sample, row in zip(samples, views, strict=True)
        if alone or sample.rehearses is None
    ]
    return statistics.fmean(found) if found else 0.0


def rehearses_alone(samples: Sequence[Sample]) -> bool:
    """Whether all of them rehearse notes, and none is a turn."""
    return all(sample.rehearses is not None for sample in samples)


def lag(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """How many versions behind ``version`` they are."""
    lags = [version - sample.version for sample in samples]
    return {"lag_mean": sum(lags) / len(lags), "lag_max": float(max(lags))} if lags else {}


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """What could not be measured is absent, not a number."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


# Samples as flat tensors: `N` reply tokens of all samples one after another, `S` samples.

Views = Sequence[Sequence[Tokens | None]]
"""for each sample, the ids of each hinted prompt; None where it could not be rendered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """Samples as flat tensors; ``spans[s]`` are sample s's tokens among the N."""

    tokens: Tensor
    sample: Tensor
    mask: Tensor
    old: Tensor
    recorded: Tensor
    """[N] bool: False where the reply was sampled under another prompt, so that ``old`` is the student's own"""
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
    rehearsed: Tensor
    """[N] bool: tokens of replies that were sampled for a note"""
    noted: tuple[tuple[int, TokenPath], ...]
    """(sample, path) of the teacher's view of each of these replies"""


def collate(
    samples: Sequence[Sample], views: Views, *, version: int, device: torch.device, wide: torch.dtype
) -> TrainBatch:
    """Flatten samples; a temperature of 0 counts as 1. ``version`` is the one whose weights stand now."""
    lengths = [len(sample.reply_tokens) for sample in samples]
    starts = [sum(lengths[:at]) for at in range(len(lengths))]

    def flat(rows: Iterator[Sequence[Any]], dtype: torch.dtype) -> Tensor:
        return torch.tensor([value for row in rows for value in row], dtype=dtype, device=device)

    def each(value: Callable[[Sample], Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor([value(sample) for sample in samples], dtype=dtype, device=device)

    sample = flat(([at] * length for at, length in enumerate(lengths)), torch.int64)
    return TrainBatch(
        tokens=flat((one.reply_tokens for one in samples), torch.int64),
        sample=sample,
        mask=flat((one.mask for one in samples), torch.bool),
        old=flat((one.logprobs or (math.nan,) * len(one.reply_tokens) for one in samples), wide),
        recorded=each(lambda one: one.logprobs is not None, torch.bool)[sample],
        same_weights=each(lambda one: one.logprobs is not None and one.version == version, torch.bool)[sample],
        temperature=each(lambda one: one.temperature or 1.0, wide)[sample],
        advantage=each(lambda one: one.advantage or 0.0, wide),
        has_advantage=each(lambda one: one.advantage is not None, torch.bool),
        score=each(lambda one: (one.advantage or 0.0) if one.score is None else one.score, wide),
        spans=tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True)),
        plain=tuple(_path(one.prompt_tokens or (), one.reply_tokens) for one in samples),
        hinted=tuple(
            (h, s, _path(prompt, samples[s].reply_tokens))
            for s, view in enumerate(views)
            for h, prompt in enumerate(view)
            if prompt is not None and samples[s].rehearses is None
        ),
        hints=max((len(view) for one, view in zip(samples, views, strict=True) if one.rehearses is None), default=0),
        rehearsed=each(lambda one: one.rehearses is not None, torch.bool)[sample],
        noted=tuple(
            (s, _path(view[0], samples[s].reply_tokens))
            for s, view in enumerate(views)
            if samples[s].rehearses is not None and view and view[0] is not None
        ),
    )


def _path(prompt: Tokens, reply: Tokens) -> TokenPath:
    return TokenPath(tokens=(*prompt, *reply), reply=len(reply))


# What a batch has to train on: each sample's prompts as ids, and why a sample has nothing to give.

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TeacherPrompts:
    """``views`` has a row for each sample: the ids of its teachers' prompts, None where one cannot be had.

    ``samples`` have their own prompt's ids, also those whose reply was sampled under another prompt.
    ``dropped`` says for each turn that cannot be trained at all what is wrong with it.
    """

    samples: list[Sample] = field(default_factory=list)
    views: list[list[Tokens | None]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """How many prompts could not be rendered or do not fit."""
        return sum(view is None for row in self.views for view in row)

    def kept(self) -> tuple[list[Sample], list[list[Tokens | None]]]:
        """The samples to train on, and their views."""
        pairs = zip(self.samples, self.views, strict=True)
        good = [(sample, row) for sample, row in pairs if sample.turn not in self.dropped]
        return [sample for sample, _ in good], [row for _, row in good]


def render_teachers(
    chat: ChatTemplate, samples: Sequence[Sample], *, most: int, room: int | None, vocabulary: int
) -> TeacherPrompts:
    """Render every teacher's prompt, at most ``most`` of each turn, into ``room`` tokens together with the reply."""
    found = TeacherPrompts()
    for sample in samples:
        views: list[Tokens | None] = []
        why = ""
        for prompt in sample.teachers[: most if sample.rehearses is None else 1]:
            try:
                views.append(_view(chat, prompt, sample, room))
            except RequestError as error:
                log.warning("teacher of turn %s not rendered: %s", sample.turn, error)
                views.append(None)
                why = error.what
        found.views.append(views)
        try:
            own = sample.prompt_tokens or _view(chat, sample.prompt, sample, room)
        except RequestError as error:
            own, found.dropped[sample.turn] = None, f"its prompt without the note cannot be had: {error.what}"
        found.samples.append(replace(sample, prompt_tokens=own))
        if own is None:
            continue
        if max(*own, *sample.reply_tokens) >= vocabulary:
            found.dropped[sample.turn] = "a token id lies outside the model's vocabulary"
        elif sample.advantage is None and views and not any(views):
            found.dropped[sample.turn] = f"its hinted prompt cannot be had: {why}"
    return found


def _view(chat: ChatTemplate, prompt: Prompt, sample: Sample, room: int | None) -> Tokens:
    ids = chat.encode(prompt)
    if room is not None and len(ids) + len(sample.reply_tokens) > room:
        raise RequestError(f"{len(ids)} tokens and a reply of {len(sample.reply_tokens)} do not fit {room}")
    return ids


# The loss that a trainer is to use: a built-in one, or the user's own.

LossChoice: TypeAlias = tuple[LossFunction, Callable[..., float], int | None]
"""a loss, how much a sample has to say to it, and how many hints it looks at (None: all)"""


def choose_loss(settings: LossSettings, custom: str | None, config: Mapping[str, Any]) -> LossChoice:
    """The loss to train with; a ``custom`` one is handed ``config``.

    It is given everything, and may make something of all of it; by the published contract, scores alone.
    """
    if custom is not None:
        return _custom_loss(settings, custom, config)
    return with_rehearsal(partial(loss, settings=settings)), partial(weight_of, settings), needs(settings)[0]


def _custom_loss(settings: LossSettings, name: str, config: Mapping[str, Any]) -> LossChoice:
    given = plugins.resolve("loss", name)
    contract = plugins.loss_contract(given)
    ready = with_rehearsal(as_loss(given, contract, config, max_mismatch=settings.max_mismatch))
    if contract == "published":
        return ready, partial(weight_of, replace(settings, method="binary")), 0
    return ready, partial(weight_of, replace(settings, method="combine", w_rl=1.0, w_opd=1.0)), None
