"""Task sets of others, read where they lie: made-up packages in their layouts, since none of their data is kept here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sandboxes import SETTINGS, needs_sandbox

from openclaw_rl.envs.audit import audit_task
from openclaw_rl.envs.terminal.env import TerminalEnv
from openclaw_rl.envs.terminal.published import agentbench_os, intercode_bash, same_integer
from openclaw_rl.envs.toolcall.bfcl import accepts, bfcl
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Message, ToolCall

pytestmark = pytest.mark.anyio
GIVEN: dict[str, Any] = {"form": "text", "examples": None, "levels": (), "output_chars": 400, "step_votes": False}


def put(place: Path, text: str | list[Any], *, lines: bool = False) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, str):
        place.write_text(text)
    else:
        place.write_text("\n".join(map(json.dumps, text)) if lines else json.dumps(text))


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


# --- AgentBench's operating system

COUNT = {
    "id": 4,
    "description": "How many files are in /usr/box?",
    "create": {"init": {"code": "mkdir -p /usr/box && touch /usr/box/a /usr/box/b"}},
    "evaluation": {"check": [None, {"file": "check/integer-match.py"}], "example": {"code": "ls /usr/box | wc -l"}},
}
CHANGE = {
    "id": 5,
    "description": "Make the folder /root/new.",
    "evaluation": {"check": {"file": "checking/9.sh"}, "example": "mkdir /root/new"},
}
MATCH = {"id": 6, "description": "What is the answer?", "start": "sleep 1000 &", "evaluation": {"match": "42"}}
LACKING = {"id": 7, "description": "?", "create": {"init": {"file": "init/none.sh"}}, "evaluation": {"match": "1"}}


@pytest.fixture
def agentbench(tmp_path: Path) -> TerminalEnv:
    data = tmp_path / "inspect_evals" / "agent_bench" / "data"
    put(data / "agent_bench_os.json", [COUNT, CHANGE])
    put(data / "agent_bench_os_test.json", [MATCH, LACKING])
    put(data / "scripts" / "checking" / "9.sh", "test -d /root/new")
    return agentbench_os(sandbox=SETTINGS, folder=tmp_path, **GIVEN)


@needs_sandbox
async def test_agentbench_gold_scores_1_nothing_minus_1_and_what_lacks_files_is_left_out(
    agentbench: TerminalEnv,
) -> None:
    assert sorted((*agentbench.tasks(), *agentbench.held_out())) == ["dev/4", "dev/5", "test/6"]
    for task in ("dev/4", "dev/5", "test/6"):
        found = await audit_task(lambda: agentbench, task)
        assert (task, found.gold, found.nothing) == (task, 1.0, -1.0)


@needs_sandbox
async def test_an_answer_is_a_reply_alone_or_what_was_printed_last(agentbench: TerminalEnv) -> None:
    prompt = await agentbench.reset("dev/4", seed=0)
    assert "/root/box" in prompt.messages[-1].content, "its author's folders are ours"
    seen = await agentbench.step(say("```\nls -1 /root/box\n```"))
    assert (seen.done, seen.messages[0].content.split("\n")[:2]) == (False, ["a", "b"])
    assert (await agentbench.step(say("2"))).reward == 1.0
    await agentbench.reset("dev/4", seed=0)
    await agentbench.step(say("```\nrm /root/box/a; echo 1\n```"))
    assert (await agentbench.step(say("done"))).reward == -1.0, "what an agent changed does not change what is right"
    await agentbench.close()


def test_whole_numbers_are_compared_by_value_and_other_words_are_wrong() -> None:
    assert same_integer("012", "12")
    assert not same_integer("twelve", "12")


def test_a_package_that_is_not_there_is_named_with_the_line_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pip install --no-deps --target .* inspect-evals"):
        agentbench_os(sandbox=SETTINGS, folder=tmp_path, **GIVEN)
    with pytest.raises(ConfigError, match="these tasks are in the package intercode-bench, which is not installed"):
        intercode_bash(sandbox=SETTINGS, folder=None, **GIVEN)


# --- InterCode


@needs_sandbox
async def test_intercode_wants_the_folder_and_the_output_of_its_authors_command(tmp_path: Path) -> None:
    assets = tmp_path / "intercode" / "assets"
    rows = [{"query": "List the files.", "gold": "ls /testbed"}, {"query": "Delete a.", "gold": "rm /testbed/a"}]
    put(assets / "datasets" / "bash_queries.json", rows)
    put(assets / "docker" / "setup_fs.sh", "mkdir -p /testbed; echo one > /testbed/a; echo two > /testbed/b")
    env = intercode_bash(sandbox=SETTINGS, folder=tmp_path, **GIVEN)
    for task in ("bash/0", "bash/1"):
        found = await audit_task(lambda: env, task)
        assert (found.gold, found.nothing) == (1.0, -1.0)
    await env.reset("bash/0", seed=0)
    await env.step(say("```\nrm testbed/b; echo a; echo b\n```"))
    assert (await env.step(say("done"))).reward == -1.0, "printed as wanted, but a file is gone"
    await env.close()


# --- BFCL

AREA = {
    "id": "simple_python_0",
    "question": [[{"role": "user", "content": "The area of a triangle 10 wide and 5 high?"}]],
    "function": [
        {
            "name": "geo.area",
            "description": "An area.",
            "parameters": {
                "type": "dict",
                "properties": {"base": {"type": "integer"}, "unit": {"type": "string"}},
                "required": ["base"],
            },
        }
    ],
}
COUNTER = """
class GorillaFileSystem:
    def _load_scenario(self, given, long_context=False):
        self.count = given["count"]
    def add(self, by):
        self.count += by
        return {"count": self.count}
