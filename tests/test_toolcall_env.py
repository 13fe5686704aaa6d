"""The tool-call environment: calls as tools or as text, the curriculum, and tools and tasks of a user's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sandboxes import needs_sandbox

from openclaw_rl.envs.curricula import split_of
from openclaw_rl.envs.toolcall.curriculum import CURRICULUM
from openclaw_rl.envs.toolcall.env import ToolCallEnv, toolcall
from openclaw_rl.envs.toolcall.sources import CurriculumSource
from openclaw_rl.envs.toolcall.tools_config import KNOWN, written_calls
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import Env, Observation, SupportsOutcome, SupportsTaskSets
from openclaw_rl.types import Message, ToolCall

pytestmark = pytest.mark.anyio
EXAMPLE = Path(__file__).parents[1] / "examples" / "toolcall" / "tools_config.json"


def make_env(**given: Any) -> ToolCallEnv:
    names = {
        "tools_config": None,
        "form": "text",
        "examples": None,
        "levels": (),
        "per_level": 4,
        "output_chars": 400,
        "step_votes": False,
    }
    return toolcall(**{**names, **given})


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(tool: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c1", name=tool, arguments=json.dumps(arguments)),))


async def played(env: ToolCallEnv, task: str, replies: Sequence[Message]) -> Observation:
    await env.reset(task, seed=0)
    assert await env.outcome() == -1.0, "nothing is done yet"
    seen = Observation(messages=())
    for reply in replies:
        assert not seen.done
        seen = await env.step(reply)
    return seen


def test_it_keeps_the_ports_and_splits_its_curriculum_by_what_is_asked() -> None:
    env = make_env(per_level=40)
    assert isinstance(env, Env)
    assert isinstance(env, SupportsOutcome)
    assert isinstance(env, SupportsTaskSets)
    trained, held = ({env.instruction(task) for task in ids} for ids in (env.tasks(), env.held_out()))
    assert not trained & held


@pytest.mark.parametrize(
    ("reply", "calls"),
    [
        ("```\nset_timer(minutes=5)\n```", [("set_timer", {"minutes": 5}, "")]),
        ("set_timer(5)", [("set_timer", {"minutes": 5}, "")]),
        ("```\nadd(a=1, b=2.5)\nadd(3, 4)\n```", [("add", {"a": 1, "b": 2.5}, ""), ("add", {"a": 3, "b": 4}, "")]),
        ("set_timer(minutes='five')", [("set_timer", {"minutes": "five"}, "arguments.minutes is no integer")]),
        ("set_timer(1, 2)", [("set_timer", {}, "set_timer takes minutes")]),
        ("set_timer(minutes=open('x'))", [("set_timer", {}, "an argument is no plain value")]),
        ("fly(to='moon')", []),
        ("It takes 5 minutes.", []),
    ],
)
def test_a_call_is_read_from_text_and_nothing_of_it_is_run(reply: str, calls: list[Any]) -> None:
    found = written_calls(reply, [KNOWN["set_timer"], KNOWN["add"]])
    assert [(each.tool, each.arguments, each.fault) for each in found] == calls


@needs_sandbox
@pytest.mark.parametrize("form", ["text", "tools"])
@pytest.mark.parametrize("level", CURRICULUM.levels)
async def test_on_every_level_gold_scores_1_and_anothers_gold_minus_1(level: str, form: str) -> None:
    env = make_env(levels=(level,), per_level=2, form=form)
    first, second = env.tasks()
    seen = await played(env, first, env.gold(first))
    assert (seen.done, seen.reward) == (True, 1.0)
    assert (await played(env, first, env.gold(second))).reward in (-1.0, None)
    await env.close()


@pytest.mark.parametrize("level", CURRICULUM.levels)
def test_examples_call_what_the_task_offers_and_more_than_one_tool_of_it(level: str) -> None:
    source = CurriculumSource(levels=(level,), per_level=20)
    for task in (*source.ids("train"), *source.ids("held-out")):
        asked, shown = CURRICULUM.task(task), source.begin(task, examples=2).examples
        assert len(shown) == 2
        assert asked.instruction not in [instruction for instruction, _ in shown]
        called = [
            {made.tool for made in written_calls(text, tuple(KNOWN[name] for name in asked.tools))} for _, text in shown
        ]
        assert all(tools and tools <= set(asked.tools) for tools in called)
        can_be_asked = set(asked.tools) & {"set_timer", "get_weather", "add", "turn_light"}
        if level.startswith("choose") and len(can_be_asked) > 1:
            assert called[0] != called[1]


async def test_what_is_wanted_must_be_done_once_and_nothing_else() -> None:
    env = make_env(form="tools", levels=("two-calls",), per_level=1)
    [task] = env.tasks()
    right, _ = env.gold(task)
    twice = await played(env, task, [right, right])
    assert (twice.done, twice.reward) == (True, -1.0)
    claimed = await played(env, task, [said("The lights are on.")])
    assert (claimed.done, claimed.reward) == (True, -1.0)


async def test_what_was_looked_up_is_the_next_state_and_a_wrong_call_says_why() -> None:
    env = make_env(form="tools", levels=("look-up-first",), per_level=1)
    [task] = env.tasks()
    prompt = await env.reset(task, seed=0)
    assert [tool.name for tool in prompt.tools] == ["find_contact", "send_email"]
    found = await env.step(env.gold(task)[0])
    assert "@" in found.messages[0].content
    wrong = await env.step(call("send_email", to=found.messages[0].content))
    assert wrong.messages[0].content == "error: arguments lacks subject"
    assert not wrong.done


async def test_a_users_tools_and_tasks_are_taken_from_their_files() -> None:
    env = make_env(tools_config=EXAMPLE, form="tools")
    assert {*env.tasks(), *env.held_out()} == {"apples", "plums", "pears", "both", "cost", "most", "order"}
    assert {split_of(env.instruction(task)) for task in env.held_out()} <= {"held-out"}
    prompt = await env.reset("apples", seed=0)
    assert prompt.tools[0].parameters["properties"] == {"item": {"type": "string"}}
    seen = await env.step(call("stock", item="apples"))
    assert (seen.messages[0].content, seen.done) == ("12", False)
    seen = await env.step(call("stock", item="nails"))
    assert seen.messages[0].content == "error: ValueError: the shop has no nails; it has apples, pears, plums"
    seen = await env.step(said("There are 12 apples."))
    assert (seen.reward, seen.done) == (1.0, True)


@pytest.mark.parametrize(
    ("task", "answer", "reward"),
    [
        ("cost", "30 plums cost 10.50", 1.0),
        ("cost", "10.6", -1.0),
        ("cost", "no idea", -1.0),
        ("most", "Plums.", 1.0),
        ("most", "plums and pears", -1.0),
        ("pears", "It has 7.", 1.0),
        ("pears", "It has 7 or so", -1.0),
        ("order", "pears, apples, plums", 1.0),
        ("order", "apples, pears, plums", -1.0),
    ],
)
async def test_answers_are_checked_as_the_task_says(task: str, answer: str, reward: float) -> None:
    assert (await played(make_env(tools_config=EXAMPLE, form="tools"), task, [said(answer)])).reward == reward


async def test_a_check_that_fails_is_the_tasks_fault_and_the_episode_fails(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def bad(answer, task):\n    return 5\n")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "x", "check": "checks.py:bad", "gold": "y"}\n')
    (tmp_path / "tools.json").write_text('{"tools": [], "tasks": "tasks.jsonl"}')
    env = make_env(tools_config=tmp_path / "tools.json")
    await env.reset("a", seed=0)
    with pytest.raises(EnvFailed, match=r"tasks.jsonl:1: the check returned 5.0, which is not from 0 to 1"):
        await env.step(said("The answer\nis y."))


@pytest.mark.parametrize(
    ("config", "tasks", "why"),
    [
        ("{", "", "cannot be read as JSON"),
        ("{}", "", 'is not an object with a list "tools"'),
        ('{"tools": []}', "", 'names no "tasks"'),
        ('{"tools": [], "tasks": "t.jsonl", "x": 1}', "", "unknown x; known: tools, tasks, steps"),
        ('{"tools": [{"type": "magic"}], "tasks": "t.jsonl"}', "", r"tools\[0\] has type 'magic'; known: function"),
        ('{"tools": [{"type": "function", "file": "no.py", "function": "f"}], "tasks": "t.jsonl"}', "", "no file"),
        ('{"tools": [], "tasks": "t.jsonl"}', "", "has no task"),
        ('{"tools": [], "tasks": "t.jsonl"}', "nonsense", "t.jsonl:1 is no JSON"),
        ('{"tools": [], "tasks": "t.jsonl"}', '{"prompt": "x"}', 't.jsonl:1 lacks "prompt" or "check"'),
        ('{"tools": [], "tasks": "t.jsonl"}', '{"prompt": "x", "check": "luck"}', "no check 'luck'; known: exact"),
        ('{"tools": [], "tasks": "t.jsonl"}', '{"prompt": "x", "check": "regex", "answer": "("}', "no regular expr"),
    ],
)
def test_what_is_wrong_with_a_users_files_is_named(tmp_path: Path, config: str, tasks: str, why: str) -> None:
    (tmp_path / "tools.json").write_text(config)
    (tmp_path / "t.jsonl").write_text(tasks)
    with pytest.raises(ConfigError, match=why):
        make_env(tools_config=tmp_path / "tools.json").tasks()


def test_a_file_that_is_not_there_is_named_with_the_page_that_shows_the_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*tools.json; docs/environments.md shows the format"):
        make_env(tools_config=tmp_path / "tools.json")


@pytest.mark.parametrize(
    ("reply", "vote"),
    [
        ("```\nset_timer(minutes=3)\n```", 1.0),
        ("```\nset_timer(minutes=banana)\n```", -1.0),
        ("```\nset_alarm(minutes=3)\n```", -1.0),
        ("I cannot.", -1.0),
    ],
)
async def test_where_it_votes_a_step_is_good_when_its_call_could_be_carried_out(reply: str, vote: float) -> None:
    env = make_env(step_votes=True)
    await env.reset("timer/0", seed=0)
    seen = await env.step(said(reply))
    assert (seen.vote, seen.done, seen.reward) == (vote, True, -1.0), "whatever the task wanted"
    await env.reset("timer/0", seed=0)
    assert (await env.step(env.gold("timer/0")[0])).vote == 1.0
    silent = make_env()
    await silent.reset("timer/0", seed=0)
    assert (await silent.step(said(reply))).vote is None, "it does so only where that is wanted"
