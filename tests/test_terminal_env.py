"""The terminal environment: real commands in a real sandbox, and checks that only the state can satisfy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sandboxes import SETTINGS, needs_sandbox

from openclaw_rl.envs.actions import block_of, bounded
from openclaw_rl.envs.curricula import WORDS, split_of
from openclaw_rl.envs.terminal.curriculum import CURRICULUM
from openclaw_rl.envs.terminal.env import TerminalEnv, curriculum
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import Env, SupportsOutcome, SupportsTaskSets
from openclaw_rl.types import Message, ToolCall

pytestmark = pytest.mark.anyio


def make_env(**given: Any) -> TerminalEnv:
    names = {"form": "text", "examples": None, "levels": (), "per_level": 4, "output_chars": 200, "step_votes": False}
    return curriculum(**{"sandbox": SETTINGS, **names, **given})


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(tool: str, **arguments: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c1", name=tool, arguments=json.dumps(arguments)),))


def test_it_keeps_the_ports_and_its_tasks_alternate_between_the_levels() -> None:
    env = make_env()
    assert isinstance(env, Env)
    assert isinstance(env, SupportsOutcome)
    assert isinstance(env, SupportsTaskSets)
    assert [env.level(task) for task in env.tasks()[:18]] == list(CURRICULUM.levels)
    assert len(env.tasks()) == 4 * 18
    assert len(env.held_out()) == 2 * 18


def test_what_is_held_out_is_asked_in_no_task_that_trains_however_many_there_are() -> None:
    env = make_env(levels=("print-word", "copy-file"), per_level=200)
    trained, held = ({env.instruction(task) for task in ids} for ids in (env.tasks(), env.held_out()))
    assert not trained & held
    assert len(trained) == len(env.tasks()), "no instruction twice"
    assert {split_of(text) for text in trained} == {"train"}
    assert {split_of(text) for text in held} == {"held-out"}
    words = [text for word in WORDS for text in [f"Print the word {word}."]]
    assert {text for text in trained | held if text.startswith("Print")} == set(words), "the level has no more words"


def test_the_solved_tasks_of_a_prompt_are_never_held_out_and_never_the_task_itself() -> None:
    for task in (*make_env().tasks(), *make_env().held_out()):
        shown = [each.instruction for each in CURRICULUM.examples(task, 2)]
        assert len(shown) == 2
        assert CURRICULUM.task(task).instruction not in shown
        assert {split_of(text) for text in shown} == {"train"}


def test_a_task_or_level_that_is_not_there_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no task 'fly/1' in terminal; name one as print-word/0"):
        CURRICULUM.task("fly/1")
    with pytest.raises(ConfigError, match="no level 'fly' in terminal; known: print-word, make-folder"):
        make_env(levels=("fly",)).tasks()


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("```bash\nls\n```", "ls"),
        ("Here:\n```\nls -l\npwd\n```\nand so on", "ls -l\npwd"),
        ("```sh\nls", "ls"),
        ("`ls`", "ls"),
        ("ls *.txt", "ls *.txt"),
        ("I think\nit is over", None),
        ("", None),
        ("```\n```", None),
    ],
)
def test_a_command_is_read_from_a_fenced_block_or_a_single_line(reply: str, command: str | None) -> None:
    assert block_of(reply) == command


def test_of_a_long_output_head_and_tail_are_shown() -> None:
    assert bounded("0123456789", 10) == "0123456789"
    assert bounded("0123456789a", 6) == "012\n[... 5 characters left out ...]\n89a"


@needs_sandbox
async def test_the_gold_command_is_paid_1_and_doing_nothing_is_worth_minus_1() -> None:
    env = make_env()
    prompt = await env.reset("write-word/0", seed=0)
    assert "Write the word mint into the file otter.txt." in prompt.messages[-1].content
    assert [message.role for message in prompt.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert await env.outcome() == -1.0
    seen = await env.step(said("```bash\necho mint > otter.txt\n```"))
    assert (seen.done, seen.reward) == (True, 1.0)
    assert seen.messages[0].content.startswith("[exit code 0, ")
    await env.close()
    await env.close()


@needs_sandbox
async def test_words_that_claim_success_are_worth_nothing() -> None:
    env = make_env()
    await env.reset("write-word/0", seed=0)
    seen = await env.step(said("```bash\necho 'otter.txt holds mint'\n```"))
    assert (seen.done, seen.reward) == (True, -1.0), "one reply is all that this level allows"
    await env.reset("write-word/0", seed=0)
    assert (await env.step(said("It is\ndone."))).reward == -1.0
    await env.close()


@needs_sandbox
async def test_with_tools_a_machine_is_worked_on_step_by_step_and_keeps_its_folder() -> None:
    env = make_env(form="tools")
    prompt = await env.reset("tidy-up/0", seed=0)
    assert [tool.name for tool in prompt.tools] == ["bash", "read", "write", "edit"]
    assert "You have 6 replies" in prompt.messages[-1].content
    first = await env.step(call("bash", command="mkdir curriculum && mv *.log curriculum && cd curriculum"))
    assert (first.done, first.reward, first.messages[0].tool_call_id) == (False, None, "c1")
    counted = await env.step(call("bash", command="ls *.log | wc -l"))
    number = counted.messages[0].content.splitlines()[0]
    wrong = await env.step(call("write", path="curriculum/count.txt", content="some"))
    assert wrong.messages[0].content == "written: /root/curriculum/count.txt"
    assert not wrong.done
    last = await env.step(call("edit", path="curriculum/count.txt", old="some", new=number))
    assert (last.done, last.reward) == (True, 1.0)
    await env.close()


@needs_sandbox
async def test_a_call_that_cannot_be_carried_out_is_answered_with_the_reason() -> None:
    env = make_env(form="tools")
    await env.reset("tidy-up/0", seed=0)
    for reply, why in (
        (call("fly"), "error: no tool fly; there are: bash, read, write, edit"),
        (call("bash"), "error: arguments lacks command"),
        (call("read", path="nowhere"), "error: no file /root/nowhere in the sandbox"),
        (call("edit", path="nowhere", old="a", new="b"), "error: no file /root/nowhere in the sandbox"),
    ):
        seen = await env.step(reply)
        assert seen.messages[0].content == why
        assert not seen.done
    assert (await env.step(said("I give up."))).done, "a reply without a call ends the episode"
    await env.close()


@needs_sandbox
async def test_a_long_output_is_cut_in_the_middle_and_a_failed_command_says_its_code() -> None:
    env = make_env(form="tools", output_chars=60)
    await env.reset("tidy-up/0", seed=0)
    seen = await env.step(call("bash", command="seq 1000; exit_with() { return $1; }; exit_with 7"))
    text = seen.messages[0].content
    assert text.startswith("1\n2\n3")
    assert "characters left out" in text
    assert text.splitlines()[-2] == "1000"
    assert text.splitlines()[-1].startswith("[exit code 7, ")
    await env.close()


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("level", CURRICULUM.levels)
async def test_on_every_level_gold_scores_1_nothing_minus_1_and_anothers_gold_minus_1(level: str) -> None:
    env = make_env(levels=(level,), per_level=2)
    first, second = env.tasks()
    for task, gold, paid in ((first, first, 1.0), (first, second, -1.0)):
        await env.reset(task, seed=0)
        assert await env.outcome() == -1.0
        rewards = [(await env.step(reply)).reward for reply in env.gold(gold)]
        assert (rewards[-1] or -1.0) == paid
    await env.close()


@needs_sandbox
async def test_where_it_votes_a_step_is_good_when_its_command_ended_well() -> None:
    env = make_env(step_votes=True, levels=("find-file",))
    await env.reset("find-file/0", seed=0)
    assert [(await env.step(said(reply))).vote for reply in ("```\ntrue\n```", "```\nexit 3\n```")] == [1.0, -1.0]
    assert (await env.step(said("I give up.\nGood bye."))).vote == -1.0
    await env.close()
