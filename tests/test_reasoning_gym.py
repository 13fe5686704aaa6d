"""The generators of the real package reasoning-gym: their tasks, their own scorers, the interpreter beside them."""

from __future__ import annotations

import pytest
from sandboxes import needs_sandbox

from openclaw_rl.envs.audit import audit_task
from openclaw_rl.envs.curricula import split_of
from openclaw_rl.envs.toolcall.env import ToolCallEnv
from openclaw_rl.envs.toolcall.reasoning import DEFAULT, reasoning_gym
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Message

pytest.importorskip("reasoning_gym", reason="pip install reasoning-gym, in an environment of its own")
pytestmark = pytest.mark.anyio


def make_env(levels: tuple[str, ...] = (), per_level: int = 4) -> ToolCallEnv:
    return reasoning_gym(
        form="text", examples=None, levels=levels, per_level=per_level, output_chars=400, step_votes=False
    )


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def test_each_generator_gives_tasks_that_are_the_same_every_time_and_split_by_what_they_ask() -> None:
    env, again = make_env(), make_env()
    assert env.tasks() == again.tasks()
    assert {env.level(task) for task in env.tasks()} == {env.level(task) for task in env.held_out()} == set(DEFAULT)
    assert [env.instruction(task) for task in env.tasks()] == [again.instruction(task) for task in env.tasks()]
    assert {split_of(env.instruction(task)) for task in env.tasks()} == {"train"}
    assert {split_of(env.instruction(task)) for task in env.held_out()} == {"held-out"}


@pytest.mark.parametrize("level", DEFAULT)
async def test_the_audit_admits_every_generator_that_is_taken_unasked(level: str) -> None:
    env = make_env((level,))
    for task in (*env.tasks(), *env.held_out()):
        found = await audit_task(lambda: env, task)
        assert (task, found.gold, found.nothing) == (task, 1.0, -1.0)


async def test_effort_alone_pays_nothing() -> None:
    env = make_env(("gcd",))
    await env.reset("gcd/0", seed=0)
    [gold] = env.gold("gcd/0")
    seen = await env.step(say(f"The answer is {gold.content}, I think, but it may be {gold.content}1.\nGood bye."))
    assert (seen.done, seen.reward) == (True, -1.0)


async def test_an_answer_that_the_packages_scorer_cannot_read_is_wrong_and_fails_no_episode() -> None:
    env = make_env(("prime_factorization",))
    await env.reset("prime_factorization/0", seed=0)
    seen = await env.step(say("The prime factorization of 666 is 2^3"))
    assert (seen.done, seen.reward) == (True, -1.0)


@needs_sandbox
async def test_a_program_may_be_run_before_the_answer_is_given() -> None:
    env = make_env(("chain_sum",))
    prompt = await env.reset("chain_sum/0", seed=0)
    assert "python(code" in prompt.messages[0].content
    [gold] = env.gold("chain_sum/0")
    seen = await env.step(say(f"```\nprint({gold.content})\n```"))
    assert not seen.done
    assert gold.content in seen.messages[0].content
    assert (await env.step(gold)).reward == 1.0


def test_a_generator_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no generator 'chian_sum'"):
        make_env(("chian_sum",))
