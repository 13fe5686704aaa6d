"""Between words and Gymnasium's spaces: what an observation looks like in a prompt, what action a reply means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from openclaw_rl.envs.actions import block_of
from openclaw_rl.errors import ConfigError

ActionKind = Literal["discrete", "text"]


def action_kind(space: Any) -> ActionKind:
    """Whether actions are numbered or texts. Raises ConfigError for those that no reply can name."""
    name = type(space).__name__
    if name == "Discrete":
        return "discrete"
    if name == "Text":
        return "text"
    raise ConfigError(
        f"actions of this environment are {name}: neither numbered (Discrete) nor text (Text)",
        remedy="wrap it in a function of your own, env.options.id = 'file.py:function', whose actions are",
    )


def action_labels(space: Any, given: Sequence[str]) -> tuple[str, ...]:
    """A word for each numbered action: those that are given, else the numbers."""
    count, first = int(space.n), int(getattr(space, "start", 0))
    labels = tuple(given) or tuple(str(first + number) for number in range(count))
    if len(labels) != count or len({label.casefold() for label in labels}) != count:
        raise ConfigError(
            f"env.options.labels has {len(labels)} words for {count} actions", remedy="give each its own, in order"
        )
    return labels


def chosen(reply: str, labels: Sequence[str]) -> int | None:
    """The place of the label that a reply means: it says that alone, or names no other.

    >>> chosen("Hit", ["stick", "hit"]), chosen("I would hit here.", ["stick", "hit"])
    (1, 1)
    >>> chosen("stick or hit?", ["stick", "hit"]) is None
    True
    """
    said = (block_of(reply) or reply).strip().strip(".!`\"'").casefold()
    known = [label.casefold() for label in labels]
    if said in known:
        return known.index(said)
    named = [place for place, label in enumerate(known) if re.search(rf"(?<!\w){re.escape(label)}(?!\w)", said)]
    return named[0] if len(named) == 1 else None


def shown(observation: Any) -> str:
    """An observation as text: text as it is, anything else as JSON, as far as it goes.

    >>> shown((14, 10, 0)), shown({"room": "kitchen"})
    ('[14, 10, 0]', '{"room": "kitchen"}')
    """
    return observation if isinstance(observation, str) else json.dumps(_plain(observation), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Numbers, lists and tables without the types of NumPy."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
