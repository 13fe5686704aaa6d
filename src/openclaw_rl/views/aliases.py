"""Former names of published JSON fields: a renamed field is still printed under its old name. Pure.

Each report keeps its own table of new name -> former name; docs/json.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_aliases(view: Any, former: Mapping[str, str]) -> Any:
    """The view with every renamed field, at any depth, also under its former name, right behind the new one."""
    if isinstance(view, Mapping):
        found: dict[str, Any] = {}
        for name, value in view.items():
            found[name] = with_aliases(value, former)
            if name in former:
                found[former[name]] = found[name]
        return found
    return [with_aliases(one, former) for one in view] if isinstance(view, list | tuple) else view
