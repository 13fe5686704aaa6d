"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from system import System


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tests that compare figures bit by bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A server of its own, which does not outlive the test."""
    system = System(tmp_path)
    yield system
    if system.process.poll() is None:
        system.kill()
