"""One-time operations for commands: read a file into the ledger, explain a verdict, roll back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.app.application import App, full_batches_only, ledger_place
from openclaw_rl.app.factories import running_policy
from openclaw_rl.app.judges import asks_policy, build_judge, hint_limits, running
from openclaw_rl.app.recorded import data_files, unread_by_rules
from openclaw_rl.config import Config
from openclaw_rl.errors import LedgerError, LedgerHeld
from openclaw_rl.ports import Policy
from openclaw_rl.store import ImportLedger, LedgerReader, TrainLedger, submit_request
from openclaw_rl.train.loop import TrainLoop
from openclaw_rl.train.steps import figures
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions, VersionManager
from openclaw_rl.views import transcripts
from openclaw_rl.views.transcripts import ImportReport, import_file


async def import_files(
    config: Config, files: Sequence[Path], *, user: str, strict: bool, progress: Callable[[str], None]
) -> dict[Path, transcripts.ImportReport]:
    """Read recorded conversations into the ledger, with the policy's own tokens and log-probs."""
    async with running_policy(config) as policy:
        with ImportLedger(ledger_place(config), sync=config.store.sync) as ledger:
            live = LiveVersions(ledger).live()
            if live is not None:
                await policy.load(live)
            reports = {}
            unread = unread_by_rules(config)
            for path in files:

                async def report_on(report: transcripts.ImportReport, name: str = path.name) -> None:
                    progress(f"{name}: {report.turns} turns")

                reports[path] = await transcripts.import_file(
                    ledger,
                    path,
                    policy,
                    user=user,
                    strict=strict,
                    progress=report_on,
                    unread=unread,
                )
            return reports


async def explain_verdict(config: Config, turn: str) -> dict[str, Any]:
    """Explain the judge's verdict on a turn: judge it again without writing."""
    from openclaw_rl.judge.explain import explain

    with LedgerReader(ledger_place(config)) as ledger:
        case = ledger.case(turn)
    async with contextlib.AsyncExitStack() as stack:
        policy = await stack.enter_async_context(running_policy(config)) if asks_policy(config) else None
        judge, limits = build_judge(config, policy), hint_limits(config)
        await stack.enter_async_context(running(judge, wait=True))
        trusted, behaviour = config.judge.trusted_envs, config.judge.behaviour
        return asdict(await explain(case, judge, limits=limits, trusted=trusted, behaviour=behaviour))


async def roll_back_now(config: Config, *, to: int | None, why: str, patience: float | None = None) -> Version:
    """Request a rollback from the running trainer and wait for it; roll back here if no trainer runs.

    ``patience`` None: half a minute longer than a failing trainer waits before it retries.
    """
    place = ledger_place(config)
    patience = config.run.backoff + 30.0 if patience is None else patience
    with LedgerReader(place) as reader:
        LiveVersions(reader).rollback_target(to)  # raises if it is impossible
        try:
            with TrainLedger(place, sync=config.store.sync) as ledger:
                return VersionManager(ledger).roll_back(to, why)
        except LedgerHeld:
            request = submit_request(place, "rollback", version=to, reason=why)
        for _ in range(int(patience / 0.1)):
            if reader.carried_out(request):
                return _version_of(reader, request)
            await asyncio.sleep(0.1)
    raise LedgerError(
        f"the rollback is written down (request {request}) and not carried out yet: the trainer is at work",
        remedy="it follows automatically, so do not repeat it; 'openclaw-rl versions' shows it",
    )


def _version_of(reader: LedgerReader, request: int) -> Version:
    """Return the version that a rollback made; another version may be live by now."""
    version = reader.version_of_request(request)
    if version is None:
        raise LedgerError("the running trainer refused to roll back", remedy="its log says why")
    return version


# Training on recorded conversations: read, judge and train all of them, then end.
#
# A file is read a batch at a time, and each batch is trained before the next is read: a recorded reply's log-probs are
# computed with the version live at that time, which must not be many versions old when the reply trains.

WriteLine = Callable[[str], None]


