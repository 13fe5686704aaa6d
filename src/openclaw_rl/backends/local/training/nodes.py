"""Ranks on several nodes of a Ray cluster: equally many per node, which reach the trainer and each other by TCP.

Ray places a group of ranks on each node and reports lost groups. Training data passes through separate pipes, as
between processes of one machine, and through the run directory, which all these nodes must share.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import socket
import struct
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any, Final

from openclaw_rl.backends.local.training.settings import RankPlace, TrainerArgs, WorkerFailure
from openclaw_rl.errors import BackendDown, ConfigError, MissingExtra, ModelRefused, OpenClawError
from openclaw_rl.machine import end_with_parent, show_name

if TYPE_CHECKING:
    from openclaw_rl.backends.local.training.worker import TrainWorker


# The training processes: one, or one per rank.


def _failure(error: BaseException) -> WorkerFailure:
    """Convert an error: our own with its remedy, any other with the end of its traceback."""
    if isinstance(error, OpenClawError):
        refused, outside = isinstance(error, ModelRefused), isinstance(error, BackendDown)
        return WorkerFailure(what=error.what, remedy=error.remedy, refused=refused, outside=outside)
    what = "the training worker failed:\n" + "".join(traceback.format_exception(error)[-6:])
    return WorkerFailure(what=what, outside=isinstance(error, OSError))


def serve(pipe: Connection, args: TrainerArgs, place: RankPlace | None = None) -> None:
    """Build a worker, send its memory plan, then answer requests until the pipe closes. A failure ends the process.

    With a ``place`` it is one of several ranks, which all get the same requests.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interrupt at the terminal
    end_with_parent()
    show_name()
    if args.niceness and hasattr(os, "nice"):
        os.nice(args.niceness)
    try:
        worker = _worker(args, place)
        pipe.send((str(worker.plan), worker.policy.note))
        while True:
            pipe.send(worker.step(pipe.recv()))
    except EOFError:
        return
    except BaseException as error:
        # report any failure to the parent: this process ends and takes any half-done state with it
        pipe.send(_failure(error))
        raise SystemExit(1) from error


