"""A run over a Ray cluster: the line across two nodes, a node that is lost and comes back, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner
from system import System
from test_local_trainer import order
from test_ranks import MANY, alone, same, settings
from tiny import save_tiny

from openclaw_rl.app import checks
from openclaw_rl.app.cluster import NO_GPU, ClusterPart, check_cluster, cluster_state, connect, gpu_counts, own_config
from openclaw_rl.app.devices import trainer_devices
from openclaw_rl.backends.local.training import nodes
from openclaw_rl.backends.local.training.trainer import LocalTrainer
from openclaw_rl.cli import cli
from openclaw_rl.errors import BackendDown, BackendError, ConfigError, MissingExtra
from openclaw_rl.store import LedgerReader, ServerPlace
from openclaw_rl.testing import fake_config, wait_until
from openclaw_rl.types import Version
from openclaw_rl.views import status as views


def node(gpus: int) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"CPU": 8.0, **({"GPU": float(gpus)} if gpus else {})}}


def test_gpus_are_dealt_out_by_the_shares_of_one_machine(tmp_path: Path) -> None:
    said = fake_config(tmp_path, "gpus.train=4", "gpus.rollout=[0,1]")
    assert gpu_counts(said, 8) == {"serve": 2, "collect": 0, "judge": 0, "train": 4}
    assert gpu_counts(fake_config(tmp_path), 8) == {"serve": 2, "collect": 0, "judge": 0, "train": 4}
    assert gpu_counts(fake_config(tmp_path), 0) == {"serve": 0, "collect": 0, "judge": 0, "train": 0}
    assert own_config(said, "train", 4).gpus.train == 4
    assert own_config(said, "train", 4).gpus.rollout is None
    assert own_config(said, "collect", 0).gpus.train is None


def test_a_cluster_that_cannot_run_it_is_refused_with_the_remedy(tmp_path: Path) -> None:
    config = fake_config(tmp_path, "gpus.train=4", "gpus.rollout=2")
    counts = gpu_counts(config, 8)
    with pytest.raises(
        ConfigError, match=r"gpus.rollout = 2 \+ gpus.train = 4 is 6 GPUs, but the cluster at a has 2; lower"
    ):
        check_cluster(config, counts, [node(2)], "a")
    with pytest.raises(
        ConfigError,
        match=r"gpus.train = 4 takes 1 node with 4 GPUs, but the cluster has 0 and its largest 3; set it lower or",
    ):
        check_cluster(config, counts, [node(3), node(3)], "a")
    spread = fake_config(
        tmp_path, "gpus.train=4", "gpus.rollout=2", "train.local.nodes=2", "store.url=postgresql://x/y"
    )
    check_cluster(spread, counts, [node(4), node(2)], "a")
    with pytest.raises(ConfigError, match=r"gpus.train = 4 takes 2 nodes with 2 GPUs, but the cluster has 1 and its l"):
        check_cluster(spread, counts, [node(7), node(1)], "a")
    with pytest.raises(ConfigError, match=r"train.local.nodes = 2, but the cluster at a has 1 node; lower it, or add"):
        check_cluster(spread, counts, [node(8)], "a")
    with pytest.raises(ConfigError, match=r"has 2 nodes, but the ledger is a file of one machine; set store.url"):
        check_cluster(config, counts, [node(4), node(4)], "a")
    check_cluster(config, counts, [node(8)], "a")


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"needs the package 'ray'.*openclaw-rl\[ray\]"):
        connect("auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"needs the package 'ray'.*openclaw-rl\[ray\]"):
        checks.trainer(fake_config(tmp_path, "train.local.nodes=2"))


@pytest.mark.anyio
async def test_a_loop_that_no_node_could_run_says_so_and_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = SimpleNamespace(get_node_id=lambda: "1234567890")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: here))
    part = ClusterPart(fake_config(tmp_path, "train.options.colour=red"), "train")
    await part.begin()
    await part.stop()
    refused = (await part.place()).refused
    assert refused is not None
    assert refused[0].startswith("trainer 'fake' takes no option 'colour'")


def test_ranks_on_several_nodes_count_the_gpus_of_their_own(tmp_path: Path) -> None:
    def devices(*words: str) -> tuple[str, ...]:
        return trainer_devices(fake_config(tmp_path, "train.local.nodes=2", *words), visible=0)

    assert devices("gpus.train=4") == ("cuda:0", "cuda:1", "cuda:0", "cuda:1")
    assert devices() == ("cpu", "cpu")
    assert devices("train.local.ranks=4") == ("cpu",) * 4
    with pytest.raises(ConfigError, match=r"train.local.nodes = 2, but 3 ranks cannot be on them with as many on each"):
        devices("gpus.train=3")
    with pytest.raises(ConfigError, match=r"train.local.ranks = 2, but gpus.train gives 4 GPUs; on several nodes each"):
        devices("gpus.train=4", "train.local.ranks=2")


# --- a real cluster


def ask(url: str, *contents: str) -> str:
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]
    body = json.dumps({"model": "fake", "messages": messages}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        reply: str = json.loads(answer.read())["choices"][0]["message"]["content"]
    return reply


def talk(url: str, about: str) -> None:
    """A turn, and what its user says of it."""
    reply = ask(url, f"Tell me about {about}.")
    ask(url, f"Tell me about {about}.", reply, "Too long. Please keep it under 30 words.")


def trained(database: ServerPlace) -> int:
    with LedgerReader(database) as ledger:
        found: int = views.status(ledger, starve_after=100)["turns"]["trained"]
    return found


def eventually(condition: Callable[[], bool]) -> None:
    """As `wait_until`, with the patience that a cluster takes to notice that a node is gone."""
    for _ in range(3):
        with suppress(TimeoutError):
            wait_until(condition, pause=0.2)
            return
    raise TimeoutError


NO_RAY = "Ray is not installed: pip install 'openclaw-rl[ray]'"


@contextmanager
def cluster(**head: Any) -> Iterator[Any]:
    """Two nodes with two processors each; ``head`` is what else the first one has."""
    utils = pytest.importorskip("ray.cluster_utils", reason=NO_RAY)
    found = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False} | head)
    found.add_node(num_cpus=2)
    yield found
    found.shutdown()


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    with cluster() as found:
        yield found


@pytest.fixture
def dashboard() -> Iterator[str]:
    """The address of the dashboard of two nodes, at which jobs are submitted."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with cluster(include_dashboard=True, dashboard_port=port) as found:
        yield f"http://{found.webui_url}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_line_runs_across_two_nodes_and_outlives_one_of_them(
    two_nodes: Any, database: ServerPlace, tmp_path: Path
) -> None:
    system = System(tmp_path, f"store.url={database.url}", "gate.mode=off")
    system.words += ["--cluster", two_nodes.address]
    url = system.start()
    try:

        def places() -> dict[str, str]:
            return (cluster_state(tmp_path) or {}).get("places", {})

        def nodes() -> set[str]:
            return {place.split(",")[0] for place in places().values()}

        eventually(lambda: len(places()) == 4)
        assert len(nodes()) == 2
        for at in range(4):
            talk(url, f"topic {at}")
        eventually(lambda: trained(database) >= 2)
        before = trained(database)
        (worker,) = two_nodes.worker_nodes
        two_nodes.remove_node(worker, allow_graceful=False)
        for at in range(4, 8):
            talk(url, f"topic {at}")
        eventually(lambda: len(nodes()) == 1 and not (cluster_state(tmp_path) or {})["away"])
        eventually(lambda: trained(database) > before)
        two_nodes.add_node(num_cpus=2)
        eventually(lambda: (cluster_state(tmp_path) or {})["nodes"] == 2)
    finally:
        code = system.end()
    assert code == 0
    assert cluster_state(tmp_path) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_job_comes_up_answers_trains_over_two_nodes_and_is_stopped(
    dashboard: str, database: ServerPlace, tmp_path: Path
) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    run, secrets = tmp_path / "run", {"OPENCLAW_RL__STORE__URL": database.url}
    command = [sys.executable, "-m", "openclaw_rl", "up", "--cluster", "auto", "--port", "0", "--run-dir", str(run)]
    for one in (
        f"policy.model={save_tiny(tmp_path / 'tiny')}",
        "policy.device=cpu",
        "judge.kind=rules",
        "train.batch_size=2",
        "train.idle_wait=0.2",
        "train.local.nodes=2",
        "gate.mode=off",
        "monitor.mode=off",
    ):
        command += ["--set", one]
    jobs = JobSubmissionClient(dashboard)
    job = jobs.submit_job(entrypoint=shlex.join(command), runtime_env={"env_vars": secrets})

    def listening() -> list[str]:
        assert jobs.get_job_status(job) in (JobStatus.PENDING, JobStatus.RUNNING), jobs.get_job_logs(job)
        return re.findall(r"^listening on +(\S+)$", jobs.get_job_logs(job), re.MULTILINE)

    def status() -> str:
        return CliRunner().invoke(cli, ["status", "--run-dir", str(run)], env=secrets).output

    eventually(lambda: listening() != [])
    (url,) = listening()
    for at in range(2):
        talk(url, f"topic {at}")
    eventually(lambda: trained(database) == 2)
    eventually(lambda: "a packed prefix tree, over 2 ranks\n" in status())
    assert f"2 nodes, dashboard {dashboard}\n" in status()
    jobs.stop_job(job)
    eventually(lambda: jobs.get_job_status(job) == JobStatus.STOPPED)
    eventually(lambda: cluster_state(run) is None)
    with pytest.raises(urllib.error.URLError):
        ask(url, "Are you there?")


