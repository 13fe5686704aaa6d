"""A run on a Ray cluster: every loop is an actor on a node that Ray selects, restarted if it or its node is lost.

    gateway and engine   on the node where 'up' was started, if it has the GPUs in gpus.rollout
    judge                gpus.judge
    trainer              gpus.train, all on one node; with train.local.nodes its ranks are on that many separate nodes
    collect              any node

The loops are those of `App`, with the same settings, on the same ledger: Ray places and restarts them, and transfers no
data between them. The HTTP port is the gateway's own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from openclaw_rl import files
from openclaw_rl.app.devices import PARTS, default_layout
from openclaw_rl.config import Config
from openclaw_rl.config.values import Share
from openclaw_rl.errors import ConfigError, MissingExtra, ModelRefused, OpenClawError, PluginError
from openclaw_rl.store import Writer

# One loop of a run in a process placed by Ray.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlace:
    """A loop's location; ``url`` is the gateway's. ``begun`` False: it waits for `ClusterPart.begin`, as on a new node.

    ``refused`` is the reason why it cannot run on any node, with the remedy.
    """

    node: str
    process: int
    begun: bool
    url: str | None
    refused: tuple[str, str | None] | None


class ClusterPart:
    """An actor that runs one loop until it is stopped; Ray replaces a dead actor, which must be begun again."""

    def __init__(self, config: Config, loop: Writer) -> None:
        self._config = config
        self._loop = loop
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._url: str | None = None
        self._refused: tuple[str, str | None] | None = None

    async def place(self) -> LoopPlace:
        import ray

        node = f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"
        begun = self._task is not None
        return LoopPlace(node=node, process=os.getpid(), begun=begun, url=self._url, refused=self._refused)

    async def begin(self) -> None:
        """Start the loop. Safe to call twice."""
        if self._task is None:
            logging.basicConfig(level=self._config.run.log_level.upper())
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the loop and wait for its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        from openclaw_rl.app.application import App

        try:
            app = App(self._config, loops=(self._loop,))
            await app.run(self._stop, listening=self._listening)
        except (ConfigError, ModelRefused, PluginError) as error:
            self._refused = error.what, error.remedy
        except Exception:  # after any failure the process must release the loop's place in the ledger
            log.exception("loop %s failed; restarting", self._loop)
            os._exit(1)

    def _listening(self, url: str) -> None:
        self._url = url


GPUS_OF: Final[Mapping[Writer, str]] = {"serve": "rollout", "collect": "", "judge": "judge", "train": "train"}
"""the GPU share for each loop"""
_FILE: Final = "cluster.json"
_CPUS: Final = 0.5
"""share of a node's CPUs that Ray reserves for a loop: loops wait more than they compute"""
NO_GPU: Final = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}}
"""environment for a loop that would otherwise see all GPUs of its node; Ray tasks that it starts see their own"""
_LOOK: Final = 1.0
_SILENT: Final = 3.0
"""seconds between two checks, and without an answer after which a loop is reported as away"""
_STALE: Final = 30.0
"""seconds after which a written cluster state is no longer maintained"""
_END: Final = 30.0

Say = Callable[[str], None]


