"""Audits, evaluation by level, and the commands: no task trains that is broken or held out."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import refused_env
from click.testing import CliRunner
from refused_env import Refused
from sandboxes import needs_sandbox

from openclaw_rl.app.application import App, ledger_place
from openclaw_rl.app.environments import audit_book, build_env, held_out_tasks
from openclaw_rl.app.factories import running_policy
from openclaw_rl.cli import cli
from openclaw_rl.envs.audit import AuditBook, AuditedEnv, audit_task, near_duplicates
from openclaw_rl.envs.episodes import Episodes, EpisodeSettings
from openclaw_rl.envs.evaluation import play_each
from openclaw_rl.envs.schedule import Curriculum, Episode, GroupBook
from openclaw_rl.errors import ConfigError, EnvFailed, NothingToPlay
from openclaw_rl.evals.suites import ModelReply, by_level, chosen_tasks, lines, play_tasks
from openclaw_rl.ports import GateDecision, Observation, SupportsTaskSets
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import FakeChatClient, FakeEnv, TemporaryLedger, running_app, until
from openclaw_rl.testing.servers import FAKES, fake_config
from openclaw_rl.types import Message, Prompt, Sampling, Version
from openclaw_rl.views.status import status

pytestmark = pytest.mark.anyio


class Spelling(FakeEnv):
    """Say the task's own name. ``rotten`` cannot be solved, ``free`` pays for nothing, ``spare`` is held out."""

    name = "spelling"

    def __init__(self, *, wanted: str = "") -> None:
        super().__init__()
        self.wanted = wanted

    def tasks(self) -> Sequence[str]:
        return ("ant", "bee", "rotten", "free")

    def held_out(self) -> Sequence[str]:
        return ("spare",)

    def level(self, task: str) -> str:
        return "short" if len(task) == 3 else "long"

    def instruction(self, task: str) -> str:
        return f"Say {task}.{self.wanted}"

    def gold(self, task: str) -> Sequence[Message]:
        return (Message(role="assistant", content=task),)

    async def reset(self, task: str, *, seed: int) -> Prompt:
        self.task = task
        return Prompt(messages=(Message(role="user", content=self.instruction(task)),))

    async def step(self, reply: Message) -> Observation:
        if self.task == "lost":
            raise EnvFailed("the machine is gone")
        right = (reply.content == self.task and self.task != "rotten") or self.task == "free"
        return Observation(messages=(), reward=1.0 if right else -1.0, done=True)


async def test_a_task_is_admitted_when_gold_scores_1_and_nothing_scores_nothing() -> None:
    found = {task: (await audit_task(Spelling, task)).fault for task in Spelling().tasks()}
    assert found == {
        "ant": "",
        "bee": "",
        "rotten": "its gold solution scores -1, not 1",
        "free": "doing nothing scores 1, as much as its gold solution",
    }


@pytest.mark.parametrize(("floor", "gold", "admitted"), [(0.0, 1.0, True), (0.3, 1.0, True), (0.0, 0.8, False)])
async def test_an_audit_compares_on_the_scale_that_the_environment_pays_on(
    floor: float, gold: float, admitted: bool
) -> None:
    class Paid(Spelling):
        async def step(self, reply: Message) -> Observation:
            return Observation(messages=(), reward=gold if reply.content == self.task else floor, done=True)

    assert (not (await audit_task(Paid, "ant")).fault) is admitted


async def test_without_a_gold_solution_only_full_marks_for_nothing_are_refused() -> None:
    class Unsolved(Spelling):
        def gold(self, task: str) -> Sequence[Message]:
            return ()

    found = {task: (await audit_task(Unsolved, task)).fault for task in ("ant", "free")}
    assert found == {"ant": "", "free": "doing nothing scores 1, as much as a solution"}


async def test_what_an_audit_found_is_kept_and_a_task_that_changes_is_audited_anew(tmp_path: Path) -> None:
    book = AuditBook(tmp_path / "run" / "audit.jsonl")
    assert book.find(Spelling(), "ant") is None
    first = await book.audited(Spelling, Spelling(), "ant")
    with (tmp_path / "run" / "audit.jsonl").open("a") as file:
        file.write('{"env": "spell')  # a process was killed while it wrote
    again = AuditBook(tmp_path / "run" / "audit.jsonl")
    assert again.find(Spelling(), "ant") == first
    assert again.find(Spelling(wanted=" Please."), "ant") is None


