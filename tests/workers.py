"""Processes of models without the seconds that Python takes to read torch and transformers anew for each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

import pytest
from system import FORKS, READ

HEAVY = (
    "openclaw_rl.backends.local.engine.worker",
    "openclaw_rl.backends.local.classifier.model",
    "openclaw_rl.backends.local.training.worker",
    "peft",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
)


@pytest.fixture(scope="session")
def heavy_forkserver() -> None:
    """A process that has read all of it once; there is one for each session, so another one is ended."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as Python's own tests end it
    FORKS.set_forkserver_preload([*READ, *HEAVY])


@pytest.fixture(scope="module", autouse=True)
def forked_workers(heavy_forkserver: None) -> Iterator[None]:
    """Whatever the module's tests start by "spawn" is a copy of that process: a process of its own all the same."""
    plain = multiprocessing.get_context

    def context(method: str | None = None) -> BaseContext:
        return FORKS if method == "spawn" else plain(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", context)
        yield
