"""Functions for the tool-call environment: plain Python, their schema read from the signature."""

from __future__ import annotations

STOCK = {"apples": 12, "pears": 7, "plums": 30}
"""what the shop has"""


def stock(item: str) -> int:
    """How many of an item the shop has."""
    if item not in STOCK:
        raise ValueError(f"the shop has no {item}; it has {', '.join(STOCK)}")
    return STOCK[item]


def in_order(answer: str, task: dict[str, object]) -> bool:
    """A check: the answer names the items of the task, those that there are fewest of first."""
    wanted = sorted(STOCK, key=lambda item: STOCK[item])
    return answer.replace(",", " ").split() == wanted
