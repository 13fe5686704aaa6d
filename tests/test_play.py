"""Agent programs as players: a real script in a real sandbox, its calls in the ledger, its session paid once."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from sandboxes import SETTINGS, needs_sandbox

from openclaw_rl.app import address
from openclaw_rl.app.address import ServerAddress
from openclaw_rl.app.playing import chosen, serving_at
from openclaw_rl.cli import cli
from openclaw_rl.clients.agents import AGENTS, OwnAgent
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.clients.connect import ServerInfo
from openclaw_rl.envs.play.forwarder import GatewayForwarder
from openclaw_rl.envs.play.journal import PlayJournal, PlayPlan, resumed
from openclaw_rl.envs.play.player import INSIDE, AgentPlayer, PlayedEpisode, PlaySettings
from openclaw_rl.envs.play.programs import SupportsAgents, find_program
from openclaw_rl.envs.sandbox import open_sandbox
from openclaw_rl.envs.terminal.curriculum import CURRICULUM, in_files
from openclaw_rl.envs.terminal.env import TerminalEnv, curriculum
from openclaw_rl.envs.toolcall.env import toolcall
from openclaw_rl.errors import BackendDown, ConfigError, OpenClawError, RequestError, TaskRefused
from openclaw_rl.ports import AgentCommand
from openclaw_rl.serve.loop import bind
from openclaw_rl.testing import MemoryLedger, ScriptedPolicy, serving
from openclaw_rl.testing.servers import RunningServer

pytestmark = pytest.mark.anyio

KEY = "the-key-of-an-environment"
ECHO = "/bin/echo {instruction}"
USER = "env:local"
SERVER = ServerInfo(url=INSIDE, model="toy", context=8192)
AGENT = """#!/usr/bin/python3
import json, os, subprocess, sys, urllib.error, urllib.request

def post(path, body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    request.add_header("x-session-id", "a name of the program's own")
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code

def ask(*messages):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "temperature": 0}
    return post("/chat/completions", body)["choices"][0]["message"]["content"]

