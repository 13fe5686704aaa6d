"""Training passes at the service: log-probs for ids at positions, and the gradient back through them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.backends.tinker.troubles import ServiceFailed, other_protocol
from openclaw_rl.errors import BackendError, RequestError
from openclaw_rl.types import Tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """A sequence, and the ids `[R, C]` scored at its last R positions, each after the token before it."""

    tokens: Tokens
    ids: Tensor


class TargetsIgnored(BackendError):
    """The service returned fewer targets than were requested."""


class TrainingPasses:
    """Training passes in one session. Some servers take one target per position: several are then sent one by one."""

    def __init__(self, session: TinkerSession) -> None:
        self._session = session
        self._wide = True
        self._taken = False

    async def forward(self, client: Any, rows: Sequence[TargetRows]) -> list[Tensor]:
        """Return log-probs `[R, C]` for each row's ids, under the weights in ``client``."""
        if not rows:
            return []
        try:
            return await self._forward(client, rows)
        except (RequestError, ServiceFailed, TargetsIgnored):
            if not self._wide or all(row.ids.shape[1] == 1 for row in rows):
                raise
        self._wide = False
        try:
            logprobs = await self._forward(client, rows)
        except BaseException:  # the number of targets was not the cause
            self._wide = True
            raise
        log.warning("cloud.narrow the server takes one target for each position; several are sent one by one")
        return logprobs

    async def _forward(self, client: Any, rows: Sequence[TargetRows]) -> list[Tensor]:
        data = self._data(rows, [torch.zeros(row.ids.shape) for row in rows])
        answer = await self._session.wait(client.forward(data, "cross_entropy"), "a forward pass")
        self._count(data)
        outputs = [logprobs_of(output) for output in answer.loss_fn_outputs]
        if len(outputs) != len(data):
            raise BackendError(f"the service answered for {len(outputs)} of {len(data)} sequences")
        self._taken = True
        return list(self._joined(rows, outputs))

    async def require(self, client: Any) -> None:
        """Raise ModelRefused if the server refuses even the smallest pass: the batch is then not the cause."""
        if self._taken:
            return
        try:
            await self._forward(client, [TargetRows(tokens=(0, 0), ids=torch.zeros(1, 1, dtype=torch.int64))])
        except (RequestError, ServiceFailed) as error:
            raise other_protocol(error.what) from error

    def backward(self, client: Any, rows: Sequence[TargetRows], gradients: Sequence[Tensor]) -> Any:
        """Start to backpropagate d loss by log-prob `[R, C]` for each row; return the service's future.

        The service's cross-entropy is the sum of - weight * log-prob, so the weights are these values with the sign
        flipped.
        """
        data = self._data(rows, [-gradient for gradient in gradients])
        self._count(data)
        return client.forward_backward(data, "cross_entropy")

    def _data(self, rows: Sequence[TargetRows], weights: Sequence[Tensor]) -> list[Any]:
        types = self._session.sdk.types
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(list(row.tokens[:-1])),
                loss_fn_inputs={
                    "target_tokens": placed(types, row, ids),
                    "weights": placed(types, row, weight.to(torch.float32)),
                },
            )
            for row, row_weights in zip(rows, weights, strict=True)
            for ids, weight in self._columns(row.ids, row_weights)
        ]

    def _columns(self, ids: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the contents of each datum: all columns at once, or one at a time."""
        if self._wide and ids.shape[1] > 1:
            yield ids, weights
            return
        for at in range(ids.shape[1]):
            yield ids[:, at], weights[:, at]

    def _joined(self, rows: Sequence[TargetRows], outputs: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield one output per row, from one output per datum."""
        counts = [1 if self._wide else row.ids.shape[1] for row in rows]
        for row, (begin, end) in zip(rows, pairwise(accumulate(counts, initial=0)), strict=True):
            reply, width = row.ids.shape
            parts = [output[-reply:].reshape(reply, -1) for output in outputs[begin:end]]
            joined = torch.cat(parts, 1)
            if joined.shape[1] != width:
                raise TargetsIgnored(f"the service answered for {joined.shape[1]} of {width} targets")
            yield joined

    def _count(self, data: Sequence[Any]) -> None:
        self._session.spending.add(train=sum(datum.model_input.length for datum in data))


def placed(types: Any, row: TargetRows, values: Tensor) -> Any:
    """Return values `[R]` or `[R, C]`, padded with zeros at the front to all tokens but the last, as the SDK's tensor.

    Several columns after a long prompt are sent as a sparse tensor (CSR); the SDK would build it from zeros as well.
    """
    length, dtype = len(row.tokens) - 1, "float32" if values.is_floating_point() else "int64"
    before, shape = length - len(values), [length, *values.shape[1:]]
    if values.dim() == 1 or before < 2 * len(values):
        padded = torch.cat([values.new_zeros(before, *values.shape[1:]), values])
        return types.TensorData(data=padded.numpy(), dtype=dtype, shape=shape)
    reply, width = values.shape
    return types.TensorData(
        data=values.reshape(-1).numpy(),
        dtype=dtype,
        shape=shape,
        sparse_crow_indices=[*[0] * before, *range(0, (reply + 1) * width, width)],
        sparse_col_indices=list(range(width)) * reply,
    )


def logprobs_of(output: Any) -> Tensor:
    """Return the service's log-probs for one datum."""
    logprobs: Tensor = output["logprobs"].to_torch()
    return logprobs.to(torch.float32)
