"""GGUF files for llama.cpp and Ollama: a LoRA adapter, or a whole model in float16.

A model from a GGUF file keeps that file's tokenizer and metadata. For any other model the tokenizer is written from its
tokenizer.json, if llama.cpp supports its way of splitting text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch

from openclaw_rl.backends.hf.adapters import adapter_pairs, adapter_settings, scaling_of
from openclaw_rl.backends.hf.models import text_config
from openclaw_rl.errors import ModelRefused

ARCHITECTURES: Final = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
"""llama.cpp's architecture by transformers' model type"""
CONVERTER: Final = "export it with --format peft and convert it with llama.cpp's own scripts"
_HEAD = "lm_head.weight"
_TABLE = "model.embed_tokens.weight"


class TensorLayout:
    """llama.cpp's names for a model's tensors, and its row order."""

    def __init__(self, config: Any) -> None:
        if config.model_type not in ARCHITECTURES:
            raise ModelRefused(
                f"a model of type {config.model_type!r} cannot be written as GGUF; {', '.join(ARCHITECTURES)} can",
                remedy=CONVERTER,
            )
        self.architecture = ARCHITECTURES[config.model_type]
        self._config = config
        self._names = gguf.get_tensor_name_map(self.architecture, config.num_hidden_layers)

    @property
    def name(self) -> str:
        """The architecture's name in llama.cpp."""
        return str(gguf.MODEL_ARCH_NAMES[self.architecture])

    def name_of(self, weight: str) -> str:
        """Return llama.cpp's name for a weight, which ends with .weight or .bias."""
        name = self._names.get_name(weight, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ModelRefused(f"llama.cpp has no tensor for {weight!r}", remedy=CONVERTER)
        return str(name)

    def ordered(self, weight: str, tensor: torch.Tensor) -> torch.Tensor:
        """Reorder rows for llama.cpp: it rotates neighbours in a llama's queries and keys, transformers halves."""
        if self.architecture != gguf.MODEL_ARCH.LLAMA:
            return tensor
        if ".q_proj." in weight:
            return _by_pairs(tensor, self._config.num_attention_heads)
        if ".k_proj." in weight:
            return _by_pairs(tensor, self._config.num_key_value_heads)
        return tensor


def _by_pairs(rows: torch.Tensor, heads: int) -> torch.Tensor:
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


# --- adapters


def write_adapter(folder: Path, config: Any, target: Path) -> None:
    """Write the LoRA adapter in ``folder`` for a model with this configuration."""
    settings, layout = adapter_settings(folder), TensorLayout(config.get_text_config())
    alpha = float(settings["lora_alpha"])
    writer = gguf.GGUFWriter(target, layout.name)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    for module, (a, b) in adapter_pairs(folder).items():
        weight = f"{module}.weight"
        name, rank = layout.name_of(weight), a.shape[0]
        factor = scaling_of(settings, module, rank=rank) * rank / alpha  # llama.cpp itself multiplies by alpha / rank
        writer.add_tensor(f"{name}.lora_a", _array(a, np.float32))
        writer.add_tensor(f"{name}.lora_b", _array(layout.ordered(weight, b.float() * factor), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _array(tensor: torch.Tensor, kind: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy().astype(kind))


# --- whole models


def write_model(model: Any, folder: Path, target: Path, *, name: str, template: str, source: Path | None) -> None:
    """Write a whole model in float16, norms in float32.

    ``folder`` contains its tokenizer and ``template`` is its chat template; ``source`` is the GGUF file it was made
    from.
    """
    config = text_config(model)
    layout = TensorLayout(config)
    writer = gguf.GGUFWriter(target, layout.name)
    reader = gguf.GGUFReader(source) if source is not None else None
    if reader is not None:
        _copy_metadata(reader, writer)
    else:
        _write_sizes(writer, config, name)
        _write_tokenizer(writer, folder, config.vocab_size, template)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    names = dict(_tensors(model, layout))
    copied = [entry for entry in reader.tensors if entry.name not in names] if reader is not None else []
    for label, (_, tensor) in names.items():
        kind = _kind(tensor)
        writer.add_tensor_info(label, tuple(tensor.shape), np.dtype(kind), tensor.numel() * np.dtype(kind).itemsize)
    for entry in copied:
        writer.add_tensor_info(
            entry.name, entry.data.shape, entry.data.dtype, entry.data.nbytes, raw_dtype=entry.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for weight, tensor in names.values():
        writer.write_tensor_data(_array(layout.ordered(weight, tensor), _kind(tensor)))
    for entry in copied:
        writer.write_tensor_data(entry.data)
    writer.close()


def _tensors(model: Any, layout: TensorLayout) -> Iterator[tuple[str, tuple[str, torch.Tensor]]]:
    """Yield llama.cpp's name with each weight's own name and tensor; a head tied to the embeddings is written once."""
    weights: dict[str, torch.Tensor] = model.state_dict()
    tied = _HEAD in weights and weights[_HEAD].data_ptr() == weights[_TABLE].data_ptr()
    for weight, tensor in weights.items():
        if not (tied and weight == _HEAD):
            yield layout.name_of(weight), (weight, tensor)


def _kind(tensor: torch.Tensor) -> Any:
    return np.float32 if tensor.dim() == 1 else np.float16


def _copy_metadata(reader: Any, writer: Any) -> None:
    written = {gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE, gguf.Keys.General.QUANTIZATION_VERSION}
    for field in reader.fields.values():
        if field.name not in written and not field.name.startswith("GGUF."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)


def _write_sizes(writer: Any, config: Any, name: str) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise ModelRefused(f"positions of type {rope['rope_type']!r} cannot be written as GGUF", remedy=CONVERTER)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(rope.get("rope_theta", 10_000.0)))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


# --- tokenizers

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Final = {_QWEN: "qwen2", _QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|"): "llama-bpe"}
"""llama.cpp's name for a tokenizer's splitting expression"""


def _write_tokenizer(writer: Any, folder: Path, size: int, template: str) -> None:
    file = folder / "tokenizer.json"
    described: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    bpe = described.get("model") or {}
    split = split_of(described.get("pre_tokenizer"))
    if bpe.get("type") != "BPE" or bpe.get("byte_fallback") or not bpe.get("merges") or split is None:
        raise ModelRefused("llama.cpp's name for this model's tokenizer is not known", remedy=CONVERTER)
    tokens = [f"[PAD{number}]" for number in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    for text, number in bpe["vocab"].items():
        tokens[number], kinds[number] = text, gguf.TokenType.NORMAL
    for added in described.get("added_tokens") or ():
        special = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_add_bos_token(False)  # the chat template writes a prompt's beginning
    _write_special_tokens(writer, folder, tokens)
    writer.add_chat_template(template)


def split_of(described: Mapping[str, Any] | None) -> str | None:
    """Return llama.cpp's name for a pre-tokenizer, None if it may be unsupported."""
    parts = list((described or {}).get("pretokenizers") or ([described] if described else []))
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not parts[1].get("use_regex", True):
        return _SPLITS.get(parts[0]["pattern"].get("Regex", ""))
    return None


def _write_special_tokens(writer: Any, folder: Path, tokens: list[str]) -> None:
    file = folder / "tokenizer_config.json"
    settings: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    for name, add in (
        ("bos_token", writer.add_bos_token_id),
        ("eos_token", writer.add_eos_token_id),
        ("pad_token", writer.add_pad_token_id),
    ):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if text in tokens:
            add(tokens.index(text))
