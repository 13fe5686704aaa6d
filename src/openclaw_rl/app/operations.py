"""What a command does once and is done: read a file into the ledger, explain a verdict, roll back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openclaw_rl.app.application import ledger_place
from openclaw_rl.app.factories import running_policy
from openclaw_rl.app.imports import unread_by_rules
from openclaw_rl.app.judge_settings import hint_limits
from openclaw_rl.app.judges import asks_policy, build_judge, running
from openclaw_rl.config import Config
from openclaw_rl.errors import LedgerError, LedgerHeld
from openclaw_rl.store import ImportLedger, LedgerReader, TrainLedger, submit_request
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions, VersionManager
from openclaw_rl.views import transcripts


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
    """How the judge comes to its verdict on a turn: it judges anew and nothing is written."""
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
    """Ask the running trainer to roll back and wait for it; do it here when none runs.

    ``patience`` None: half a minute longer than a failing trainer waits before it tries again.
    """
    place = ledger_place(config)
    patience = config.run.backoff + 30.0 if patience is None else patience
    with LedgerReader(place) as reader:
        LiveVersions(reader).rollback_target(to)  # raises when it cannot be done
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
    """The version that a rollback made; by now another one may be live already."""
    version = reader.version_of_request(request)
    if version is None:
        raise LedgerError("the running trainer refused to roll back", remedy="its log says why")
    return version
