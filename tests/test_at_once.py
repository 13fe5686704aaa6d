"""As many environments at once as two cores are promised to carry: begun, acted in and ended without an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sandboxes import SETTINGS, needs_sandbox

from openclaw_rl.envs.episodes import Episodes, EpisodeSettings
from openclaw_rl.envs.pool.leases import EnvPool, EventLog
from openclaw_rl.envs.pool.remote import PooledEnv
from openclaw_rl.envs.schedule import Episode, Rounds
from openclaw_rl.envs.terminal.env import curriculum
from openclaw_rl.envs.toolcall.env import toolcall
from openclaw_rl.ports import Env
from openclaw_rl.testing import FakeChatClient

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
GIVEN: dict[str, Any] = {
    "form": "text",
    "examples": None,
    "levels": (),
    "per_level": 4,
    "output_chars": 200,
    "step_votes": False,
}


def terminal() -> Env:
    return curriculum(sandbox=SETTINGS, **GIVEN)


def calls() -> Env:
    return toolcall(tools_config=None, **GIVEN)


@pytest.mark.parametrize(
    ("make_env", "parallel", "task", "reply"),
    [
        pytest.param(terminal, 32, "find-file/0", "```\nls\n```", marks=needs_sandbox),
        (calls, 64, "look-up-first/0", "```\nfind_contact(name=Ana)\n```"),
    ],
)
async def test_all_are_under_way_together_and_none_fails(
    make_env: Callable[[], Env], parallel: int, task: str, reply: str
) -> None:
    pool = EnvPool(make_env, capacity=parallel, ttl=60.0, events=EventLog(None))
    go_on, ended = asyncio.Event(), list[Episode]()
    chat = FakeChatClient(reply=reply, gate=go_on, seats=parallel)
    episodes = Episodes(
        lambda: PooledEnv(pool),
        chat,
        EpisodeSettings(parallel=parallel, max_steps=2),
        behind=lambda: False,
        schedule=lambda tasks: Rounds(tasks, group_size=parallel, rounds=1, seed=0),
        tasks=(task,),
        report=ended.append,
    )
    running = asyncio.create_task(_run_out(episodes))
    await asyncio.wait_for(chat.full.wait(), 60)
    assert (await pool.status())["leased"] == parallel
    go_on.set()
    await running
    assert [(one.reward, one.error) for one in ended] == [(-1.0, None)] * parallel
    assert (await pool.status())["leased"] == 0
    await pool.close()


async def _run_out(episodes: Episodes) -> None:
    while await episodes.tick():
        pass
