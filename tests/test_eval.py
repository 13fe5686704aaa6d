"""Task sets with answers that a program checks, and who answers them."""

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
from openclaw_rl.evals import models as answering
from openclaw_rl.evals import pairwise as versus
from openclaw_rl.evals import suites as exam
from openclaw_rl.evals.suites import Answered, Result
from openclaw_rl.store import Ledger
from openclaw_rl.tasks import coding
from openclaw_rl.tasks import tool_use as calling
from openclaw_rl.tasks.preferences import WISHES
from openclaw_rl.types import Prompt, Sampling, ToolCall, Version

pytestmark = pytest.mark.anyio
FAKE = ["policy.backend=fake", "policy.model=fake", "train.backend=fake"]


def called(name: str, **arguments: Any) -> tuple[ToolCall, ...]:
    return (ToolCall(id="c", name=name, arguments=json.dumps(arguments)),)


# --- tool use ---

WEATHER, LIGHT = calling.ERRANDS[0], calling.ERRANDS[12]


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
    found = calling.wrong(WEATHER, calls)
    if calls and calls[0].arguments == "{":
        assert found is not None
        assert found.startswith("arguments that are no JSON")
    else:
        assert found == why


def test_a_schema_knows_enums_and_that_a_switch_is_no_number() -> None:
    assert (
        calling.wrong(LIGHT, called("turn_light", room="kitchen", state="bright"))
        == "arguments.state is none of on, off"
    )
    assert calling.misfit({"type": "integer"}, True) == "arguments is no integer"
    assert calling.misfit({"type": "number"}, 3) is None


def test_every_errand_is_answered_by_its_own_call() -> None:
    assert len(calling.ERRANDS) == 20
    for errand in calling.ERRANDS:
        assert calling.wrong(errand, called(errand.tool, **errand.values)) is None, errand
        assert len(errand.prompt.tools) == 2


def test_calls_are_read_from_a_raw_reply_as_the_api_reads_them() -> None:
    raw = 'On it. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    answer = answering.read_calls(raw, "hermes", cut=False)
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("add", {"a": 1, "b": 2})]
    assert answering.read_calls("<tool_call>{broken", "hermes", cut=False).broken


# --- coding ---

SOLUTIONS = {
    "add": "def add(a, b):\n    return a + b",
    "fibonacci": "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
}


def test_code_is_taken_from_its_block_or_from_the_whole_reply() -> None:
    assert coding.code_of("Sure!\n```python\nx = 1\n```\nDone.") == "x = 1\n"
    assert coding.code_of("```\nx = 1") == "x = 1", "a block that was cut off"
    assert coding.code_of("x = 1") == "x = 1"
    assert len(coding.FUNCTIONS) == 20
    assert len({one.name for one in coding.FUNCTIONS}) == 20


async def test_a_right_function_passes_its_checks_and_a_wrong_one_does_not() -> None:
    functions = {one.name: one for one in coding.FUNCTIONS}
    for name, code in SOLUTIONS.items():
        assert (await sandbox.run(coding.program(functions[name], f"```python\n{code}\n```"), unsafe=True)).ok
    wrong = await sandbox.run(coding.program(functions["add"], "def add(a, b):\n    return a - b"), unsafe=True)
    assert not wrong.ok
    assert "AssertionError: add(2, 3) == 5" in wrong.output


# --- the exam ---


def oracle(**replies: str) -> Callable[[Prompt, Sampling], Any]:
    """Answers errands rightly, writes two functions, and says one short sentence to all else."""

    async def ask(prompt: Prompt, sampling: Sampling) -> Answered:
        said = prompt.messages[-1].content
        errand = next((one for one in calling.ERRANDS if one.said == said), None)
        if errand is not None:
            return Answered(text="", calls=called(errand.tool, **errand.values))
        name = next((one.name for one in coding.FUNCTIONS if one.prompt == said), None)
        if name is not None:
            return Answered(text=SOLUTIONS.get(name, "def nothing(): pass"))
        return Answered(text=replies.get("talk", f"In short: {said.splitlines()[0]}"))

    return ask


