"""Every example is one short file that does what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from stories import asked, says

from openclaw_rl import plugins
from openclaw_rl.ports import Observation, Reply
from openclaw_rl.types import Message, Prompt

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_is_one_file_under_eighty_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) < 80


def test_the_four_kinds_have_an_example() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} >= {
        "custom_loss",
        "custom_judge",
        "custom_rollout",
        "custom_generate",
    }


@pytest.mark.parametrize(("said", "score"), [("Too long!", -1.0), ("Thanks!", 1.0), ("And now tea", None)])
def test_the_judge_scores_by_what_was_said_next(said: str, score: float | None) -> None:
    judge = plugins.load("judge", f"{EXAMPLES}/custom_judge.py:score")
    assert judge(asked("hi"), "hello", [says("user", said)]) == score


class Door:
    """A world that opens at the second knock."""

    name = "door"

    def __init__(self) -> None:
        self.knocks = 0

    def tasks(self) -> Sequence[str]:
        return ("open",)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        return asked("The door is shut.")

    async def step(self, reply: Message) -> Observation:
        self.knocks += reply.content == "knock"
        return Observation(messages=(says("user", f"{self.knocks} knocks"),), reward=1.0 if self.knocks == 2 else None)

    async def close(self) -> None: ...


class Knocker:
    """A client whose policy always knocks; it writes down what it was asked and told."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.told: list[tuple[str, float | None]] = []

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> Reply:
        self.seen.append(len(prompt.messages))
        return Reply(turn=f"t{len(self.seen)}", message=says("assistant", "knock"), version=0)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        self.told.append((turn, score))


async def test_the_rollout_stops_at_the_first_reward_and_reports_it() -> None:
    rollout = plugins.resolve("rollout", f"{EXAMPLES}/custom_rollout.py:until_first_reward")
    chat = Knocker()
    assert await rollout(Door(), chat, task="open", seed=1, group=None, max_steps=9) == 1.0
    assert (chat.seen, chat.told) == ([1, 3], [("t2", 1.0)])


def test_the_loss_is_reinforce_by_hand() -> None:
    torch: Any = pytest.importorskip("torch")
    from openclaw_rl.losses import from_vocabulary

    loss = plugins.resolve("loss", f"{EXAMPLES}/custom_loss.py:loss")
    logits = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    current = logits.log_softmax(-1)
    inputs = from_vocabulary(
        tokens=torch.tensor([0, 1, 2]),
        current=current,
        old=current.detach(),
        teacher=current.detach()[None],
        sample=torch.tensor([0, 0, 1]),
        advantage=torch.tensor([1.0, -0.5], dtype=torch.float64),
    )
    value, metrics = loss(inputs)
    expected = -(1.0 + 1.0 - 0.5) * -torch.tensor(4.0, dtype=torch.float64).log() / 3
    assert float(value.detach()) == pytest.approx(float(expected))
    assert metrics == {"reinforce_tokens": 3.0}
    value.backward()
    assert float(logits.grad[0, 0]) == pytest.approx(-(1 - 0.25) / 3)
