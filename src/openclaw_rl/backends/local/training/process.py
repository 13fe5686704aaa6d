"""The processes that train and do nothing else: one, or one for each rank."""

from __future__ import annotations

import os
import signal
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from openclaw_rl.backends.local.training.messages import RankPlace, WorkerFailure
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.errors import BackendDown, ModelRefused, OpenClawError
from openclaw_rl.machine import end_with_parent, show_name

if TYPE_CHECKING:
    from openclaw_rl.backends.local.training.worker import TrainWorker


def _failure(error: BaseException) -> WorkerFailure:
    """An error of ours with its remedy; of any other the end of its traceback."""
    if isinstance(error, OpenClawError):
        refused, outside = isinstance(error, ModelRefused), isinstance(error, BackendDown)
        return WorkerFailure(what=error.what, remedy=error.remedy, refused=refused, outside=outside)
    what = "the training worker failed:\n" + "".join(traceback.format_exception(error)[-6:])
    return WorkerFailure(what=what, outside=isinstance(error, OSError))


def serve(pipe: Connection, args: TrainerArgs, place: RankPlace | None = None) -> None:
    """Build a worker, send its memory plan, then answer requests until the pipe closes. A failure ends the process.

    With a ``place`` it is one of several ranks, which all get the same requests.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is the parent's to handle
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
        # whatever it is, the parent must know: this process ends and takes any half-done state with it
        pipe.send(_failure(error))
        raise SystemExit(1) from error


def _worker(args: TrainerArgs, place: RankPlace | None) -> TrainWorker:
    import torch  # which only this process needs

    from openclaw_rl.backends.local.training.ranks import join
    from openclaw_rl.backends.local.training.worker import TrainWorker

    if place is None:
        return TrainWorker(args)
    device = args.devices[place.number]
    threads = args.threads or max(1, torch.get_num_threads() * args.nodes // place.count)
    return TrainWorker(replace(args, device=device, threads=threads), join(place, torch.device(device)))
