"""`openclaw-rl new`: what it writes works as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from openclaw_rl.app import checks
from openclaw_rl.cli import cli
from openclaw_rl.cli.settings import KINDS
from openclaw_rl.config import load
from openclaw_rl.errors import ConfigError

FILES = {"method": "custom_loss.py", "judge": "custom_rm.py", "env": "custom_env.py", "rollout": "custom_rollout.py"}
SETTINGS = {"method": "train.loss.custom", "judge": "judge.custom", "env": "env.type", "rollout": "train.rollout"}


def new(kind: str, name: str) -> str:
    return CliRunner().invoke(cli, ["new", kind, name], catch_exceptions=False, standalone_mode=False).output


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_a_readme_the_file_and_a_test_into_the_working_directory(
    tmp_path: Path, monkeypatch: Any, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = new(kind, "my-first")
    found = sorted(file.name for file in (tmp_path / "my-first").iterdir())
    script = ["run.sh"] if kind == "method" else []
    assert found == sorted(["README.md", FILES[kind], "test_my_first.py", *script])
    assert said.splitlines()[-1] == "try it: cd my-first && pytest; README.md says how to run it"
    text = "".join(file.read_text() for file in (tmp_path / "my-first").iterdir())
    assert "@" not in text.replace("${BASH_SOURCE[0]}", "").replace("$@", "").replace("@pytest", "")
    assert kind != "env" or "class MyFirst:" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_own_test_passes_and_the_file_is_taken_bare(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "deep" / "my_first"
    new(kind, str(folder))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    config = load(environ={}, sets=[f"{SETTINGS[kind]}={folder / FILES[kind]}"]).config
    check = {"method": checks.trainer, "judge": checks.judge}.get(kind, checks.environment)
    assert list(checks.faults(config, [check])) == []


@pytest.mark.slow
def test_the_launch_script_of_a_method_hands_its_flags_on_from_anywhere(tmp_path: Path) -> None:
    new("method", str(tmp_path / "my_method"))
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "openclaw-rl"  # stands for the installed one: the settings that `up` would run with
    command.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -m openclaw_rl config "$@"\n')
    command.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MODEL_PATH": "/models/mine"}
    done = subprocess.run(
        ["bash", "my_method/run.sh", "--lr", "1e-5"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    rows = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if not line.startswith("#")}
    assert rows["train.loss.custom"] == f'"{tmp_path}/my_method/custom_loss.py"', done.stderr
    assert (rows["train.optim.lr"], rows["policy.model"]) == ("1e-05", '"/models/mine"')


def test_nothing_is_written_over_and_a_bad_name_is_refused(tmp_path: Path) -> None:
    new("judge", str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match="mine is there already; give another name"):
        new("env", str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match="'1st' is no name for a judge; begin with a letter"):
        new("judge", str(tmp_path / "1st"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