async def test_one_audit_is_enough_for_all_the_episodes_of_a_group(tmp_path: Path) -> None:
    made: list[Spelling] = []

    def make() -> Spelling:
        made.append(Spelling())
        return made[-1]

    book, env = AuditBook(tmp_path / "audit.jsonl"), Spelling()
    await asyncio.gather(*(book.audited(make, env, "ant") for _ in range(8)))
    assert len(made) == 1
    assert made[0].closed == 1


async def test_what_is_broken_or_held_out_never_begins(tmp_path: Path) -> None:
    env = AuditedEnv(Spelling, AuditBook(tmp_path / "audit.jsonl"))
    assert (await env.reset("ant", seed=0)).messages[0].content == "Say ant."
    assert (await env.step(Message(role="assistant", content="ant"))).reward == 1.0
    with pytest.raises(EnvFailed, match="task rotten is not admitted: its gold solution scores -1, not 1"):
        await env.reset("rotten", seed=0)
    with pytest.raises(EnvFailed, match="task spare is held out: it never trains"):
        await env.reset("spare", seed=0)
    assert env.tasks() == ["ant", "bee", "free"], "what is known to be broken is not even offered"


@pytest.mark.parametrize("known", [False, True], ids=["found while it plays", "known before"])
async def test_a_run_none_of_whose_tasks_is_admitted_ends_with_the_remedy(tmp_path: Path, known: bool) -> None:
    config = fake_config(tmp_path, f"env.type={refused_env.__file__}:Refused", "serve.port=0", "env.parallel=2")
    if known:
        for task in Refused().tasks():
            audit_book(config).add(await audit_task(Refused, task))
    app = App(config)
    with pytest.raises(NothingToPlay, match="no tasks that may train; 'openclaw-rl envs audit' shows why"):
        await app.run(asyncio.Event())
    with LedgerReader(ledger_place(config)) as ledger:
        found = status(ledger, starve_after=99)
        assert ledger.counts()["turns"] == 0
    assert any("this environment has no tasks that may train" in alarm for alarm in found["alarms"])


async def test_a_task_that_is_refused_is_played_no_more_and_the_others_go_on(tmp_path: Path) -> None:
    book, ended = AuditBook(tmp_path / "audit.jsonl"), list[Episode]()
    book_of = Curriculum(["rotten", "ant", "free"], group_size=2, seed=0, book=GroupBook(), resting=False)
    episodes = Episodes(
        lambda: AuditedEnv(Spelling, book),
        FakeChatClient(),
        EpisodeSettings(parallel=2, max_steps=2),
        behind=lambda: len(ended) > 12,
        schedule=lambda tasks: book_of,
        report=ended.append,
    )
    while await episodes.tick():
        pass
    assert {episode.task for episode in ended[-4:]} == {"ant"}
    assert sum(episode.refused for episode in ended) == 4, "two tasks, a group of two each"
    [alarm] = (await episodes.status())["alarms"]
    assert alarm["what"].startswith("2 tasks are not admitted and no longer played, for example rotten: ")


async def test_an_environment_without_task_sets_is_played_as_it_is(tmp_path: Path) -> None:
    env = AuditedEnv(FakeEnv, AuditBook(tmp_path / "audit.jsonl"))
    assert list(env.tasks()) == ["a", "b"]
    assert (await env.reset("a", seed=3)).messages[0].content == "a from 2 with 3"


def test_instructions_that_differ_by_a_word_of_many_are_near_duplicates() -> None:
    text = " ".join(f"word{number}" for number in range(60))
    assert near_duplicates(["say ant", f"{text} now"], ["say bee", text]) == [(1, 1)]


async def test_success_is_told_by_level_with_intervals_and_failures_apart() -> None:
    async def model(prompt: Prompt, sampling: Sampling) -> ModelReply:
        return ModelReply(text="ant")

    tasks = [*chosen_tasks(Spelling(), split="train", count=1), ("lost", "long")]
    assert tasks == [("ant", "short"), ("rotten", "long"), ("lost", "long")]
    sampling = Sampling(temperature=0.0, max_tokens=8)
    options = {"seeds": (0, 1), "sampling": sampling, "max_steps": 3, "parallel": 2, "done": lambda _: None}
    found = by_level(await play_tasks(model, Spelling, tasks, **options))  # type: ignore[arg-type]
    assert [(level, one["solved"], one["of"], one["failed"]) for level, one in found.items()] == [
        ("short", 2, 2, 0),
        ("long", 0, 2, 2),
        ("all", 2, 4, 2),
    ]
    assert (found["all"]["low"], found["all"]["high"]) == (0.15, 0.85), "Wilson's interval of 2 of 4"
    head, _, row, _ = lines({0.0: found, 1.0: found})
    assert head.split() == ["greedy", "temperature", "1"]
    cell = "   0 of 2      0%  (0% to 66%), 2 failed"
    assert row == f"  long                 {cell:<44}{cell}"


