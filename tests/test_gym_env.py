"""Gymnasium's interface: any environment that keeps it is played by words, real ones and one made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.envs.audit import audit_task
from openclaw_rl.envs.gym.env import GymnasiumEnv, chosen, shown
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import Env, SupportsOutcome, SupportsTaskSets
from openclaw_rl.types import Message, ToolCall

pytestmark = pytest.mark.anyio

ROOMS = '''
"""Two rooms and a way between them."""

class Discrete:
    def __init__(self, n): self.n, self.start = n, 1

class Text:
    pass

class Rooms:
    """Paid 1 for the garden and 0 for the cellar; counting from 1, as some do."""
    action_space = Discrete(2)
    closed = 0

    def __init__(self, moves=2): self.moves = moves

    def reset(self, *, seed=None):
        assert not self.closed
        self.left, self.seed = self.moves, seed
        return {"room": "hall", "seed": seed}, {}

    def step(self, action):
        if self.seed == 13: raise RuntimeError("the roof is gone")
        self.left -= 1
        return ("hall", self.left), float(action == 2), self.left == 0, False, {}

    def close(self): self.closed = 1

class Echo(Rooms):
    action_space = Text()

    def step(self, action):
        return f"you said {action}", 1.0, True, False, {}

class Painted(Rooms):
    action_space = type("Box", (), {})()
'''


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    file = tmp_path / "rooms.py"
    file.write_text(ROOMS)
    return file


def make_env(id: str | None, **given: Any) -> GymnasiumEnv:
    return GymnasiumEnv(**{"id": id, "form": "text", "per_level": 10, "output_chars": 500, **given})


ONE = {"lowest": -1, "highest": 1}


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(**arguments: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c", name="act", arguments=json.dumps(arguments)),))


async def test_numbered_actions_are_named_by_their_labels_and_rewards_are_added_up(rooms: Path) -> None:
    env = make_env(f"{rooms}:Rooms", labels=["cellar", "garden"], lowest=0, highest=2, instruction="Find the garden.")
    for port in (Env, SupportsOutcome, SupportsTaskSets):
        assert isinstance(env, port)
    assert (len(env.tasks()), len(env.held_out())) == (10, 5)
    assert not set(env.tasks()) & set(env.held_out())
    prompt = await env.reset("Rooms/7", seed=0)
    assert [message.content for message in prompt.messages] == [
        "Find the garden.\nReply with one of these words: cellar, garden.",
        '{"room": "hall", "seed": 7}',
    ]
    assert await env.outcome() == -1.0, "nothing was done yet"
    wrong = await env.step(said("Both of them: cellar, garden"))
    assert (wrong.messages[0].content, wrong.done) == ("error: that is no action; there are: cellar, garden", False)
    seen = await env.step(said("I go to the garden."))
    assert (seen.messages[0].content, seen.reward, seen.done) == ('["hall", 1]', None, False)
    assert (await env.step(said("```\nCellar\n```"))).reward == 0.0, "1 of 2, on the scale from -1 to 1"
    await env.close()
    await env.close()
    assert (await env.reset("Rooms/7", seed=0)) == prompt, "after it was closed it is made anew"


async def test_with_tools_an_action_is_a_call_and_a_text_is_no_action(rooms: Path) -> None:
    env = make_env(f"{rooms}:Rooms", form="tools", labels=["cellar", "garden"], arguments={"moves": 1}, **ONE)
    prompt = await env.reset("Rooms/1", seed=0)
    assert prompt.tools[0].parameters["properties"]["action"]["enum"] == ["cellar", "garden"]
    assert "nothing was done: call the tool act" in (await env.step(said("garden"))).messages[0].content
    seen = await env.step(call(action="garden"))
    assert (seen.reward, seen.done, seen.messages[0].role) == (1.0, True, "tool")


async def test_an_action_that_is_text_is_the_reply_itself(rooms: Path) -> None:
    env = make_env(f"{rooms}:Echo", **ONE)
    await env.reset("Echo/1", seed=0)
    assert (await env.step(said("  "))).messages[0].content == "error: that is no action"
    seen = await env.step(said("open the door"))
    assert (seen.messages[0].content, seen.reward) == ("you said open the door", 1.0)


async def test_what_an_environment_raises_is_not_the_policys_fault(rooms: Path) -> None:
    env = make_env(f"{rooms}:Rooms", **ONE)
    await env.reset("Rooms/13", seed=0)
    with pytest.raises(EnvFailed, match="fails with RuntimeError: the roof is gone"):
        await env.step(said("2"))


def test_what_cannot_be_played_is_refused_with_the_remedy(rooms: Path) -> None:
    with pytest.raises(ConfigError, match="env.options.id is not set; name one: --set env.options.id=Blackjack-v1"):
        make_env(None)
    with pytest.raises(ConfigError, match="actions of this environment are Box: neither numbered"):
        make_env(f"{rooms}:Painted", **ONE)
    with pytest.raises(ConfigError, match=r"labels has 3 words for 2 actions"):
        make_env(f"{rooms}:Rooms", labels=["a", "b", "c"], **ONE)
    with pytest.raises(ConfigError, match="there is no file"):
        make_env("nowhere.py:make")
    with pytest.raises(ConfigError, match="no task 'x/1' in gymnasium; name one as Rooms/0"):
        make_env(f"{rooms}:Rooms", **ONE).instruction("x/1")


def test_the_range_of_a_return_is_asked_for_where_it_cannot_be_known(rooms: Path) -> None:
    with pytest.raises(ConfigError, match="env.options.lowest is not set, and the range .* is not known; give both"):
        make_env(f"{rooms}:Rooms")
    with pytest.raises(ConfigError, match="env.options.highest is not set"):
        make_env(f"{rooms}:Rooms", lowest=0)
    with pytest.raises(ConfigError, match="highest is not above lowest"):
        make_env(f"{rooms}:Rooms", lowest=1, highest=1)


async def test_an_environment_may_state_the_range_of_its_returns_itself(rooms: Path) -> None:
    rooms.write_text(rooms.read_text() + "class Stated(Rooms):\n    return_range = (0, 2)\n")
    env = make_env(f"{rooms}:Stated", labels=["cellar", "garden"])
    await env.reset("Stated/1", seed=0)
    await env.step(said("garden"))
    assert (await env.step(said("cellar"))).reward == 0.0, "1 of 2"


async def test_a_return_outside_of_the_range_counts_as_its_end_and_is_warned_of_once(
    rooms: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        env = make_env(f"{rooms}:Rooms", labels=["cellar", "garden"], lowest=0, highest=1)
        await env.reset("Rooms/1", seed=0)
        await env.step(said("garden"))
        assert (await env.step(said("garden"))).reward == 1.0
    assert caplog.text.count("returns outside range env=") == 1


def test_a_word_means_an_action_only_where_it_means_no_other() -> None:
    assert chosen("**hit**", ["stick", "hit"]) == 1
    assert chosen("white", ["stick", "hit"]) is None, "a part of a word is none"
    assert chosen("10", ["1", "10"]) == 1
    assert shown({"a": (1, None)}) == '{"a": [1, null]}'


# --- real ones


async def test_blackjack_is_played_by_its_registered_name() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'openclaw-rl[gymnasium]'")
    env = make_env("Blackjack-v1", labels=["stick", "hit"])
    prompt = await env.reset(env.tasks()[0], seed=0)
    hand = json.loads(prompt.messages[-1].content)
    assert len(hand) == 3
    assert 4 <= hand[0] <= 21
    seen = await env.step(said("stick"))
    assert seen.done
    assert seen.reward in (-1.0, 0.0, 1.0)
    assert (await audit_task(lambda: env, env.tasks()[0])).fault == ""
    with pytest.raises(ConfigError, match="Gymnasium cannot make 'Blackjack-v9'"):
        make_env("Blackjack-v9")


async def test_frozen_lake_is_shown_as_it_renders_itself() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'openclaw-rl[gymnasium]'")
    given = {"labels": ["left", "down", "right", "up"], "show": "render"}
    env = make_env("FrozenLake-v1", **given, arguments={"is_slippery": False})
    prompt = await env.reset("FrozenLake-v1/0", seed=0)
    assert "FFFH" in prompt.messages[-1].content
    for word in ("down", "down", "right", "right", "down"):
        assert (await env.step(said(word))).reward is None
    assert (await env.step(said("right"))).reward == 1.0


EXAMPLES = Path(__file__).parents[1] / "examples" / "others"


async def test_a_generator_of_reasoning_gym_pays_its_own_score() -> None:
    package = pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    pytest.importorskip("gymnasium")
    env = make_env(f"{EXAMPLES}/reasoning.py:Questions")
    answer = package.create_dataset("chain_sum", seed=7, size=10)[3]["answer"]
    await env.reset("Questions/3", seed=0)
    assert (await env.step(said(answer))).reward == 1.0
    await env.reset("Questions/3", seed=0)
    assert (await env.step(said("I do not know"))).reward in (-1.0, -0.98)


async def test_a_game_of_textarena_is_played_to_its_end() -> None:
    pytest.importorskip("textarena", reason="textarena is not installed")
    pytest.importorskip("gymnasium")
    env = make_env(f"{EXAMPLES}/game.py:Game", output_chars=20_000)
    assert "number" in (await env.reset("Game/1", seed=0)).messages[-1].content
    for guess in range(1, 21):
        seen = await env.step(said(f"[{guess}]"))
        if seen.done:
            break
    assert seen.done
    assert -1.0 <= (seen.reward or 0.0) <= 1.0
