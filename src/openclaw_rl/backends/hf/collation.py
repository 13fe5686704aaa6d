"""Samples as flat tensors: `N` reply tokens of all samples one after another, `S` samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.losses.tree import TokenPath
from openclaw_rl.types import Sample, Tokens

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
