"""The commands a person types, as a person types them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest
from click.testing import CliRunner

from openclaw_rl.cli import GROUPS, cli, main
from openclaw_rl.config import FLAGS
from openclaw_rl.store import CollectLedger, JudgeLedger, LedgerReader, ServeLedger, TrainLedger
from openclaw_rl.testing import make_outcome, make_turn, make_verdict
from openclaw_rl.types import Drop, Feedback, Hint, Step, Version

FAKES = (
    "--set",
    "policy.backend=fake",
    "--set",
    "policy.model=fake",
    "--set",
    "train.backend=fake",
    "--set",
    "judge.kind=rules",
)


@dataclass(frozen=True)
class Done:
    """What a command wrote."""

    stdout: str
    stderr: str


def run(*words: str, cwd: Path | None = None, code: int = 0, **environ: str) -> Done:
    """A command as a person types it, with the environment and the folder given, in this process."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPENCLAW", "MODEL_PATH"))}
    out, err, mask = io.StringIO(), io.StringIO(), os.umask(0o022)
    with (
        patch.dict(os.environ, {**clean, **environ}, clear=True),
        patch.object(sys, "argv", ["openclaw-rl", *words]),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    os.umask(mask)
    assert (ended.value.code or 0) == code, (ended.value.code, out.getvalue(), err.getvalue())
    return Done(stdout=out.getvalue(), stderr=err.getvalue())


def read(*words: str, **more: Any) -> Any:
    return json.loads(run(*words, "--json", **more).stdout)


@pytest.fixture
def told(tmp_path: Path) -> tuple[Path, str]:
    """A run with one trained turn and one dropped; its directory and the trained turn."""
    path = tmp_path / "ledger.db"
    serve, collect, judge, train = (
        ServeLedger(path, sync="normal"),
        CollectLedger(path),
        JudgeLedger(path),
        TrainLedger(path, sync="normal"),
    )
    turn, other = make_turn("Tell me"), make_turn("Title?")
    for one in (turn, other):
        serve.add_turn(one)
    serve.add_feedback(Feedback(turn=turn.id, score=-1.0))
    collect.settle([make_outcome(turn), make_outcome(other, kind="side", index=1)], [], turns_read=2)
    judge.add_verdicts(
        [
            make_verdict(turn, -1.0, source="explicit", hints=(Hint(text="Be brief, please."),)),
            make_verdict(other, None),
        ]
    )
    train.add_version(Version(number=0, parent=None, base="fake", state="live"))
    train.add_step(
        Step(number=1, turns=(turn.id,), metrics={"loss": 0.5}, seconds=1.5),
        Version(number=1, parent=0, base="fake", adapter=str(tmp_path / "v1"), step=1),
    )
    train.set_state(1, "live", "promoted: newest step")
    train.add_drops([Drop(turn=other.id, stage="train", reason="side turn")])
    for ledger in (serve, collect, judge, train):
        ledger.close()
    return tmp_path, turn.id


def test_help_names_every_command() -> None:
    text = run("--help").stdout
    for command in [
        "up",
        "init",
        "config",
        "serve",
        "collect",
        "judge",
        "train",
        "status",
        "show",
        "import",
        "export",
        "rollback",
        "plugins",
        "doctor",
    ]:
        assert f"\n  {command} " in text, command
        assert run(command, "--help").stdout.startswith("Usage: openclaw-rl")


def test_show_turn_gives_the_promised_fields(told: tuple[Path, str]) -> None:
    root, turn = told
    shown = read("show", "turn", turn, "--rl-buffer-dir", str(root))
    promised = {"id", "session", "user", "kind", "kind_reason", "next_state", "verdict", "dropped", "version", "step"}
    assert promised <= shown.keys()
    assert set(shown["verdict"]) >= {"score", "source", "votes", "hints", "note"}
    assert shown["verdict"]["hints"] == [
        {"text": "Be brief, please.", "kind": "rule", "vague": False, "reach": "standing"}
    ]
    assert (shown["id"], shown["session"], shown["kind"], shown["step"]) == (turn, "s", "main", 1)
    assert read("show", "turn", f"resp_{turn}", "--rl-buffer-dir", str(root))["id"] == turn
    assert "Be brief, please." in run("show", "turn", turn, "--rl-buffer-dir", str(root)).stdout


def test_session_step_version_and_status_are_shown(told: tuple[Path, str]) -> None:
    root, turn = told
    where = ("--rl-buffer-dir", str(root))
    assert read("show", "session", "s", *where)["turns"][0]["id"] == turn
    step = read("show", "step", "1", *where)
    assert (step["turns"], step["metrics"], step["version"]) == ([turn], {"loss": 0.5}, 1)
    version = read("show", "version", "1", *where)
    assert (version["state"], version["parent"], [h["state"] for h in version["history"]]) == (
        "live",
        0,
        ["candidate", "live"],
    )
    status = read("status", *where)
    assert (status["live"], status["turns"]["trained"], status["turns"]["dropped"]) == (1, 1, {"side turn": 1})
    assert "1 trained" in run("status", *where).stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "turn", "nope"), 3, "there is no turn 'nope' in the ledger"),
        (("show", "version", "9"), 3, "there is no version '9'"),
        (("show", "session", "nope"), 3, "no session 'nope'"),
        (("rollback", "9"), 3, "there is no version '9'"),
        (("status", "--set", "serve.prot=1"), 2, "serve.port"),
        (("up", "--port", "99999"), 2, "serve.port = 99999 (flag --port): must be a whole number from 0 to 65535"),
        (("up", *FAKES, "--set", "policy.backend=fkae"), 2, "no policy called 'fkae' (did you mean 'fake'?)"),
        (("up", *FAKES, "--host", "0.0.0.0"), 2, "reachable from outside and there is no key; set OPENCLAW_API_KEY"),
        (("frobnicate",), 2, "No such command"),
    ],
)
def test_what_is_wrong_is_said_with_its_exit_code(
    told: tuple[Path, str], words: tuple[str, ...], code: int, said: str
) -> None:
    where = () if words == ("frobnicate",) else ("--rl-buffer-dir", str(told[0]))
    done = run(*words, *where, code=code)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_is_not_there_says_how_to_begin(tmp_path: Path) -> None:
    done = run("status", "--rl-buffer-dir", str(tmp_path / "none"), code=3)
    assert "there is no ledger" in done.stderr
    assert not (tmp_path / "none").exists()


