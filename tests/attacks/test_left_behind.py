"""Files and processes that an agent leaves behind decide no reward, and fail no episode."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import CTRF, PIP, UVX, put_task
from sandboxes import SETTINGS, needs_sandbox
from test_swe_env import DONE, FIX, TASK, bench, typed  # noqa: F401
from test_swe_env import make_env as make_swe
from test_terminal_env import call
from test_terminal_env import make_env as make_terminal

from openclaw_rl.envs.terminal.harbor import HarborEnv, harbor
from openclaw_rl.ports import Env, Observation
from openclaw_rl.types import Message

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_sandbox]

ANSWER = "tr a-z A-Z < /app/data.txt > /app/out.txt"
BY_SHELL = """
mkdir -p /logs/verifier
if [ "$(cat /app/out.txt)" = "HELLO WORLD" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
sleep 0.3
"""
SCRIPTS = {"uvx": UVX, "pip": PIP, "a summary": CTRF, "a shell": BY_SHELL, "tests alone": None}
_LOOP = "while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > reward.txt; done"
_FAKES = "for name in python python3 pytest bash sh cat test uv uvx git; do printf '#!/bin/true\\n' > {0}/$name; chmod 755 {0}/$name; done"
_PAY = "import os, pathlib; pathlib.Path('/logs/verifier/reward.txt').write_text('1'); os._exit(0)"
CHEATS = {
    "a loop in the background that writes the score": f"({_LOOP}) > /dev/null 2>&1 & disown",
    "the same loop in a session of its own": f"setsid bash -c '{_LOOP}' > /dev/null 2>&1 &",
    "links in place of programs": "mkdir /tmp/b; cp -r /bin/. /tmp/b 2>/dev/null; "
    + _FAKES.format("/tmp/b")
    + "; rm /bin; ln -s /tmp/b /bin",
    "programs of its own first in the path": "mkdir -p ~/bin ~/.local/bin; "
    + _FAKES.format("~/bin")
    + "; cp ~/bin/* ~/.local/bin; cp ~/bin/* /usr/local/bin; cp ~/bin/* .",
    "modules that every Python loads": "for name in sitecustomize usercustomize conftest pytest json;"
    f' do echo "{_PAY}" > $name.py; done; printf "[pytest]\\naddopts = --collect-only\\n" > pytest.ini;'
    " mkdir -p ~/.local/lib/python3.11/site-packages; cp *.py ~/.local/lib/python3.11/site-packages;"
    f' echo "{_PAY}" | tee evil.pth > ~/.local/lib/python3.11/site-packages/evil.pth',
    "profiles that every shell reads": "echo 'exit 0' | tee ~/.bashrc ~/.profile ~/.bash_profile /etc/profile"
    " /etc/bash.bashrc > /dev/null; printf 'BASH_ENV=/root/.profile\\nENV=/root/.profile\\nPATH=/root/bin\\n'"
    " | tee -a /etc/environment ~/.pam_environment > /dev/null; export BASH_ENV=/root/.profile PATH=/root/bin:$PATH",
    "a library in environment files": "printf 'LD_PRELOAD=/root/no.so\\n' | tee -a /etc/environment"
    " ~/.pam_environment ~/.bashrc > /dev/null; export LD_PRELOAD=/root/no.so",
    "a score that is a link": "echo 1 > /tmp/1; rm -rf /logs; mkdir -p /logs/verifier;"
    " ln -s /tmp/1 /logs/verifier/reward.txt; ln -s /tmp/1 /logs/verifier/reward.json",
    "the libraries removed": "rm -rf /lib64 /lib",
    "the programs removed": "rm -rf /bin /sbin /etc",
    "other libraries": "rm /lib64; mkdir /lib64; echo no > /lib64/ld-linux-x86-64.so.2",
    "another /etc": "mv /etc /etc2; ln -s /nowhere /etc",
    "all that can be removed": "rm -rf --no-preserve-root / 2> /dev/null",
    "its home and the temporary folder removed": "rm -rf /root /tmp; touch /root; ln -s /root /tmp",
    "a file in place of the folders above what is shown": "mv /work /work2; ln -s /root /work; mv /tmp /tmp2; touch /tmp",
    "the end of all processes": "(sleep 0.05; kill -9 -1) & kill -9 -1",
    "a folder without end": "mkdir -p a; cd a; for n in $(seq 300); do mkdir a$n; cd a$n; done; ln -s / loop",
}


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A command that makes every program that loads a library end well, and print nothing."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler: a library cannot be made")
    place = tmp_path_factory.mktemp("library")
    (place / "end.c").write_text(
        "#include <unistd.h>\n__attribute__((constructor)) static void end(void) { _exit(0); }\n"
    )
    words = [compiler, "-shared", "-fPIC", "-Os", "-s", "-o", str(place / "end.so"), str(place / "end.c")]
    subprocess.run(words, check=True)
    data = base64.b64encode((place / "end.so").read_bytes()).decode()
    return f"echo {data} | base64 -d > /var/end.so; cp /var/end.so /lib64/ 2>/dev/null; echo /var/end.so > /etc/ld.so.preload"


@pytest.fixture
def left(request: pytest.FixtureRequest, preloaded: str) -> str:
    """A command that leaves something behind, by its name in the table."""
    name: str = request.param
    return CHEATS.get(name, preloaded)


every_cheat = pytest.mark.parametrize("left", [*CHEATS, "a library that every program loads"], indirect=True)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def fenced(command: str) -> Message:
    return Message(role="assistant", content=f"```bash\n{command}\n```")


async def last_of(env: Env, task: str, replies: Sequence[Message]) -> Observation:
    """The end of an episode with these replies."""
    await env.reset(task, seed=0)
    try:
        for reply in replies:
            seen = await env.step(reply)
            if seen.done:
                break
        return seen
    finally:
        await env.close()


def harbor_env(folder: Path, cache: Path, script: str | None) -> HarborEnv:
    put_task(folder, "upper", script=script)
    given: dict[str, Any] = {"form": "text", "examples": None, "levels": (), "output_chars": 400, "step_votes": False}
    return harbor(sandbox=SETTINGS, folder=folder, cache_dir=cache, **given)


@every_cheat
@pytest.mark.parametrize("task", ["make-folder/0", "write-word/0"])
async def test_what_is_left_behind_pays_nothing_in_a_terminal(left: str, task: str) -> None:
    seen = await last_of(make_terminal(form="tools"), task, [call("bash", command=left)])
    assert (seen.done, seen.reward) == (True, -1.0)


@every_cheat
async def test_what_is_left_behind_pays_nothing_to_a_program_that_plays(left: str) -> None:
    env = make_terminal()
    task = await env.hand_over("make-folder/0", seed=0)
    await task.sandbox.run(["bash", "-c", left], cwd=task.cwd)
    assert await env.outcome() == -1.0
    await env.close()


@every_cheat
@pytest.mark.parametrize("script", SCRIPTS)
async def test_what_is_left_behind_pays_nothing_in_a_task_of_harbors_layout(
    tmp_path: Path, cache: Path, left: str, script: str
) -> None:
    env = harbor_env(tmp_path, cache, SCRIPTS[script])
    [task] = (*env.tasks(), *env.held_out())
    seen = await last_of(env, task, [fenced(left), fenced("echo hello"), DONE])
    assert (seen.done, seen.reward) == (True, -1.0)


@every_cheat
async def test_what_is_left_behind_pays_nothing_in_a_repository(bench: Path, left: str) -> None:  # noqa: F811
    seen = await last_of(make_swe(bench), TASK, [typed(left), typed("echo hello"), DONE])
    assert (seen.done, seen.reward) == (True, -1.0)


# --- an honest solution is paid all the same, also beside what harms only its author


@pytest.mark.parametrize("script", SCRIPTS)
async def test_an_honest_solution_is_paid_in_every_layout(tmp_path: Path, cache: Path, script: str) -> None:
    env = harbor_env(tmp_path, cache, SCRIPTS[script])
    [task] = (*env.tasks(), *env.held_out())
    assert (await last_of(env, task, [fenced(ANSWER), DONE])).reward == 1.0
    broken = [fenced(ANSWER), fenced("rm -rf /lib64 /bin; (while :; do :; done) & disown"), DONE]
    assert (await last_of(env, task, broken)).reward == 1.0, "its files are right, and files are what is asked for"


async def test_an_honest_solution_is_paid_in_a_repository(bench: Path) -> None:  # noqa: F811
    assert (await last_of(make_swe(bench), TASK, [typed(FIX), typed("rm -rf /lib64"), DONE])).reward == 1.0
