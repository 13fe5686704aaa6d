"""Passes of training at the service: log-probs of given ids at given positions, and the gradient back through them."""

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
    """A sequence, and the ids `[R, C]` that are looked at after each token but the last of its end: where its last R
    tokens were chosen."""

    tokens: Tokens
    ids: Tensor


class TargetsIgnored(BackendError):
    """The service has looked at fewer targets than it was asked for."""


class TrainingPasses:
    """How one session is asked for passes. Some servers take one target for each position: several go one by one."""

    def __init__(self, session: TinkerSession) -> None:
        self._session = session
        self._wide = True
        self._taken = False

    async def forward(self, client: Any, rows: Sequence[TargetRows]) -> list[Tensor]:
        """Log-probs `[R, C]` of each row's ids, under the weights of ``client``."""
        if not rows:
            return []
        try:
            return await self._forward(client, rows)
        except (RequestError, ServiceFailed, TargetsIgnored):
            if not self._wide or all(row.ids.shape[1] == 1 for row in rows):
                raise
        self._wide = False
        try:
            found = await self._forward(client, rows)
        except BaseException:  # it was not for their number that they were refused
            self._wide = True
            raise
        log.warning("cloud.narrow the server takes one target for each position; several are sent one by one")
        return found

    async def _forward(self, client: Any, rows: Sequence[TargetRows]) -> list[Tensor]:
        data = self._data(rows, [torch.zeros(row.ids.shape) for row in rows])
        found = await self._session.wait(client.forward(data, "cross_entropy"), "a forward pass")
        self._count(data)
        outputs = [logprobs_of(each) for each in found.loss_fn_outputs]
        if len(outputs) != len(data):
            raise BackendError(f"the service answered for {len(outputs)} of {len(data)} sequences")
        self._taken = True
        return list(self._joined(rows, outputs))

    async def require(self, client: Any) -> None:
        """Raise ModelRefused where the server refuses the smallest pass there is: then no batch is to blame."""
        if self._taken:
            return
        try:
            await self._forward(client, [TargetRows(tokens=(0, 0), ids=torch.zeros(1, 1, dtype=torch.int64))])
        except (RequestError, ServiceFailed) as error:
            raise other_protocol(error.what) from error

    def backward(self, client: Any, rows: Sequence[TargetRows], gradients: Sequence[Tensor]) -> Any:
        """Begin to backpropagate d loss by log-prob `[R, C]` of each row; what it promises.

        The service's cross-entropy is the sum of - weight * log-prob, so the weights are these with the sign turned.
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
            for row, whole in zip(rows, weights, strict=True)
            for ids, weight in self._columns(row.ids, whole)
        ]

    def _columns(self, ids: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What goes into one datum: all columns, or one."""
        if self._wide and ids.shape[1] > 1:
            yield ids, weights
            return
        for at in range(ids.shape[1]):
            yield ids[:, at], weights[:, at]

    def _joined(self, rows: Sequence[TargetRows], outputs: Sequence[Tensor]) -> Iterator[Tensor]:
        """Outputs of data as outputs of rows."""
        counts = [1 if self._wide else row.ids.shape[1] for row in rows]
        for row, (begin, end) in zip(rows, pairwise(accumulate(counts, initial=0)), strict=True):
            reply, width = row.ids.shape
            parts = [each[-reply:].reshape(reply, -1) for each in outputs[begin:end]]
            whole = torch.cat(parts, 1)
            if whole.shape[1] != width:
                raise TargetsIgnored(f"the service answered for {whole.shape[1]} of {width} targets")
            yield whole

    def _count(self, data: Sequence[Any]) -> None:
        self._session.spending.add(train=sum(each.model_input.length for each in data))


def placed(types: Any, row: TargetRows, values: Tensor) -> Any:
    """Values `[R]` or `[R, C]` at the end of a sequence of zeros, one for each token but the last, as the SDK's tensor.

    Several columns after a long prompt go by the rows that are not zero (CSR); the SDK would make them of zeros too.
    """
    length, dtype = len(row.tokens) - 1, "float32" if values.is_floating_point() else "int64"
    before, shape = length - len(values), [length, *values.shape[1:]]
    if values.dim() == 1 or before < 2 * len(values):
        whole = torch.cat([values.new_zeros(before, *values.shape[1:]), values])
        return types.TensorData(data=whole.numpy(), dtype=dtype, shape=shape)
    reply, width = values.shape
    return types.TensorData(
        data=values.reshape(-1).numpy(),
        dtype=dtype,
        shape=shape,
        sparse_crow_indices=[*[0] * before, *range(0, (reply + 1) * width, width)],
        sparse_col_indices=list(range(width)) * reply,
    )


def logprobs_of(output: Any) -> Tensor:
    """What the service said of one datum."""
    found: Tensor = output["logprobs"].to_torch()
    return found.to(torch.float32)