def test_init_writes_a_file_that_loads_and_never_over_another(tmp_path: Path) -> None:
    run("init", cwd=tmp_path)
    assert "openclaw-rl.toml is there already" in run("init", cwd=tmp_path, code=2).stderr
    assert read("config", cwd=tmp_path)["sources"]["serve.port"] == "default"


def test_config_names_the_source_of_each_value_and_shows_no_secret(tmp_path: Path) -> None:
    (tmp_path / "openclaw-rl.toml").write_text("[train.optim]\nlr = 0.25\n")
    shown = read("config", "--port", "4000", cwd=tmp_path, OPENCLAW_API_KEY="sk-secret-42", MAJORITY_VOTE_N="5")
    assert shown["sources"]["serve.port"] == "flag --port"
    assert shown["sources"]["train.optim.lr"] == "file openclaw-rl.toml"
    assert shown["sources"]["judge.llm.votes"] == "environment MAJORITY_VOTE_N"
    plain = run("config", cwd=tmp_path, OPENCLAW_API_KEY="sk-secret-42")
    assert "sk-secret-42" not in json.dumps(shown) + plain.stdout + plain.stderr


def test_import_and_export_go_round(tmp_path: Path) -> None:
    talk = {
        "session_id": "s1",
        "turns": [{"type": "main", "prompt": "Hi", "response": "Hello", "next_state": "Thanks!", "trainable": True}],
    }
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps(talk) + "\nnot json\n")
    where = ("--rl-buffer-dir", str(tmp_path / "run"))
    done = run("import", str(file), *where, *FAKES, code=1)
    assert "1 conversations, 1 turns taken, 1 refused" in done.stdout
    assert f"refused {file}:2: not JSON" in done.stderr
    out = run("export", *where)
    assert [json.loads(line) for line in out.stdout.splitlines()] == [talk]
    run("collect", "--once", *where, *FAKES)
    run("judge", "--once", *where, *FAKES)
    [row] = [json.loads(line) for line in run("export", "--training", *where).stdout.splitlines()]
    assert row["score"] == 1.0
    run("train", "--once", *where, *FAKES)
    assert read("status", *where)["turns"]["trained"] == 1, (
        "one sample is less than a batch, and --once waits for no more"
    )


