"""One conversation walks the whole line: a request, a correction, a thumb, a side call, version 1 served."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import RunningApp, running_app, ticking_app, until
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views import status as views

pytestmark = pytest.mark.anyio


def walking(root: Path, *settings: str) -> AbstractAsyncContextManager[RunningApp]:
    return ticking_app(root, "train.batch_size=2", "train.idle_wait=3600", *settings)


def up(root: Path, *settings: str) -> AbstractAsyncContextManager[RunningApp]:
    return running_app(root, "train.batch_size=1", *settings)


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_one_conversation_walks_from_a_request_to_version_one_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds, *_: sleep(slept.append(seconds) or 0))
    async with walking(tmp_path) as walk:
        first = await walk.ask("Tell me about tea")
        assert text(first) == "You said: Tell me about tea"
        title = await walk.ask("Write a title for this chat", headers={"X-Turn-Type": "side"})
        wish = "Too long. Please keep it under 30 words."
        second = await walk.ask("Tell me about tea", text(first), wish)
        thumb = await walk.client.post("/v1/feedback", json={"turn": second["id"], "thumb": "up"})
        assert thumb.status_code == 200, thumb.text
        third = await walk.ask("Tell me about tea", text(first), wish, text(second), "Now about coffee")
        await walk.app.finish()

        corrected = walk.show(first["id"])
        assert (corrected["kind"], corrected["version"], corrected["step"]) == ("main", 0, 1)
        assert [m["content"] for m in corrected["next_state"]] == [wish]
        assert corrected["verdict"]["score"] == -1
        assert corrected["verdict"]["source"] == "judge"
        [hint] = corrected["verdict"]["hints"]
        assert hint["kind"] == "rule"
        assert "under 30 words" in hint["text"]

        praised = walk.show(second["id"])
        assert (praised["verdict"]["score"], praised["verdict"]["source"]) == (1.0, "explicit")
        assert praised["step"] == 1
        assert corrected["session"] == praised["session"]

        side = walk.show(title["id"])
        assert (side["kind"], side["step"], side["dropped"]["reason"]) == ("side", None, "side turn")
        assert walk.show(third["id"])["verdict"] is None, "nothing has come after it yet"

        learned = await walk.ask("Tell me about rain")
        assert "under 30 words" in text(learned), "version 1 knows the rule without being told"
        assert learned["system_fingerprint"] == "openclaw-rl-v1"
        assert walk.show(learned["id"])["version"] == 1
        version = views.version(walk.ledger, 1)
        assert (version["state"], version["parent"], version["step"]) == ("live", 0, 1)
        assert set(version["turns"]) == {first["id"], second["id"]}
        status = views.status(walk.ledger, starve_after=20)
        assert (status["live"], status["turns"]["answered"], status["turns"]["trained"]) == (1, 5, 2)
    assert sum(slept) == 0, "nothing on the line waits for time to pass"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_turn_is_durable_before_the_last_bytes_of_its_answer_are_sent(tmp_path: Path, stream: bool) -> None:
    async with walking(tmp_path) as walk:
        body = json.dumps({"model": "fake", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": headers,
            "query_string": b"",
        }
        scope |= {"http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1)}
        asked: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        kept: list[int] = []

        async def receive() -> dict[str, Any]:
            if not asked:
                await asyncio.Event().wait()  # the caller stays on the line and says no more
            return asked.pop()

        async def send(message: dict[str, Any]) -> None:
            if b"[DONE]" in message.get("body", b"") or (not stream and message.get("body")):
                kept.append(walk.ledger.counts()["turns"])  # what a reader sees as these bytes leave

        await walk.app.api(scope, receive, send)
        assert kept[:1] == [1]


async def test_a_restart_goes_on_where_it_stood(tmp_path: Path) -> None:
    wish = "Too long. Please keep it under 30 words."
    async with walking(tmp_path, "train.batch_size=1") as walk:
        first = await walk.ask("Tell me about tea")
        await walk.app.tick()
    async with walking(tmp_path, "train.batch_size=1") as walk:
        await walk.ask("Tell me about tea", text(first), wish)
        await walk.app.finish()
        assert walk.show(first["id"])["step"] == 1
    async with walking(tmp_path) as walk:
        again = await walk.ask("Tell me about rain")
        assert again["system_fingerprint"] == "openclaw-rl-v1", "the live version is loaded before the first answer"


async def test_requests_before_the_model_is_ready_are_held_not_refused(tmp_path: Path) -> None:
    async with walking(tmp_path) as walk:
        walk.app.ready.clear()
        early = asyncio.create_task(walk.ask("Are you there?"))
        await asyncio.sleep(0.01)
        assert not early.done()
        assert (await walk.client.get("/readyz")).status_code == 503
        walk.app.ready.set()
        assert text(await early) == "You said: Are you there?"


async def test_a_custom_judge_and_a_custom_generate_take_part(tmp_path: Path) -> None:
    examples = Path(__file__).parents[1] / "examples"
    sets = (
        f"judge.custom={examples}/custom_judge.py:score",
        f"policy.generate={examples}/custom_generate.py:with_house_rule",
        "train.batch_size=1",
    )
    async with walking(tmp_path, *sets) as walk:
        first = await walk.ask("Tell me about tea")
        await walk.ask("Tell me about tea", text(first), "shorter!")
        await walk.app.finish()
        shown = walk.show(first["id"])
        assert (shown["verdict"]["score"], shown["step"]) == (-1.0, 1)
        ids = walk.ledger.turn(first["id"]).completion.prompt_tokens
        assert bytes(i for i in ids if i < 256).startswith(b"House rule: answer in plain words.")


def loops(reader: LedgerReader) -> dict[str, str]:
    return {health.loop: health.state for health in reader.health()}


WORLD = """
from itertools import count
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt
from openclaw_rl.versions import LiveVersions