async def test_a_task_whose_environment_raises_anything_costs_itself_alone() -> None:
    class Broken(Spelling):
        async def step(self, reply: Message) -> Observation:
            if self.task == "bee":
                raise BlockingIOError("try again")
            return await super().step(reply)

        async def close(self) -> None:
            raise RuntimeError("cannot be closed")

    async def model(prompt: Prompt, sampling: Sampling) -> Message:
        return Message(role="assistant", content=prompt.messages[-1].content.removeprefix("Say ").rstrip("."))

    sampling = Sampling(temperature=0.0)
    tasks = [("ant", "short"), ("bee", "short")]
    ant, bee = await play_each(model, Broken, tasks, seeds=(0,), sampling=sampling, max_steps=3, parallel=2)
    assert ant.solved
    assert (bee.outcome, bee.error) == (None, "BlockingIOError: try again")


async def test_a_model_that_fails_is_no_failure_of_the_environment() -> None:
    async def model(prompt: Prompt, sampling: Sampling) -> Message:
        raise ConnectionError("the engine is away")

    with pytest.raises(ConnectionError, match="the engine is away"):
        await play_each(model, Spelling, [("ant", "short")], seeds=(0,), sampling=Sampling(), max_steps=3, parallel=1)


async def test_every_reply_is_drawn_by_itself_and_the_same_again() -> None:
    class Twice(Spelling):
        async def step(self, reply: Message) -> Observation:
            return Observation(messages=(), reward=None, done=False)

    async def drawn(seed: int) -> list[int | None]:
        seeds: list[int | None] = []

        async def model(prompt: Prompt, sampling: Sampling) -> Message:
            seeds.append(sampling.seed)
            return Message(role="assistant", content="")

        tasks = [("ant", "short"), ("bee", "short")]
        await play_each(model, Twice, tasks, seeds=(seed,), sampling=Sampling(), max_steps=2, parallel=1)
        return seeds

    first, again, other = [await drawn(seed) for seed in (0, 0, 1)]
    assert first == again
    assert len({*first, *other}) == 8


def typed(tmp_path: Path, *words: str) -> str:
    sets = [word for one in (*FAKES, "env.per_level=2") for word in ("--set", one)]
    done = CliRunner().invoke(cli, ["envs", *words, "--run-dir", str(tmp_path / "run"), *sets], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_list_audit_and_evaluate_an_environment(tmp_path: Path) -> None:
    one = ("--env", "toolcall", "--set", 'env.levels=["timer", "sums"]')
    assert "  timer                    2 train,     1 held out, 0 audited" in typed(tmp_path, "list", *one)
    assert "toolcall: 6 of 6 tasks admitted (4 train, 2 held out)" in typed(tmp_path, "audit", *one)
    listed = json.loads(typed(tmp_path, "list", "--json", *one))
    assert [level["audited"] for level in listed["levels"].values()] == [3, 3]
    shown = typed(tmp_path, "list", "--task", listed["levels"]["timer"]["train"][0], "--set", "env.form=text", *one)
    assert shown.count("set_timer(minutes=") == 3, "two solved tasks, and the gold solution of this one"
    said = typed(tmp_path, "eval", "--model-path", "fake", "--json", str(tmp_path / "found.json"), *one)
    assert re.search(r"^ +greedy +temperature 1$", said, flags=re.MULTILINE)
    assert said.count("0 of 2      0%") == 2, "all, at each temperature"
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["temperatures"]) == ["0", "1"]
    assert [episode["temperature"] for episode in found["episodes"]] == [0.0, 0.0, 1.0, 1.0]
    alone = typed(tmp_path, "eval", "--model-path", "fake", "--temperature", "0", *one)
    assert ("greedy" in alone, "temperature 1" in alone) == (True, False)


_BROKEN = """
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt


class Broken:
    name = "broken"

    def tasks(self):
        return ["one"]

    async def reset(self, task, *, seed):
        return Prompt(messages=(Message(role="user", content="Go."),))

    async def step(self, reply):
        raise ValueError("the disk of the environment\\nis full")

    async def close(self):
        raise RuntimeError("nothing to close")
"""


