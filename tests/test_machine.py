"""What this machine has: a container's limit counts like the machine's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl import machine


def test_a_containers_limit_and_what_it_uses_bound_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    total, free = machine.total_memory(), machine.free_memory()
    assert total is not None
    assert free is not None
    assert 1 << 20 < free <= total
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000\n")
    assert machine.total_memory() == total, "no limit"
    (tmp_path / "memory.max").write_text("8000\n")
    assert (machine.total_memory(), machine.free_memory()) == (8000, 5000)
    (tmp_path / "memory.current").write_text("9000\n")
    assert machine.free_memory() == 0, "never less than nothing"
