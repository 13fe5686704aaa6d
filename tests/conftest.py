"""What every test may use, and what makes a small story of a test."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shards import pytest_addoption, pytest_configure, pytest_ignore_collect  # noqa: F401 (hooks)
from system import System

from openclaw_rl.store import ServerPlace
from openclaw_rl.store.connection import LedgerConnection

if TYPE_CHECKING:
    from fakes.postgres import PostgresServer

HERE = Path(__file__).parent
SMALL = 5.0
"""seconds of CPU, children included, that a test may take without the marker ``slow``"""
LARGE = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what was imported: it stays to the end, and there is a lot of it to look through."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Who talks to a server of PostgreSQL is for `make test`: with its databases it takes longer than the tests."""
    if "postgres" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note the tests without the marker ``slow`` that do a lot of work: `make fast` is for small stories."""
    before = sum(os.times()[:4])
    result = yield
    spent = sum(os.times()[:4]) - before
    if spent > SMALL and item.get_closest_marker("slow") is None:
        item.config.stash.setdefault(LARGE, []).append(f"{spent:5.1f} s of CPU  {item.nodeid}")
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name them. It is no failure: how much CPU a test takes is the machine's affair too."""
    if large := config.stash.get(LARGE, []):
        terminalreporter.section(f"more than {SMALL:.0f} s of CPU: to be made smaller, or marked slow")
        for line in large:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def ledgers_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test opens itself is closed after it; what the application opens is its own to close."""
    opened: list[LedgerConnection] = []
    begin = LedgerConnection.__init__

    def noted(self: LedgerConnection, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        frame = sys._getframe(1)
        while frame.f_back is not None and "/openclaw_rl/store/" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(str(HERE)) or "/openclaw_rl/testing/" in frame.f_code.co_filename:
            opened.append(self)

    monkeypatch.setattr(LedgerConnection, "__init__", noted)
    yield
    for ledger in opened:
        ledger.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this session's own; a test that kills it starts it again."""
    from fakes.postgres import PostgresServer

    if (reason := PostgresServer.missing()) is not None:
        (pytest.fail if os.environ.get("OPENCLAW_RL_TEST_POSTGRES") == "required" else pytest.skip)(reason)
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer, tmp_path: Path) -> ServerPlace:
    """The place of a ledger that does not exist yet, in a database of its own."""
    return ServerPlace(url=postgres.database(), root=tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Path | ServerPlace:
    """The place of a ledger that does not exist yet, in each of the stores."""
    found: Path | ServerPlace = request.getfixturevalue("ledger_path" if request.param == "sqlite" else "database")
    return found


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
