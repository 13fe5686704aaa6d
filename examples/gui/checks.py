"""Checks of the shop: each is called with the page (address, title, text, html, answer) and the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def two_plums(page: Mapping[str, Any], task: Mapping[str, Any]) -> float:
    """Half for the cart, half for saying so."""
    return ('"Plums":2' in page["text"]) / 2 + ("two" in (page["answer"] or "")) / 2