@pytest.fixture
def ray_here(two_nodes: Any, tmp_path: Path) -> Iterator[Any]:
    """Ray, in a process of the cluster as the trainer's is."""
    import ray

    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    known = {"PYTHONPATH": path, "OPENCLAW_TEST_STOPPED": str(tmp_path / "stopped")}
    ray.init(address=two_nodes.address, runtime_env={"env_vars": known}, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.usefixtures("one_thread", "ray_here")
@pytest.mark.filterwarnings("ignore")
async def test_ranks_on_two_nodes_take_the_step_of_one_process_and_outlive_a_node(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    folder = save_tiny(tmp_path / "tiny")
    args = settings(folder, loss="test_ranks:waits_on_rank_one", devices=("cpu", "cpu"), nodes=2)
    monkeypatch.setenv("OPENCLAW_TEST_STOPPED", str(stopped))
    trainer, base = LocalTrainer(args), Version(number=0, parent=None, base="tiny")
    step = {"number": 1, "parent": base, "target": str(tmp_path / "v1")}
    lost: list[Any] = []

    async def lose_a_node() -> None:
        while not stopped.exists():
            await anyio.sleep(0.05)
        (worker,) = two_nodes.worker_nodes
        lost.append(worker)
        await anyio.to_thread.run_sync(lambda: two_nodes.remove_node(worker, allow_graceful=False))

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(lose_a_node)
            with pytest.raises(BackendError, match=r"rank \d of the 2 training workers died \(.* is gone\); the next"):
                await trainer.step(MANY, **step)
        assert lost
        assert not (tmp_path / "v1").exists()
        two_nodes.add_node(num_cpus=2)
        done = await trainer.step(MANY, **step)
        assert done.metrics["ranks"] == 2.0
        assert trainer.runner == "a packed prefix tree, over 2 ranks"
        again = await trainer.step(MANY, **step)
    finally:
        await trainer.stop()
    assert again.metrics == done.metrics, "it was published: asked again, it is told and not trained"
    same(done, *alone(replace(args, devices=(), nodes=1), order(MANY, tmp_path / "here")))


@pytest.fixture
def one_node() -> Iterator[Any]:
    """Ray, on a node of which it believes that it has two GPUs."""
    ray = pytest.importorskip("ray", reason=NO_RAY)
    ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_loop_without_gpus_sees_none_and_the_ranks_that_it_places_see_theirs(one_node: Any) -> None:
    def seen() -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    class Part:
        async def seen(self) -> tuple[str | None, str | None]:
            import ray

            return seen(), await ray.remote(seen).options(num_gpus=2).remote()

    part = one_node.remote(Part).options(num_gpus=0, runtime_env=NO_GPU).remote()
    assert one_node.get(part.seen.remote()) == ("", "0,1")


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.usefixtures("one_node")
@pytest.mark.filterwarnings("ignore")
async def test_ranks_that_find_too_few_nodes_say_what_they_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_PLACED", 2.0)
    trainer = LocalTrainer(settings(str(tmp_path), devices=("cuda:0",) * 2, nodes=2))
    with pytest.raises(
        BackendDown, match=r"no 2 nodes of the cluster have 1 GPU free on each; lower train.local.nodes"
    ):
        await trainer.start()
    assert trainer.process_ids == ()


def test_who_has_not_the_key_is_no_rank() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(AuthenticationError):
        nodes.let_in(ours, b"key")
    theirs.close()


@pytest.mark.slow
def test_several_nodes_without_a_cluster_are_refused_before_anything_listens(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    words = ["up", "--run-dir", str(tmp_path), "--port", "0", "--set", f"policy.model={save_tiny(tmp_path / 'tiny')}"]
    done = CliRunner().invoke(cli, [*words, "--set", "train.local.nodes=2"])
    assert isinstance(done.exception, ConfigError)
    assert "train.local.nodes = 2 needs a cluster, and this process is not in one; openclaw-rl up --cluster" in str(
        done.exception
    )


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_said_to_be_missing() -> None:
    pytest.importorskip("ray", reason=NO_RAY)
    with pytest.raises(ConfigError, match=r"there is no Ray cluster at 'auto'; start one with 'ray start --head"):
        connect("auto")