def _worker(args: TrainerArgs, place: RankPlace | None) -> TrainWorker:
    import torch  # needed by this process alone

    from openclaw_rl.backends.local.training.ranks import join
    from openclaw_rl.backends.local.training.worker import TrainWorker

    if place is None:
        return TrainWorker(args)
    device = args.devices[place.number]
    threads = args.threads or max(1, torch.get_num_threads() * args.nodes // place.count)
    return TrainWorker(replace(args, device=device, threads=threads), join(place, torch.device(device)))


_CPUS: Final = 0.5
"""a node's CPUs that Ray reserves for its ranks: as for a loop, so that a small node has room for both"""
_PLACED: Final = 30.0
"""seconds in which the cluster must place every node's ranks"""
_MET: Final = 120.0
"""seconds in which every rank must reach the trainer"""
_LOOK: Final = 1.0
"""seconds between two checks of the nodes while no rank connects"""
_STUCK: Final = 30
"""seconds for which a connection may pause in the middle of a message"""
_GRACE: Final = 5.0
"""seconds in which a node reports a rank's exit code"""

Address = tuple[str, int]


@dataclass(slots=True)
class _NodeWorker:
    """A rank on some node: ``task`` is Ray's, and ends with that node's ranks."""

    pipe: Connection
    process_id: int
    node: str
    task: Any
    ray: Any

    @property
    def alive(self) -> bool:
        return not self.ray.wait([self.task], timeout=0)[0]

    @property
    def fate(self) -> str:
        """The exit code if its node can still report it."""
        if not self.ray.wait([self.task], timeout=_GRACE)[0]:
            return f"its connection to {self.node} broke"
        try:
            return f"exit code {self.ray.get(self.task)[self.process_id]} on {self.node}"
        except self.ray.exceptions.RayError:
            return f"{self.node} is gone"


class NodeWorkers:
    """A worker per entry in ``args.devices``, on ``args.nodes`` nodes in this process's cluster."""

    def __init__(self, args: TrainerArgs) -> None:
        self.workers: list[_NodeWorker] = []
        self._args = args
        self._ray = ray_of_cluster(args.nodes)
        self._key = secrets.token_bytes(32)
        self._door = socket.create_server((self._ray.util.get_node_ip_address(), 0), backlog=len(args.devices))
        self._door.settimeout(_LOOK)
        self._each = len(args.devices) // args.nodes
        gpus = self._each if args.devices[0].startswith("cuda") else 0
        needs = {"CPU": _CPUS, "GPU": gpus} if gpus else {"CPU": _CPUS}
        self._free = f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else f"{_CPUS} CPUs"
        self._group = self._ray.util.placement_group([needs] * args.nodes, strategy="STRICT_SPREAD")
        self._tasks = [self._task(node, gpus) for node in range(args.nodes)]

    def _task(self, node: int, gpus: int) -> Any:
        """Start a task that waits for its place on a node, and starts the ranks there."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        task = self._ray.remote(serve_node).options(
            num_cpus=_CPUS,
            num_gpus=gpus,
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=node),
        )
        numbers = range(node * self._each, (node + 1) * self._each)
        return task.remote(self._args, self._door.getsockname(), self._key, numbers)

    def meet(self) -> None:
        """Wait for every rank, then send each the address at which the first rank waits; raise `BackendDown` on
        failure."""
        if not self._group.wait(_PLACED):
            raise BackendDown(
                f"after {_PLACED:.0f} s no {self._args.nodes} nodes of the cluster have {self._free} free on each",
                remedy="lower train.local.nodes or gpus.*, or add nodes: ray start --address=HEAD:6379 --num-gpus=N",
            )
        workers: dict[int, _NodeWorker] = {}
        meeting = ""
        until = time.monotonic() + _MET
        while len(workers) < len(self._args.devices):
            pipe = self._next(until)
            with suppress(EOFError, OSError):  # a dead rank: its node reports it
                hello: _Hello = pipe.recv()
                task = self._tasks[hello.number // self._each]
                workers[hello.number] = _NodeWorker(pipe, hello.process_id, hello.node, task, self._ray)
                meeting = hello.meeting or meeting
        for number, worker in workers.items():
            with suppress(OSError):  # a dead rank: reading reports it
                worker.pipe.send(RankPlace(number=number, count=len(workers), meeting=meeting))
        self.workers = [workers[number] for number in sorted(workers)]

    def _next(self, until: float) -> Connection:
        """Return a pipe to the next rank that connects."""
        while time.monotonic() < until:
            try:
                return let_in(self._door.accept()[0], self._key)
            except TimeoutError:
                self._check_tasks()
            except AuthenticationError:
                continue  # not one of these ranks
        raise BackendDown(
            f"not every rank has reached the trainer within {_MET:.0f} s",
            remedy="let the nodes of the cluster reach each other by TCP on any port",
        )

    def _check_tasks(self) -> None:
        """Raise `BackendDown` if a node gave up before its ranks connected."""
        for task in self._ray.wait(self._tasks, timeout=0)[0]:
            try:
                codes = self._ray.get(task)
            except self._ray.exceptions.RayTaskError as error:
                what = f"a node cannot start its ranks: {error.cause!r}"
                raise BackendDown(what, remedy="install the same release on every node") from error
            except self._ray.exceptions.RayError as error:
                raise BackendDown(f"a node of the trainer is lost: {str(error).partition(chr(10))[0]}") from error
            what = f"ranks ended before the first request (exit codes {[*codes.values()]})"
            raise BackendDown(what, remedy="see serve_node's output in the logs of Ray's dashboard")

    def end(self) -> None:
        """Release the places; Ray ends their remaining processes."""
        self._door.close()
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._ray.util.remove_placement_group(self._group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hello:
    """A rank's first message; rank 0 names the address at which it will wait for the others."""

    number: int
    process_id: int
    node: str
    meeting: str | None


def serve_node(args: TrainerArgs, address: Address, key: bytes, numbers: Sequence[int]) -> dict[int, int]:
    """Run the ranks ``numbers`` on this node until they end; return their exit codes by process."""
    spawn = multiprocessing.get_context("spawn")
    arguments = [(args, address, key, number) for number in numbers]
    processes = [spawn.Process(target=_serve_rank, args=rank_args, name="openclaw-train") for rank_args in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return {int(process.pid or 0): int(process.exitcode or 0) for process in processes}


def _serve_rank(args: TrainerArgs, address: Address, key: bytes, number: int) -> None:
    pipe = Client(address, authkey=key)
    meeting = None if number else _meeting(address)
    pipe.send(_Hello(number=number, process_id=os.getpid(), node=socket.gethostname(), meeting=meeting))
    serve(pipe, args, pipe.recv())


def let_in(caller: socket.socket, key: bytes) -> Connection:
    """Accept a rank's connection; raise `AuthenticationError` if it lacks the key."""
    stuck = struct.pack("ll", _STUCK, 0)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stuck)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stuck)
    pipe = Connection(caller.detach())
    try:
        deliver_challenge(pipe, key)
        answer_challenge(pipe, key)
    except (EOFError, OSError) as error:
        raise AuthenticationError from error
    return pipe


def _meeting(trainer: Address) -> str:
    """Return a free port of this machine, at the address by which it reaches the ``trainer``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as toward:
        toward.connect(trainer)
        host = toward.getsockname()[0]
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"tcp://{host}:{probe.getsockname()[1]}"


def ray_of_cluster(nodes: int) -> Any:
    """Return Ray inside a cluster; raise `ConfigError` elsewhere."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error
    if not ray.is_initialized():
        raise ConfigError(
            f"train.local.nodes = {nodes} needs a cluster, and this process is not in one",
            remedy="openclaw-rl up --cluster auto, or take it out: one machine needs no cluster",
        )
    return ray
