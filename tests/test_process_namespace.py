"""A process namespace hears bubblewrap out, however its words come, on any event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
import uvloop

from openclaw_rl.envs.sandbox import cgroups
from openclaw_rl.envs.sandbox.execution import ProcessNamespace, entered

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_half_a_line_is_waited_for(child: subprocess.Popen[bytes]) -> None:
    with ProcessNamespace(filtered=cgroups.program()) as inside:
        report, wait, _ = inside.given
        os.write(report, b'{ "child-pid": ')
        assert not inside.enter()
        assert inside.first is None
        os.write(report, f"{child.pid} }}\n".encode())
        assert inside.enter()
        assert os.read(wait, 1), "it may go on"
        inside.kill()
        assert child.wait(10) == -9


def test_where_bubblewrap_fails_there_is_nothing_to_hold() -> None:
    with ProcessNamespace(filtered=cgroups.program()) as inside:
        inside.begun()
        assert inside.enter()
        assert inside.first is None
        assert not inside.finished()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_it_is_entered_on_every_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop], child: subprocess.Popen[bytes]
) -> None:
    async def said_in_pieces() -> None:
        with ProcessNamespace(filtered=cgroups.program()) as inside:
            entering = asyncio.create_task(entered(inside))
            for piece in ('{ "child-', f'pid": {child.pid}', " }\n"):
                await asyncio.sleep(0.02)
                assert not entering.done()
                os.write(inside.given[0], piece.encode())
            await asyncio.wait_for(entering, 10)
            assert inside.first is not None
            os.write(inside.given[0], b'{ "exit-code": 0 }\n')
            assert inside.finished()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(said_in_pieces())