task = {"role": "user", "content": sys.argv[1]}
command = ask(task)
ask({"role": "system", "content": "Generate a title for this conversation."}, task)
subprocess.run(["sh", "-c", command])
print("paying myself:", post("/sessions/x/reward", {"score": 1}), post("/feedback", {"turn": "x", "score": 1}))
print("keys:", [name for name, value in os.environ.items() if "the-key" in value])
"""


def make_env(**given: Any) -> TerminalEnv:
    names = {"form": "text", "examples": None, "levels": (), "per_level": 2, "output_chars": 200, "step_votes": False}
    return curriculum(**{"sandbox": SETTINGS, **names, **given})


def solving(prompt: Any) -> str:
    return CURRICULUM.task("write-word/0").gold[0] if len(prompt.messages) == 1 else "A title"


@pytest.fixture
def gateway() -> Iterator[RunningServer]:
    with serving(ScriptedPolicy(solving), ledger=MemoryLedger(), own_keys={KEY: USER}) as server:
        yield server


def own_agent(tmp_path: Path, script: str = AGENT) -> OwnAgent:
    (tmp_path / "agent.py").write_text(script)
    return OwnAgent.read(f"/usr/bin/python3 {tmp_path}/agent.py {{instruction}}")


def plan_of(*tasks: str, **given: Any) -> PlayPlan:
    named = {"id": "plan-1", "agent": "own", "env": "terminal", "split": "train", "rollouts": 1}
    return PlayPlan(**{**named, "tasks": tasks, **given})


@asynccontextmanager
async def playing(
    gateway: RunningServer, agent: OwnAgent, payments: Any = None, admit: Any = None, **given: Any
) -> AsyncIterator[AgentPlayer]:
    async def admitted(task: str) -> None:
        return None

    settings = PlaySettings(
        root=gateway.url,
        key=KEY,
        command=lambda text, _: agent.command(SERVER, text, path="/usr/bin/python3", more=()),
        search=(),
        **{"parallel": 2, "seconds": 30.0, "max_calls": 9, "retries": 1, "temperature": None, "seed": 0, **given},
    )
    async with ApiClient(f"{gateway.url}/v1", key=KEY) as client:
        yield AgentPlayer(make_env, payments or client, settings, serve=serving_at, admit=admit or admitted)


# --- a real script plays


@needs_sandbox
async def test_a_script_plays_in_the_sandbox_and_its_calls_are_turns_of_one_session_that_is_paid(
    gateway: RunningServer, tmp_path: Path
) -> None:
    async with playing(gateway, own_agent(tmp_path), temperature=0.7) as player:
        with PlayJournal.begin(tmp_path / "plays", plan_of("write-word/0")) as journal:
            [played] = await player.play(journal)
    assert (played.outcome, played.paid, played.calls, played.exit, played.error) == (1.0, True, 2, 0, "")
    assert played.output == "paying myself: 404 404\nkeys: []\n", "it can neither pay itself nor read the key"
    turns = list(gateway.ledger.turns.values())
    assert {(turn.session, turn.user, turn.group) for turn in turns} == {(played.session, USER, "plan-1-write-word/0")}
    assert [turn.completion.sampling.temperature for turn in turns] == [0.7, 0.7], "not the program's own 0"
    assert all(len(turn.completion.reply_tokens) == len(turn.completion.logprobs) > 0 for turn in turns)
    [reward] = gateway.ledger.rewards
    assert (reward.session, reward.user, reward.score) == (played.session, USER, 1.0)
    assert gateway.ledger.endings == [(played.session, USER)]


@needs_sandbox
async def test_held_out_tasks_are_played_for_their_score_alone(gateway: RunningServer, tmp_path: Path) -> None:
    async with playing(gateway, own_agent(tmp_path)) as player:
        with PlayJournal.begin(tmp_path / "plays", plan_of("write-word/0", split="held-out")) as journal:
            [played] = await player.play(journal)
    assert (played.outcome, played.paid) == (1.0, False)
    assert gateway.ledger.rewards == []
    assert [turn.trainable for turn in gateway.ledger.turns.values()] == [False, False]


@needs_sandbox
async def test_a_program_that_never_calls_is_no_fault_of_the_policys_and_ends_the_play(
    gateway: RunningServer, tmp_path: Path
) -> None:
    tasks = [f"write-word/{number}" for number in range(9)]
    async with playing(gateway, own_agent(tmp_path, "print('no module named fly'); exit(3)")) as player:
        with PlayJournal.begin(tmp_path / "plays", plan_of(*tasks)) as journal:
            said: list[PlayedEpisode] = []
            with pytest.raises(OpenClawError, match="the last 4 episodes all failed"):
                await player.play(journal, report=said.append)
    assert said[0].error == "the agent made no call of the model (exit code 3); output: no module named fly"
    assert said[0].outcome is None
    assert len(journal.done) == 0
    assert journal.unsettled == []


@needs_sandbox
async def test_calls_beyond_the_budget_stop_the_program_and_the_checker_says_what_it_has_done(
    gateway: RunningServer, tmp_path: Path
) -> None:
    async with playing(gateway, own_agent(tmp_path, AGENT + "\nwhile True: ask(task)"), max_calls=3) as player:
        with PlayJournal.begin(tmp_path / "plays", plan_of("write-word/0")) as journal:
            [played] = await player.play(journal)
    assert (played.outcome, played.calls, played.exit, played.stopped) == (1.0, 3, None, "stopped after 3 calls")
    assert played.paid


@needs_sandbox
async def test_a_reply_that_breaks_off_is_the_machines_fault_and_the_episode_is_played_again(
    gateway: RunningServer, tmp_path: Path
) -> None:
    gateway.policy.break_after, gateway.policy.breaks = 2, 1
    async with playing(gateway, own_agent(tmp_path)) as player:
        with PlayJournal.begin(tmp_path / "plays", plan_of("write-word/0")) as journal:
            [played] = await player.play(journal)
    assert played.outcome == 1.0
    assert [(reward.score, bool(reward.failed)) for reward in gateway.ledger.rewards] in (
        [(None, True), (1.0, False)],
        [(1.0, False)],
    ), "a session that failed is told so, if a turn of it was kept; one is paid"
    assert len({reward.session for reward in gateway.ledger.rewards}) == len(gateway.ledger.rewards)


@needs_sandbox
async def test_a_task_that_cannot_be_played_is_left_out_and_the_others_go_on(
    gateway: RunningServer, tmp_path: Path
) -> None:
    async def admit(task: str) -> None:
        if task != "write-word/0":
            raise TaskRefused(f"task {task} is not admitted")

    async with playing(gateway, own_agent(tmp_path), admit=admit) as player:
        tasks = [f"write-word/{number}" for number in range(7, 0, -1)]
        with PlayJournal.begin(tmp_path / "plays", plan_of(*tasks, "write-word/0")) as journal:
            over = await player.play(journal)
    assert [played.outcome for played in over if not played.refused] == [1.0]
    assert {played.error for played in over if played.refused} == {f"task {task} is not admitted" for task in tasks}
    assert len(over) == 8, "none is tried again"


# --- the way to the gateway


@asynccontextmanager
async def forwarded(root: str, **given: Any) -> AsyncIterator[tuple[GatewayForwarder, httpx2.AsyncClient]]:
    named = {"headers": {"x-session-id": "ours"}, "max_calls": 5, "temperature": None}
    async with httpx2.AsyncClient(timeout=10) as upstream:
        forwarder = GatewayForwarder(upstream, root=root, **{**named, **given})
        listener = bind("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with serving_at(forwarder.app(), listener), httpx2.AsyncClient(base_url=url, timeout=10) as client:
            yield forwarder, client


async def test_streams_pass_piece_by_piece_and_in_every_format(gateway: RunningServer) -> None:
    headers = {"x-session-id": "ours", "authorization": f"Bearer {KEY}"}
    async with forwarded(gateway.url, headers=headers) as (forwarder, client):
        talk = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
        streamed = await client.post("/v1/chat/completions", json={**talk, "stream": True})
        assert streamed.text.count("data: ") > 10
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert (await client.post("/v1/messages?beta=true", json=talk)).json()["type"] == "message"
        assert (await client.post("/v1/responses", json={"model": "toy", "input": "hi"})).json()["object"] == "response"
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "toy"
        assert (await client.post("/v1/messages/count_tokens", json=talk)).status_code == 200
    assert forwarder.calls == 3, "who looks asks for no reply"
    assert {turn.session for turn in gateway.ledger.turns.values()} == {"ours"}


async def test_only_calls_of_the_model_pass(gateway: RunningServer) -> None:
    async with forwarded(gateway.url, headers={"authorization": f"Bearer {KEY}"}) as (_, client):
        for path in ("/v1/sessions/ours/reward", "/v1/sessions/ours/end", "/v1/feedback", "/v1/notes", "/metrics"):
            answer = await client.post(path, json={"score": 1})
            assert answer.status_code == 404
            assert "is not open to an agent program" in answer.json()["error"]["message"]
        for path in ("/v1/chat/../sessions/ours/reward", "/v1/models/../feedback"):
            assert (await client.post(path, json={"score": 1})).status_code in (404, 405)
    assert gateway.ledger.rewards == []


async def test_a_gateway_that_is_away_is_told_apart_from_what_the_policy_did() -> None:
    async with forwarded("http://127.0.0.1:1") as (forwarder, client):
        answer = await client.post("/v1/chat/completions", json={})
        assert answer.status_code == 503
        assert "the gateway cannot be reached: ConnectError" in forwarder.outage


# --- kept, so that a killed player neither forgets nor pays twice


class Payments:
    """A gateway's payments; each of ``answers`` is raised once, in their order."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.paid: list[tuple[str, float | None, str | None]] = []
        self.ended: list[str] = []

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None:
        if self.answers:
            raise self.answers.pop(0)
        self.paid.append((session, score, failed))

    async def end(self, session: str) -> None:
        self.ended.append(session)


