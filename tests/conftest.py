"""What every test may use, and what makes a small story of a test."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from system import System

SMALL = 8.0
"""seconds of CPU, children included, that a test may take without the marker ``slow``"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", metavar="I/N", help="only the I-th of N parts of the suite, by file")


@pytest.hookimpl(trylast=True)  # after ``-m`` has taken out what it takes out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what belongs to this shard: files with many tests first, each to the shard that has the fewest so far."""
    part, parts = (int(number) for number in config.getoption("--shard").split("/"))
    sizes: dict[Path, int] = {}
    for item in items:
        sizes[item.path] = sizes.get(item.path, 0) + 1
    loads = [0] * parts
    mine: set[Path] = set()
    for path in sorted(sizes, key=lambda path: (-sizes[path], path)):
        least = loads.index(min(loads))
        loads[least] += sizes[path]
        if least == part - 1:
            mine.add(path)
    items[:] = [item for item in items if item.path in mine]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test without the marker ``slow`` that does a lot of work fails: `make fast` is for small stories."""
    before = sum(os.times()[:4])
    result = yield
    spent = sum(os.times()[:4]) - before
    if spent > SMALL and item.get_closest_marker("slow") is None:
        pytest.fail(f"{spent:.1f} s of CPU, and a small story takes at most {SMALL}: mark it with pytest.mark.slow")
    return result


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


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory of its own, without a file of settings."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
