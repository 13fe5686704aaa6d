"""Every example is one short file that does what it says."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl import plugins
from openclaw_rl.testing import FakeChatClient, FakeEnv, make_message, make_prompt, running_app, serving, until
from openclaw_rl.types import Sampling

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_is_one_file_under_eighty_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) < 80


def test_every_kind_of_plugin_but_the_trainer_has_an_example() -> None:
    kinds = {file.stem.removeprefix("custom_") for file in EXAMPLES.glob("custom_*.py")}
    assert kinds == set(plugins.KINDS) - {"trainer"}  # a trainer is a backend: `backends/fake.py` has a whole one


@pytest.mark.parametrize(("said", "score"), [("Too long!", -1.0), ("Thanks!", 1.0), ("And now tea", None)])
def test_the_judge_scores_by_what_was_said_next(said: str, score: float | None) -> None:
    judge = plugins.load("judge", f"{EXAMPLES}/custom_judge.py:score")
    assert judge(make_prompt("hi"), "hello", [make_message("user", said)]) == score


def test_the_traces_of_a_verifiers_run_are_paid_as_groups_of_their_tasks(tmp_path: Path, monkeypatch: Any) -> None:
    run = tmp_path / "outputs" / "monday"
    run.mkdir(parents=True)

    def episode(trace: str, task: str, score: float | None) -> str:
        rewards = {"right": None if score is None else {"score": score, "weight": 1.0}}
        traces = [{"id": trace, "rewards": rewards}]
        return json.dumps({"ok": score is not None, "task": {"key": task, "data": {"idx": 0}}, "traces": traces})

    lines = [episode("t1", "sum", 1.0), episode("t2", "sum", 0.0), episode("t3", "product", None)]
    (run / "traces.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("OPENCLAW_KEY", "k")
    with serving(keys={"k": "env:verifiers"}) as server:
        for session in ("t1", "t2", "t3"):
            assert server.chat(headers={"authorization": "Bearer k", "x-session-id": session}).status_code == 200
        pay = runpy.run_path(str(EXAMPLES / "others" / "pay_verifiers.py"))
        pay["main"](f"{server.url}/v1", str(run / "traces.jsonl"))
        paid = [(one.session, one.score, one.group) for one in server.ledger.rewards]
        assert len(server.ledger.endings) == 3
    assert paid == [("t1", 1.0, "monday/sum"), ("t2", -1.0, "monday/sum"), ("t3", None, "monday/product")]


async def test_the_rollout_stops_at_the_first_reward_and_reports_it() -> None:
    rollout = plugins.resolve("rollout", f"{EXAMPLES}/custom_rollout.py:until_first_reward")
    chat = FakeChatClient()
    assert await rollout(FakeEnv(rewards=(None, 1.0, 1.0)), chat, task="a", seed=1, group=None, max_steps=9) == 1.0
    assert [len(prompt.messages) for prompt, _, _ in chat.requests] == [1, 3]
    assert chat.rewards == [(chat.requests[0][1], 1.0)]


PAYS_IN_TURN = """
from itertools import count
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt

EPISODES = count()

class Env:
    name = "pays"

    def tasks(self):
        return ("tea",)

    async def reset(self, task, *, seed):
        self.reward = 1.0 if next(EPISODES) % 4 == 0 else 0.5
        return Prompt(messages=(Message(role="user", content=f"Tell me about {task}"),))

    async def step(self, reply):
        return Observation(messages=(Message(role="user", content="Go on."),), reward=self.reward, done=True)

    async def close(self): ...
"""


@pytest.mark.slow
async def test_the_turns_of_the_rollout_train_in_groups(tmp_path: Path) -> None:
    env = tmp_path / "env.py"
    env.write_text(PAYS_IN_TURN)
    sets = [f"env.type={env}", f"train.rollout={EXAMPLES}/custom_rollout.py", "train.advantage=group", "gate.mode=off"]
    sets += ["train.num_rollouts_per_prompt=4", "train.batch_size=4", "env.parallel=4", "env.max_pending=8"]
    async with running_app(tmp_path / "run", *sets) as run:
        await until(lambda: run.ledger.last_step() is not None)
        step = run.ledger.step(1)
        turns = [run.ledger.turn(turn) for turn in step.turns]
    assert (len(turns), len({turn.group for turn in turns}), len({turn.session for turn in turns})) == (4, 1, 4)
    # one of four paid 1, the others a half: the mean is 5/8, the spread sqrt(3) / 8
    advantages = sorted(float(part["advantage"]) for part in step.parts.values())
    assert advantages == pytest.approx([-1 / 3**0.5] * 3 + [3**0.5], abs=1e-4)


async def test_the_environment_answers_higher_and_lower_until_the_number_is_guessed() -> None:
    env = plugins.build("env", f"{EXAMPLES}/custom_env.py:GuessTheNumber", offered={}, options={})
    prompt = await env.reset("10", seed=3)
    assert prompt.messages[0].content == "Guess my number between 1 and 10. Answer with a number only."
    seen = [await env.step(make_message("assistant", f"{number}.")) for number in range(1, 11)]
    right = [one.reward for one in seen].index(1.0)
    texts = [one.messages[0].content for one in seen]
    assert texts == ["Higher."] * right + ["Right!"] + ["Lower."] * (9 - right)
    assert [one.done for one in seen] == [at == right for at in range(10)]
    await env.reset("10", seed=3)
    assert (await env.step(make_message("assistant", str(right + 1)))).done, "the same seed gives the same number"


async def test_the_backend_streams_what_it_completes_and_minds_the_limit() -> None:
    policy = plugins.build("policy", f"{EXAMPLES}/custom_policy.py:Backwards", offered={}, options={})
    delta, done = [item async for item in policy.generate(make_prompt("abc"), Sampling())]
    assert (delta.text, done.reply.content, done.finish) == ("cba", "cba", "stop")
    assert done.reply_tokens == (*b"cba", 256)
    assert len(done.logprobs) == len(done.reply_tokens)
    _, cut = [item async for item in policy.generate(make_prompt("abc"), Sampling(max_tokens=2))]
    assert (cut.reply.content, cut.finish) == ("cb", "length")


@pytest.mark.slow
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