def test_an_environment_that_raises_costs_a_line_on_the_terminal_and_a_traceback_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(_BROKEN)
    command = [sys.executable, "-m", "openclaw_rl", "envs", "eval", "--model-path", "fake", "--split", "train"]
    command += ["--env", f"{tmp_path}/broken.py:Broken", "--run-dir", str(tmp_path / "run"), "--temperature", "0"]
    sets = [word for one in FAKES for word in ("--set", one)]
    done = subprocess.run([*command, *sets], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    log = tmp_path / "run" / "logs" / "envs.log"
    played, closed = sorted(
        (line for line in done.stderr.splitlines() if "task=one" in line), key=lambda line: "closed" in line
    )
    assert closed.endswith(
        f"environment not closed task=one: RuntimeError: nothing to close; its traceback is in {log}"
    )
    why = "ValueError: the disk of the environment is full"
    assert played.endswith(f"episode failed task=one: {why}; its traceback is in {log}")
    assert f"  failed: {why}\n" in done.stdout
    text = log.read_text()
    assert text.count("Traceback (most recent call last):") == 2
    assert f'File "{tmp_path}/broken.py", line' in text


def test_the_status_of_a_run_has_the_greedy_share_before_the_sampled_ones(tmp_path: Path) -> None:
    success = {"timer": {"solved": 4, "of": 8, "groups": 2}}
    checks = [{"name": "tasks", "ok": True, "detail": "", "numbers": {"live": 12, "candidate": 14, "tasks": 16}}]
    decided = GateDecision(version=1, against=0, decision="promote", reason="", evidence={"checks": checks})
    (tmp_path / "run").mkdir()
    with TemporaryLedger(tmp_path / "run") as ledger:
        ledger.serve.report("episodes", state="running", moved=1, failures=0, detail={"played": 8, "success": success})
        ledger.train.add_gate_decision(decided)
    _, greedy, sampled = typed(tmp_path, "status").splitlines()
    assert greedy == "  greedily 88% of 16 held-out tasks, version 1; as sampled:"
    assert sampled.split()[:2] == ["timer", "50%"]


def test_an_audit_takes_so_many_tasks_of_the_levels_that_are_named(tmp_path: Path) -> None:
    three = ("--env", "toolcall", "--set", 'env.levels=["timer", "sums", "light"]')
    said = typed(tmp_path, "audit", "--count", "1", "--level", "timer", "--level", "light", *three)
    assert "toolcall: 4 of 4 tasks admitted (2 train, 2 held out)" in said
    assert "light                    2 train,     1 held out, 2 audited" in typed(tmp_path, "list", *three)
    assert "sums                     2 train,     1 held out, 0 audited" in typed(tmp_path, "list", *three)
    with pytest.raises(ConfigError, match="no level 'tmer' in this environment; did you mean timer"):
        typed(tmp_path, "audit", "--level", "tmer", *three)


@needs_sandbox
@pytest.mark.slow
async def test_a_run_learns_from_a_terminal_and_only_from_tasks_that_passed_their_audit(tmp_path: Path) -> None:
    reply = "```bash\\necho canyon\\n```"
    sets = ("env.type=terminal", 'env.levels=["print-word"]', "env.per_level=2", "env.form=text", "env.parallel=2")
    more = ("train.num_rollouts_per_prompt=1", "train.batch_size=2", f'policy.options={{reply="{reply}"}}')
    async with running_app(tmp_path / "run", *sets, *more) as run:
        await until(lambda: run.ledger.counts()["trained"] >= 4)
    audits = [json.loads(line) for line in (tmp_path / "run" / "envs-audit.jsonl").read_text().splitlines()]
    assert {(audit["gold"], audit["nothing"]) for audit in audits} == {(1.0, -1.0)}


async def test_the_gate_has_versions_play_tasks_that_never_train(tmp_path: Path) -> None:
    config = fake_config(tmp_path, "env.type=toolcall", 'env.levels=["timer", "sums", "light"]', "gate.tasks=4")
    tasks = held_out_tasks(config)
    assert tasks is not None
    version = Version(number=0, parent=None, base="fake")
    async with running_policy(config) as policy:
        found = await tasks.solved(policy, version)
        assert await tasks.solved(policy, version) is found, "the live version is asked once"
    env = build_env(config)
    assert isinstance(env, SupportsTaskSets)
    assert set(found) <= set(env.held_out())
    assert sorted(env.level(task) for task in found) == ["light", "light", "sums", "timer"]
    assert not any(found.values()), "the fake policy calls nothing"
    assert held_out_tasks(fake_config(tmp_path, "env.type=toolcall", "gate.tasks=0")) is None
