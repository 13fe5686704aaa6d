"""A loop that fails is seen, waited out and tried again; the others go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.app import address
from openclaw_rl.app.application import App
from openclaw_rl.app.runner import LoopRunner, drain
from openclaw_rl.config import load
from openclaw_rl.errors import BackendError

pytestmark = pytest.mark.anyio
FAKES = ("policy.backend=fake", "policy.model=fake", "train.backend=fake", "judge.kind=rules", "serve.port=0")


class Scripted:
    """A loop whose ticks are written down: a number moves that many items, an exception is raised."""

    def __init__(self, name: str, *ticks: int | Exception) -> None:
        self.name = name
        self.ticks = list(ticks)

    async def tick(self) -> int:
        now = self.ticks.pop(0) if self.ticks else 0
        if isinstance(now, Exception):
            raise now
        return now


class Book:
    def __init__(self) -> None:
        self.said: list[tuple[str, str, int, int, str]] = []

    def report(self, loop: str, *, state: str, moved: int, failures: int, error: str = "", detail: Any = None) -> None:
        self.detail = detail
        self.said.append((loop, state, moved, failures, error))


def kept(loop: Scripted, book: Any, **more: Any) -> LoopRunner:
    return LoopRunner(loop, book, poll=0.2, backoff=4.0, **more)


async def test_a_busy_loop_goes_on_at_once_and_an_idle_one_rests() -> None:
    keeper = kept(Scripted("judge", 3, 0), Book())
    assert await keeper.once() == 0.0
    assert await keeper.once() == 0.2


async def test_a_failing_loop_backs_off_twice_as_long_each_time_and_says_so() -> None:
    book = Book()
    keeper = kept(Scripted("judge", *[ValueError("no")] * 5, 1), book, clock=lambda: 0.0)
    assert [await keeper.once() for _ in range(5)] == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert book.said[-1] == ("judge", "failing", 0, 5, "ValueError: no")
    assert await keeper.once() == 0.0
    assert book.said[-1] == ("judge", "running", 1, 0, "")


async def test_the_same_failure_is_logged_once_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    keeper = kept(Scripted("judge", ValueError("a"), ValueError("a"), ValueError("b")), Book())
    for _ in range(3):
        await keeper.once()
    failed = [record for record in caplog.records if record.exc_info]
    assert [str(record.exc_info[1]) for record in failed if record.exc_info] == ["a", "b"]


async def test_a_book_that_cannot_be_written_stops_nothing() -> None:
    class Full:
        def report(self, loop: str, **more: Any) -> None:
            raise OSError("disk full")

    assert await kept(Scripted("judge", 1), Full()).once() == 0.0


async def test_one_failing_loop_leaves_the_others_running_until_all_are_told_to_stop() -> None:
    book, stop = Book(), asyncio.Event()
    good = Scripted("collect", 1, 1, 1)

    class Last(Scripted):
        async def tick(self) -> int:
            if not good.ticks:
                stop.set()
            raise RuntimeError("always")

    async with asyncio.timeout(10):
        await asyncio.gather(
            LoopRunner(good, book, poll=0.01, backoff=0.01).run(stop),
            LoopRunner(Last("judge"), book, poll=0.01, backoff=0.01).run(stop),
        )
    ends = {loop: (moved, failures > 0) for loop, state, moved, failures, _ in book.said if state == "stopped"}
    assert ends == {"collect": (3, False), "judge": (0, True)}


async def test_draining_ticks_until_nothing_moves() -> None:
    assert await drain([Scripted("a", 2, 0, 1), Scripted("b", 0, 3)]) == 6


async def test_a_loop_that_has_more_to_say_is_heard() -> None:
    class Talkative(Scripted):
        async def status(self) -> dict[str, Any]:
            return {"waiting": 3}

    book = Book()
    await kept(Talkative("judge", 1), book).once()
    assert book.detail == {"waiting": 3}


async def test_a_loop_is_running_from_its_first_tick_on_and_then_speaks_once_a_second() -> None:
    book, now = Book(), [0.0]
    keeper = kept(Scripted("judge", 1, 1, 1), book, clock=lambda: now[0])
    for moment in (0.0, 0.5, 1.5):
        now[0] = moment
        await keeper.once()
    assert [(state, moved) for _, state, moved, _, _ in book.said] == [("running", 1), ("running", 3)]


async def test_an_idle_loop_is_woken_before_its_time_and_a_failing_one_is_not() -> None:
    loop, stop, wake = Scripted("judge", 0, 0, ValueError("no")), asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(LoopRunner(loop, Book(), poll=3600.0, backoff=3600.0, wake=wake).run(stop))
    for left in (2, 1, 0):
        while len(loop.ticks) > left:
            await asyncio.sleep(0)
        wake.set()
    loop.ticks.append(1)
    for _ in range(50):
        await asyncio.sleep(0)
        wake.set()
    assert loop.ticks == [1], "it waits its time out"
    stop.set()
    await running


@pytest.mark.parametrize("engine", ["hangs", "fails"])
async def test_a_run_that_is_stopped_while_its_model_loads_ends_at_once(tmp_path: Path, engine: str) -> None:
    stop, began = asyncio.Event(), asyncio.Event()

    async def load_model() -> None:
        began.set()
        await stop.wait()
        if engine == "fails":  # Ctrl-C in a terminal ends the engine's process too
            raise BackendError("the engine process ended")
        await asyncio.Event().wait()

    app = App(load(environ={}, sets=[f"run.dir={tmp_path / 'run'}", *FAKES]).config)
    app.policy.start = load_model  # type: ignore[union-attr, method-assign]
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(app.run(stop))
        await began.wait()
        stop.set()
    assert address.read(tmp_path / "run") is None
