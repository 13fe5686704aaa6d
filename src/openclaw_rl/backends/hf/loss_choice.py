"""The loss that a trainer is to use: a built-in one, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from openclaw_rl import plugins
from openclaw_rl.losses import LossFunction, LossSettings, as_loss, loss, needs, weight_of, with_rehearsal

LossChoice: TypeAlias = tuple[LossFunction, Callable[..., float], int | None]
"""a loss, how much a sample has to say to it, and how many hints it looks at (None: all)"""


def choose_loss(settings: LossSettings, custom: str | None, config: Mapping[str, Any]) -> LossChoice:
    """The loss to train with; a ``custom`` one is handed ``config``.

    It is given everything, and may make something of all of it; by the published contract, scores alone.
    """
    if custom is not None:
        return _custom_loss(settings, custom, config)
    return with_rehearsal(partial(loss, settings=settings)), partial(weight_of, settings), needs(settings)[0]


def _custom_loss(settings: LossSettings, name: str, config: Mapping[str, Any]) -> LossChoice:
    given = plugins.resolve("loss", name)
    contract = plugins.loss_contract(given)
    ready = with_rehearsal(as_loss(given, contract, config, max_mismatch=settings.max_mismatch))
    if contract == "published":
        return ready, partial(weight_of, replace(settings, method="binary")), 0
    return ready, partial(weight_of, replace(settings, method="combine", w_rl=1.0, w_opd=1.0)), None