@asynccontextmanager
async def paying(*answers: Exception) -> AsyncIterator[tuple[AgentPlayer, Payments]]:
    async def admit(task: str) -> None:
        return None

    settings = PlaySettings(
        root="http://127.0.0.1:1",
        key=None,
        command=lambda text, folder: AgentCommand(words=(), env={}, files={}),
        search=(),
        parallel=1,
        seconds=1,
        max_calls=1,
        retries=0,
        temperature=None,
        seed=0,
    )
    payments = Payments(*answers)
    yield AgentPlayer(make_env, payments, settings, serve=serving_at, admit=admit), payments


async def test_what_a_killed_player_scored_is_paid_once_and_what_it_began_has_failed(tmp_path: Path) -> None:
    journal = PlayJournal.begin(tmp_path, plan_of("a", "b", "c"))
    for session in ("s1", "s2", "s3"):
        journal.begun(session, task=session, number=0)
    journal.scored("s1", 1.0)
    journal.settled("s1")
    journal.scored("s2", -0.5)
    assert list(PlayJournal.taken_over(tmp_path)) == [], "nobody touches what a living player holds"
    journal.close()
    with (tmp_path / "plan-1.jsonl").open("a") as file:
        file.write('{"event": "scored", "session": "s3", "out')  # it was killed in the middle of a line
    for _ in range(2):
        async with paying() as (player, payments):
            [left] = PlayJournal.taken_over(tmp_path)
            with left:
                await player.finish(left)
    assert payments.paid == [], "the second player finds nothing to do"
    async with paying() as (player, payments):
        journal = PlayJournal.begin(tmp_path / "b", plan_of("a", "b"))
        journal.begun("s2", task="a", number=0)
        journal.scored("s2", -0.5)
        journal.begun("s3", task="b", number=0)
        await player.finish(journal)
        assert payments.paid == [("s2", -0.5, None), ("s3", None, "the player was killed")]
        assert payments.ended == ["s2", "s3"]
        journal.close()


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        (RequestError("trained", status=409), []),
        (RequestError("no such session", status=404), []),
        (BackendDown("restarting"), [("s", 0.5, None)]),
    ],
)
async def test_paying_again_is_harmless(
    tmp_path: Path, answer: Exception, paid: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: float) -> None:
        return None

    monkeypatch.setattr(asyncio, "sleep", at_once)
    async with paying(answer) as (player, payments):
        with PlayJournal.begin(tmp_path, plan_of("a")) as journal:
            journal.begun("s", task="a", number=0)
            journal.scored("s", 0.5)
            await player.finish(journal)
            assert journal.unsettled == []
    assert payments.paid == paid


