"""The process of a classifier: loads its model, then answers one request after the other."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

from openclaw_rl.backends.local.classifier.messages import ClassifierArgs
from openclaw_rl.backends.local.engine.messages import EngineFailure, LoadProgress
from openclaw_rl.machine import end_with_parent, show_name


def serve(pipe: Connection, args: ClassifierArgs) -> None:
    """Send progress, then the facts, then an answer to each request; a failure to load is sent and ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is the parent's to handle
    end_with_parent()
    show_name()
    try:
        from openclaw_rl.backends.local.classifier.model import ClassifierModel

        model = ClassifierModel(args, lambda text: pipe.send(LoadProgress(text)))
    except Exception as error:  # the parent must know why, whatever it is; nothing is left to go on with
        pipe.send(EngineFailure.of(None, error))
        return
    pipe.send(model.facts)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(model.classify(request))
        except Exception as error:  # what one exchange fails with is its own: the model goes on
            pipe.send(EngineFailure.of(0, error))
