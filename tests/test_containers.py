"""Sandboxes in real containers, and the machine that a task's Dockerfile makes.

They run where podman (else docker) can run an image with Python that is on this machine, named in
OPENCLAW_RL_TEST_IMAGE; nothing is pulled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import PIP, UVX, put_task
from sandboxes import SETTINGS

from openclaw_rl.envs.sandbox import Driver, Sandbox, SandboxSettings, open_sandbox
from openclaw_rl.envs.terminal.harbor import HarborEnv, harbor
from openclaw_rl.types import Message

IMAGE = os.environ.get("OPENCLAW_RL_TEST_IMAGE", "")
DRIVER: Driver = "podman" if shutil.which("podman") else "docker"


def _reason() -> str:
    """Why no container runs here; "" where one does."""
    if not IMAGE:
        return "OPENCLAW_RL_TEST_IMAGE does not name an image with bash and Python"
    words = [DRIVER, "run", "--rm", "--network", "none", "--ulimit", "nofile=64:64", "--ulimit", "nproc=64", IMAGE]
    try:
        tried = subprocess.run([*words, "python3", "-c", "print(1)"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{DRIVER} cannot be run: {error}"
    return "" if tried.stdout == "1\n" else f"{DRIVER} runs no container here: {tried.stderr.strip()[-200:]}"


_WHY = _reason()
pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.skipif(bool(_WHY), reason=_WHY)]
SETTING: SandboxSettings = replace(SETTINGS, driver=DRIVER, root=IMAGE)
LOOP = "env -i setsid bash -c 'while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done'"
DONE = Message(role="assistant", content="done")


@pytest.fixture
async def room() -> AsyncIterator[Sandbox]:
    sandbox = await open_sandbox(SETTING)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def sh(room: Sandbox, script: str) -> str:
    return (await room.run(["bash", "-c", script])).output


async def test_a_container_keeps_files_between_commands_and_is_apart_from_the_network(room: Sandbox) -> None:
    assert await sh(room, "echo one > note; echo $HOME; tail -n +3 /proc/net/dev | cut -d: -f1") == "/root\n    lo\n"
    await room.write("/root/deep/two", b"\0two")
    assert await room.read("/root/deep/two", most=3) == b"\0tw"
    assert sorted(await room.names("/root")) == sorted({*await room.names("/root"), "deep", "note"})
    for missing in ("/root/none", "/root/note"):
        with pytest.raises(FileNotFoundError):
            await room.names(missing)


async def test_sealed_it_is_another_container_with_the_folders_that_were_left(room: Sandbox) -> None:
    await room.run(["mkdir", "-p", "/app/full"])
    await sh(room, f"echo mine > /app/full/a; rm -rf /opt; {LOOP} > /dev/null 2>&1 < /dev/null & sleep 0.3")
    await sh(room, "echo /app/no.so > /etc/ld.so.preload; printf '#!/bin/true' > /usr/bin/cat; ln -s /app /app/link")
    await room.seal()
    await room.seal()
    seen = await sh(room, "cat /app/full/a; readlink /app/link; ls /etc/ld.so.preload /opt 2> /dev/null; ps -e | wc -l")
    assert seen.splitlines()[:2] == ["mine", "/app"]
    assert "ld.so" not in seen
    before = await sh(room, "rm -rf /logs; sleep 0.3; ls -d /logs 2>&1")
    assert "No such file" in before, "the loop is over"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def made(folder: Path, cache: Path) -> HarborEnv:
    given: dict[str, Any] = {"form": "text", "examples": None, "levels": (), "output_chars": 400, "step_votes": False}
    return harbor(sandbox=SETTING, folder=folder, cache_dir=cache, **given)


DOCKERFILE = f"""FROM {IMAGE}
RUN mkdir -p /work && echo red > /etc/colour && ln -s /etc/colour /work/colour
WORKDIR /app
COPY data.txt ./
"""
CHEATS = {
    "nothing": "true",
    "a loop in the background": f"({LOOP}) > /dev/null 2>&1 < /dev/null & sleep 0.1",
    "programs of its own": "for n in python3 pytest bash sh cat; do printf '#!/bin/true\\n' > /usr/local/bin/$n;"
    " chmod 755 /usr/local/bin/$n; done; cp /bin/true /usr/bin/python3",
    "its libraries removed": "rm -rf /lib64 /usr/lib/x86_64-linux-gnu/libc.so.6",
}


@pytest.mark.parametrize("script", [UVX, PIP, None], ids=["uvx", "pip", "tests alone"])
async def test_a_dockerfile_makes_the_machine_and_what_is_left_behind_pays_nothing(
    tmp_path: Path, cache: Path, script: str | None
) -> None:
    put_task(tmp_path / "tasks", "upper", script=script, dockerfile=DOCKERFILE)
    env = made(tmp_path / "tasks", cache)
    [task] = (*env.tasks(), *env.held_out())
    solution = "grep -q red /work/colour && tr a-z A-Z < data.txt > out.txt"
    for command, worth in ((solution, 1.0), *((cheat, -1.0) for cheat in CHEATS.values())):
        await env.reset(task, seed=0)
        await env.step(Message(role="assistant", content=f"```bash\n{command}\n```"))
        assert (await env.step(DONE)).reward == worth, command
    await env.close()