async def test_the_three_sets_are_put_and_counted() -> None:
    results = await exam.sit(oracle(), exam.SETS, unsafe=True)
    view = exam.report("oracle", results, seed=0, began=0.0, isolation=sandbox.isolation(unsafe=True))
    sets = view["sets"]
    assert (sets["tool-use"]["passed"], sets["tool-use"]["of"]) == (20, 20)
    assert (sets["coding"]["passed"], sets["coding"]["of"]) == (2, 20)
    assert sets["conversation"]["of"] == 8 * exam.PER_WISH + exam.UNASKED
    assert sets["conversation"]["rates"]["told short"]["passed"] == 3
    assert sets["conversation"]["rates"]["told long"]["passed"] == 0
    assert sets["conversation"]["rates"]["holds to short"]["passed"] == exam.UNASKED
    assert view["isolation"] in ("bubblewrap", "none")
    assert json.loads(json.dumps(view)) == view


async def test_the_same_seed_puts_the_same_questions() -> None:
    names = [[one.name for one in exam.questions("conversation", seed=seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]


def test_two_are_compared_pair_by_pair() -> None:
    def results(*passed: bool) -> dict[str, list[Result]]:
        return {"coding": [Result(name=str(i), passed=p, why="", reply="") for i, p in enumerate(passed)]}

    same = exam.compare(results(True, False), results(True, False))["coding"]
    assert (same["difference"], same["said"]) == (0.0, "no difference beyond noise")
    better = exam.compare(results(*[True] * 20), results(*[True] * 10, *[False] * 10))["coding"]
    assert (better["difference"], better["said"]) == (0.5, "better")


def test_side_by_side_with_rates() -> None:
    tasks = versus.tasks(["What is tea?"], count=1, seed=0)
    view = versus.view(tasks, (1, 2), [["Tea is a drink made of leaves and water."], ["tea " * 40]])
    assert view["rates"]["sound"]["difference"] == -1.0
    assert view["rates"]["holds to short"]["first"] == {"held": 1, "of": 1, "interval": [0.207, 1.0]}
    assert "names what was asked about" not in view["rates"], "nobody said what a reply should name"
    assert any("version 2" in line for line in versus.tell(view))
    assert len(versus.tasks([], count=5, seed=0)) == 5


# --- who answers ---


def ledger_of(root: Path) -> None:
    (root / "one").mkdir()
    (root / "one" / ADAPTER).write_text(json.dumps({"rules": ["Answer in one sentence."], "turns": []}))
    with Ledger(root / "ledger.db", writer="train", sync="normal") as ledger:
        ledger.add_version(Version(number=0, parent=None, base="fake", state="live"))
        ledger.add_version(Version(number=1, parent=0, base="fake", adapter=str(root / "one"), state="live"))


async def test_a_version_by_its_number_answers_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    ledger_of(tmp_path)
    settings = load(environ={}, sets=[*FAKE, f"run.dir={tmp_path}"]).config
    prompt = Prompt(messages=calling.ERRANDS[0].prompt.messages)
    said = {}
    for name in ("0", "1", "live", "some-model"):
        async with answering.answering(settings, name) as ask:
            said[name] = (await ask(prompt, Sampling(max_tokens=200))).text
    assert "[learned: Answer in one sentence.]" in said["1"]
    assert said["live"] == said["1"]
    assert said["0"] == said["some-model"] == "You said: What is the weather in Paris?"
    with pytest.raises(NotInLedger, match="no version '7'"):
        async with answering.answering(settings, "7"):
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
    monkeypatch.setattr(httpx2, "AsyncClient", lambda **more: plain(transport=httpx2.MockTransport(reply), **more))
    monkeypatch.setenv("MY_KEY", "secret")
    settings = load(environ={}, sets=FAKE).config
    async with answering.answering(settings, "http://127.0.0.1:9/v1", key_env="MY_KEY") as ask:
        found = await ask(WEATHER.prompt, Sampling(max_tokens=9))
    assert calling.wrong(WEATHER, found.calls) is None


async def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    settings = load(environ={}, sets=FAKE).config
    with pytest.raises(BackendDown, match="no server answers at http://127.0.0.1:9/v1"):
        async with answering.answering(settings, "http://127.0.0.1:9/v1"):
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
    assert found["sets"]["conversation"]["of"] == 8 * exam.PER_WISH + exam.UNASKED
    done = CliRunner().invoke(cli, ["compare", "0", "1", "--prompt", "What is tea?", *where])
    assert done.exit_code == 0, done.output
    assert "[learned: Answer in one sentence.]" in done.output


def test_the_wishes_of_the_conversation_set_are_those_of_the_users() -> None:
    asked = {one.name.partition(":")[0] for one in exam.questions("conversation", seed=0)}
    assert asked == {*WISHES, "unasked"}
