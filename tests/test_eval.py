"""Evaluation suites whose answers a program checks, and the models under evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from openclaw_rl.backends.fake import ADAPTER
from openclaw_rl.cli import cli
from openclaw_rl.config import load
from openclaw_rl.envs import sandbox
from openclaw_rl.errors import BackendDown, NotInLedger
from openclaw_rl.evals import models, suites
from openclaw_rl.evals.suites import ModelReply, TaskResult
from openclaw_rl.store import TrainLedger
from openclaw_rl.tasks import coding
from openclaw_rl.tasks.preferences import PREFERENCES
from openclaw_rl.types import Prompt, Sampling, ToolCall, Version

pytestmark = pytest.mark.anyio
FAKE = ["policy.backend=fake", "policy.model=fake", "train.backend=fake"]


def called(name: str, **arguments: Any) -> tuple[ToolCall, ...]:
    return (ToolCall(id="c", name=name, arguments=json.dumps(arguments)),)


# --- tool use ---

WEATHER, LIGHT = coding.TOOL_TASKS[0], coding.TOOL_TASKS[12]


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (called("get_weather", city="Paris"), None),
        (called("get_weather", city=" paris. "), None),
        (called("get_weather", city="Rome"), "city is 'Rome', not 'Paris'"),
        (called("get_weather"), "arguments lacks city"),
        (called("get_weather", city=7), "arguments.city is no string"),
        (called("get_weather", city="Paris", units="C"), "arguments has units, which the tool does not take"),
        (called("set_timer", minutes=3), "called set_timer"),
        ((), "0 calls"),
        (called("get_weather", city="Paris") * 2, "2 calls"),
        ((ToolCall(id="c", name="get_weather", arguments="{"),), None),
    ],
)
def test_a_call_is_checked_by_schema_and_by_value(calls: tuple[ToolCall, ...], why: str | None) -> None:
    found = coding.mistake(WEATHER, calls)
    if calls and calls[0].arguments == "{":
        assert found is not None
        assert found.startswith("arguments that are no JSON")
    else:
        assert found == why


def test_a_schema_knows_enums_and_that_a_switch_is_no_number() -> None:
    assert (
        coding.mistake(LIGHT, called("turn_light", room="kitchen", state="bright"))
        == "arguments.state is none of on, off"
    )
    assert coding.schema_error({"type": "integer"}, True) == "arguments is no integer"
    assert coding.schema_error({"type": "number"}, 3) is None


def test_every_tool_task_is_answered_by_its_own_call() -> None:
    assert len(coding.TOOL_TASKS) == 20
    for task in coding.TOOL_TASKS:
        assert coding.mistake(task, called(task.tool, **task.values)) is None, task
        assert len(task.prompt.tools) == 2


def test_calls_are_read_from_a_raw_reply_as_the_api_reads_them() -> None:
    raw = 'On it. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    answer = models.read_calls(raw, "hermes", cut=False)
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("add", {"a": 1, "b": 2})]
    assert models.read_calls("<tool_call>{broken", "hermes", cut=False).broken


# --- coding ---

SOLUTIONS = {
    "add": "def add(a, b):\n    return a + b",
    "fibonacci": "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
}


def test_code_is_taken_from_its_block_or_from_the_whole_reply() -> None:
    assert coding.code_of("Sure!\n```python\nx = 1\n```\nDone.") == "x = 1\n"
    assert coding.code_of("```\nx = 1") == "x = 1", "a block that was cut off"
    assert coding.code_of("x = 1") == "x = 1"
    assert len(coding.CODING_TASKS) == 20
    assert len({one.name for one in coding.CODING_TASKS}) == 20


async def test_a_right_function_passes_its_checks_and_a_wrong_one_does_not() -> None:
    functions = {one.name: one for one in coding.CODING_TASKS}
    for name, code in SOLUTIONS.items():
        assert (await sandbox.run(coding.program(functions[name], f"```python\n{code}\n```"), unsafe=True)).ok
    wrong = await sandbox.run(coding.program(functions["add"], "def add(a, b):\n    return a - b"), unsafe=True)
    assert not wrong.ok
    assert "AssertionError: add(2, 3) == 5" in wrong.output


# --- the suites ---


def oracle(**replies: str) -> Callable[[Prompt, Sampling], Any]:
    """Answers tool tasks rightly, writes two functions, and says one short sentence to all else."""

    async def model(prompt: Prompt, sampling: Sampling) -> ModelReply:
        said = prompt.messages[-1].content
        task = next((one for one in coding.TOOL_TASKS if one.request == said), None)
        if task is not None:
            return ModelReply(text="", calls=called(task.tool, **task.values))
        name = next((one.name for one in coding.CODING_TASKS if one.prompt == said), None)
        if name is not None:
            return ModelReply(text=SOLUTIONS.get(name, "def nothing(): pass"))
        return ModelReply(text=replies.get("talk", f"In short: {said.splitlines()[0]}"))

    return model


async def test_the_three_suites_are_run_and_counted() -> None:
    results = await suites.run(oracle(), suites.SUITES, seed=0, temperature=0.0, unsafe=True)
    view = suites.report("oracle", results, seed=0, began=0.0, isolation=sandbox.isolation(unsafe=True))
    found = view["suites"]
    assert (found["tool-use"]["passed"], found["tool-use"]["of"]) == (20, 20)
    assert (found["coding"]["passed"], found["coding"]["of"]) == (2, 20)
    assert found["conversation"]["of"] == 8 * suites.PER_PREFERENCE + suites.UNPROMPTED
    assert found["conversation"]["rates"]["prompted short"]["passed"] == 3
    assert found["conversation"]["rates"]["prompted long"]["passed"] == 0
    assert found["conversation"]["rates"]["meets short"]["passed"] == suites.UNPROMPTED
    assert view["isolation"] in ("bubblewrap", "none")
    assert json.loads(json.dumps(view)) == view


async def test_the_same_seed_gives_the_same_tasks() -> None:
    names = [[one.name for one in suites.suite_tasks("conversation", seed=seed, unsafe=True)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]


def test_two_are_compared_pair_by_pair() -> None:
    def results(*passed: bool) -> dict[str, list[TaskResult]]:
        return {"coding": [TaskResult(name=str(i), passed=p, why="", reply="") for i, p in enumerate(passed)]}

    same = suites.compare(results(True, False), results(True, False))["coding"]
    assert (same["difference"], same["conclusion"]) == (0.0, "no difference beyond noise")
    better = suites.compare(results(*[True] * 20), results(*[True] * 10, *[False] * 10))["coding"]
    assert (better["difference"], better["conclusion"]) == (0.5, "better")


def test_side_by_side_with_rates() -> None:
    tasks = models.choose_tasks(["What is tea?"], count=1, seed=0)
    view = models.report(tasks, (1, 2), [["Tea is a drink made of leaves and water."], ["tea " * 40]])
    assert view["rates"]["sound"]["difference"] == -1.0
    assert view["rates"]["meets short"]["first"] == {"held": 1, "of": 1, "interval": [0.207, 1.0]}
    assert "names what was asked about" not in view["rates"], "nobody said what a reply should name"
    assert any("version 2" in line for line in models.lines(view))
    assert len(models.choose_tasks([], count=5, seed=0)) == 5


# --- models under evaluation ---


def ledger_of(root: Path) -> None:
    (root / "one").mkdir()
    (root / "one" / ADAPTER).write_text(json.dumps({"rules": ["Answer in one sentence."], "turns": []}))
    with TrainLedger(root / "ledger.db", sync="normal") as ledger:
        ledger.add_version(Version(number=0, parent=None, base="fake", state="live"))
        ledger.add_version(Version(number=1, parent=0, base="fake", adapter=str(root / "one"), state="live"))


async def test_a_version_by_its_number_answers_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    ledger_of(tmp_path)
    settings = load(environ={}, sets=[*FAKE, f"run.dir={tmp_path}"]).config
    prompt = Prompt(messages=coding.TOOL_TASKS[0].prompt.messages)
    said = {}
    for name in ("0", "1", "live", "some-model"):
        async with models.open_model(settings, name) as model:
            said[name] = (await model(prompt, Sampling(max_tokens=200))).text
    assert "[learned: Answer in one sentence.]" in said["1"]
    assert said["live"] == said["1"]
    assert said["0"] == said["some-model"] == "You said: What is the weather in Paris?"
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / ADAPTER).write_text('{"rules": ["Answer in one sentence."], "turns": []}')
    (folder / "manifest.json").write_text('{"base": "fake"}')
    async with models.open_model(settings, str(folder)) as model:
        assert (await model(prompt, Sampling(max_tokens=200))).text == said["1"]
    with pytest.raises(NotInLedger, match="no version '7'"):
        async with models.open_model(settings, "7"):
            pass


async def test_any_server_answers_and_its_tools_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "m1"}]})
        body = json.loads(request.content)
        assert (body["model"], request.headers["authorization"]) == ("m1", "Bearer secret")
        call = {"id": "x", "function": {"name": body["tools"][0]["function"]["name"], "arguments": '{"city": "Paris"}'}}
        return httpx2.Response(200, json={"choices": [{"message": {"content": None, "tool_calls": [call]}}]})

    plain = httpx2.AsyncClient
    monkeypatch.setattr(
        httpx2, "AsyncClient", lambda **more: plain(**{**more, "transport": httpx2.MockTransport(reply)})
    )
    monkeypatch.setenv("MY_KEY", "secret")
    settings = load(environ={}, sets=FAKE).config
    async with models.open_model(settings, "http://127.0.0.1:9/v1", key_env="MY_KEY") as model:
        found = await model(WEATHER.prompt, Sampling(max_tokens=9))
    assert coding.mistake(WEATHER, found.calls) is None


async def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    settings = load(environ={}, sets=FAKE).config
    with pytest.raises(BackendDown, match="no server answers at http://127.0.0.1:9/v1"):
        async with models.open_model(settings, "http://127.0.0.1:9/v1"):
            pass


def test_eval_and_compare_from_the_command_line(tmp_path: Path) -> None:
    ledger_of(tmp_path)
    sets = [part for setting in FAKE for part in ("--set", setting)]
    where = ["--rl-buffer-dir", str(tmp_path), *sets]
    file = tmp_path / "eval.json"
    done = CliRunner().invoke(
        cli,
        ["eval", "--model-path", "1", "--against", "0", "--eval-tasks", "conversation", "--json", str(file), *where],
    )
    assert done.exit_code == 0, done.output
    assert "against 0:" in done.output
    found = json.loads(file.read_text())
    assert (found["model"], found["against"]["model"]) == ("1", "0")
    assert found["suites"]["conversation"]["of"] == 8 * suites.PER_PREFERENCE + suites.UNPROMPTED
    assert found["sets"] == found["suites"], "former names still work"
    rates = found["suites"]["conversation"]["rates"]
    assert (rates["told short"], rates["holds to list"]) == (rates["prompted short"], rates["meets list"])
    assert found["compared"]["conversation"]["said"] == found["compared"]["conversation"]["conclusion"]
    compared = ["compare", "0", "1", "--prompt", "What is tea?", *where]
    done = CliRunner().invoke(cli, compared)
    assert done.exit_code == 0, done.output
    assert "[learned: Answer in one sentence.]" in done.output
    rates = json.loads(CliRunner().invoke(cli, [*compared, "--json"]).stdout)["rates"]
    assert rates["holds to short"] == rates["meets short"]


def test_the_preferences_of_the_conversation_suite_are_those_of_the_users() -> None:
    asked = {one.name.partition(":")[0] for one in suites.suite_tasks("conversation", seed=0, unsafe=True)}
    assert asked == {*PREFERENCES, "unprompted"}