@dataclass(slots=True)
class Summary:
    """The result for the files: a report for each, the steps taken, the live version at the end.

    ``waiting`` turns are not judged or trained yet; ``undecided`` is the version that waits for the gate's decision, if
    any.
    """

    reports: dict[Path, ImportReport] = field(default_factory=dict)
    steps: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    live: int = 0
    undecided: int | None = None
    waiting: int = 0
    paused: str | None = None

    @property
    def whole(self) -> bool:
        """Return True if everything was read, judged, trained or dropped, and the last version decided."""
        refused = any(report.refused for report in self.reports.values())
        return not (refused or self.waiting or self.undecided)


async def train_from(config: Config, files: Sequence[Path], *, user: str = "default", progress: WriteLine) -> Summary:
    """Process the conversations in ``files`` through every loop; ``progress`` receives a line for each file and step.

    Known turns are not read again, and a trained turn does not train again: repeating a call trains nothing, and an
    interrupted call is continued.
    """
    files = data_files(files)
    app = App(full_batches_only(config), loops=("collect", "judge", "train"), policy=True)
    async with app.started():
        with ImportLedger(ledger_place(config), sync=config.store.sync) as ledger:
            assert app.policy is not None
            return await _Pipeline(app, app.policy, ledger, user, progress).take(files)


class _Pipeline:
    """Processes files to versions, one batch at a time."""

    def __init__(self, app: App, policy: Policy, ledger: ImportLedger, user: str, progress: WriteLine) -> None:
        self._app, self._policy, self._ledger = app, policy, ledger
        self._versions = LiveVersions(ledger)
        self._user, self._progress = user, progress
        last = ledger.last_step()
        self._reported = last.number if last else 0
        self._read = 0
        self._summary = Summary()
        self._dropped = ledger.drop_counts()

    async def take(self, files: Sequence[Path]) -> Summary:
        await self._work()  # an earlier run's remaining work, and the first version
        for file in files:
            self._read = 0
            await self._up_to_date()
            report = await import_file(
                self._ledger,
                file,
                self._policy,
                user=self._user,
                progress=self._after,
                unread=unread_by_rules(self._app.config),
            )
            self._summary.reports[file] = report
            self._progress(
                f"{file}: {report.turns} turns taken, {report.known} known already, {len(report.refused)} refused"
            )
            if report.verdicts:
                self._progress(f"{file}: {report.verdicts}")
            for fault in report.refused:
                self._progress(f"refused {fault}")
        train = self._app.loops["train"]
        assert isinstance(train, TrainLoop)
        train.hurry()
        await self._work()
        return self._end()

    async def _after(self, report: ImportReport) -> None:
        if report.turns - self._read >= self._app.config.train.batch_size:
            self._read = report.turns
            await self._work()
            await self._up_to_date()

    async def _up_to_date(self) -> None:
        """Load the newest version, so that log-probs are computed with the weights that will train."""
        live = self._versions.live()
        if live is not None and live.number != self._policy.live:
            await self._policy.load(live)

    async def _work(self) -> None:
        while await self._app.tick():
            self._report_steps()
        self._report_steps()

    def _report_steps(self) -> None:
        for number in self._ledger.steps_after(self._reported, 1000):
            step, version = self._ledger.step(number), self._ledger.made_by(number)
            result = f"version {version.number}" if version else f"skipped: {step.skipped}"
            self._progress(f"step {number}: {figures(step)}, {result}")
            self._reported = number
            self._summary.steps += 1
            self._summary.trained += len(step.turns)

    def _end(self) -> Summary:
        live, candidate = self._versions.live(), self._versions.candidate()
        now = self._ledger.drop_counts()
        self._summary.dropped = {
            why: count - before for why, count in now.items() if count > (before := self._dropped.get(why, 0))
        }
        self._summary.live = live.number if live else 0
        self._summary.undecided = candidate.number if candidate else None
        self._summary.waiting = self._ledger.backlog()
        self._summary.paused = self._ledger.paused()
        return self._summary