def test_a_play_is_resumed_by_the_same_agent_on_the_same_tasks_and_knows_what_is_done(tmp_path: Path) -> None:
    with PlayJournal.begin(tmp_path, plan_of("a", "b")) as journal:
        journal.begun("s1", task="a", number=0)
        journal.scored("s1", 1.0)
        journal.settled("s1")
    with resumed(tmp_path, plan_of("a", "b", id="plan-2")) as again:
        assert again.plan == plan_of("a", "b"), "its groups keep their names"
        assert again.done == {("a", 0): 1.0}
    with pytest.raises(ConfigError, match="no play of this agent on these tasks to resume"):
        resumed(tmp_path, plan_of("a", "b", agent="codex"))


# --- tasks for programs


def test_tasks_are_chosen_by_level_or_id_and_only_of_the_split_that_is_meant() -> None:
    env = make_env()
    assert isinstance(env, SupportsAgents)
    assert chosen(env, ["copy-file", "sort-file/0"], split="train", count=1) == ["copy-file/0", "sort-file/0"]
    assert len(chosen(env, (), split="train", count=1)) == len(CURRICULUM.levels)
    held = env.held_out()[0]
    assert chosen(env, [held], split="held-out", count=None) == [held]
    with pytest.raises(ConfigError, match=f"--tasks {held}: no such level or task is train; levels: print-word"):
        chosen(env, [held], split="train", count=None)


