"""Between the protocol's messages and tensors, by the SDK's own descriptions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fakes.tinker.lora import TrainDatum

_NOTHING = -99999.0
"""the log-prob that stands for none in a table of the likeliest tokens"""


def _messages() -> Any:
    from tinker.proto import tinker_public_pb2

    return tinker_public_pb2


def read_training(body: bytes) -> Any:
    """The request of a forward pass, or of one forward and back."""
    request = _messages().ForwardBackwardRequest()
    request.ParseFromString(body)
    return request


def read_datum(message: Any) -> TrainDatum:
    """One sequence of it."""
    tokens = [t for chunk in message.model_input for t in np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()]
    return TrainDatum(
        tokens=tuple(tokens), inputs={name: _tensor(found) for name, found in message.loss_fn_inputs.items()}
    )


def _tensor(message: Any) -> Tensor:
    kind = np.dtype(np.int64 if message.dtype == _messages().DTYPE_INT64 else np.float32)
    shape = list(message.shape)
    if not message.HasField("sparse_csr"):
        dense = torch.from_numpy(np.frombuffer(message.dense, kind).copy())
        return dense.view(shape) if shape else dense
    sparse = message.sparse_csr
    rows, columns = (np.frombuffer(part, np.int64) for part in (sparse.crow_indices, sparse.col_indices))
    made = np.zeros(shape, kind)
    made[np.repeat(np.arange(shape[0]), np.diff(rows)), columns] = np.frombuffer(sparse.values, kind)
    return torch.from_numpy(made)


def write_outputs(outputs: Sequence[Tensor], metrics: Mapping[str, float]) -> bytes:
    """The answer to it: log-probs of each datum."""
    answer = _messages().ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(metrics))
    for found in outputs:  # one record each: their shapes may differ
        record = answer.loss_fn_outputs.add(num_datums=1)
        batch, data = record.fields["logprobs"], found.to(torch.float32).numpy().tobytes()
        batch.data, batch.dtype = data, _messages().DTYPE_FLOAT32
        batch.offsets = np.asarray([0, len(data)], np.int64).tobytes()
        batch.trailing_shape.extend(found.shape[1:])
    made: bytes = answer.SerializeToString()
    return made


def write_sample(
    replies: Sequence[tuple[Sequence[int], Sequence[float], str]], scores: Sequence[float] | None, top: Tensor | None
) -> bytes:
    """The answer to sampling: replies with their log-probs and endings, scores of the prompt `[P]`, and the likeliest
    tokens at its positions: log-probs over the vocabulary `[P - 1, k, 2]` (id, value)."""
    words = _messages()
    answer = words.SampleResponse()
    for tokens, logprobs, ending in replies:
        reason = words.STOP_REASON_LENGTH if ending == "length" else words.STOP_REASON_STOP
        answer.sequences.add(
            stop_reason=reason,
            tokens=np.asarray(tokens, np.int32).tobytes(),
            logprobs=np.asarray(logprobs, np.float32).tobytes(),
        )
    if scores is not None:
        answer.prompt_logprobs = np.asarray([np.nan, *scores], np.float32).tobytes()
    if top is not None:
        k = top.shape[1]
        ids = np.concatenate([np.zeros((1, k), np.int32), top[..., 0].numpy().astype(np.int32)])
        values = np.concatenate([np.full((1, k), _NOTHING, np.float32), top[..., 1].numpy().astype(np.float32)])
        table = answer.topk_prompt_logprobs
        table.token_ids, table.logprobs, table.k = ids.tobytes(), values.tobytes(), k
        setattr(table, "length" if hasattr(table, "length") else "prompt_length", len(ids))  # named so before 0.26
    made: bytes = answer.SerializeToString()
    return made