def test_rollback_makes_a_new_version_also_when_nothing_runs(told: tuple[Path, str]) -> None:
    where = ("--rl-buffer-dir", str(told[0]))
    assert "version 2 is live: rollback from 1 to 0" in run("rollback", *where, "--why", "worse").stdout
    assert read("show", "version", "1", *where)["state"] == "rolled back"


def test_plugins_lists_every_kind() -> None:
    rows = read("plugins")
    assert {"fake", "local"} <= {row["name"] for row in rows if row["kind"] == "policy"}
    text = run("plugins").stdout
    for kind in ("policy", "trainer", "judge", "env", "rollout", "generate", "loss"):
        assert f"{kind}\n" in text


def test_doctor_finds_a_taken_port_and_a_damaged_ledger_and_says_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a ledger" * 50)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("doctor", "--json", "--rl-buffer-dir", str(tmp_path), "--port", port, *FAKES, code=1)
    found = {row["check"]: row for row in json.loads(done.stdout)}
    assert set(found) == {
        "python",
        "memory",
        "disk",
        "directory",
        "torch",
        "model",
        "backends",
        "judge",
        "environment",
        "port",
        "keys",
        "ledger",
        "sandbox",
        "engines",
    }
    assert (found["port"]["state"], found["port"]["remedy"]) == ("trouble", "choose another with --port")
    assert found["ledger"]["state"] == "trouble"
    assert "move the file away" in found["ledger"]["remedy"]