"""
TURNS = {
    "id": "multi_turn_base_0",
    "question": [[{"role": "user", "content": "Add two."}], [{"role": "user", "content": "And three."}]],
    "initial_config": {"GorillaFileSystem": {"count": 1}},
    "involved_classes": ["GorillaFileSystem"],
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    data = tmp_path / "bfcl_eval" / "data"
    put(data / "BFCL_v4_simple_python.json", [AREA], lines=True)
    answers = [{"id": AREA["id"], "ground_truth": [{"geo.area": {"base": [10], "unit": ["units", ""]}}]}]
    put(data / "possible_answer" / "BFCL_v4_simple_python.json", answers, lines=True)
    put(data / "BFCL_v4_multi_turn_base.json", [TURNS], lines=True)
    answers = [{"id": TURNS["id"], "ground_truth": [["add(by=2)"], ["add(3)"]]}]
    put(data / "possible_answer" / "BFCL_v4_multi_turn_base.json", answers, lines=True)
    parameters = {"type": "dict", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
    doc = [{"name": "add", "description": "Add.", "parameters": parameters}]
    put(data / "multi_turn_func_doc" / "gorilla_file_system.json", doc, lines=True)
    code = tmp_path / "bfcl_eval" / "eval_checker" / "multi_turn_eval" / "func_source_code"
    put(code / "gorilla_file_system.py", COUNTER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return str(tmp_path)


LEVELS: dict[str, Any] = {**GIVEN, "form": "tools", "levels": ("simple_python", "multi_turn_base")}


def add(by: int) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id=f"c{by}", name="add", arguments=f'{{"by": {by}}}'),))


async def test_bfcl_gold_scores_1_and_nothing_minus_1(package: str) -> None:
    env = bfcl(folder=Path(package), **LEVELS)
    for task in ("simple_python/0", "multi_turn_base/0"):
        found = await audit_task(lambda: env, task)
        assert (task, found.gold, found.nothing) == (task, 1.0, -1.0)


async def test_a_user_asks_one_thing_after_the_other_and_all_must_be_right(package: str) -> None:
    env = bfcl(folder=Path(package), **LEVELS)
    await env.reset("multi_turn_base/0", seed=0)
    assert (await env.step(add(2))).messages[0].content == '{"count": 3}'
    asked = await env.step(say("It is three now."))
    assert [message.content for message in asked.messages] == ["And three."]
    await env.step(add(4))
    assert (await env.step(say("Done."))).reward == -1.0
    await env.close()


def test_a_call_is_right_when_every_value_is_one_that_will_do() -> None:
    wanted = ("geo.area", {"base": [10], "unit": ["units", ""], "box": [{"low": [1], "high": [2, ""]}, ""]})
    assert accepts(wanted, "geo_area", {"base": 10, "unit": "Units."})
    assert accepts(wanted, "geo_area", {"base": 10, "box": {"low": 1}})
    assert not accepts(wanted, "geo_area", {"base": 10, "box": {"high": 2}})
    assert not accepts(wanted, "geo_area", {"base": True})
    assert not accepts(wanted, "geo_area", {"unit": "units"})
    assert not accepts(wanted, "geo_area", {"base": 10, "more": 1})
