"""What a contract check of `openclaw_rl.testing` finds, as something to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def broken(check: Callable[[Any], object], plugin: Any) -> list[str]:
    """The promises that this plugin breaks, one a line; none: an empty list."""
    try:
        check(plugin)
    except AssertionError as error:
        return str(error).splitlines()
    return []
