"""Engines that are started here, and those that do not start or do not fit: the reason and the remedy."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from engines import engine, model, policy_on, reply, started, version
from fakes.engines import FakeEngine, fake_engine

from openclaw_rl.backends.engines.dialect import too_old
from openclaw_rl.backends.engines.settings import refuse_uneven
from openclaw_rl.backends.engines.vllm import VllmDialect
from openclaw_rl.errors import BackendDown, ConfigError, ModelRefused

__all__ = ["engine", "model"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


STUB = """#!{python}
import sys
from pathlib import Path
sys.path.insert(0, "{tests}")
from fakes.engines import fake_engine
port, folder = (sys.argv[sys.argv.index(name) + 1] for name in ("--port", "--model"))
with fake_engine("vllm", Path(folder), port=int(port)):
    sys.stdin.close()
    while True:
        __import__("time").sleep(60)
"""


def stub(folder: Path, text: str) -> str:
    file = folder / "python"
    file.write_text(text.replace("{python}", sys.executable).replace("{tests}", str(Path(__file__).parent)))
    file.chmod(0o755)
    return str(file)


@pytest.mark.slow
async def test_an_engine_that_we_start_is_started_again_when_it_is_killed(model: Path, tmp_path: Path) -> None:
    nothing = FakeEngine("vllm", model)
    policy = policy_on(nothing, model, tmp_path, url=None, engine_python=stub(tmp_path, STUB))
    await policy.start()
    try:
        await policy.load(version(1, tmp_path, "be brief"))
        os.kill(policy.health["pid"], signal.SIGKILL)
        assert (await reply(policy, "tea")).reply.content == "You said: tea [learned: be brief]"
        assert (policy.health["state"], policy.health["restarts"]) == ("ready", 1)
        left = policy.health["pid"]
    finally:
        await policy.stop()
        await policy.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)
    assert (tmp_path / "engine.log").exists()


async def test_another_process_of_the_run_uses_the_engine_that_was_started_already(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = policy_on(FakeEngine("vllm", model), model, tmp_path, url=None, engine_python=stub(tmp_path, STUB))
    await first.start()
    try:
        kept = json.loads((tmp_path / "engine.json").read_text())
        assert (kept["url"], kept["pid"]) == (first.health["url"], os.getpid())
        (tmp_path / "engine.json").write_text(json.dumps(kept | {"pid": os.getppid()}))  # as another process sees it
        second = policy_on(
            FakeEngine("vllm", model), model, tmp_path, url=None, follow=True, engine_python="/no/python"
        )
        await second.start()
        assert (second.health["url"], second.health["pid"]) == (first.health["url"], None)
        await second.admit(version(1, tmp_path, "be brief"))
        assert (await reply(second, "tea", version=1)).reply.content == "You said: tea [learned: be brief]"
        await second.stop()
        assert first.health["pid"] is not None, "who did not start it does not end it"
        (tmp_path / "engine.json").write_text(json.dumps(kept))
    finally:
        await first.stop()
    assert not (tmp_path / "engine.json").exists()


async def test_who_follows_an_engine_finds_it_at_its_new_address(model: Path, tmp_path: Path) -> None:
    def served_at(url: str, pid: int) -> None:
        (tmp_path / "engine.json").write_text(json.dumps({"engine": "vllm", "url": url, "pid": pid}))

    with fake_engine("vllm", model) as old, fake_engine("vllm", model) as new:
        served_at(old.url, os.getppid())
        async with started(old, model, tmp_path, url=None, follow=True) as policy:
            await policy.load(version(1, tmp_path, "be brief"))
            served_at(new.url, os.getppid())
            old.die()
            assert (await reply(policy, "tea")).reply.content == "You said: tea [learned: be brief]"
            assert policy.health["url"] == new.url
        served_at(old.url, 999_999_999)  # of a process that is gone
        lonely = policy_on(old, model, tmp_path, url=None, follow=True, engine_python="/no/python")
        with pytest.raises(ModelRefused, match="did not start"):
            await lonely.start()


WHY = {
    "ModuleNotFoundError: No module named 'vllm'": "its Python has no package 'vllm'",
    "OSError: [Errno 98] Address already in use": "its port is taken",
    "torch.cuda.OutOfMemoryError: CUDA out of memory.": "there is too little memory",
    "api_server.py: error: unrecognized arguments: --no-such": "this release of it does not know --no-such",
    "RuntimeError: Failed to infer device type": "it finds no GPU, and this build of it cannot do without",
    "AttributeError: 'sgl_kernel' object has no attribute 'init_cpu_threads_env'": "it finds no GPU",
    "ImportError: libcudart.so.12: cannot open shared object file": "a library of its environment does not fit: libcu",
    "RuntimeError: something else": "RuntimeError: something else; see its log, ",
}


@pytest.mark.parametrize("line", WHY)
async def test_an_engine_that_does_not_start_says_why_and_what_to_do(model: Path, tmp_path: Path, line: str) -> None:
    dying = stub(tmp_path, f"#!/bin/sh\necho loading\necho {shlex.quote(line)} >&2\nexit 1\n")
    policy = policy_on(FakeEngine("vllm", model), model, tmp_path, url=None, engine_python=dying)
    with pytest.raises(ModelRefused) as caught:
        await policy.start()
    assert f"vllm did not start: {WHY[line]}" in str(caught.value)
    assert str(tmp_path / "engine.log") in str(caught.value)


async def test_where_nobody_listens_the_remedy_is_named(model: Path, tmp_path: Path) -> None:
    with fake_engine("vllm", model) as engine:
        pass
    with pytest.raises(BackendDown, match=r"no vllm engine answers at .*start it, correct policy.url"):
        await policy_on(engine, model, tmp_path).start()
    with pytest.raises(ConfigError, match="policy.launch is off"):
        policy_on(engine, model, tmp_path, url=None, launch=False)


async def test_a_port_at_which_something_answers_already_is_not_taken_for_the_engine_that_was_to_be_started(
    model: Path, tmp_path: Path
) -> None:
    with fake_engine("vllm", model) as other:
        policy = policy_on(other, model, tmp_path, launch=True, engine_python=stub(tmp_path, STUB))
        with pytest.raises(ModelRefused, match=r"something answers at .* already.*leave policy.launch out"):
            await policy.start()
        assert not other.requests


async def test_a_release_that_is_too_old_is_refused(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    engine.version = {"vllm": "0.9.2", "sglang": "0.4.10.post2"}[engine.kind]
    needed = {"vllm": "0.12", "sglang": "0.5"}[engine.kind]
    with pytest.raises(ModelRefused, match=rf"{engine.kind} {engine.version} is too old: {needed} or newer"):
        await policy_on(engine, model, tmp_path).start()


def test_gpus_that_a_model_cannot_be_divided_over_are_refused_with_a_number_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"32 attention heads cannot be divided over 3 GPUs.*ROLLOUT_GPUS=2 fits"):
        refuse_uneven(3, 32)
    for gpus, heads in ((0, 32), (1, 9), (4, 32), (3, None)):
        refuse_uneven(gpus, heads)


async def test_an_engine_is_not_started_on_gpus_that_its_model_cannot_be_divided_over(
    model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "toy")
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"num_attention_heads": 4}))
    nothing = FakeEngine("vllm", model)
    with pytest.raises(ConfigError, match="4 attention heads cannot be divided over 3 GPUs"):
        await policy_on(nothing, folder, tmp_path, url=None, gpus=(0, 1, 2)).start()


@pytest.mark.parametrize("version", ["0.12.0", "0.32.1+cpu", "v1.0.0rc2", "unknown", ""])
def test_a_release_that_is_new_enough_or_does_not_say_which_it_is_is_taken(version: str) -> None:
    assert too_old(VllmDialect(), version) is None
