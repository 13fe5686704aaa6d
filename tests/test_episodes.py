"""Environments as clients: the default rollout, many at once, back-pressure, failures that stay alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from openclaw_rl.envs.episodes import Episode, Episodes, EpisodeSettings, SessionClient, run_episode
from openclaw_rl.errors import OpenClawError
from openclaw_rl.ports import ChatClient, Env, Rollout
from openclaw_rl.testing import FakeChatClient, FakeEnv
from openclaw_rl.types import Tool

pytestmark = pytest.mark.anyio


def make_episodes(make_env: Callable[[], Env], chat: SessionClient, **given: Any) -> Episodes:
    """With settings as given, or the least."""
    names = {"parallel": 4, "group_size": 1, "max_steps": 20, "seed": 0}
    settings = EpisodeSettings(**{name: given.pop(name, least) for name, least in names.items()})
    return Episodes(make_env, chat, settings, **{"behind": lambda: False, **given})


async def test_an_episode_asks_acts_and_pays_its_session_the_outcome() -> None:
    table, env = FakeChatClient(), FakeEnv(rewards=(0.25, 1.0))
    assert await run_episode(env, table, task="a", seed=5, group="g", max_steps=20) == 1.0
    assert table.scores == [("t1", 0.25)], "what comes on the way is the step's own"
    assert table.rewards == [(table.requests[0][1], 1.0)]
    second = table.requests[1][0]
    assert [m.content for m in second.messages] == ["a from 2 with 5", "r1", "1 left after r1"]
    assert second.tools == (Tool(name="t"),)
    assert {(session == table.requests[0][1], group) for _, session, group in table.requests} == {(True, "g")}


async def test_an_episode_stops_at_max_steps_and_is_worth_what_its_state_is() -> None:
    class Checked(FakeEnv):
        async def outcome(self) -> float:
            return 0.5

    table = FakeChatClient()
    assert await run_episode(FakeEnv(rewards=(1.0,) * 99), table, task="a", seed=0, group=None, max_steps=3) == 0.0
    assert len(table.requests) == 3
    assert await run_episode(Checked(rewards=(1.0,) * 99), table, task="a", seed=0, group=None, max_steps=3) == 0.5
    assert [score for _, score in table.rewards] == [0.0, 0.5]


async def run_out(episodes: Episodes) -> int:
    total = moved = await episodes.tick()
    while moved:
        moved = await episodes.tick()
        total += moved
    return total


async def test_groups_of_equal_starts_go_round_by_round() -> None:
    table, ended, envs = FakeChatClient(), list[Episode](), list[FakeEnv]()

    def env() -> Env:
        envs.append(FakeEnv(rewards=(1.0,)))
        return envs[-1]

    episodes = make_episodes(
        env, table, parallel=3, group_size=2, rounds=2, seed=7, max_steps=4, report=ended.append, tasks=("a", "b")
    )
    assert await run_out(episodes) == 16  # 2 rounds x 2 tasks x 2, each begun and ended
    assert sorted((each.task, each.seed, each.reward) for each in ended) == sorted(
        (task, seed, 1.0) for task in "ab" for seed in (7, 8) for _ in range(2)
    )
    groups = {each.group: (each.task, each.seed) for each in ended}
    assert (len(groups), len(set(groups.values()))) == (4, 4)
    assert sorted(table.ended) == sorted({session for _, session, _ in table.requests})
    assert len(table.ended) == 8
    assert [each.closed for each in envs] == [1] * 8


async def test_no_more_than_parallel_run_at_once_and_none_begin_while_behind() -> None:
    gate, behind = asyncio.Event(), True
    table = FakeChatClient(gate=gate, seats=3)
    episodes = make_episodes(lambda: FakeEnv(rewards=(1.0,)), table, parallel=3, rounds=9, behind=lambda: behind)
    assert await episodes.tick() == 0
    behind = False
    waiting = asyncio.create_task(episodes.tick())
    await table.full.wait()
    assert (episodes.running, len(table.requests)) == (3, 3)
    behind = True
    gate.set()
    await waiting
    await run_out(episodes)
    assert (episodes.running, len(table.requests), len(table.ended)) == (0, 3, 3)


async def test_one_failure_is_reported_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    table, ended = FakeChatClient(), list[Episode]()
    episodes = make_episodes(
        lambda: FakeEnv(rewards=(1.0,), fails=("a",)), table, parallel=2, rounds=2, report=ended.append
    )
    await run_out(episodes)
    assert (
        sorted((each.task, each.reward, each.error) for each in ended if each.error is None) == [("b", 1.0, None)] * 2
    )
    failures = [each.error for each in ended if each.error is not None]
    assert failures == ["RuntimeError: the floor gave way under a"] * 2
    assert len(table.ended) == 4
    failed = "RuntimeError: the floor gave way under a"
    assert sorted(str(paid) for _, paid in table.rewards) == ["1.0", "1.0", failed, failed], "outside every statistic"
    assert "the floor gave way under a" in caplog.text


async def test_when_everything_fails_the_loop_is_seen_to_fail() -> None:
    episodes = make_episodes(lambda: FakeEnv(fails=("a", "b")), FakeChatClient(), parallel=2, rounds=1)
    with pytest.raises(OpenClawError, match=r"the last 2 episodes all failed, the last with RuntimeError: the floor"):
        await run_out(episodes)
    assert await episodes.tick() == 0


async def test_a_cancelled_tick_ends_episodes_and_environments() -> None:
    envs: list[FakeEnv] = []

    def env() -> Env:
        envs.append(FakeEnv())
        return envs[-1]

    table = FakeChatClient(gate=asyncio.Event(), seats=2)
    episodes = make_episodes(env, table, parallel=2, tasks=("a",))
    ticking = asyncio.create_task(episodes.tick())
    await table.full.wait()
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking
    assert (episodes.running, [each.closed for each in envs]) == (0, [1, 1])


async def test_a_rollout_of_ones_own_runs_instead() -> None:
    async def lazy(env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int) -> float:
        return 0.25 * max_steps

    rollout: Rollout = lazy
    ended: list[Episode] = []
    await run_out(make_episodes(FakeEnv, FakeChatClient(), rollout=rollout, rounds=1, max_steps=4, report=ended.append))
    assert [each.reward for each in ended] == [1.0, 1.0]


async def test_an_environment_without_tasks_is_refused() -> None:
    with pytest.raises(OpenClawError, match="no tasks"):
        make_episodes(FakeEnv, FakeChatClient(), tasks=())
