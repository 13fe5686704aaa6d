"""Builds the running loops from a config: the only module that wires the parts.

    App(config)                    every loop in this process
    App(config, loops=("judge",))  one loop; others may run elsewhere on the same ledger

Each loop has its own connection to the ledger and is a separate writer there. The server listens before the model is
loaded: early requests are held, not refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app import address
from openclaw_rl.app.address import ServerAddress
from openclaw_rl.app.checks import refuse_apart, refuse_unworkable, unused_key
from openclaw_rl.app.control import delete_session, submit_control
from openclaw_rl.app.devices import device_notes, visible_gpus
from openclaw_rl.app.environments import episode_patience, held_out_tasks
from openclaw_rl.app.factories import (
    build_generation,
    build_inline_feedback,
    build_limits,
    build_people,
    build_policy,
    build_recording,
    build_sample_settings,
    default_sampling,
    gate_limits,
    generate_directly,
    served_versions,
    sharing_note,
    store_artifacts,
    trainer_of,
    when_ready,
)
from openclaw_rl.app.judges import build_judge, judge_loop_settings, judges_itself, running
from openclaw_rl.app.notes import note_taker, standing_notes
from openclaw_rl.app.recorded import RecordedLoop, recorded_loop
from openclaw_rl.app.runner import LoopRunner, LoopWakes, StoppedWhileStarting, drain, unless_stopped
from openclaw_rl.config import Config
from openclaw_rl.judge.parts import at_work
from openclaw_rl.machine import raise_open_files
from openclaw_rl.notes import NotesBook
from openclaw_rl.ports import Gate, Generate, Judge, LiveMonitor, Loop, Policy, ReportsOutage
from openclaw_rl.serve.loop import RESERVED_FILES, HttpServer, bind, refuse_open_listener
from openclaw_rl.store import (
    CollectLedger,
    JudgeLedger,
    LedgerReader,
    LedgerWriter,
    NotesLedger,
    Place,
    ServeLedger,
    ServerPlace,
    TrainLedger,
    Writer,
)
from openclaw_rl.train.records import Recorder
from openclaw_rl.types import ENVIRONMENT
from openclaw_rl.versions import RetentionPolicy, checkpoints

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from openclaw_rl.envs.episodes import Episodes
    from openclaw_rl.gate.examination import GetPolicy, LazyPolicy
    from openclaw_rl.serve.redact import AccessRules

log = logging.getLogger(__name__)

LOOP_SECONDS = 1.0
"""time for a tick to end at shutdown: an interrupted step is repeated later"""
L = TypeVar("L", bound=LedgerWriter)

LOOPS: tuple[Writer, ...] = ("serve", "collect", "judge", "train")


def ledger_place(config: Config) -> Place:
    """Return the place of the run's ledger: its directory, unless store.url names a server."""
    if config.store.url is None:
        return config.run.dir / "ledger.db"
    return ServerPlace(url=config.store.url.get_secret_value(), root=config.run.dir)


def full_batches_only(config: Config) -> Config:
    """Return the settings without time limits for a batch, so that no clock affects the result."""
    train = config.train.model_copy(update={"max_wait": math.inf, "idle_wait": math.inf})
    return config.model_copy(update={"train": train})