class Door:
    name = "door"
    doors = count()
    def __init__(self):
        self.knocks, self.opens = 0, float(next(self.doors) % 2)
    def tasks(self):
        return ("open",)
    async def reset(self, task, *, seed):
        return Prompt(messages=(Message(role="user", content="The door is shut."),))
    async def step(self, reply):
        self.knocks += 1
        said = (Message(role="user", content=f"{self.knocks} knocks"),)
        done = self.knocks == 3
        return Observation(messages=said, reward=self.opens if done else float(self.knocks % 2), done=done)
    async def close(self):
        pass
"""


async def test_a_world_of_ones_own_plays_through_the_public_api_and_its_rewards_train(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text(WORLD)
    sets = [
        f"env.type={tmp_path}/door.py:Door",
        "env.parallel=2",
        "env.max_pending=8",
        "train.num_rollouts_per_prompt=2",
    ]
    sets += ["train.batch_size=4", "train.advantage=raw", "serve.api_key=a-key-of-the-users"]
    async with up(tmp_path / "run", *sets) as walk:
        await until(lambda: walk.ledger.counts()["steps"] >= 2)
    with LedgerReader(tmp_path / "run" / "ledger.db") as reader:
        step = reader.step(1)
        assert step.skipped is None
        first = reader.turn(step.turns[0])
        assert first.user.startswith("env:")
        shown = views.turn(reader, first.id)
        assert (shown["kind"], shown["verdict"]["source"]) == ("main", "environment")
        assert shown["verdict"]["score"] in (0.0, 1.0)
        assert sorted(loops(reader)) == ["collect", "episodes", "judge", "serve", "train"]


async def test_a_trainer_that_cannot_start_is_shown_and_takes_nothing_down(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from openclaw_rl.backends.fake import FakeTrainer\n"
        "from openclaw_rl.errors import ModelRefused\n"
        "class Small(FakeTrainer):\n"
        "    async def start(self):\n"
        "        raise ModelRefused('it needs 64 GiB, 24 are free', remedy='set train.lora.enabled = true')\n"
    )
    async with up(tmp_path / "run", f"train.backend={tmp_path}/mine.py:Small") as walk:
        reader = walk.ledger
        first = await walk.ask("Tell me about tea")
        await walk.ask("Tell me about tea", text(first), "Too long. Please keep it under 30 words.")
        await until(lambda: loops(reader).get("train") == "failing" and bool(reader.notes()))
        assert any("it needs 64 GiB" in alarm for alarm in views.status(reader, starve_after=20)["alarms"])
        answered = text(await walk.ask("Still there?"))
        assert answered == "You said: Still there?\n\nPlease answer in under 30 words.", "the note holds meanwhile"
        assert LiveVersions(reader).live() is not None, "version 0 is written, so a person can still roll back"


async def test_the_end_does_not_wait_for_a_long_step_and_the_step_is_taken_again(tmp_path: Path) -> None:
    wish = "Too long. Please keep it under 30 words."
    async with up(tmp_path, "train.options.seconds=3600", "run.drain=0.1") as walk:
        reader = walk.ledger
        first = await walk.ask("Tell me about tea")
        await walk.ask("Tell me about tea", text(first), wish)
        await until(lambda: walk.show(first["id"])["verdict"] is not None)
        await asyncio.sleep(0.2)  # the step begins within a few ticks of 10 ms and then takes an hour
    with LedgerReader(tmp_path / "ledger.db") as reader:
        assert reader.trained_in(first["id"]) is None
        assert set(loops(reader).values()) == {"stopped"}
    async with up(tmp_path) as walk:
        await until(lambda: walk.ledger.trained_in(first["id"]) == 1)
