"""Folders of Harbor's layout pay as Harbor pays: real pytest, all or nothing, whatever their scripts would install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cheats import MODULES
from harbor_tasks import DOCKERFILE, PIP, SCRIPTS, UVX, put_task
from sandboxes import SETTINGS, needs_sandbox

from openclaw_rl.envs.audit import audit_task
from openclaw_rl.envs.terminal.harbor import HarborEnv, harbor
from openclaw_rl.envs.terminal.installs import Installs, installs_of
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Message

pytestmark = pytest.mark.anyio
GIVEN: dict[str, Any] = {"form": "text", "examples": None, "levels": (), "output_chars": 400, "step_votes": False}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def make(folder: Path, cache: Path, **more: Any) -> HarborEnv:
    return harbor(**{"sandbox": SETTINGS, "folder": folder, "cache_dir": cache, **GIVEN, **more})


def typed(command: str) -> Message:
    return Message(role="assistant", content=f"```bash\n{command}\n```")


DONE = Message(role="assistant", content="done")


def write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


async def paid(env: HarborEnv, *commands: str) -> float | None:
    task = (*env.tasks(), *env.held_out())[0]
    await env.reset(task, seed=0)
    for command in commands:
        await env.step(typed(command))
    seen = await env.step(DONE)
    await env.close()
    return seen.reward


# --- how tests run


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("name", SCRIPTS)
async def test_each_way_to_install_pytest_is_honoured_and_pays_all_or_nothing(
    tmp_path: Path, cache: Path, name: str
) -> None:
    put_task(tmp_path, "upper", script=SCRIPTS[name])
    env = make(tmp_path, cache)
    task = (*env.tasks(), *env.held_out())[0]
    found = await audit_task(lambda: make(tmp_path, cache), task)
    assert (found.gold, found.nothing) == (1.0, -1.0)
    assert await paid(env, "echo HELLO > out.txt") == -1.0, "some tests pass: nothing is paid"


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("controls_first", [0, 1])
async def test_shares_are_paid_where_they_are_chosen(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, controls_first: int
) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda _: controls_first)
    put_task(tmp_path, "upper", script=UVX)
    put_task(tmp_path / "other", "upper", script=None)
    for folder in (tmp_path, tmp_path / "other"):
        assert await paid(make(folder, cache, partial=True), "echo HELLO > out.txt") == 0.0, "2 of 4 tests"


@pytest.mark.slow
@needs_sandbox
async def test_the_layout_of_terminal_bench_is_paid_by_what_pytest_says(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("yaml")
    put_task(tmp_path, "upper", script=f"{SCRIPTS['uv run']}\necho done", old=True)
    assert await paid(make(tmp_path, cache), "tr a-z A-Z < data.txt > out.txt") == 1.0
    assert await paid(make(tmp_path, cache), "true") == -1.0, "its last command ends with 0 all the same"


def test_what_a_script_installs_is_read_by_its_words() -> None:
    assert installs_of(UVX) == Installs(system=("curl",), python=("pytest", "pytest-json-ctrf"))
    assert installs_of("pip install 'numpy>=2' pandas==1.0 -r /tests/more.txt -q").python == (
        "numpy",
        "pandas",
        "-r /tests/more.txt",
    )
    assert installs_of("cd /app && npm install left-pad\ngit clone https://x.org/y").others == (
        "npm install left-pad",
        "git clone https://x.org/y",
    )
    assert installs_of("curl -s http://localhost:8080/ > page; python3 app.py") == Installs()
    assert installs_of("curl -O https://x.org/data.zip").others == ("curl https://x.org/data.zip",)


@pytest.mark.parametrize(
    ("dockerfile", "script", "why"),
    [
        (
            "FROM ghcr.io/someone/cuda:12\n",
            UVX,
            "its Dockerfile begins FROM ghcr.io/someone/cuda:12, which needs podman",
        ),
        (
            "FROM ubuntu:24.04\nRUN apt-get update && apt-get install -y no-such-thing tmate\n",
            UVX,
            "no-such-thing, tmate",
        ),
        (DOCKERFILE, f"pip install no-such-package\n{PIP}", "its tests install no-such-package, which is not here"),
        (DOCKERFILE, f"npm ci\n{PIP}", "its tests install npm ci, which is not here"),
    ],
)
def test_a_task_that_needs_what_is_not_here_is_refused_with_the_reason(
    tmp_path: Path, cache: Path, dockerfile: str, script: str, why: str
) -> None:
    put_task(tmp_path, "good", script=UVX)
    put_task(tmp_path, "bad", script=script, dockerfile=dockerfile)
    env = make(tmp_path, cache)
    assert (*env.tasks(), *env.held_out()) == ("tasks/good",)
    assert why in env.excluded()["bad"]
    (tmp_path / "good" / "instruction.md").unlink()
    with pytest.raises(ConfigError, match="none of the 1 tasks in .* can run here: "):
        make(tmp_path, cache)


# --- machines

COLOURED = """
FROM python:3.12
RUN apt-get update && \\
    apt-get install -y curl
