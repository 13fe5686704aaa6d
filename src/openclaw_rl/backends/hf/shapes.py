"""What a pass may assume of a model, asked of the model itself: what its config says, what its attention wants.

Engine and trainer both compute many sequences in one pass, through an attention of their own. That is right where a
token's past is keys and values that it attends to, and nothing else. Both ask here, then prove it by a comparison with
the model's own pass (`runner_choice.model_runner_of`, `forward.enable_tree`); who fails either goes one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WINDOWED = "sliding_attention"
PLAIN = frozenset({"full_attention", WINDOWED})
PROBE = range(3, 27)
MORE = {"s_aux": "attention sinks", "softcap": "capped attention scores", "position_bias": "a bias by position"}
"""what some models hand to their attention beside queries, keys and values"""


def text_config(model: Any) -> Any:
    """The sizes of the part that reads and writes text; models with eyes keep them one level down."""
    return model.config.get_text_config()


def probe_ids(model: Any) -> list[int]:
    """A few token ids that this model knows, to try a way of running it on."""
    return [token % text_config(model).vocab_size for token in PROBE]


def own_state(model: Any) -> str | None:
    """Why a token's past in this model is more than keys and values; None where nothing says so."""
    kinds = set(getattr(text_config(model), "layer_types", None) or ()) - PLAIN
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}"
    return "it keeps a recurrent state" if getattr(model, "_is_stateful", False) else None


def window_of(model: Any) -> int | None:
    """Over how many tokens the attention of some layers slides; None where every token sees its whole past."""
    config = text_config(model)
    size: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    slides = WINDOWED in kinds if kinds else getattr(config, "use_sliding_window", True)
    return size if slides else None


def check_plain(arguments: Mapping[str, object]) -> None:
    """Raises TypeError for an attention that is called with more than an attention of ours computes."""
    for name, what in MORE.items():
        if arguments.get(name) is not None:
            raise TypeError(f"it has {what}")
