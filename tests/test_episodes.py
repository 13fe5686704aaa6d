"""Environments as clients: the default rollout, many at once, back-pressure, failures that stay alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs.episodes import Episodes, EpisodeSettings, SessionClient, run_episode
from openclaw_rl.envs.schedule import Curriculum, Episode, GroupBook, Rounds
from openclaw_rl.errors import EnvFailed, OpenClawError
from openclaw_rl.ports import ChatClient, Env, Observation, Rollout
from openclaw_rl.testing import FakeChatClient, FakeEnv
from openclaw_rl.types import Message, Tool

pytestmark = pytest.mark.anyio


def make_episodes(make_env: Callable[[], Env], chat: SessionClient, **given: Any) -> Episodes:
    """With settings as given, or the least."""
    settings = EpisodeSettings(parallel=given.pop("parallel", 4), max_steps=given.pop("max_steps", 20))
    size, rounds, seed = (given.pop(name, least) for name, least in (("group_size", 1), ("rounds", 9), ("seed", 0)))

    def schedule(tasks: Sequence[str]) -> Rounds:
        return Rounds(tasks, group_size=size, rounds=rounds, seed=seed)

    return Episodes(make_env, chat, settings, **{"behind": lambda: False, "schedule": schedule, **given})


async def test_an_episode_asks_acts_and_pays_its_session_the_outcome() -> None:
    table, env = FakeChatClient(), FakeEnv(rewards=(0.25, 1.0))
    assert await run_episode(env, table, task="a", seed=5, group="g", max_steps=20) == 1.0
    assert table.scores == [("t1", 0.25)], "what comes on the way is the step's own"
    assert table.rewards == [(table.requests[0][1], 1.0)]
    second = table.requests[1][0]
    assert [m.content for m in second.messages] == ["a from 2 with 5", "r1", "1 left after r1"]
    assert second.tools == (Tool(name="t"),)
    assert {(session == table.requests[0][1], group) for _, session, group in table.requests} == {(True, "g")}


async def test_a_vote_of_the_environment_is_the_steps_own_and_the_last_step_has_one_too() -> None:
    class Voting(FakeEnv):
        async def step(self, reply: Message) -> Observation:
            return replace(await super().step(reply), vote=-1.0)

    table = FakeChatClient()
    await run_episode(Voting(rewards=(None, 1.0)), table, task="a", seed=0, group=None, max_steps=9)
    assert table.scores == [("t1", -1.0), ("t2", -1.0)]
    assert [score for _, score in table.rewards] == [1.0], "the outcome is paid as ever"


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


async def test_a_group_that_has_begun_is_played_to_its_end_while_behind() -> None:
    asked = iter([False])  # its first episode begins, and then there is enough
    table, ended = FakeChatClient(), list[Episode]()
    episodes = make_episodes(
        lambda: FakeEnv(rewards=(1.0,)),
        table,
        parallel=2,
        group_size=3,
        behind=lambda: next(asked, True),
        report=ended.append,
    )
    await run_out(episodes)
    assert (len(ended), len({each.group for each in ended})) == (3, 1), "the whole group, and none of the next"


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


async def test_what_is_stopped_while_a_tick_waits_for_it_is_no_longer_under_way() -> None:
    class Reluctant(FakeEnv):
        async def close(self) -> None:
            if len(closing) == 1:  # the second to be stopped ends after the tick has seen the first
                await asyncio.wait({ticking})
            closing.append(self)
            await super().close()

    closing: list[FakeEnv] = []
    table = FakeChatClient(gate=asyncio.Event(), seats=2)
    episodes = make_episodes(Reluctant, table, parallel=2, tasks=("a",))
    ticking = asyncio.create_task(episodes.tick())
    await table.full.wait()
    await episodes.stop()
    assert (await ticking, episodes.running, len(closing)) == (2, 0, 2)


async def test_what_is_stopped_is_told_to_the_server_and_no_step_waits_for_an_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Slow(FakeEnv):
        async def step(self, reply: Message) -> Observation:
            acting.set()
            await asyncio.Event().wait()
            raise AssertionError

    acting, table = asyncio.Event(), FakeChatClient()
    episodes = make_episodes(lambda: Slow(rewards=(1.0,)), table, parallel=1, tasks=("a",))
    ticking = asyncio.create_task(episodes.tick())
    await acting.wait()
    await episodes.stop()
    assert await ticking == 1, "the loop itself is not hurt"
    [(session, why)] = table.rewards
    assert (why, table.ended) == ("EnvFailed: the player was stopped", [session])
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_what_is_known_to_go_wrong_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(FakeEnv):
        async def step(self, reply: Message) -> Observation:
            raise EnvFailed("the machine is gone")

    await run_out(make_episodes(lambda: Gone(), FakeChatClient(), rounds=1, tasks=("a",)))
    assert "the machine is gone" in caplog.text
    assert "Traceback" not in caplog.text


def played(schedule: Curriculum, solved: Callable[[str, int], bool], groups: int) -> list[str]:
    """Tasks in the order in which they come, each group played at once."""
    order = []
    for _ in range(groups):
        episodes = [schedule.next() for _ in range(2)]
        for place, episode in enumerate(episodes):
            assert episode is not None
            schedule.ended(replace(episode, reward=1.0 if solved(episode.task, place) else -1.0))
        assert episodes[0] is not None
        order.append(episodes[0].task)
    return order


def mixed(task: str, place: int) -> bool:
    """Level ``hard`` is never solved, ``easy`` always, all others every other time."""
    return task.startswith("easy") or (not task.startswith("hard") and place == 0)


TASKS = ("easy/0", "mid/0", "hard/0", "easy/1", "mid/1", "hard/1")


def test_levels_that_are_always_or_never_solved_rest_and_come_back() -> None:
    order = played(Curriculum(TASKS, group_size=2, seed=0, book=GroupBook(), resting=True), mixed, 24)
    assert order[:6] == ["easy/0", "mid/0", "hard/0", "easy/1", "mid/1", "hard/1"]
    assert [order.count(level) for level in ("mid/0", "mid/1")] == [7, 7], "what teaches is played most"
    assert [sum(task.startswith(level) for task in order) for level in ("easy", "hard")] == [5, 5]
    assert {"easy/0", "easy/1"} <= set(order[6:]), "and whether it still holds is seen now and then"


def test_without_resting_every_task_has_its_turn() -> None:
    order = played(Curriculum(TASKS, group_size=2, seed=0, book=GroupBook(), resting=False), mixed, 12)
    assert sorted(order) == sorted(TASKS * 2)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = played(Curriculum(TASKS, group_size=2, seed=3, book=GroupBook(), resting=True), mixed, 16)
    file = tmp_path / "run" / "tasks.jsonl"
    first = played(Curriculum(TASKS, group_size=2, seed=3, book=GroupBook(file), resting=True), mixed, 7)
    with file.open("a") as book:
        book.write('{"task": "mid/0", "rew')  # killed while it wrote
    again = Curriculum(TASKS, group_size=2, seed=3, book=GroupBook(file), resting=True)
    assert first + played(again, mixed, 9) == whole
    assert again.success()["mid"] == {"solved": 8, "of": 16, "groups": 8}
    assert len(GroupBook(file).groups) == 16, "what was cut off takes nothing with it"


def test_the_seeds_of_a_task_differ_from_group_to_group_and_not_within_one() -> None:
    schedule = Curriculum(("a/0",), group_size=2, seed=5, book=GroupBook(), resting=True)
    found = [schedule.next() for _ in range(4)]
    assert [one.seed for one in found if one] == [5, 5, 6, 6]
    assert len({one.group for one in found if one}) == 2


def test_episodes_that_failed_are_in_no_statistic() -> None:
    book = GroupBook()
    schedule = Curriculum(("a/0",), group_size=2, seed=0, book=book, resting=True)
    for reward in (1.0, None):
        episode = schedule.next()
        assert episode is not None
        schedule.ended(replace(episode, reward=reward, error=None if reward else "gone"))
    assert schedule.success() == {"a": {"solved": 1, "of": 1, "groups": 1}}
    assert not book.groups[0].flat, "one alone says nothing of whether they differ"


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