@dataclass(slots=True)
class ClusterState:
    """The known state of a run's cluster, for people: each loop's node, and since when a loop is away."""

    address: str
    dashboard: str | None
    nodes: int
    places: dict[str, str] = field(default_factory=dict)
    away: dict[str, float] = field(default_factory=dict)
    at: float = 0.0

    def write(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.at = time.time()
        files.write(run_dir / _FILE, json.dumps(asdict(self)))


def cluster_state(run_dir: Path) -> dict[str, Any] | None:
    """Return the state that the last `up --cluster` wrote; None without a cluster, or if its command was killed."""
    place = run_dir / _FILE
    state = dict(json.loads(place.read_text())) if place.exists() else None
    return state if state is not None and time.time() - state["at"] < _STALE else None


def gpu_counts(config: Config, total: int) -> dict[Writer, int]:
    """Return the GPU count for each loop in a cluster with ``total``, by the same shares as on one machine."""
    shares: dict[str, Share | None] = {part: getattr(config.gpus, part) for part in PARTS}
    if all(share is None for share in shares.values()):
        layout = default_layout(config.gpus.total or total)
        shares = {part: getattr(layout, part) for part in PARTS}
        shares["judge"] = shares["judge"] if _judges_by_model(config) else None
    counts = {part: share if isinstance(share, int) else len(share or ()) for part, share in shares.items()}
    if not any(counts.values()) and total == 1:
        counts["rollout"] = counts["train"] = 0  # a single GPU cannot be divided between two nodes
    return {loop: counts.get(part, 0) for loop, part in GPUS_OF.items()}


def _judges_by_model(config: Config) -> bool:
    return bool(config.judge.models.score or config.judge.models.hints)


def check_cluster(config: Config, counts: Mapping[Writer, int], nodes: list[dict[str, Any]], address: str) -> None:
    """Raise ConfigError for requirements that this cluster does not meet."""
    most = [int(node["Resources"].get("GPU", 0)) for node in nodes]
    if sum(counts.values()) > sum(most):
        raise ConfigError(
            f"{_wanted(counts)} is {sum(counts.values())} GPUs, but the cluster at {address} has {sum(most)}",
            remedy="lower gpus.*, or add nodes: ray start --address=HEAD:6379 --num-gpus=N",
        )
    spread = config.train.local.nodes
    if spread > len(nodes):
        raise ConfigError(
            f"train.local.nodes = {spread}, but the cluster at {address} has {len(nodes)} node{'s' * (len(nodes) > 1)}",
            remedy="lower it, or add nodes: ray start --address=HEAD:6379 --num-gpus=N",
        )
    for loop, count in counts.items():
        over, lower = (spread, "it lower or train.local.nodes higher") if loop == "train" else (1, "it lower")
        fit = sum(there * over >= count for there in most)
        if fit < over:
            needs = f"{over} node{'s' * (over > 1)} with {-(-count // over)} GPUs"
            raise ConfigError(
                f"gpus.{GPUS_OF[loop]} = {count} takes {needs}, but the cluster has {fit} and its largest {max(most)}",
                remedy=f"set {lower}, or add nodes: ray start --address=HEAD:6379 --num-gpus=N",
            )
    if len(nodes) > 1 and config.store.url is None:
        raise ConfigError(
            f"the cluster at {address} has {len(nodes)} nodes, but the ledger is a file of one machine",
            remedy="set store.url = postgresql://…, and store.versions or a run directory that all nodes share",
        )


def _wanted(counts: Mapping[Writer, int]) -> str:
    return " + ".join(f"gpus.{GPUS_OF[loop]} = {count}" for loop, count in counts.items() if count)


def own_config(config: Config, loop: Writer, gpus: int) -> Config:
    """Return the settings for a loop that sees only its own GPUs."""
    shares: dict[str, Any] = dict.fromkeys((*PARTS, "total"))
    if gpus:
        shares[GPUS_OF[loop]] = gpus
    return config.model_copy(update={"gpus": config.gpus.model_copy(update=shares)})


def connect(address: str) -> Any:
    """Return Ray, connected to the cluster at ``address``; raises ConfigError with the remedy if there is none."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error
    try:
        ray.init(address=address, namespace="openclaw-rl", logging_level=logging.WARNING, log_to_driver=False)
    except ConnectionError as error:
        raise ConfigError(
            f"there is no Ray cluster at {address!r}",
            remedy="start one with 'ray start --head --num-gpus=N' (on other machines 'ray start --address=HEAD:6379'),"
            " or leave --cluster out: one machine needs none",
        ) from error
    except (RuntimeError, ValueError) as error:
        if "ersion mismatch" not in str(error):
            raise ConfigError(f"the Ray cluster at {address!r} cannot be joined: {error}") from error
        raise ConfigError(
            f"the cluster at {address!r} runs another release: {' '.join(str(error).split())}",
            remedy="install the same Ray and Python on every node and here",
        ) from error
    return ray


class Cluster:
    """The loops of one run as actors; they end with this process."""

    def __init__(self, config: Config, address: str, *, say: Say) -> None:
        self._config = config
        self._say = say
        self._ray = ray = connect(address)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        counts = gpu_counts(config, int(ray.cluster_resources().get("GPU", 0)))
        try:
            check_cluster(config, counts, nodes, address)
        except BaseException:
            ray.shutdown()
            raise
        context = ray.get_runtime_context()
        self.state = ClusterState(address=context.gcs_address, dashboard=_dashboard(ray), nodes=len(nodes))
        self._actors = {loop: self._actor(loop, gpus, context.get_node_id()) for loop, gpus in counts.items()}
        self._url: str | None = None

    def _actor(self, loop: Writer, gpus: int, here: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        settings = own_config(self._config, loop, gpus)
        if loop == "train" and self._config.train.local.nodes > 1:
            gpus = 0  # its ranks request their own GPUs
        near = NodeAffinitySchedulingStrategy(node_id=here, soft=True)
        options: dict[str, Any] = {
            "num_cpus": _CPUS,
            "num_gpus": gpus,
            "max_restarts": -1,
            "scheduling_strategy": near if loop == "serve" else "SPREAD",
        }
        if not gpus:
            options["runtime_env"] = NO_GPU
        return self._ray.remote(ClusterPart).options(**options).remote(settings, loop)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep every loop running until ``stop``; raise a loop's error that no other node can fix."""
        try:
            while not stop.is_set():
                await self._look()
                try:
                    await asyncio.wait_for(stop.wait(), _LOOK)
                except TimeoutError:
                    continue
        finally:
            await self._end()

    async def _look(self) -> None:
        """Check every loop's place and report changes."""
        answers = await asyncio.gather(*(self._place(actor) for actor in self._actors.values()))
        for loop, place in zip(self._actors, answers, strict=True):
            if place is None:
                self._away(loop)
            elif place.refused is not None:
                what, remedy = place.refused
                raise OpenClawError(f"{loop}: {what}", remedy=remedy)
            elif place.begun:
                self._there(loop, place)
            else:
                self._actors[loop].begin.remote()
        self.state.nodes = sum(node["Alive"] for node in await asyncio.to_thread(self._ray.nodes))
        await asyncio.to_thread(self.state.write, self._config.run.dir)

    async def _place(self, actor: Any) -> LoopPlace | None:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(actor.place.remote().future()), _SILENT)
        except (TimeoutError, self._ray.exceptions.RayError):
            return None

    def _away(self, loop: Writer) -> None:
        if loop in self.state.places and loop not in self.state.away:
            self.state.away[loop] = time.time()
            self._say(f"{loop} is away: {self.state.places[loop]} does not answer; {HELD[loop]}")

    def _there(self, loop: Writer, place: LoopPlace) -> None:
        where = f"{place.node}, process {place.process}"
        since = self.state.away.pop(loop, None)
        if since is not None:
            self._say(f"{loop} is back on {where} after {time.time() - since:.0f} s")
        elif self.state.places.get(loop) != where:
            self._say(f"{loop} runs on {where}")
        if place.url is not None and place.url != self._url:
            self._url = place.url
            self._say(f"listening on   {place.url}")
        self.state.places[loop] = where

    async def _end(self) -> None:
        """Stop every loop gracefully, then release its place."""
        stopping = [actor.stop.remote() for actor in self._actors.values()]
        await asyncio.to_thread(self._ray.wait, stopping, num_returns=len(stopping), timeout=_END)
        await asyncio.to_thread(self._ray.shutdown)
        (self._config.run.dir / _FILE).unlink(missing_ok=True)


HELD: Final[Mapping[Writer, str]] = {
    "serve": "requests are not answered until another node has it",
    "collect": "turns are answered and kept, and wait to be matched with what followed them",
    "judge": "turns are answered and kept, and wait to be judged",
    "train": "turns are answered, kept and judged, and wait to be trained; the live version stays",
}
"""the work that waits while a loop is away; none of it is lost"""


def _dashboard(ray: Any) -> str | None:
    address = ray._private.worker.get_dashboard_url()
    return f"http://{address}" if address else None


def run_on_cluster(config: Config, address: str, *, say: Say) -> None:
    """Run `up --cluster` until a signal."""
    from openclaw_rl.app.runner import stop_on_signals

    async def go() -> None:
        cluster = Cluster(config, address, say=say)
        state = cluster.state
        say(f"cluster        {state.address}, {state.nodes} nodes; dashboard {state.dashboard or 'none'}")
        stop = asyncio.Event()
        with stop_on_signals(stop):
            await cluster.run(stop)

    asyncio.run(go())