def test_an_environment_whose_checks_are_not_in_files_offers_programs_nothing() -> None:
    env = toolcall(
        tools_config=None, form="text", examples=0, levels=(), per_level=1, output_chars=100, step_votes=False
    )
    assert not isinstance(env, SupportsAgents)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("level", CURRICULUM.levels)
async def test_on_every_level_a_program_can_do_in_files_what_a_shell_would_print(level: str) -> None:
    env = make_env(levels=(level,))
    task = await env.hand_over(f"{level}/0", seed=0)
    assert await env.outcome() == -1.0
    for command in in_files(CURRICULUM.task(f"{level}/0")).gold:
        await task.sandbox.run(["bash", "-c", command], cwd=task.cwd)
    assert await env.outcome() == 1.0
    await env.close()


@needs_sandbox
async def test_folders_of_this_machine_that_are_shown_are_no_part_of_a_task(tmp_path: Path) -> None:
    """A program that lies below the home of the tasks, and a mask under which new folders are for their owner alone."""
    shown = tmp_path / "tools"
    shown.mkdir()
    (shown / "tool").write_text("x")
    before = os.umask(0o077)
    try:
        sandbox = await open_sandbox(replace(SETTINGS, binds=(str(shown),)))
        assert (await sandbox.run(["cat", f"{shown}/tool"])).output == "x"
        assert not (await sandbox.run(["touch", f"{shown}/new"])).ok
        await sandbox.close()
    finally:
        os.umask(before)
    from openclaw_rl.envs.terminal.tasks import FinalState, Holds

    env = make_env()
    task = await env.hand_over("delete-file/0", seed=0)
    await task.sandbox.run(["sh", "-c", f"{CURRICULUM.task('delete-file/0').gold[0]}; mkdir -p /root/.tools/node"])
    [check] = CURRICULUM.task("delete-file/0").checks
    assert isinstance(check, Holds)
    state = FinalState(sandbox=task.sandbox, printed="")
    assert not await check.met(state)
    assert await check.met(replace(state, shown=("/root/.tools/node", "/root", "/opt")))
    await env.close()


# --- programs


def test_a_program_is_shown_with_what_runs_it(tmp_path: Path) -> None:
    python = tmp_path / "python-3"
    venv = tmp_path / "venv"
    for folder in (python / "bin", venv / "bin"):
        folder.mkdir(parents=True)
    (python / "bin" / "python3").write_bytes(b"\x7fELF")
    (venv / "bin" / "python").symlink_to(python / "bin" / "python3")
    (venv / "pyvenv.cfg").write_text(f"home = {python}/bin\nversion = 3.11\n")
    tool = venv / "bin" / "tool"
    tool.write_text(f"#!{venv}/bin/python\n")
    for file in (tool, python / "bin" / "python3"):
        file.chmod(0o755)
    found = find_program(str(tool), more=[tmp_path / "data"])
    assert set(found.folders) == {str(python), str(venv), str(tmp_path / "data")}
    assert found.search == (str(venv / "bin"),)


def test_a_package_of_npm_is_shown_with_its_modules_and_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "lib" / "node_modules" / "tool" / "bin"
    node = tmp_path / "node"
    for folder in (inside, node, tmp_path / "bin"):
        folder.mkdir(parents=True)
    (inside / "tool.js").write_text("#!/usr/bin/env node\n")
    (node / "node").write_bytes(b"\x7fELF")
    (tmp_path / "bin" / "tool").symlink_to(inside / "tool.js")
    for file in (inside / "tool.js", node / "node"):
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{node}:/usr/bin")
    found = find_program("tool")
    assert set(found.folders) == {str(tmp_path / "bin"), str(tmp_path / "lib" / "node_modules"), str(node)}
    assert found.search == (str(tmp_path / "bin"), str(node))


def test_what_lies_in_usr_is_there_already_and_what_is_missing_is_named_with_its_install_line(tmp_path: Path) -> None:
    assert find_program("/usr/bin/env").folders == ()
    with pytest.raises(ConfigError, match="'mini' is not on this machine; install it: pip install mini-swe-agent; or"):
        find_program("mini", install="pip install mini-swe-agent")


