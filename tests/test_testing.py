"""The fakes that ship: each example in a docstring runs, and a check names what a plugin breaks."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import pytest
from defaults import loss_settings
from promises import broken

from openclaw_rl import losses, plugins, testing
from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.ports import Case, Delta, Observation, StepResult
from openclaw_rl.testing import (
    FakeEnv,
    FakeJudge,
    FakePolicy,
    FakeTrainer,
    ScriptedPolicy,
    check_env,
    check_generate,
    check_judge,
    check_loss,
    check_policy,
    check_rollout,
    check_trainer,
)
from openclaw_rl.types import Completion, Message, Prompt, Sample, Sampling, Verdict, Version

MODULES = [
    *(found.name for found in pkgutil.iter_modules(testing.__path__, "openclaw_rl.testing.")),
    *(found.name for found in pkgutil.iter_modules(fakes.__path__, "fakes.")),
]
NEEDS_TORCH = "fakes.tinker"
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == NEEDS_TORCH else name for name in MODULES]
)
def test_every_example_runs(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert (failed, tried > 0 or name.endswith(".checks")) == (0, True)


def test_everything_shipped_is_documented() -> None:
    for name in testing.__all__:
        assert getattr(testing, name).__doc__, name


@pytest.mark.parametrize("name", [file.stem for file in sorted(EXAMPLES.glob("custom_*.py"))])
def test_the_examples_keep_their_promises(name: str) -> None:
    kind, file = name.removeprefix("custom_"), EXAMPLES / f"{name}.py"
    target = re.search(rf"examples/{name}.py:(\w+)", file.read_text())
    assert target, "it says how to use it"
    thing = plugins.load(kind, f"{file}:{target[1]}")
    getattr(testing, f"check_{kind}")(thing() if isinstance(thing, type) else thing)


# --- judge


class Elsewhere(FakeJudge):
    async def judge(self, case: Case) -> Verdict:
        return replace(await super().judge(case), turn="another", score=3.0)


def boom(*_: Any, **__: Any) -> Any:
    raise ValueError("boom")


def test_a_judge_of_other_turns_and_wild_scores_is_told_both() -> None:
    with pytest.raises(AssertionError, match="another turn.*\n- a score is 3.0, which is not in -1 .. 1"):
        check_judge(Elsewhere())
    with pytest.raises(AssertionError, match="raises JudgeUnavailable: no endpoint"):
        check_judge(FakeJudge(JudgeUnavailable("no endpoint")))
    with pytest.raises(AssertionError, match="the function fails: boom raised ValueError"):
        check_judge(boom)


# --- env


class Moody(FakeEnv):
    """Begins differently each time, says nothing, and cannot be closed twice."""

    async def reset(self, task: str, *, seed: int) -> Prompt:
        self.began = getattr(self, "began", 0) + 1
        return testing.make_prompt(f"start {self.began}")

    async def step(self, reply: Message) -> Observation:
        return Observation(messages=())

    async def close(self) -> None:
        await super().close()
        if self.closed > 1:
            raise RuntimeError("closed already")


def test_an_environment_is_told_all_that_it_breaks() -> None:
    with pytest.raises(AssertionError) as caught:
        check_env(Moody())
    assert str(caught.value).splitlines()[1:] == [
        "- step() returns no message and is not done: the policy has nothing to reply to",
        "- the same task and seed begin with two different prompts",
        "- the second close() raises RuntimeError: closed already",
    ]
    with pytest.raises(AssertionError, match="wrong shape: it has no 'tasks'; it has no 'reset'"):
        check_env(FakeJudge())


# --- policy and generate


class Sloppy(ScriptedPolicy):
    """Deltas of one text, a reply of another, always by version 3, of any length."""

    async def generate(
        self, prompt: Prompt, sampling: Sampling, *, version: int | None = None
    ) -> AsyncIterator[Delta | Completion]:
        yield Delta(text="other")
        yield testing.make_completion("ok", version=3, reply_tokens=(7,) * 40, logprobs=(-0.5,) * 40)


def yes_or_no(**given: Any) -> ScriptedPolicy:
    """It says what is asked for by the schemas of the check, and anything else otherwise."""
    policy = ScriptedPolicy(**given)
    policy.reply = lambda _: json.dumps(_first(policy.requests[-1][1].json_schema))
    return policy


def _first(schema: Any) -> Any:
    return schema.get("enum", [True])[0] if schema else "Hello there."


@pytest.mark.parametrize("policy", [yes_or_no(), FakePolicy(), yes_or_no(tool_format="none")])
def test_the_shipped_policies_keep_their_promises(policy: Any) -> None:
    assert broken(check_policy, policy) == []


def test_a_sloppy_policy_is_told_all_that_it_breaks() -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy(Sloppy(tool_format="xml"))
    for fault in (
        "tool_format is 'xml'; known: hermes, llama, pythonic, harmony, none",
        "the deltas contain 'other', the reply 'ok'",
        "a completion's sampling is not the one asked for",
        "a reply is longer than max_tokens",
        "prompt_tokens are not those of encode(prompt)",
        "version=0 is not answered by version 0, the base model",
        "a prompt over the context is answered; raise ContextOverflow",
    ):
        assert f"\n- {fault}" in str(caught.value)


def test_a_generate_function_that_forgets_the_version_is_told() -> None:
    def forgets(policy: Any, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Any:
        return policy.generate(prompt, sampling)

    with pytest.raises(AssertionError, match="version=0 is not answered by version 0"):
        check_generate(forgets)
    with pytest.raises(AssertionError, match="it takes no argument 'version'"):
        check_generate(lambda policy, prompt, sampling: None)


# --- trainer and rollout


class Restless(FakeTrainer):
    """Other weights at each step, somewhere else."""

    count = 0

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        done = await super().step(samples, number=number, parent=parent, target=target)
        self.count += 1
        (Path(target) / "weights").write_text(str(self.count))
        return replace(done, adapter=f"{target}-moved", metrics={"loss": "low"})  # type: ignore[dict-item]


def test_a_trainer_is_told_all_that_it_breaks() -> None:
    with pytest.raises(AssertionError) as caught:
        check_trainer(Restless())
    assert "the metrics are not plain numbers by name" in str(caught.value)
    assert "-moved, not the target" in str(caught.value)
    assert "the same step twice gives different weights" in str(caught.value)


def test_a_rollout_whose_episodes_share_a_session_is_told() -> None:
    async def by_task(env: Any, chat: Any, *, task: str, seed: int, group: str | None, max_steps: int) -> float:
        reply = await chat.ask(await env.reset(task, seed=seed), session=f"{task}/{seed}", group=group)
        return float((await env.step(reply.message)).reward)

    with pytest.raises(AssertionError, match="two episodes of one task share a session"):
        check_rollout(by_task)


def test_a_rollout_without_measure_is_told() -> None:
    async def endless(env: Any, chat: Any, *, task: str, seed: int, group: str | None, max_steps: int) -> Any:
        prompt = await env.reset(task, seed=seed)
        for number in range(2):
            await chat.ask(prompt, session=f"s{number}")
        return "much"

    with pytest.raises(AssertionError) as caught:
        check_rollout(endless)
    assert str(caught.value).splitlines()[1:] == [
        "- it gives 'much', not its total reward",
        "- one episode has several sessions",
        "- the group is not passed on",
        "- it asks 2 times with max_steps 1",
        "- two episodes of one task share a session, so that their turns count as one conversation: give each its own",
    ]


# --- loss


def test_a_loss_is_told_all_that_it_breaks() -> None:
    def careless(inputs: Any) -> Any:
        inputs.old.add_(1.0)
        return inputs.advantage.sum(), {"loss": inputs.advantage.sum()}

    with pytest.raises(AssertionError) as caught:
        check_loss(careless)
    assert "the metrics are not plain numbers by name" in str(caught.value)
    assert "the loss has no gradient; add `inputs.current.sum() * 0`" in str(caught.value)
    assert "the loss changes its inputs" in str(caught.value)
    with pytest.raises(AssertionError, match="without any signal, it raises ValueError: boom"):
        check_loss(boom)
    with pytest.raises(AssertionError, match="the loss is no scalar tensor"):
        check_loss(lambda inputs: (inputs.current, {}))


@pytest.mark.parametrize("method", sorted(losses.METHODS))
def test_every_built_in_method_keeps_the_promises(method: str) -> None:
    assert broken(check_loss, lambda inputs: losses.loss(inputs, loss_settings(method=method))) == []
