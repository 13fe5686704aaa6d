"""Worlds as clients: the default rollout, many at once, back-pressure, failures that stay alone, and the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import pytest

from openclaw_rl.clients.api import ApiChat, to_wire
from openclaw_rl.envs.episodes import Episode, Episodes, play
from openclaw_rl.errors import BackendDown, BackendError, OpenClawError, RequestError, TooMany
from openclaw_rl.ports import ChatClient, ChatReply, Env, Observation, Rollout
from openclaw_rl.types import Message, Prompt, Tool, ToolCall

pytestmark = pytest.mark.anyio


class Countdown:
    """A world that says a number, one lower after each reply, pays 1 per step and is over at zero."""

    name = "countdown"

    def __init__(self, *, start: int = 2, fails: str = "") -> None:
        self.left = start
        self.fails = fails
        self.task = ""
        self.closed = 0

    def tasks(self) -> Sequence[str]:
        return ("a", "b")

    async def reset(self, task: str, *, seed: int) -> Prompt:
        self.task = task
        return Prompt(
            messages=(Message(role="user", content=f"{task} from {self.left} with {seed}"),), tools=(Tool(name="t"),)
        )

    async def step(self, reply: Message) -> Observation:
        if self.task in self.fails.split():
            raise RuntimeError(f"the floor gave way under {self.task}")
        self.left -= 1
        said = Message(role="user", content=f"{self.left} left after {reply.content}")
        return Observation(messages=(said,), reward=1.0, done=self.left == 0)

    async def close(self) -> None:
        self.closed += 1


class Table:
    """A host that answers ``r1, r2, ...`` and writes down all that is said."""

    def __init__(self, gate: asyncio.Event | None = None, *, seats: int = 0) -> None:
        self.asked: list[tuple[Prompt, str, str | None]] = []
        self.scores: list[tuple[str, float | None]] = []
        self.ended: list[str] = []
        self.gate = gate
        self.seats = seats
        self.full = asyncio.Event()

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> ChatReply:
        self.asked.append((prompt, session, group))
        number = len(self.asked)
        if number == self.seats:
            self.full.set()
        if self.gate is not None:
            await self.gate.wait()
        return ChatReply(turn=f"t{number}", message=Message(role="assistant", content=f"r{number}"), version=3)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        self.scores.append((turn, score))

    async def end(self, session: str) -> None:
        self.ended.append(session)


async def test_a_play_asks_acts_and_pays_each_turn() -> None:
    table, world = Table(), Countdown(start=2)
    assert await play(world, table, task="a", seed=5, group="g", max_steps=20) == 2.0
    assert table.scores == [("t1", 1.0), ("t2", 1.0)]
    second = table.asked[1][0]
    assert [m.content for m in second.messages] == ["a from 2 with 5", "r1", "1 left after r1"]
    assert second.tools == (Tool(name="t"),)
    assert {(session == table.asked[0][1], group) for _, session, group in table.asked} == {(True, "g")}


async def test_a_play_stops_at_max_steps() -> None:
    table = Table()
    assert await play(Countdown(start=99), table, task="a", seed=0, group=None, max_steps=3) == 3.0
    assert len(table.asked) == 3


async def run_out(episodes: Episodes) -> int:
    total = moved = await episodes.tick()
    while moved:
        moved = await episodes.tick()
        total += moved
    return total


async def test_groups_of_equal_starts_go_round_by_round() -> None:
    table, heard, worlds = Table(), list[Episode](), list[Countdown]()

    def world() -> Env:
        worlds.append(Countdown(start=1))
        return worlds[-1]

    episodes = Episodes(
        world, table, parallel=3, group_size=2, rounds=2, seed=7, max_steps=4, report=heard.append, tasks=("a", "b")
    )
    assert await run_out(episodes) == 16  # 2 rounds x 2 tasks x 2, each begun and ended
    assert sorted((each.task, each.seed, each.reward) for each in heard) == sorted(
        (task, seed, 1.0) for task in "ab" for seed in (7, 8) for _ in range(2)
    )
    groups = {each.group: (each.task, each.seed) for each in heard}
    assert (len(groups), len(set(groups.values()))) == (4, 4)
    assert sorted(table.ended) == sorted({session for _, session, _ in table.asked})
    assert len(table.ended) == 8
    assert [each.closed for each in worlds] == [1] * 8


async def test_no_more_than_parallel_play_at_once_and_none_begin_while_behind() -> None:
    gate, behind = asyncio.Event(), True
    table = Table(gate, seats=3)
    episodes = Episodes(lambda: Countdown(start=1), table, parallel=3, rounds=9, behind=lambda: behind)
    assert await episodes.tick() == 0
    behind = False
    waiting = asyncio.create_task(episodes.tick())
    await table.full.wait()
    assert (episodes.running, len(table.asked)) == (3, 3)
    behind = True
    gate.set()
    await waiting
    await run_out(episodes)
    assert (episodes.running, len(table.asked), len(table.ended)) == (0, 3, 3)


async def test_one_failure_is_reported_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    table, heard = Table(), list[Episode]()
    episodes = Episodes(lambda: Countdown(start=1, fails="a"), table, parallel=2, rounds=2, report=heard.append)
    await run_out(episodes)
    assert (
        sorted((each.task, each.reward, each.error) for each in heard if each.error is None) == [("b", 1.0, None)] * 2
    )
    failures = [each.error for each in heard if each.error is not None]
    assert failures == ["RuntimeError: the floor gave way under a"] * 2
    assert len(table.ended) == 4
    assert "the floor gave way under a" in caplog.text


async def test_when_everything_fails_the_loop_is_seen_to_fail() -> None:
    episodes = Episodes(lambda: Countdown(fails="a b"), Table(), parallel=2, rounds=1)
    with pytest.raises(OpenClawError, match=r"the last 2 episodes all failed, the last with RuntimeError: the floor"):
        await run_out(episodes)
    assert await episodes.tick() == 0


async def test_a_cancelled_tick_ends_plays_and_worlds() -> None:
    worlds: list[Countdown] = []

    def world() -> Env:
        worlds.append(Countdown())
        return worlds[-1]

    table = Table(asyncio.Event(), seats=2)
    episodes = Episodes(world, table, parallel=2, tasks=("a",))
    ticking = asyncio.create_task(episodes.tick())
    await table.full.wait()
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking
    assert (episodes.running, [each.closed for each in worlds]) == (0, [1, 1])


async def test_a_rollout_of_ones_own_plays_instead() -> None:
    async def lazy(env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int) -> float:
        return 0.25 * max_steps

    rollout: Rollout = lazy
    heard: list[Episode] = []
    await run_out(Episodes(Countdown, Table(), rollout=rollout, rounds=1, max_steps=4, report=heard.append))
    assert [each.reward for each in heard] == [1.0, 1.0]


async def test_a_world_without_tasks_is_refused() -> None:
    with pytest.raises(OpenClawError, match="no tasks"):
        Episodes(Countdown, Table(), tasks=())


# --- the wire --------------------------------------------------------------------------------------------------------

Answer = Callable[[httpx2.Request], httpx2.Response]


def api(answer: Answer) -> ApiChat:
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://server")
    return ApiChat(client, model="m", options={"temperature": 0.5})


def completion(request: httpx2.Request) -> httpx2.Response:
    function = {"name": "ls", "arguments": "{}"}
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    return httpx2.Response(
        200, json={"id": "turn9", "choices": [{"message": message}]}, headers={"x-openclaw-rl-version": "4"}
    )


async def test_what_is_known_goes_over_the_wire() -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return completion(request)

    prompt = Prompt(messages=(Message(role="user", content="look", images=("data:x",)),), tools=(Tool(name="ls"),))
    reply = await api(answer).ask(prompt, session="s 1", group="g", done=True)
    assert reply == ChatReply(
        turn="turn9",
        message=Message(role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c", name="ls", arguments="{}"),)),
        version=4,
    )
    names = ("x-session-id", "x-turn-type", "x-session-done", "x-openclaw-rl-group")
    assert [seen[0].headers[name] for name in names] == ["s 1", "main", "true", "g"]
    body = json.loads(seen[0].content)
    assert (seen[0].url.path, body["model"], body["temperature"]) == ("/v1/chat/completions", "m", 0.5)
    assert body["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": "data:x"}}
    assert body["tools"][0]["function"]["name"] == "ls"


async def test_a_session_that_goes_on_says_so_by_silence() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert "x-session-done" not in request.headers
        assert "x-openclaw-rl-group" not in request.headers
        return completion(request)

    await api(answer).ask(Prompt(messages=(Message(role="user", content="hi"),)), session="s")


async def test_rewards_and_endings_have_their_endpoints() -> None:
    seen: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.url.raw_path.decode(), json.loads(request.content)))
        return httpx2.Response(200, json={})

    await api(answer).feedback("t1", score=0.0)
    await api(answer).feedback("t1", hint="look first")
    await api(answer).end("a/b c")
    assert seen == [
        ("/v1/feedback", {"turn": "t1", "source": "environment", "score": 0.0}),
        ("/v1/feedback", {"turn": "t1", "source": "environment", "hint": "look first"}),
        ("/v1/sessions/a%2Fb%20c/end", {}),
    ]


@pytest.mark.parametrize(
    ("status", "kind", "retry_after"),
    [(503, BackendDown, 2.0), (500, BackendDown, 2.0), (429, TooMany, 2.0), (400, RequestError, None)],
)
async def test_a_refusal_says_what_where_and_when_to_come_back(
    status: int, kind: Any, retry_after: float | None
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, json={"error": {"message": "no room"}}, headers={"retry-after": "2"})

    with pytest.raises(kind, match=rf"/v1/feedback: status {status}: no room") as caught:
        await api(answer).feedback("t", score=1.0)
    assert getattr(caught.value, "retry_after", None) == retry_after


async def test_a_server_out_of_reach_and_a_foreign_server_are_told_apart() -> None:
    def gone(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    prompt = Prompt(messages=(Message(role="user", content="hi"),))
    with pytest.raises(BackendDown, match="is the server running"):
        await api(gone).ask(prompt, session="s")
    with pytest.raises(BackendError, match="not the engine behind it"):
        await api(lambda _: httpx2.Response(200, json={"choices": []})).ask(prompt, session="s")


def test_a_history_with_calls_is_written_whole() -> None:
    messages = (
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="ls", arguments='{"a":1}'),)),
        Message(role="tool", content="f", tool_call_id="c"),
    )
    wire = to_wire(Prompt(messages=messages, tools=(Tool(name="ls"),), tool_choice="name:ls", template={"x": 1}))
    assert wire["messages"][0]["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"a":1}'}
    assert wire["messages"][1] == {"role": "tool", "content": "f", "tool_call_id": "c"}
    assert wire["tool_choice"] == {"type": "function", "function": {"name": "ls"}}
    assert wire["chat_template_kwargs"] == {"x": 1}
