"""Small random models of shapes that no pass is shared by: recurrent layers, convolutions, sinks, windows, capped scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from test_local_models import byte_tokenizer
from tiny import random_model

SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "eos_token_id": 0,
    "initializer_range": 0.2,
}
DELTA = {  # gated delta rule: three layers of linear attention, then one of full attention
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED_EXPERT = {"shared_expert_intermediate_size": 32}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | EXPERTS | SHARED_EXPERT,
    "qwen3_next": DELTA | EXPERTS | SHARED_EXPERT,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 16, "final_logit_softcapping": 2.0},
    "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
    "mamba": {"state_size": 8},
    "falcon_h1": {
        "mamba_d_ssm": 96,
        "mamba_n_heads": 12,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "lm_head_multiplier": 0.5,
    },
    "granite": {"logits_scaling": 4.0},
    "recurrent_gemma": {"lru_width": 48, "attention_window_size": 16, "head_dim": 12},
}


def shaped(shape: str, **more: Any) -> Any:
    """The same model on each call."""
    return random_model(shape, **SIZES | SHAPES[shape] | more)


def save_shape(folder: Path, shape: str, **more: Any) -> Path:
    """A model of this shape with a tokenizer of bytes and a chat template, as a user would have it on disk."""
    torch.manual_seed(0)
    shaped(shape, **more).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
