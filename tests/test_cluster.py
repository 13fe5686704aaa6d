"""A run over a Ray cluster: the line across two nodes, a node that is lost and comes back, and what is refused."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from system import System

from openclaw_rl.app.cluster import check_cluster, cluster_state, connect, gpu_counts, own_config
from openclaw_rl.app.cluster_part import ClusterPart
from openclaw_rl.errors import ConfigError
from openclaw_rl.store import LedgerReader, ServerPlace
from openclaw_rl.testing import fake_config, wait_until
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
        ConfigError, match=r"gpus.train = 4, but the largest node of the cluster has 3 GPUs; all GPUs of a"
    ):
        check_cluster(config, counts, [node(3), node(3)], "a")
    with pytest.raises(ConfigError, match=r"has 2 nodes, but the ledger is a file of one machine; set store.url"):
        check_cluster(config, counts, [node(4), node(4)], "a")
    check_cluster(config, counts, [node(8)], "a")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r"needs the package 'ray'.*openclaw-rl\[ray\]"):
        connect("auto")


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


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'openclaw-rl[ray]'")
    found = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    found.add_node(num_cpus=2)
    yield found
    found.shutdown()


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
def test_a_cluster_that_is_not_there_is_said_to_be_missing() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'openclaw-rl[ray]'")
    with pytest.raises(ConfigError, match=r"there is no Ray cluster at 'auto'; start one with 'ray start --head"):
        connect("auto")