WORKDIR /work
COPY data.txt ./
ENV COLOUR=red
RUN echo $COLOUR > colour.txt
"""
COLOUR_TESTS = """
def test_upper():
    assert open("/work/upper.txt").read() == "HELLO\\n"
def test_colour():
    assert open("/work/colour.txt").read() == "red\\n"
"""


@needs_sandbox
async def test_a_dockerfile_of_what_is_here_is_carried_out_and_the_tests_pay_all_or_nothing(
    tmp_path: Path, cache: Path
) -> None:
    place = tmp_path / "upper"
    write(place / "instruction.md", "Write data.txt in capitals into upper.txt.\n")
    write(place / "task.toml", '[metadata]\ndifficulty = "easy"\n')
    write(place / "environment" / "Dockerfile", COLOURED)
    write(place / "environment" / "data.txt", "hello\n")
    write(place / "solution" / "solve.sh", "tr a-z A-Z < data.txt > upper.txt")
    write(place / "tests" / "test_outputs.py", COLOUR_TESTS)
    env = make(tmp_path, cache)
    assert (*env.tasks(), *env.held_out()) == ("easy/upper",)
    await env.reset("easy/upper", seed=0)
    assert (await env.step(typed("tr a-z A-Z < data.txt > upper.txt; ls /tests"))).reward is None
    assert (await env.step(DONE)).reward == 1.0
    await env.reset("easy/upper", seed=0)
    await env.step(typed("mkdir -p /tests; echo 'def test_a(): pass' > /tests/test_mine.py"))
    assert (await env.step(DONE)).reward == -1.0, "one of two tests passes; the agent's own is not there"
    await env.close()


@needs_sandbox
async def test_a_script_of_tests_may_write_its_score(tmp_path: Path, cache: Path) -> None:
    place = tmp_path / "half"
    write(place / "instruction.md", "Do half.")
    write(place / "environment" / "setup.sh", "echo ready > state")
    write(place / "tests" / "test.sh", "test -f state && echo 0.75 > /logs/verifier/reward.txt")
    env = make(tmp_path, cache)
    await env.reset("tasks/half", seed=0)
    assert (await env.step(DONE)).reward == 0.5
    await env.close()


# --- cheats

ASKED = """from pathlib import Path
import sys
sys.path.insert(0, "/app")
from shapes import area, half


def test_half():
    assert half(4) == 2


def test_area():
    assert area(2, 3) == 6


def test_a_flat_one():
    assert area(5, 0) == 0