class App:
    """The parts of one process, built but not started."""

    def __init__(self, config: Config, *, loops: Sequence[Writer] = LOOPS, policy: bool = False) -> None:
        """``policy`` True builds a policy even if no loop needs it."""
        refuse_unworkable(config, loops)
        self.config = config
        self.names = tuple(loops)
        self.policy = build_policy(config, serves="serve" in loops) if policy or self._needs_policy() else None
        self.trainer = trainer_of(config, self.policy) if "train" in loops else None
        self.ready = asyncio.Event()
        self._ledgers: dict[str, LedgerWriter] = {}
        self._notes: NotesLedger | None = None
        self._env_key, self._local_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._url: str | None = None
        self._wakes = LoopWakes(ledger_place(config), self.names)
        self._recorder: Recorder | None = None
        self._own_policy: LazyPolicy | None = None
        self._recorded: RecordedLoop | None = None
        self.api: Any = None
        self.judge: Judge | None = None
        try:
            self.loops: dict[str, Loop] = {name: self._build_loop(name) for name in self.names}
            if "serve" in loops:
                self.api = self._build_api()
            if config.train.data and {*LOOPS} <= {*loops} and self.policy is not None:
                self._recorded = recorded_loop(config, ledger_place(config), self.policy)
                self.loops[self._recorded.name] = self._recorded
        except BaseException:
            self.close()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes shown at the start: users who share the policy, an inactive judge, the GPU assignment."""
        shared = sharing_note(self.config)
        unjudged = self.policy is None and self.judge is not None and judges_itself(self.config)
        lines = [shared, "the served model judges itself only in the process that serves it" if unjudged else None]
        lines.append(unused_key(self.config))
        return (*filter(None, lines), *device_notes(self.config, visible=visible_gpus()))

    @property
    def judging(self) -> str | None:
        """Return the judge's description, shown at the start; None if this process does not judge."""
        return at_work(self.judge) if self.judge is not None else None

    def _needs_policy(self) -> bool:
        return "serve" in self.names or ("judge" in self.names and self.config.judge.llm.model == "policy")

    def _build_loop(self, name: str) -> Loop:
        builders: Mapping[str, Callable[[], Loop]] = {
            "serve": self._serve_loop,
            "collect": self._collect_loop,
            "judge": self._judge_loop,
            "train": self._train_loop,
        }
        return builders[name]()

    def _opened(self, ledger: L) -> L:
        self._ledgers[str(ledger.writer)] = ledger
        return ledger

    def _serve_loop(self) -> Loop:
        from openclaw_rl.serve.loop import ServeLoop

        assert self.policy is not None
        self._turns = self._opened(ServeLedger(ledger_place(self.config), sync=self.config.store.sync))
        return ServeLoop(
            self.policy,
            served_versions(self.config, self._turns),
            alarms=self._storage_alarms,
            busy=self._busy,
            load=lambda: self.api.state.server.metrics.load() if self.api is not None else {},
            url=lambda: self._url,
        )

    def _busy(self) -> bool:
        """Return True while a request in this process waits for its reply."""
        return self.api is not None and self.api.state.server.busy

    def _storage_alarms(self) -> list[dict[str, Any]]:
        return self.api.state.server.answerer.recorder.alarms() if self.api is not None else []

    def _collect_loop(self) -> Loop:
        from openclaw_rl.collect.loop import CollectLoop

        ledger = self._opened(CollectLedger(ledger_place(self.config)))
        idle, env_idle = self.config.collect.session_idle, episode_patience(self.config)
        return CollectLoop(ledger, session_idle=idle, env_idle=env_idle)

    def _judge_loop(self) -> Loop:
        from openclaw_rl.judge.loop import JudgeLoop

        ledger = self._opened(JudgeLedger(ledger_place(self.config)))
        self.judge = build_judge(self.config, self.policy)
        take = note_taker(self.config, self._book()) if self.config.notes.enabled else None
        return JudgeLoop(ledger, self.judge, judge_loop_settings(self.config), take_notes=take)

    def _book(self) -> NotesBook:
        """Return the notes in this run, through a separate connection: any loop may change them."""
        if self._notes is None:
            self._notes = NotesLedger(ledger_place(self.config))
        return NotesBook(self._notes)

    def _train_loop(self) -> Loop:
        from openclaw_rl.app.notes import build_distillation
        from openclaw_rl.train.loop import Housekeeping, Review, TrainLoop
        from openclaw_rl.train.queue import QueueSettings
        from openclaw_rl.train.startup import RunOrigin

        ledger = self._opened(TrainLedger(ledger_place(self.config), sync=self.config.store.sync))
        assert self.trainer is not None
        train = self.config.train
        directory = train.save_dir or self.config.run.dir / "versions"
        checkpoints.claim(directory, run=self.config.run.dir, known=ledger.versions())
        store_artifacts(self.config, ledger)
        return TrainLoop(
            ledger,
            self.trainer,
            origin=RunOrigin(
                base=self.config.policy.model,
                directory=directory,
                resume=train.resume,
            ),
            samples=build_sample_settings(self.config),
            queue=QueueSettings(
                batch_size=train.batch_size,
                max_wait=train.max_wait,
                idle=train.idle_wait,
                group_size=train.num_rollouts_per_prompt,
                patience=episode_patience(self.config),
                group_wait=2 * episode_patience(self.config),
                verdict_wait=self.config.collect.session_idle + 2 * episode_patience(self.config),
                people=build_people(self.config) if train.share != "all" else (),
            ),
            review=Review(gate=self._gate(ledger), monitor=self._monitor(ledger), retry=self.config.gate.retry),
            housekeeping=Housekeeping(
                retain=RetentionPolicy(keep=train.keep, interval=train.save_interval),
                recorder=self._keep_records(ledger),
            ),
            pause_after=train.alarms.pause_after,
            distillation=build_distillation(self.config, self._book(), self._lend_policy(), busy=self._busy),
        )

    def _lend_policy(self) -> GetPolicy:
        """Return a getter for this process's policy, or for a separate one if the process has none."""
        from openclaw_rl.gate.examination import LazyPolicy

        if self.policy is not None:
            return self._borrow
        refuse_apart(self.config)
        self._own_policy = self._own_policy or LazyPolicy(lambda: build_policy(self.config))
        return self._own_policy

    def _gate(self, ledger: LedgerReader) -> Gate | None:
        """Return the gate, with the policy of this process or a separate one."""
        from openclaw_rl.gate.examination import VersionGate
        from openclaw_rl.judge.custom import reaction_of

        settings = self.config.gate
        if settings.mode == "off":
            log.warning("gate.mode is off: every version is served unexamined")
            return None
        return VersionGate(
            ledger,
            self._lend_policy(),
            limits=gate_limits(self.config),
            sampling=default_sampling(self.config),
            user_score=lambda case: reaction_of(case).score,
            probes=settings.probes,
            distillation_probes=settings.distillation_probes,
            replays=settings.replays,
            tokens=settings.tokens,
            tasks=held_out_tasks(self.config),
        )

    async def _borrow(self) -> Policy:
        assert self.policy is not None
        return self.policy

    def _monitor(self, ledger: LedgerReader) -> LiveMonitor | None:
        from openclaw_rl.gate.regression import MonitorRules, VersionMonitor

        settings = self.config.monitor
        rules = MonitorRules(**settings.model_dump(exclude={"mode"}))
        return VersionMonitor(ledger, rules=rules) if settings.mode == "on" else None

    def _keep_records(self, ledger: LedgerReader) -> Recorder:
        from openclaw_rl.train.sinks import open_sinks

        run = self.config.run
        path = run.dir / "record.jsonl" if run.record else None
        self._recorder = Recorder(ledger, path, open_sinks(run.sinks, run.dir))
        return self._recorder

    def _build_api(self) -> Any:
        from openclaw_rl.serve.api import build_app

        assert self.policy is not None
        return build_app(
            policy=self.policy,
            ledger=self._turns,
            access=self._access(),
            limits=build_limits(self.config),
            generation=build_generation(self.config, self.policy, when_ready(self.ready, self._generate())),
            recording=build_recording(self.config),
            inline_feedback=build_inline_feedback(self.config),
            notes=standing_notes(self.config, self._book(), self.policy),
            control=partial(submit_control, ledger_place(self.config)),
            delete=partial(delete_session, ledger_place(self.config)),
            health=self._health,
        )

    def _access(self) -> AccessRules:
        from openclaw_rl.serve.redact import AccessRules

        serve = self.config.serve
        keys = settings.api_keys(self.config)
        refuse_open_listener(serve.host, keys)
        # environments in this process, and commands on its run directory, need a key like any client
        own_keys = {self._local_key: f"{ENVIRONMENT}local"}
        if self.config.env.type:
            own_keys[self._env_key] = f"{ENVIRONMENT}{self.config.env.type}"
        return AccessRules(keys=keys, own_keys=own_keys, admins=serve.admins, cors_origins=serve.cors_origins)

    def _health(self) -> dict[str, Any]:
        """Return whether the model is loaded, and the reasons why this server cannot take requests."""
        outage = self.policy.outage if isinstance(self.policy, ReportsOutage) else None
        down = self._turns.trouble
        reasons = [outage] if outage else []
        if down:
            reasons.append(f"the ledger cannot be written: {down.why}; {down.remedy}")
        return {"ready": self.ready.is_set(), "reasons": reasons}

    def _generate(self) -> Generate:
        path = self.config.policy.generate
        return plugins.resolve("generate", path) if path else generate_directly

    # --- running ---

    @contextlib.asynccontextmanager
    async def started(self, *, wait_for_judge: bool = True, stop: asyncio.Event | None = None) -> AsyncIterator[None]:
        """Start the policy and the judge's models (in the background unless ``wait_for_judge``); release all at the
        end. The trainer starts in its loop. Raises StoppedWhileStarting if ``stop`` is set before all are ready."""
        try:
            if self.policy is not None:
                await unless_stopped(self.policy.start(), stop or asyncio.Event())
            if "serve" in self.loops:
                await self.loops["serve"].tick()  # the live version already answers the first request
            self.ready.set()
            async with running(self.judge, wait=wait_for_judge) if self.judge else contextlib.nullcontext():
                yield
        finally:
            await self._stop()

    async def _stop(self) -> None:
        for part in (self._recorded, self.trainer, self.policy, self._own_policy):
            if part is not None:
                await part.stop()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)
        self.close()

    def close(self) -> None:
        """Release the ledger. Safe to call twice."""
        for ledger in self._ledgers.values():
            ledger.close()
        if self._notes is not None:
            self._notes.close()

    async def tick(self) -> int:
        """Tick every loop once, in pipeline order; return the number of items moved. For tests and `--once`."""
        return sum([await loop.tick() for loop in self.loops.values()])

    async def finish(self) -> int:
        """Tick until no loop has work."""
        return await drain(list(self.loops.values()))

    @classmethod
    def without_waiting(cls, config: Config, *, loops: Sequence[Writer]) -> App:
        """Return an app that does not wait for a full batch: for `--once`, which trains the present turns and ends."""
        train = config.train.model_copy(update={"max_wait": 0.0})
        return cls(config.model_copy(update={"train": train}), loops=loops)

    async def run(self, stop: asyncio.Event, *, listening: Callable[[str], None] = lambda _: None) -> None:
        """Listen, start, run every loop until ``stop``; then end streams gracefully and release all resources.

        Raises NothingToPlay after that if no task in its environment may train.
        """
        server = await self._listen(listening) if self.api is not None else None
        try:
            async with (
                self.started(wait_for_judge=False, stop=stop),
                self._episodes(server) as env_loops,
                self._wakes.listening(),
                asyncio.TaskGroup() as group,
            ):
                runners = [self._runner(*named) for named in {**self.loops, **env_loops}.items()]
                tasks = [group.create_task(runner.run(stop)) for runner in runners]
                await stop.wait()
                self._wakes.wake_all()
                await asyncio.gather(*(loop.stop() for loop in env_loops.values()))  # before the server stops
                await self._stop_listening(server)
                await asyncio.wait(tasks, timeout=min(self.config.run.drain, LOOP_SECONDS))
                for task in tasks:  # an interrupted step or judgement costs nothing: it is repeated
                    task.cancel()
        except StoppedWhileStarting:
            return
        finally:
            await self._stop_listening(server)
        for over in filter(None, (runner.over for runner in runners)):
            raise over

    def _runner(self, name: str, loop: Loop) -> LoopRunner:
        health, run, wakes = self._ledgers.get(name) or self._turns, self.config.run, self._wakes
        poll, wake = wakes.poll(name, run.poll), wakes.event(name)
        return LoopRunner(loop, health, poll=poll, backoff=run.backoff, wake=wake)

    def _episodes(self, server: HttpServer | None) -> AbstractAsyncContextManager[dict[str, Episodes]]:
        from openclaw_rl.app.environments import episode_loops

        ledger = self._turns if server is not None else None
        return episode_loops(self.config, ledger, url=server.url if server else None, key=self._env_key)

    async def _listen(self, listening: Callable[[str], None]) -> HttpServer:
        serve = self.config.serve
        listener = bind(serve.host, serve.port)
        limits = build_limits(self.config)
        server = HttpServer(
            self.api,
            listener,
            grace=self.config.run.drain,
            head_seconds=limits.read_seconds,
            head_bytes=limits.header_bytes,
            connections=max(raise_open_files() - RESERVED_FILES, RESERVED_FILES),
        )
        await server.begin()
        host, port = listener.getsockname()[:2]
        model = self.api.state.server.model_name
        address.write(self.config.run.dir, ServerAddress.of(host, port, model=model, env_key=self._local_key))
        self._url = server.url
        listening(server.url)
        return server

    async def _stop_listening(self, server: HttpServer | None) -> None:
        """Safe to call twice."""
        if server is not None:
            address.remove(self.config.run.dir)
            await server.end()