# --- agents


@pytest.mark.parametrize("name", AGENTS)
def test_every_known_agent_is_started_on_the_instruction_against_the_server_of_its_sandbox(name: str) -> None:
    agent = AGENTS[name]
    command = agent.command(SERVER, "Sort a.txt", "/root", path="/opt/it", calls_tools=True, more=("--more",))
    assert command.words[0] == "/opt/it"
    assert command.words[-1] == "--more"
    assert "Sort a.txt" in command.words
    settings = " ".join([*command.env.values(), *command.files.values()])
    assert "http://127.0.0.1:8088" in settings
    assert KEY not in settings
    for path, text in command.files.items():
        assert tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    assert agent.install.split()[0] in ("npm", "pip")


def test_work_beside_the_task_goes_to_the_side_model_where_an_agent_can_be_told() -> None:
    for name in ("claude-code", "opencode", "openclaw"):
        command = AGENTS[name].command(SERVER, "x", "/root", path="x", calls_tools=True, more=())
        assert "toy-side" in " ".join([*command.env.values(), *command.files.values()]), name


def test_openclaw_works_in_the_folder_of_the_task_and_puts_nothing_of_its_own_there() -> None:
    command = AGENTS["openclaw"].command(SERVER, "x", "/app", path="x", calls_tools=True, more=())
    told = json.loads(command.files[".openclaw/openclaw.json"])["agents"]["defaults"]
    assert (told["workspace"], told["skipBootstrap"]) == ("/app", True)


def test_a_model_without_calls_is_asked_for_text_by_an_agent_that_can() -> None:
    words = AGENTS["mini-swe-agent"].command(SERVER, "x", "/root", path="x", calls_tools=False, more=()).words
    assert words[-4:] == ("-c", "mini_textbased.yaml", "--model-class", "litellm_textbased")


def test_an_own_command_takes_its_small_files_along(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "rules.txt").write_bytes(b"be\r\nbrief")
    own = OwnAgent.read(f"{tmp_path}/run.sh --rules {tmp_path}/rules.txt 'do: {{instruction}}'")
    assert own.copied
    command = own.command(SERVER, "sort it", path=f"{tmp_path}/run.sh", more=())
    assert command.words == ("/home/agent/run.sh", "--rules", "/home/agent/rules.txt", "do: sort it")
    assert command.files == {"run.sh": "#!/bin/sh\necho\n", "rules.txt": "be\r\nbrief"}, "line ends as they are"
    assert find_program(own.program, copied=True).folders == (), "a script that goes along needs no folder"


def test_a_command_without_a_place_for_the_task_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        ConfigError, match=r"'claude' is no agent .* known: claude-code, codex, .*write \{instruction\}"
    ):
        OwnAgent.read("claude")
    with pytest.raises(ConfigError, match="quote it as in a shell"):
        OwnAgent.read("sh -c 'echo {instruction}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agent", "fly"], "known: claude-code, codex, opencode, openclaw, mini-swe-agent"),
        (
            ["--agent", "opencode", "--program", "/nowhere/opencode"],
            "install it: npm install -g opencode-ai; or give its path with --program PATH",
        ),
        (["--agent", ECHO, "--tasks", "flying"], "--tasks flying: no such level or task is train; levels: print-word"),
        (["--agent", ECHO, "--api-key-env", "NO_KEY_IN_HERE"], "the environment variable NO_KEY_IN_HERE is not set"),
        (["--agent", ECHO, "--env", "toolcall"], "environment toolcall has no tasks for agent programs"),
    ],
)
def test_a_command_line_that_cannot_work_says_what_to_do(tmp_path: Path, words: list[str], said: str) -> None:
    address.write(tmp_path, ServerAddress.of("127.0.0.1", 1, model="toy"))
    done = CliRunner().invoke(cli, ["play", "--run-dir", str(tmp_path), *words])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)


def test_without_a_server_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["play", "--run-dir", str(tmp_path), "--agent", ECHO])
    assert str(done.exception) == "no server runs in this run directory; start 'openclaw-rl up', or give --url"