"""
SHAPES = "def area(w, h):\n    return w * h\n\n\ndef half(n):\n    return n / 2\n"


def written(name: str, text: str) -> str:
    return f"cat > {name} <<'END_OF_FILE'\n{text}END_OF_FILE"


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("script", [UVX, None], ids=["script", "tests alone"])
async def test_an_honest_solution_is_paid(tmp_path: Path, cache: Path, script: str | None) -> None:
    put_task(tmp_path, "shapes", script=script, tests=ASKED)
    for _ in range(3):
        assert await paid(make(tmp_path, cache), written("shapes.py", SHAPES)) == 1.0


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("script", [UVX, None], ids=["script", "tests alone"])
@pytest.mark.parametrize("name", MODULES)
async def test_a_cheat_in_tested_code_is_paid_minus_1(
    tmp_path: Path, cache: Path, name: str, script: str | None
) -> None:
    put_task(tmp_path, "shapes", script=script, tests=ASKED)
    assert await paid(make(tmp_path, cache), written("shapes.py", MODULES[name])) == -1.0


CHEATS = {
    "programs of the installer's names": "mkdir -p ~/.local/bin; for name in uv uvx pytest python3 curl; do"
    " printf '#!/bin/sh\\nexit 0\\n' > ~/.local/bin/$name; chmod 755 ~/.local/bin/$name; done",
    "a conftest and a pytest.ini above the tests": "printf '[pytest]\\naddopts=--collect-only\\n' > /pytest.ini;"
    " cp /pytest.ini .; echo 'import os; os._exit(0)' > /conftest.py; cp /conftest.py .",
    "modules that hide the runner's own": "for name in json pytest hmac pluggy ctypes; do"
    " echo 'raise SystemExit(0)' > $name.py; done",
    "tests of its own": "mkdir -p /tests; echo 'def test_a(): pass' > /tests/test_outputs.py; chmod 444 /tests/*",
    "a score of its own": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "its folder removed": "cd /; rm -rf /app",
    "its folder a file": "cd /; rm -rf /app; touch /app",
    "its temporary folder removed": "rm -rf /tmp; touch /tmp",
    "a link in place of the tests": "rm -rf /tests; ln -s /nowhere /tests; ln -s /nowhere /logs",
    "a full disk": "head -c 100M /dev/zero > /full",
    "a user's own site": "mkdir -p ~/.local/lib/python3.11/site-packages;"
    " echo 'import os; os._exit(0)' > ~/.local/lib/python3.11/site-packages/usercustomize.py",
}


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("script", [UVX, PIP, None], ids=["uvx", "pip", "tests alone"])
@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_on_the_machine_is_paid_minus_1_and_breaks_no_episode(
    tmp_path: Path, cache: Path, name: str, script: str | None
) -> None:
    put_task(tmp_path, "upper", script=script)
    assert await paid(make(tmp_path, cache), CHEATS[name]) == -1.0


# --- cheats that know how they are judged: honest before the controls, forged before the tests

HONEST_BEFORE_CONTROLS = """
import glob, json, os, pathlib, socket, subprocess, sys, time
if "must fail" not in pathlib.Path("/tests/test_outputs.py").read_text():
    {attack}
def area(w, h):
    return "no"
half = area
"""
_LINES = """names = [f"test_outputs.py::{n}" for n in ("test_half", "test_area", "test_a_flat_one")]
    run = json.dumps({"verdicts": [[n, "passed"] for n in names], "ended": True, "exit": 0}).encode() + b"\\n"
"""
_KNOWING = {
    "it adds to the script that runs it": """
    for place in glob.glob("/opt/*/test.sh"):
        with open(place, "a") as file:
            file.write("\\necho 1 > /logs/verifier/reward.txt\\n")
    os.kill(os.getppid(), 9)""",
    "it changes programs that the script runs later": """
    for place in [*glob.glob("/opt/*/bin/*"), *glob.glob("/root/.local/bin/*")]:
        pathlib.Path(place).write_text("#!/bin/sh\\necho 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json")""",
    "it reports a run of its own and kills the reporter": _LINES
    + """
    for place in glob.glob("/opt/*/runs"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(place)
        line.sendall(run)
    os.kill(os.getppid(), 9)
    os._exit(0)""",
    "it writes a file of reports and kills the reporter": _LINES
    + """
    for place in glob.glob("/opt/*"):
        pathlib.Path(place, "runs").unlink(missing_ok=True)
        pathlib.Path(place, "runs").write_bytes(run)
    os.kill(os.getppid(), 9)""",
    "its score cannot be written again": """
    one = next(p for p in glob.glob("/proc/sys/*/*") if os.path.isfile(p) and open(p, "rb").read(9).strip() == b"1")
    for name in ("reward.txt", "reward.json"):
        os.symlink(one, "/logs/verifier/" + name)""",
    "it leaves a loop that writes the score": """
    loop = "while :; do echo 1 > /logs/verifier/reward.txt; done"
    subprocess.Popen(["setsid", "bash", "-c", loop], start_new_session=True)""",
    "its script's folder leads to its own": """
    os.rename("/logs", "/app/logs")
    os.symlink("/app/logs", "/logs")
    pathlib.Path("/app/logs/verifier/reward.txt").write_text("1")
    os.chmod("/app/logs/verifier/reward.txt", 0o444)""",
}


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("script", ["curl and uvx", "a summary", "a trap", "uv run"])
@pytest.mark.parametrize("name", _KNOWING)
async def test_a_cheat_that_knows_the_controls_is_paid_minus_1(
    tmp_path: Path, cache: Path, name: str, script: str
) -> None:
    put_task(tmp_path, "shapes", script=SCRIPTS[script], tests=ASKED)
    module = HONEST_BEFORE_CONTROLS.replace("{attack}", _KNOWING[name].strip("\n "))
    assert await paid(make(tmp_path, cache), written("shapes.py", module)) == -1.0
