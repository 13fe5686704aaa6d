"""Runs the text of `run_inside` in a sandbox, and reads its report only where it is sealed with our key."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from openclaw_rl.envs.sandbox import Sandbox
from openclaw_rl.envs.verifier import run_inside

LARGEST: Final = 8 << 20
PASSED: Final = "passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run of tests. ``whole``: it came to its end. ``exit`` None: nothing that is sealed came of it.

    ``outcomes`` are by test, as pytest names it, of all ``runs``; ``rewards`` what a script wrote to its files.
    """

    outcomes: Mapping[str, str]
    whole: bool
    exit: int | None
    seconds: float
    output: str
    stopped: str
    rewards: Mapping[str, str | None] = field(default_factory=dict)
    runs: int = 0


async def run_sealed(
    sandbox: Sandbox,
    python: str,
    settings: Mapping[str, Any],
    words: Sequence[str] = (),
    *,
    seconds: float | None = None,
) -> Report:
    """One run. It begins in ``/``, since an agent may remove any other folder; the child enters `cwd`."""
    key, place = secrets.token_hex(32), f"/tmp/{secrets.token_hex(8)}"
    given = json.dumps({**settings, "sealed": True, "report": place})
    line = [python, "-I", "-c", source(), given, *words]
    done = await sandbox.run(line, stdin=f"{key}\n".encode(), cwd="/", seconds=seconds)
    report = await _sealed(sandbox, place, key, done.output)
    outcomes, whole = read_runs(report.get("runs", []))
    return Report(
        outcomes=outcomes,
        whole=whole,
        exit=report.get("exit"),
        seconds=done.seconds,
        output=done.output,
        stopped=done.stopped,
        rewards=report.get("rewards", {}),
        runs=len(report.get("runs", [])),
    )


def source() -> str:
    """The text that runs inside."""
    return inspect.getsource(run_inside)


async def _sealed(sandbox: Sandbox, place: str, key: str, output: str) -> dict[str, Any]:
    """The report, if it is there and the seal is of this very text; code under test can write files and print."""
    try:
        data = await sandbox.read(place, most=LARGEST)
    except OSError:
        return {}
    seal = hmac.new(key.encode(), data, hashlib.sha256).hexdigest()
    return dict(json.loads(data)) if seal in output else {}


def read_runs(runs: Any) -> tuple[dict[str, str], bool]:
    """The outcomes of all runs, and whether each came to its end. A test with several has the one that is not passed.

    >>> read_runs([{"verdicts": [["a", "passed"], ["a", "failed"], [[], "passed"]], "ended": True}])
    ({'a': 'failed'}, True)
    """
    outcomes: dict[str, str] = {}
    listed = [each for each in runs if isinstance(each, dict)] if isinstance(runs, list) else []
    for run in listed:
        for verdict in run.get("verdicts", ()):
            match verdict:
                case [str(test), str(outcome)] if outcomes.get(test, PASSED) == PASSED:
                    outcomes[test] = outcome
    return outcomes, bool(listed) and all(run.get("ended") is True for run in listed)
