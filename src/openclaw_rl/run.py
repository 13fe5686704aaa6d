"""A run from Python, for notebooks and tests: the server of `openclaw-rl up`, in a thread of this process.

import openclaw_rl as rl

with rl.up(preset="cpu-demo") as run:
    run.chat("Who painted the Mona Lisa?")
    run.chat("Please keep it under 30 words.")       # the correction becomes a note
    note = run.wait_until_learned()
    run.chat("What is tea?", session=None).text      # the new version, and no note in the prompt
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from openclaw_rl.app.application import ledger_place
from openclaw_rl.app.operations import roll_back_now
from openclaw_rl.clients.api import ApiReply
from openclaw_rl.config import Config, load
from openclaw_rl.errors import BackendError, InvalidValue
from openclaw_rl.experiments import charts
from openclaw_rl.experiments.demo_server import POLL, DemoServer, Progress, serving
from openclaw_rl.experiments.results import note_curves
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Json, Message, Note, Prompt, Version
from openclaw_rl.versions import LiveVersions

T = TypeVar("T")

log = logging.getLogger(__name__)

_AGENT: Final = "openclaw-rl-python"
_OPEN: Final = ("in force", "learning")
"""states in which a note is not learned yet and can still be"""


def up(
    model: str | None = None,
    *,
    preset: str | None = None,
    run_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Run:
    """Start serving, judging and training, as `openclaw-rl up` does, and return when the model answers.

    Args:
        model: `embedded`, a Hugging Face id, a folder or a GGUF file; None uses the settings' own.
        preset: a shipped preset such as `cpu-demo`, or several with commas between them.
        run_dir: directory for the ledger, versions and log; a second run there continues the first.
        settings: any settings by their dotted names, such as `{"train.batch_size": 4}`.

    Settings come from the same sources as the command's: the preset, `openclaw-rl.toml` in the working directory, the
    environment; the arguments rank above them. The port is a free one unless `serve.port` is set.

    Raises:
        ConfigError: a setting is wrong; the message names it.
        LedgerHeld: another process runs in that directory.
        OpenClawError: the model cannot be loaded; the message has the remedy.
    """
    named = {"policy.model": model, "run.dir": None if run_dir is None else str(run_dir)}
    values = {name: value for name, value in named.items() if value is not None}
    return Run(load(preset=preset, values={"serve.port": 0, **values, **(settings or {})}).config)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteCurve:
    """A note's learning curve: shares in 0 .. 1 by training steps, a list of points for each measurement.

    A notebook shows it as a chart.
    """

    note: Note
    series: Mapping[str, list[tuple[int, float]]]

    def _repr_svg_(self) -> str:
        return charts.lines(self.note.text, self.series, x="training steps", y="share")


class Run:
    """A running server with its notes and versions. `up` makes one; leaving its `with` block stops it.

    Its methods may be called from any thread. `notes`, `versions` and `curve` also work after `stop`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._conversations: dict[str, tuple[Message, ...]] = {}
        self._started: Future[DemoServer] = Future()
        self._stopping = asyncio.Event()
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="openclaw-rl", daemon=True)
        self._thread.start()
        # runs before the interpreter ends its thread pools, which a clean stop needs; atexit runs after that
        threading._register_atexit(self.stop)  # type: ignore[attr-defined]
        try:
            self._server = self._started.result()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Address of its OpenAI-compatible API, up to /v1, for other clients."""
        return self._server.client.url

    def chat(
        self, message: str, *, session: str | None = "chat", notes: bool = True, train: bool = True, **options: Json
    ) -> ApiReply:
        """Send a message and return the reply: its `text`, the `version` that answered, its `turn`.

        Args:
            message: the user's message.
            session: the conversation that it continues or begins. The messages after a reply there are
                its evidence for the judge. None sends the message outside any conversation and never trains on it.
            notes: False keeps standing notes out of the prompt, to see how the weights answer without them.
            train: False keeps the turn out of training.
            options: fields of a chat completion, such as `max_tokens`, `temperature` and `seed`.
        """
        earlier = () if session is None else self._conversations.get(session, ())
        messages = (*earlier, Message(role="user", content=message))
        train = train and session is not None
        request = self._server.client.complete(
            Prompt(messages=messages), session=session, notes=notes, train=train, options=options
        )
        reply = self._call(request)
        if session is not None:
            self._conversations[session] = (*messages, reply.message)
        return reply

    def feedback(
        self,
        reply: ApiReply | str,
        *,
        thumb: Literal["up", "down"] | None = None,
        score: float | None = None,
        comment: str | None = None,
    ) -> None:
        """Rate a reply, or a turn by its id: a thumb or a score in -1 .. 1, and a comment on how to improve it."""
        turn = reply if isinstance(reply, str) else reply.turn
        self._call(self._server.client.send_feedback(turn, thumb=thumb, score=score, comment=comment))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Standing notes of all users, oldest first, each with its `text` and `state`."""
        return self._read(lambda ledger: tuple(ledger.notes()))

    def add_note(self, text: str) -> Note:
        """Add a note of your own; it is in force on the next reply."""
        number = self._call(self._server.client.add_note(text)).number
        return self._read(lambda ledger: ledger.note(number))

    def wait_until_learned(self, note: Note | None = None, *, timeout: float = 1800.0) -> Note:
        """Wait until a note, the newest by default, has left the prompt or stays there for good; return it.

        Its `state` is `learned` when the weights follow it without the prompt and the version that does so answers.

        Raises:
            TimeoutError: that many seconds passed.
            BackendError: training is paused or fails, or the note waits to be accepted.
        """
        until = time.monotonic() + timeout
        while True:
            now = self._read(self._newest if note is None else lambda ledger: ledger.note(note.number))
            if now is not None and self._is_settled(now):
                return now
            if time.monotonic() >= until:
                state = "there is no note yet" if now is None else f"note {now.number} is {now.state}"
                raise TimeoutError(f"{state} after {timeout:g} seconds")
            time.sleep(POLL)

    def curve(self, note: Note | None = None) -> NoteCurve:
        """Return the learning curve of a note, the newest by default; empty before its first training ends."""
        target = self._read(self._newest) if note is None else note
        if target is None:
            raise InvalidValue("note", "there is none yet", remedy="correct a reply, or call add_note")
        rows = self._read(lambda ledger: [dict(row.evidence) for row in ledger.distillations(target.number)])
        return NoteCurve(note=target, series=note_curves(rows))

    @property
    def versions(self) -> tuple[Version, ...]:
        """All versions, oldest first; 0 is the base model. Of those whose `state` is `live`, the `live` one answers."""
        return self._read(lambda ledger: tuple(ledger.versions()))

    @property
    def live(self) -> Version:
        """The version that answers."""
        return self._read(lambda ledger: LiveVersions(ledger).live()) or self.versions[0]

    def rollback(self, to: int | None = None, *, reason: str = "by hand") -> Version:
        """Serve an earlier version again, by default the one before this; return the new version with its weights."""
        version = self._call(roll_back_now(self.config, to=to, why=reason))
        while self._server.policy.live != version.number:
            self._check_alive()
            time.sleep(POLL)
        return version

    def stop(self) -> None:
        """Stop serving and training; a second run in the same directory continues there. Safe to call twice."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = self.url if self._thread.is_alive() else "stopped"
        return f"<Run of {self.config.policy.model} in {self.config.run.dir}, {where}>"

    # --- the thread that serves

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                self._error = error
                if self._started.done():
                    log.exception("the run in %s has ended", self.config.run.dir)
                else:
                    self._started.set_exception(error)

    async def _serve(self) -> None:
        async with serving(self.config, agent=_AGENT) as server:
            self._started.set_result(server)
            await self._stopping.wait()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the serving thread and wait for the result."""
        try:
            self._check_alive()
        except BackendError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while not wait([future], timeout=1.0).done:
                self._check_alive()
            return future.result()
        except CancelledError:
            raise self._ended() from self._error
        except BaseException:
            future.cancel()  # Ctrl-C, or the interrupt of a notebook
            raise

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise self._ended() from self._error

    def _ended(self) -> BackendError:
        why = f": {self._error}" if self._error is not None else ""
        return BackendError(f"this run has stopped{why}", remedy="start another with openclaw_rl.up")

    # --- the ledger, from the caller's thread

    def _read(self, look: Callable[[LedgerReader], T]) -> T:
        with LedgerReader(ledger_place(self.config)) as ledger:
            return look(ledger)

    @staticmethod
    def _newest(ledger: LedgerReader) -> Note | None:
        return next(reversed(ledger.notes()), None)

    def _is_settled(self, note: Note) -> bool:
        self._check_alive()
        if note.state == "proposed":
            raise BackendError(
                f"note {note.number} waits to be accepted: {note.text}",
                remedy=f"accept it: openclaw-rl notes accept {note.number} --run-dir {self.config.run.dir}",
            )
        progress, trouble = self._read(lambda ledger: self._look(ledger, note))
        if trouble is not None and note.state in _OPEN:
            raise BackendError(f"note {note.number} is not learned: {trouble}", remedy="mend that, and wait again")
        return note.state not in _OPEN and progress.served

    def _look(self, ledger: LedgerReader, note: Note) -> tuple[Progress, str | None]:
        server = replace(self._server, reader=ledger)
        return server.progress(note.number)[-1], server.trouble()