class Running:
    """`openclaw-rl` with loops, until it is told to end."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "openclaw_rl", *words], stderr=subprocess.PIPE, text=True
        )

    def until(self, word: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if word in line:
                return line
        raise AssertionError(f"ended with {self.process.wait()} before saying {word!r}")

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=60)
        return self.process.returncode, rest


@pytest.fixture
def begin() -> Iterator[Callable[..., Running]]:
    """Starts the command; whatever a failed test leaves running is killed."""
    begun: list[Running] = []

    def start(*words: str) -> Running:
        begun.append(Running(*words))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()
        one.process.wait()


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
def test_four_processes_share_one_ledger_and_a_second_server_is_refused(
    tmp_path: Path, begin: Callable[..., Running]
) -> None:
    where = ("--rl-buffer-dir", str(tmp_path), *FAKES, "--set", "train.batch_size=1", "--set", "run.poll=0.02")
    server = begin("serve", "--port", "0", *where)
    url = server.until("listening on").split()[-1]
    others = [begin(loop, *where) for loop in ("collect", "judge", "train")]
    for other in others:
        other.until("run directory")
    refused = run("serve", "--port", "0", *where, code=4)
    assert f"process {server.process.pid} on" in refused.stderr

    first = post(
        f"{url}/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "Tell me about tea"}]}
    )
    said = first["choices"][0]["message"]["content"]
    wish = [{"role": "user", "content": "Tell me about tea"}, {"role": "assistant", "content": said}]
    post(
        f"{url}/chat/completions",
        {"model": "fake", "messages": [*wish, {"role": "user", "content": "Please keep it under 30 words."}]},
    )
    for _ in range(3000):
        again = post(
            f"{url}/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "And rain?"}]}
        )
        if again["system_fingerprint"] != "openclaw-rl-v0":
            break
    assert again["system_fingerprint"] == "openclaw-rl-v1"
    states = {row["loop"]: row["state"] for row in read("status", "--rl-buffer-dir", str(tmp_path))["loops"]}
    assert states == dict.fromkeys(("serve", "collect", "judge", "train"), "running")
    assert "version 2 is live" in run("rollback", "--rl-buffer-dir", str(tmp_path)).stdout
    for process in (*others, server):
        code, text = process.end()
        assert code == 0, text
        assert "ended cleanly" in text


@pytest.mark.slow
def test_a_stream_under_way_finishes_when_the_system_is_told_to_end(
    tmp_path: Path, begin: Callable[..., Running]
) -> None:
    slow = (
        "--set",
        "policy.options.tokens_per_second=40",
        "--set",
        "policy.options.reply=one two three four five six seven",
    )
    server = begin("up", "--port", "0", "--rl-buffer-dir", str(tmp_path), *FAKES, *slow)
    url = server.until("listening on").split()[-1]
    body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "count"}]}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        first = answer.readline().decode()
        code_text = server.process.send_signal(signal.SIGTERM)
        raw = first + answer.read().decode()
    assert code_text is None
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    said = "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])
    assert said == "one two three four five six seven"
    assert raw.rstrip().endswith("data: [DONE]")
    server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert ledger.turn(events[0]["id"]).completion.finish == "stop"


def test_judge_explain_shows_the_evidence_and_what_the_judge_alone_would_say(told: tuple[Path, str]) -> None:
    root, turn = told
    story = read("judge", "--explain", turn, "--rl-buffer-dir", str(root), *FAKES)
    assert (story["verdict"]["score"], story["verdict"]["source"]) == (-1.0, "explicit")
    assert story["evidence"][0]["note"] == "a score of -1 was given"
    assert "the judge alone" in story["note"]
    assert "wrote" not in run("judge", "--explain", turn, "--rl-buffer-dir", str(root), *FAKES).stderr


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _commands(below, (*path, name))


@pytest.mark.parametrize("path", list(_commands(cli)), ids=" ".join)
def test_every_help_fits_eighty_columns_and_is_cut_nowhere(path: tuple[str, ...]) -> None:
    lines = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80).output.splitlines()
    assert lines[0].startswith("Usage: ")
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines[1:] if line.endswith("...")] == []


def test_every_command_is_in_one_group_of_the_help() -> None:
    listed = [command.name for group in GROUPS.values() for command in group]
    assert sorted(map(str, listed)) == sorted(name for name, command in cli.commands.items() if not command.hidden)


def _flags_of(*words: str) -> set[str]:
    """The sections of the settings for which a command has flags, from its options."""
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    flags = {option for parameter in command.params for option in parameter.opts}
    return {FLAGS[name].path for name in flags & FLAGS.keys()}


LOOPS = {"run", "serve", "policy", "train", "judge", "env", "gate"}


@pytest.mark.parametrize(
    ("words", "sections"),
    [
        ("up", LOOPS),
        ("train", LOOPS),
        ("doctor", LOOPS),
        ("config", {*LOOPS, "eval"}),
        ("serve", {"run", "serve", "policy", "train", "env"}),
        ("collect", {"run"}),
        ("judge", {"run", "judge", "policy", "train"}),
        ("judge eval", {"run", "judge", "policy", "train"}),
        ("import", {"run", "policy", "train"}),
        ("why", {"run", "policy", "train"}),
        ("compare", {"run", "policy", "train"}),
        ("eval", {"run", "policy", "train", "eval"}),
        ("play", {"run", "env", "policy", "train"}),
        ("envs audit", {"run", "env", "policy"}),
        ("envs run", {"run", "env", "policy", "train"}),
        ("status", {"run"}),
        ("notes list", {"run"}),
    ],
)
def test_a_command_has_flags_for_the_settings_that_it_reads_and_for_no_others(words: str, sections: set[str]) -> None:
    paths = _flags_of(*words.split())
    assert {path.partition(".")[0] for path in paths} == sections
    if "gate" not in sections:
        lora, rollouts = {"train.lora.enabled", "train.lora.rank"}, {"train.rollout", "train.num_rollouts_per_prompt"}
        group = {"train.num_rollouts_per_prompt"}
        assert {path for path in paths if path.startswith("train.")} in (set(), lora, rollouts, group)


def test_a_flag_that_changes_nothing_in_a_command_is_refused_with_its_setting() -> None:
    result = CliRunner().invoke(cli, ["import", "--adam-beta1", "0.9", __file__])
    assert result.exit_code == 2
    assert "--adam-beta1 (train.optim.adam_beta1) changes nothing in 'cli import'" in result.output
    assert "No such option '--adam-beta9'" in CliRunner().invoke(cli, ["import", "--adam-beta9", "1"]).output
