"""Ctrl-C while commands of episodes run in their sandboxes: `up` waits for none of them and leaves no process behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sandboxes import needs_sandbox
from system import System

from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import wait_until

MARK = f"7{os.getpid()}"
"""seconds that a command sleeps, by which its process is known: more than an hour"""


@needs_sandbox
@pytest.mark.slow
def test_an_interrupt_waits_for_no_command_of_an_episode_and_leaves_no_process(tmp_path: Path) -> None:
    """An end that waited for the commands under way would take hours; `System.interrupt` gives it a minute."""
    reply = f"```bash\\nsleep {MARK}\\n```"
    sets = ("env.type=terminal", 'env.levels=["print-word"]', "env.per_level=2", "env.form=text", "env.parallel=4")
    system = System(
        tmp_path, *sets, "env.sandbox.command_seconds=86400", "gate.tasks=0", f'policy.options={{reply="{reply}"}}'
    )
    system.start()
    try:
        wait_until(lambda: sleepers() == 4)
        assert system.interrupt() == 0
        wait_until(lambda: sleepers() == 0)
    finally:
        if system.process.poll() is None:
            system.kill()
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert ledger.check() == []
        assert ledger.counts()["trained"] == 0


def sleepers() -> int:
    """Processes that sleep as the episodes' commands do."""
    found = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += place.read_bytes() == f"sleep\0{MARK}\0".encode()
        except OSError:  # it ended while we looked
            continue
    return found
