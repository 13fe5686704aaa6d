"""What the service is reached with, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 600.0
"""seconds in which the service must have answered a request"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAccess:
    """The model by the service's name, the account, and the most money a day. ``url`` None: the service's own."""

    model: str
    key: str | None = field(repr=False)
    url: str | None
    prices: Mapping[str, float]
    """money for a million tokens, by what is done with them: prefill, sample, train; what is absent costs nothing"""
    budget: float | None
    run_dir: Path
    patience: float = PATIENCE
